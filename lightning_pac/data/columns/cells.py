"""Cells of a table as numbers and texts."""

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["Column", "as_number", "as_text", "table_column"]

Column = list[float] | list[str] | int
"""A range, a vocabulary, or a number of buckets."""


def table_column(table: Any, name: str) -> list[Any]:
    """A column of a table, whichever of its forms that has."""
    try:
        if hasattr(table, "keys"):
            return list(table[name])
        return [row[name] for row in table]
    except (KeyError, TypeError, IndexError) as error:
        has = ", ".join(repr(other) for other in _names(table) if other is not None)
        raise ValueError(
            f"table has no column {name!r}{' but only ' * bool(has)}{has}: give a mapping of names to columns, a table "
            "of pandas, or rows as csv.DictReader reads them (delimiter=';' where that stands between the cells)."
        ) from error


def _names(table: Any) -> list[Any]:
    named = table[0] if isinstance(table, Sequence) and table else table
    return list(named) if hasattr(named, "keys") else []


def as_number(value: Any) -> float:
    """The number in a cell, NaN where it is missing or none: a single odd cell must not end the run."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def as_text(value: Any) -> str:
    """The text in a cell, empty where it is missing."""
    try:
        missing = value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas' NA, which equals nothing and differs from nothing
        missing = True
    return "" if missing else str(value).strip()
