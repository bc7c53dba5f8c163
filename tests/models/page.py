"""The table of networks in the documentation."""

import math
from collections.abc import Mapping

from entries import ENTRIES, Entry

BEGIN, END = "<!-- written by make test-models -->", "<!-- end of the table -->"


def outcome(entry: Entry) -> str:
    """In words, with the reason."""
    if entry.advice is None:
        return f"refused: {entry.reason}" if entry.refusal else "as written"
    return f"after `{entry.advice.__name__}`"


def rows() -> dict[str, str]:
    """A line for each network but for what was measured."""
    return {name: f"| {name} | {entry.library} | {outcome(entry)} |" for name, entry in ENTRIES.items()}


def with_table(page: str, errors: Mapping[str, float]) -> str:
    """The page with the errors found, rounded up to a power of ten."""
    before, rest = page.split(BEGIN)
    lines = [BEGIN, "", "| network | library | trains | differs by at most |", "| --- | --- | --- | --- |"]
    lines += [f"{row} {_shown(errors.get(name, math.nan))} |" for name, row in rows().items()]
    return "\n".join([before + lines[0], *lines[1:], "", END]) + rest.split(END)[1]


def _shown(error: float) -> str:
    return "" if math.isnan(error) else f"1e{math.ceil(math.log10(error)):d}"
