"""Formulas of the documentation are set while it is built."""

import importlib.util
import pathlib
import re

import markdown
import pytest

import lightning_pac

ROOT = pathlib.Path(lightning_pac.__file__).parent.parent

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is in a checkout")


@pytest.fixture
def set_formulas():
    spec = importlib.util.spec_from_file_location("formulas", ROOT / "docs" / "formulas.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.on_page_content


def render(text: str) -> str:
    extension = {"pymdownx.arithmatex": {"generic": True}}
    return markdown.markdown(text, extensions=list(extension), extension_configs=extension)


def test_formulas_become_mathml_and_nothing_else_changes(set_formulas) -> None:
    page = set_formulas(render("Less than $a < b$ & `$c$`.\n\n$$\\frac{1}{2} \\le 1$$\n"))
    inline, displayed = re.findall(r"<math.*?</math>", page)
    assert 'display="inline"' in inline
    assert "<mi>a</mi>" in inline
    assert "&#x0003C;" in inline or "&lt;" in inline
    assert 'display="block"' in displayed
    assert "<mfrac>" in displayed
    assert "\\" not in page
    assert page.startswith("<p>Less than <math")
    assert "<code>$c$</code>" in page


def test_a_formula_that_cannot_be_set_fails_the_build(set_formulas) -> None:
    with pytest.raises(ValueError, match=r"has \\nosuch, which cannot be set"):
        set_formulas(render("$\\nosuch{a}$"))


def test_pages_load_nothing_from_elsewhere() -> None:
    assert not re.search(
        r"^ *- *https?://|extra_javascript|extra_css.*//", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    for style in (ROOT / "docs").rglob("*.css"):
        assert not re.search(r"@import|url\(", style.read_text())
