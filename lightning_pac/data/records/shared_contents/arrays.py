"""The arrays of a record, and those that a dataset holds."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from lightning_utilities.core.apply_func import apply_to_collection
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["arrays_in", "arrays_of", "largest_array"]

_SHORT = 16  # tuples and dictionaries of tables


def arrays_of(record: Any) -> list[NDArray[Any]]:
    """Those of a record's tensors, arrays and numbers in tensors, in this order.

    Args:
        record: As a dataset gives it.
    """
    found: list[NDArray[Any]] = []
    apply_to_collection(record, Tensor, lambda leaf: found.append(_as_array(leaf)))
    apply_to_collection(record, np.ndarray, found.append)
    return found


def largest_array(record: Any) -> NDArray[Any]:
    """The first of those with the most numbers.

    Args:
        record: As a dataset gives it.

    Raises:
        ValueError: If it has none.
    """
    return max(arrays_of(record), key=np.size)


def _as_array(leaf: Tensor) -> NDArray[Any]:
    """The numbers of a tensor in double precision, which holds those of any type but large integers."""
    leaf = leaf.detach().cpu().resolve_conj()
    return leaf.numpy() if leaf.is_complex() else leaf.double().numpy()


def arrays_in(attributes: Mapping[Any, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Tensors, arrays and lists in attributes, and in short tuples and dictionaries there, with where they are.

    Args:
        attributes: Of a dataset.
    """
    for name, value in list(attributes.items()):
        if isinstance(value, list) or (isinstance(value, Tensor | np.ndarray) and _has_rows(value)):
            yield (name,), value
        elif isinstance(value, tuple | dict) and len(value) <= _SHORT:
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            yield from (
                ((name, key), one)
                for key, one in entries
                if isinstance(one, list) or (isinstance(one, Tensor | np.ndarray) and _has_rows(one))
            )


def _has_rows(value: Any) -> bool:
    return not getattr(value, "is_nested", False) and value.ndim > 0
