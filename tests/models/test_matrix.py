"""What people train, as they wrote it: clipped sums equal those of one record at a time, through the whole module."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from checks import TOLERANCE, check
from entries import ENTRIES
from page import BEGIN, END, rows, shown

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if entry.fast else pytest.mark.models) for name, entry in ENTRIES.items()]
)
def test_clipped_sum_is_that_of_records_alone(name: str, record_property: Callable[[str, object], None]) -> None:
    """With a record in another's place, too: its own contribution moves, by at most 2 C, and no other one."""
    error, move = check(ENTRIES[name])
    record_property("error and move of a network", (name, (error, move)))
    assert math.isnan(error) or error < TOLERANCE


def test_page_shows_every_network_and_what_becomes_of_it() -> None:
    table = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip().splitlines()[2:]
    expected = [shown(*row) for row in rows().items()]
    assert [line.startswith(row) for line, row in zip(table, expected, strict=True)] == [True] * len(expected)


def test_at_most_three_networks_whose_records_are_separate_are_refused() -> None:
    assert sum(bool(entry.refusal) and entry.advice is None for entry in ENTRIES.values()) <= 3
    assert len(ENTRIES) >= 60
