"""Queries that are asked only to be counted."""

from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

__all__ = ["append_dummies", "check_paddable"]


def check_paddable(inputs: Any) -> None:
    """Whether dummies can be appended to the inputs.

    Raises:
        MisconfigurationException: If they are not tensors with one row for each query.
    """
    sizes: list[int | None] = []
    apply_to_collection(inputs, Tensor, lambda tensor: sizes.append(len(tensor) if tensor.ndim else None))
    if len(set(sizes)) != 1 or None in sizes:
        found = sorted({str(size) for size in sizes}) or [type(inputs).__name__]
        raise MisconfigurationException(
            f"DummyPadding appends rows to tensors with one row for each query, and found {', '.join(found)}: collate "
            "the inputs into such tensors."
        )


def append_dummies(inputs: Any, num_dummies: int) -> Any:
    """The inputs with that many copies of the first query behind them.

    Example:
        >>> append_dummies({"tokens": torch.tensor([[1, 2], [3, 4]])}, num_dummies=1)["tokens"].tolist()
        [[1, 2], [3, 4], [1, 2]]
    """
    return apply_to_collection(
        inputs, Tensor, lambda tensor: torch.cat([tensor, tensor[:1].expand(num_dummies, *tensor.shape[1:])])
    )
