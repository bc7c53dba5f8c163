"""What README and the documentation show runs as it stands: their Python, and their `lightning-pac` lines."""

import pathlib
import re
import shlex
import sys

import pytest

import lightning_pac
from lightning_pac import cli

ROOT = pathlib.Path(lightning_pac.__file__).parent.parent
FENCE = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is in a checkout")


def files(page: pathlib.Path) -> dict[str, str]:
    """The files that a page tells its reader to write."""
    return {block["title"]: block["text"] for block in FENCE.finditer(page.read_text()) if block["title"]}


def steps(page: pathlib.Path) -> list[str]:
    """What the page tells its reader to run, in its order, as Python; fragments are marked `py` and `console`."""
    shown = []
    for block in FENCE.finditer(page.read_text()):
        lines = [line for line in block["text"].splitlines() if line.startswith("lightning-pac ")]
        if block["language"] == "python" and not block["title"]:
            shown.append(block["text"])
        elif block["language"] == "bash":
            shown += [f"assert main({shlex.split(line, comments=True)[1:]!r}) == 0" for line in lines]
    return shown


PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.exists() and steps(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # The README speaks of the reader's own project; the first page of the documentation has one.
    for name, text in {**files(ROOT / "docs" / "get-started.md"), **files(page)}.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, pathlib.Path(name).stem, raising=False)
    names = {"__name__": "page", "main": cli.main}
    for step in steps(page):
        exec(compile(step, page.name, "exec"), names)


@pytest.mark.parametrize("block", ["```python\nundefined\n```\n", "```bash\nlightning-pac report nowhere\n```\n"])
def test_a_page_that_does_not_run_is_noticed(block, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises((NameError, AssertionError)):
        test_the_page_runs(page, tmp_path, monkeypatch)


def test_every_command_of_the_table_exists():
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "command-line.md").read_text(), re.MULTILINE)
    listed = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    subparsers = next(action for action in cli.build_parser()._actions if action.dest == "command")
    assert listed == set(subparsers.choices)
