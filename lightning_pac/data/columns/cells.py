"""Cells of a table as numbers and texts."""

import math
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
        raise ValueError(
            f"table has no column {name!r}: give a mapping of names to columns, a table of pandas or a list of rows."
        ) from error


def as_number(value: Any) -> float:
    """The number in a cell, NaN where it is missing or none: a single odd cell must not end the run."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def as_text(value: Any) -> str:
    """The text in a cell, empty where it is missing."""
    return "" if value is None or value != value else str(value).strip()
