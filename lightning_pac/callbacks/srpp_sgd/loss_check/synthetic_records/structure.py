"""Where the numbers of a record are."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.leaves import is_leaf

__all__ = ["leaves_of", "mapped"]


def mapped(record: Any, change: Callable[[Any, int], Any]) -> Any:
    """Change every tensor, array, number and list of numbers; what is none stays as it is."""
    numbers = itertools.count()

    def visit(value: Any) -> Any:
        if is_leaf(value):
            return change(value, next(numbers))
        if isinstance(value, Mapping):
            return type(value)({key: visit(entry) for key, entry in value.items()})  # type: ignore[call-arg]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(visit(entry) for entry in value))
        if isinstance(value, list | tuple):
            return type(value)(visit(entry) for entry in value)
        return value

    return visit(record)


def leaves_of(record: Any) -> list[Any]:
    """All that are changed by `mapped`."""
    found: list[Any] = []
    mapped(record, lambda leaf, _: found.append(leaf))
    return found
