"""The API pages show every public name once.

mkdocstrings leaves out without a word what has no docstring, and a function that is called like the module it is in: of
`lightning_pac.mechanisms.sliced_wasserstein.distances` it sees the module.
"""

import importlib
import pathlib
import re
from collections import Counter

import griffe
import pytest
import yaml

import lightning_pac

ROOT = pathlib.Path(lightning_pac.__file__).parent.parent
DIRECTIVE = re.compile(r"^::: (?P<path>\S+)\n(?P<body>(?: {4}.*\n?)*)", re.MULTILINE)

# `lightning_pac.cli` is shown by the page of the command line.
PACKAGES = (
    "accountants",
    "audits",
    "callbacks",
    "cards",
    "data",
    "evidence",
    "exceptions",
    "gradients",
    "information",
    "ledger",
    "mechanisms",
    "modules",
    "randomness",
    "report",
    "scenarios",
    "serve",
    "strategies",
    "tuning",
)

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is in a checkout")


def shown(pages: list[str]) -> list[str]:
    """Where the objects that pages show are defined, once for each time that one is shown."""
    paths = []
    for page in pages:
        for directive in DIRECTIVE.finditer(page):
            path, options = directive["path"], (yaml.safe_load(directive["body"]) or {}).get("options", {})
            if not member(path).is_module:
                paths.append(definition(path))
                continue
            hidden = [pattern.removeprefix("!") for pattern in options.get("filters", [])]
            names = [f"{path}.{name}" for name in importlib.import_module(path).__all__]
            names = [
                name for name in names if not any(re.search(pattern, name.rpartition(".")[2]) for pattern in hidden)
            ]
            paths += [definition(name) for name in names if not member(name).is_module]
    return paths


def member(path: str) -> griffe.Object:
    found = PACKAGE[path.removeprefix("lightning_pac.")]
    return found.final_target if found.is_alias else found


def definition(path: str) -> str:
    found = member(path)
    return f"{found.path}.{path.rpartition('.')[2]}" if found.is_module else found.path


PACKAGE = griffe.load("lightning_pac", search_paths=[str(ROOT)])
PAGES = [page.read_text() for page in sorted((ROOT / "docs" / "api").glob("*.md"))]
PUBLIC = {
    definition(f"lightning_pac.{package}.{name}")
    for package in PACKAGES
    for name in importlib.import_module(f"lightning_pac.{package}").__all__
}


def test_every_package_is_listed():
    found = {path.name.removesuffix(".py") for path in (ROOT / "lightning_pac").iterdir() if path.name[0] not in "_."}
    assert found - {"cli", "py.typed", "recipes"} == set(PACKAGES)


def test_every_public_name_is_shown_once():
    assert Counter(shown(PAGES)) == Counter(PUBLIC)


def test_every_top_level_name_is_shown():
    shown_names = {path.rpartition(".")[2] for path in PUBLIC}
    assert set(lightning_pac.__all__) - {"__version__"} <= shown_names


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_every_public_name_has_a_docstring(path):
    assert member(path).docstring is not None


def test_a_missing_and_a_repeated_name_are_noticed():
    assert "lightning_pac.scenarios.sampling.poisson.Poisson" not in shown(["::: lightning_pac.audits\n"])
    twice = shown(["::: lightning_pac.scenarios\n", "::: lightning_pac.data\n"])
    assert Counter(twice)["lightning_pac.scenarios.sampling.poisson.Poisson"] == 2
