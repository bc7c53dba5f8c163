"""Whether records read some columns of a table at the rows of others."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_pac.data.records.shared_contents.arrays import arrays_in

__all__ = ["check_columns"]


def check_columns(dataset: Any, rows: Mapping[str, Mapping[int, int]]) -> None:
    """Refuse columns of which several records have one row, as features of the nearest neighbours of records are.

    Args:
        dataset: A map-style dataset.
        rows: By the names of its tables with a row for each record, the row that decides a record, by its index.

    Raises:
        ValueError: Names the table. Where no array of the dataset says which rows it reads, a warning does.
    """
    straight = [name for name, of_table in rows.items() if all(index == row for index, row in of_table.items())]
    for name, of_table in rows.items():
        if name in straight or not straight:
            continue
        listed = [values for _, values in arrays_in(vars(dataset)) if _lists(values, of_table)]
        if any(len(np.unique(np.asarray(values))) == len(values) for values in listed):
            continue  # each row goes to one record
        what = (
            f"{type(dataset).__name__} reads {name!r} at other rows than {straight[0]!r}, so that one may count for "
            "several records"
        )
        if listed or len(set(of_table.values())) < len(of_table):
            raise ValueError(f"{what}: let an index read all at one row, and take nothing of others but public data.")
        warnings.warn(f"{what}: make sure that each goes to one record only.", stacklevel=2)


def _lists(values: Any, rows: Mapping[int, int]) -> bool:
    """Whether an array names these rows."""
    try:
        return all(int(values[index]) == row for index, row in rows.items())
    except Exception:  # it holds no numbers
        return False
