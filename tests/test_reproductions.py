"""The reproductions: no figure is claimed that no result holds, and the index is what its command writes."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks" / "papers"))

import index  # noqa: E402
import results  # noqa: E402

PAGES = sorted(page for page in (ROOT / "docs" / "reproductions").glob("*.md") if page.name != "index.md")


def test_the_index_is_what_its_command_writes() -> None:
    assert index.PAGE.read_text() == index.page(), "run python benchmarks/papers/index.py"


@pytest.mark.parametrize("paper", index.PAPERS)
def test_each_row_has_what_its_state_needs(paper: str) -> None:
    known = results.experiments()
    for row in index.rows(paper):
        proof = row.get("test")
        assert row["state"] in (*index.STATES, "illustration"), row
        assert row.get("experiment") in (None, *known), row
        assert proof is None or names_a_test(proof), row
        if row["state"] == "done":
            assert proof or index.FIGURE.search(row.get("ours", "")), f"{row['item']} is done, and nothing shows it"
        elif row["state"] != "illustration":
            assert row.get("why"), f"{row['item']} does not say why it is not done"
        written = index.claimed(index.FIGURE.sub("", row.get("ours", "")))
        assert not written, f"{row['item']}: {written} stand in the table and in no result"


def test_pages_claim_what_results_hold() -> None:
    missing = {
        f"{page.name}, {section.splitlines()[0]}": figures
        for page in PAGES
        for section in index.sections(page.read_text())
        if (figures := index.not_held(section))
    }
    assert not missing


def test_a_changed_figure_is_noticed() -> None:
    page = (ROOT / "docs" / "reproductions" / "one-sided-noise.md").read_text()
    (section,) = (part for part in index.sections(page) if part.startswith("## A single release"))
    assert index.not_held(section) == []
    assert index.not_held(section.replace("75.377", "75.373")) == ["75.373"]


def test_pictures_of_the_papers_are_shown() -> None:
    pictures = {
        name for experiment in results.experiments().values() for name in experiment.get("pictures", {}).values()
    }
    shown = {name for page in PAGES for name in re.findall(r"images/papers/([\w-]+\.png)", page.read_text())}
    kept = {path.name for path in (ROOT / "docs" / "images" / "papers").glob("*")}
    assert shown == kept
    assert shown <= pictures


@pytest.mark.parametrize("name", results.stored())
def test_results_are_those_of_the_command_that_is_named(name: str) -> None:
    result, experiment = results.Result.read(name), results.experiments()[name]
    command = experiment["command"].format(output=f"runs/{name}", data_root="data")
    assert result.command == f"python benchmarks/papers/{command}"
    assert set(result.spreads) <= set(result.figures)
    assert "needs" not in experiment
    assert result.differences(result.figures) == []


def test_a_run_outside_the_spread_is_noticed() -> None:
    drawn = [
        {"rows": [{"budget": "a", "accuracy": value}, {"budget": "b", "accuracy": 0.5}]} for value in (0.81, 0.8, 0.82)
    ]
    figures, spreads = results.summarize(drawn)
    assert list(figures) == ["rows.a.accuracy", "rows.b.accuracy"]
    assert list(spreads) == ["rows.a.accuracy"]
    assert spreads["rows.a.accuracy"] == pytest.approx(0.01 / 3**0.5)
    measured, errors = results.summarize([{"accuracy": 0.8, "accuracy_standard_error": 0.01, "seconds": 3.0}])
    kept = results.Result("", 1.0, 1, "", {}, measured, errors)
    assert kept.differences({"accuracy": 0.86, "seconds": 99.0}) == []
    assert len(kept.differences({"accuracy": 0.89, "seconds": 3.0})) == 1
    assert kept.differences({"seconds": 3.0}) == ["accuracy is missing"]


def names_a_test(proof: str) -> bool:
    """Whether a test of that name is in that file."""
    path, _, name = proof.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree))


def test_experiments_are_sorted_into_papers() -> None:
    text = (results.FOLDER / "experiments.json").read_text()
    assert {name.partition("/")[0] for name in json.loads(text)} == set(index.PAPERS)
