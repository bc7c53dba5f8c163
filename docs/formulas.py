"""Set formulas while the site is built, as MathML: pages load nothing from elsewhere, and need no JavaScript."""

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **kwargs: object) -> str:
    """Replace the formulas of a page; MkDocs calls this for every page.

    Raises:
        ValueError: If a formula has a command that is not known, which would be shown as it is.
    """
    return FORMULA.sub(lambda match: _set(html.unescape(match[3]).strip(), displayed=match[2] == "["), content)


def _set(formula: str, displayed: bool) -> str:
    mathml = convert(formula, display="block" if displayed else "inline")
    if unknown := re.search(r"\\[A-Za-z]+", mathml):
        raise ValueError(f"The formula {formula!r} has {unknown[0]}, which cannot be set: write it in another way.")
    return f'<div class="arithmatex">{mathml}</div>' if displayed else mathml
