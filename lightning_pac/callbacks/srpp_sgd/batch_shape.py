"""The shape of a batch but for its number of records, which no record may choose."""

from dataclasses import dataclass
from typing import Any

from lightning_pac.gradients.calls import nested_tensors

__all__ = ["PAD", "BatchShape"]

PAD = (
    "so that a record may choose the shape in which all others are computed, and how their gradients are rounded: pad "
    "every record to one fixed length, in the dataset or the collate function."
)


@dataclass(frozen=True)
class BatchShape:
    """Shapes of the tensors in a batch, each once.

    A collate function that pads to the longest record lets one record choose the shape in which all others are
    computed. Libraries order sums by it: records that are made to sit on the zeros of ReLUs then change their whole
    gradients (41 % of 3,000 that were drawn and moved onto one, where attention over 10 positions was padded to 64).

    Attributes:
        rows: Records in the batch.
        shapes: Those of its tensors.
    """

    rows: int
    shapes: frozenset[tuple[int, ...]]

    @classmethod
    def of(cls, batch: Any, rows: int | None = None) -> "BatchShape":
        """Read it from the tensors in containers and in attributes of objects, as far as the engine looks for them.

        Args:
            batch: A batch.
            rows: Its records; the length of its first tensor if None.

        Raises:
            TypeError: If it holds a nested tensor.
        """
        tensors = list(nested_tensors(batch))
        if any(tensor.is_nested for tensor in tensors):
            raise TypeError(f"A batch holds a nested tensor, {PAD}")
        shapes = [tuple(tensor.shape) for tensor in tensors]
        lengths = [shape[0] for shape in shapes if shape]
        return cls(rows if rows is not None else next(iter(lengths), 0), frozenset(shapes))

    def matches(self, other: "BatchShape") -> bool:
        """Whether they differ in the number of records only.

        Example:
            >>> import torch
            >>> first = BatchShape.of((torch.zeros(8, 5), torch.zeros(8)))
            >>> first.matches(BatchShape.of((torch.zeros(3, 5), torch.zeros(3))))
            True
            >>> first.matches(BatchShape.of((torch.zeros(8, 6), torch.zeros(8))))
            False
        """
        return self == other or (self._covers(other) and other._covers(self))

    def _covers(self, other: "BatchShape") -> bool:
        def same(mine: tuple[int, ...], its: tuple[int, ...]) -> bool:
            pairs = zip(mine, its, strict=False)
            return len(mine) == len(its) and all(a == b or (a, b) == (self.rows, other.rows) for a, b in pairs)

        return all(any(same(mine, its) for its in other.shapes) for mine in self.shapes)
