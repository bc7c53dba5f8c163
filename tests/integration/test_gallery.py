"""The notebooks of the gallery: complete, shown as they are, light, and run in the slow part."""

import ast
import os
import re
from pathlib import Path

import pytest
from scripts import run_script

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "gallery"
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not SCRIPTS, reason="the examples are in a checkout")


def cells(script: Path) -> tuple[list[str], list[str]]:
    """Prose and code of a script in the percent format."""
    _, *parts = CELL.split(script.read_text())
    pairs = [(kind is not None, text) for kind, text in zip(parts[::2], parts[1::2], strict=True)]
    prose = [ast.literal_eval(text.strip()).strip() for is_prose, text in pairs if is_prose]
    return prose, [text.strip() for is_prose, text in pairs if not is_prose]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_has_a_title_a_lesson_of_three_lines_and_a_page_with_pictures_that_is_up_to_date(script):
    prose, code = cells(script)
    page = (PAGES / f"{script.stem}.md").read_text()
    assert prose[0].startswith("# ")
    heading, *lesson = prose[-1].splitlines()
    assert heading == "## What to take away"
    assert [line[:2] for line in lesson if line] == ["- "] * 3
    assert [block.strip() for block in FENCE.findall(page)] == code, "run `make gallery`"
    assert all(text in page for text in prose), "run `make gallery`"
    assert "Warning" not in page
    assert "Traceback" not in page
    pictures = [PAGES / name for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)]
    assert pictures
    assert all(picture.stat().st_size <= 60 * 1024 for picture in pictures)


def test_every_notebook_is_in_the_navigation_and_on_the_first_page_of_the_gallery():
    names = {f"{script.stem}.md" for script in SCRIPTS}
    assert names == {page.name for page in PAGES.glob("*.md")} - {"index.md"}
    assert names <= set(re.findall(r"gallery/(\w+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert names <= set(re.findall(r"\((\w+\.md)\)", (PAGES / "index.md").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_runs(script, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    root = Path(os.environ.get("DATA_ROOT", ROOT / "data"))
    if "DATA_ROOT" in script.read_text() and not root.exists():
        pytest.skip("it would download: give DATA_ROOT a folder with the folder adult")
    monkeypatch.setenv("DATA_ROOT", str(root.resolve()))
    assert run_script(script, folder=tmp_path)
