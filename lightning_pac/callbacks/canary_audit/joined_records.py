"""Private records with canaries among them, each in or out by a secret coin."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

__all__ = ["JoinedRecords", "check_canaries", "over"]


class JoinedRecords(Dataset[Any]):
    """A dataset followed by the canaries whose coin shows heads, and by the others' second contents if there are any.

    Args:
        dataset: The private records.
        canaries: One record for each coin.
        others: What stands in a canary's place where its coin shows tails; nothing if left out.
        coins: True for heads.
    """

    def __init__(
        self, dataset: Any, canaries: Sequence[Any], others: Sequence[Any] | None, coins: Sequence[bool]
    ) -> None:
        self.dataset = dataset
        self.first = len(dataset)
        added = [
            (number, canaries[number] if heads else others[number])  # type: ignore[index]
            for number, heads in enumerate(coins)
            if heads or others is not None
        ]
        self.numbers = [number for number, _ in added]
        self._records = [record for _, record in added]

    def __len__(self) -> int:
        return self.first + len(self._records)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index] if index < self.first else self._records[index - self.first]

    def is_canary(self, index: int) -> bool:
        """Whether the record at an index stands for a canary."""
        return index >= self.first


def over(dataset: Dataset[Any], loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader as it is, but over that dataset; its sampler is of the old one, so it is to be rebuilt."""
    found = copy.copy(loader)
    object.__setattr__(found, "dataset", dataset)  # a DataLoader lets nobody set it
    return found


def check_canaries(name: str, records: Sequence[Any], example: Any) -> None:
    """Refuse what could not stand among the records.

    Raises:
        ValueError: If a canary has another form than a record.
    """
    wanted = _form(example)
    for number, record in enumerate(records):
        if _form(record) != wanted:
            raise ValueError(
                f"{name}[{number}] is not a record of the dataset ({_form(record)}, and a record is {wanted}): make "
                "canaries of the form that the dataset returns."
            )


def _form(record: Any) -> list[Any]:
    return [
        (str(leaf.dtype), tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
        for leaf in tree_leaves(record)
    ]
