"""Cells of a table as numbers and texts."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Column", "as_range", "as_word", "is_date", "is_range", "numbers_in", "places_in", "table_column"]

Column = list[float] | list[str] | int
"""A range of numbers or of two dates, a vocabulary, or a number of buckets."""

_WHOLE = re.compile(r"(-?)0*(\d+)(?:\.0+)?")


def table_column(table: Any, name: str) -> list[Any]:
    """A column of a table, whichever of its forms that has."""
    try:
        if hasattr(table, "keys"):
            return _one_column(table[name], name)
        rows = list(table)
        # A row of JSON may lack a name that others have.
        known = any(isinstance(row, Mapping) and name in row for row in rows)
        return [row.get(name) if known and isinstance(row, Mapping) else row[name] for row in rows]
    except (KeyError, TypeError, IndexError) as error:
        has = ", ".join(repr(other) for other in _names(table) if other is not None)
        raise ValueError(
            f"table has no column {name!r}{' but only ' * bool(has)}{has}: give a mapping of names to columns, a table "
            "of pandas, or rows as csv.DictReader reads them (delimiter=';' where that stands between the cells)."
        ) from error


def _one_column(found: Any, name: str) -> list[Any]:
    """The cells of what a table has under a name, which are no cells where it has that name twice.

    Raises:
        ValueError: If there are several columns.
    """
    if getattr(found, "ndim", 1) != 1:
        raise ValueError(f"table has several columns {name!r}: give each a name of its own.")
    return list(found)


def _names(table: Any) -> list[Any]:
    named = table[0] if isinstance(table, Sequence) and table else table
    return list(named) if hasattr(named, "keys") else []


def is_date(value: object) -> bool:
    """Whether it is a date, or a text that begins with one as ISO 8601 writes it."""
    return not math.isnan(_as_day(value))


def is_range(column: Column) -> bool:
    """Whether a column is a range, of numbers or of dates."""
    return not isinstance(column, int) and (
        isinstance(column[0], float) or (len(column) == 2 and all(map(is_date, column)))
    )


def as_range(low: float, high: float, like: Column) -> list[float] | list[str]:
    """A range in the unit of a column that has numbers or days; days are rounded outwards."""
    if isinstance(like, int) or not isinstance(like[0], str):
        return [low, high]
    return [date.fromordinal(day).isoformat() for day in (math.floor(low), math.ceil(high))]


def numbers_in(cells: Sequence[Any], column: Column) -> tuple[npt.NDArray[np.float64], float, float]:
    """The cells of a range as numbers, or as days, NaN where one is missing, and the ends of the range."""
    assert not isinstance(column, int)
    read = _as_day if isinstance(column[0], str) else _as_number
    low, high = map(read, column)
    return np.array([read(cell) for cell in cells], dtype=np.float64), low, high


def places_in(cells: Sequence[Any], vocabulary: Sequence[str]) -> list[int]:
    """The place of each cell in a vocabulary; of others, and of missing ones, the number after the last."""
    known = {as_word(text): place for place, text in enumerate(vocabulary)}
    return [known.get(as_word(cell), len(vocabulary)) for cell in cells]


def _as_number(value: Any) -> float:
    """The number in a cell, NaN where it is missing or none: a single odd cell must not end the run."""
    try:
        return float(value)
    except Exception:
        return math.nan


def as_word(value: Any) -> str:
    """The text in a cell, empty where it is missing, without what people and spreadsheets vary.

    Case and spaces do not count, nor do zeros before a whole number, which pandas takes away where no other cell of the
    column holds a text, or the ``.0`` behind it, which it adds where one is missing.
    """
    text = " ".join(_as_text(value).split()).casefold()
    whole = _WHOLE.fullmatch(text)
    return "".join(whole.groups()) if whole else text


def _as_day(value: Any) -> float:
    """The days since the year 1 of the date in a cell, NaN where it is missing or none."""
    try:
        return float(datetime.strptime(_as_text(value)[:10].rstrip("T "), "%Y-%m-%d").toordinal())
    except ValueError:
        return math.nan


def _as_text(value: Any) -> str:
    try:
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)  # which tables of pandas write as 1e+16 beside missing ones
        return "" if value is None or value != value else str(value).strip()
    except Exception:  # pandas' NA, which equals nothing and differs from nothing, or 5,000 digits
        return ""
