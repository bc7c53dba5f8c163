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


def rows() -> dict[str, list[str]]:
    """The names of the networks of each row, by the row's beginning."""
    grouped: dict[str, list[str]] = {}
    for name, entry in ENTRIES.items():
        beginning = f"| {entry.library} | {outcome(entry)} |"
        grouped.setdefault(beginning, []).append(name)
    return grouped


def shown(beginning: str, names: list[str]) -> str:
    """A row but for what was measured, its names without the library that they would repeat."""
    library = beginning.split(" | ")[0].removeprefix("| ")
    return f"{beginning} {'; '.join(name.removesuffix(f' ({library})') for name in names)} |"


def with_table(page: str, found: Mapping[str, tuple[float, float]]) -> str:
    """The page with the largest error of each row, rounded up to a power of ten, and its largest move, rounded up."""
    before, rest = page.split(BEGIN)
    head = "| library | trains | networks | differ by at most | one record moves the sum by at most |"
    lines = [BEGIN, "", head, "| --- | --- | --- | --- | --- |"]
    for beginning, names in rows().items():
        measured = [found[name] for name in names if name in found and not math.isnan(found[name][0])]
        error, move = map(max, zip(*measured, strict=True)) if measured else (math.nan, math.nan)
        lines.append(f"{shown(beginning, names)} {_rounded_up(error)} | {_in_norms(move)} |")
    return "\n".join([before + lines[0], *lines[1:], "", END]) + rest.split(END)[1]


def _in_norms(move: float) -> str:
    return "" if math.isnan(move) else f"{math.ceil(100 * move) / 100:.2f} C"


def _rounded_up(error: float) -> str:
    return "" if math.isnan(error) else f"1e{math.ceil(math.log10(error)):d}" if error else "0"
