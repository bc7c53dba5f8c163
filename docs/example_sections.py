"""Render our docstrings as Markdown: `Example:` sections as code, and reStructuredText mathematics as mathematics."""

import re
import textwrap

import griffe

LITERAL_EXAMPLE = re.compile(r"^( *)Example::\n((?:\1 +.*\n|\n)+)", re.MULTILINE)
DISPLAYED = re.compile(r"^( *)\.\. math:: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)


class ExampleSections(griffe.Extension):
    """Rewrites a docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Change the docstring in place."""
        if obj.docstring is None:
            return
        text = obj.docstring.value + "\n"
        text = LITERAL_EXAMPLE.sub(lambda match: _fenced(match[1], match[2]), text)
        # The docstring parser knows the plural only.
        text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
        text = DISPLAYED.sub(lambda match: f"{match[1]}$$\n{textwrap.dedent(match[2])}\n$$", text)
        obj.docstring.value = re.sub(r":math:`([^`]+)`", r"$\1$", text).rstrip()


def _fenced(indent: str, block: str) -> str:
    code = textwrap.indent(textwrap.dedent(block).strip(), indent)
    return f"{indent}**Example:**\n\n{indent}```python\n{code}\n{indent}```\n\n"
