"""The engine's knowledge of a tensor: whether it holds records, and where, or is computed from parameters alone."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Batched",
    "Free",
    "Pass",
    "by_record",
    "free_of",
    "nested_tensors",
    "record_axis",
    "record_count",
    "set_tag",
    "settle",
    "tag_of",
]

_NAME = "_lightning_pac_tag"


class Pass:
    """One forward pass as the engine follows it, or a part that checkpointing repeats.

    Attributes:
        count: Records of the batch.
        receiver: The engine.
        first: The tag of tensors whose rows are records, in order.
        unknown: The tag of tensors that descend from the batch, with the records nowhere known.
        mixed: Whether the arguments of the current call have different tags of the batch.
        bent_by: Name of a function that makes the slope of a term without records depend on them.
    """

    def __init__(self, count: int, receiver: Any = None) -> None:
        self.count, self.receiver = count, receiver
        self.bent_by: str | None = None
        self.mixed = False
        self.first, self.unknown = Batched(self, 1), Batched(self, None)


class Batched:
    """The tag of a tensor that descends from the batch.

    Attributes:
        owner: The pass that it is from.
        outer: Product of the sizes of the dimensions before the one that counts the records; it is the same for every
            shape that the tensor is viewed through. None if no dimension does.
        rows: Record of each entry along that dimension, where these are not in the order of the records; -1 for none.
        shares: For what is a mean over the records of one value for each: these values, where they are known.
    """

    __slots__ = ("outer", "owner", "rows", "shares")

    def __init__(self, owner: Pass, outer: int | None, rows: Tensor | None = None, shares: Any = None) -> None:
        self.owner, self.outer, self.rows, self.shares = owner, outer, rows, shares

    def __deepcopy__(self, memo: Any) -> "Batched":
        return self

    def __reduce__(self) -> Any:
        return (type(None), ())


class Free:
    """The tag of a parameter, or of a tensor that is computed from parameters and not from the batch.

    Attributes:
        slot: Number of the parameter and the rows of it that the tensor is; None for anything else.
        source: The free tensor whose rows are repeated or looked up, where that is all there is to it.
        indices: The rows that are looked up.
    """

    __slots__ = ("indices", "slot", "source")

    def __init__(
        self,
        slot: tuple[int, int, int] | None = None,
        source: Tensor | None = None,
        indices: Tensor | None = None,
    ) -> None:
        self.slot, self.source, self.indices = slot, source, indices

    def __deepcopy__(self, memo: Any) -> "Free":
        return self

    def __reduce__(self) -> Any:
        return (type(None), ())


def tag_of(tensor: Tensor) -> Any:
    """The tag, or None: a constant."""
    return getattr(tensor, _NAME, None)


def set_tag(tensor: Tensor, tag: "Batched | Free | None") -> None:
    """Put a tag on a tensor, or take it off."""
    if tag is None:
        tensor.__dict__.pop(_NAME, None)
    else:
        setattr(tensor, _NAME, tag)


def free_of(tensor: Any) -> Free | None:
    """The tag of a free tensor."""
    tag = getattr(tensor, _NAME, None)
    return tag if type(tag) is Free else None


def nested_tensors(value: Any, depth: int = 4, kind: Any = Tensor) -> Iterator[Any]:
    """Tensors, or what is of another kind, in containers and in the attributes of objects, as batches are made of."""
    if isinstance(value, kind):
        yield value
    elif depth and isinstance(value, Mapping):
        # Batches of Hugging Face's collators are mappings with attributes of their own; some tensors come twice.
        for part in [*value.values(), *getattr(value, "__dict__", {}).values()]:
            yield from nested_tensors(part, depth - 1, kind)
    elif depth and isinstance(value, list | tuple | set):
        for part in value:
            yield from nested_tensors(part, depth - 1, kind)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module) and not callable(value):
        yield from nested_tensors(vars(value), depth - 1, kind)


def record_count(batch: list[Tensor], batch_dim: int) -> int:
    """Records of a batch: the size that most of its tensors have in that dimension."""
    sizes = Counter(tensor.shape[batch_dim] for tensor in batch if tensor.dim() > batch_dim)
    if not sizes:
        return max((tensor.shape[0] for tensor in batch if tensor.dim()), default=0)
    most = max(sizes.values())
    return next(size for size, times in sizes.items() if times == most)


def record_axis(shape: torch.Size, tag: Batched, count: int) -> int | None:
    """The dimension that counts the records, or a multiple of them in their order."""
    before = 1
    for axis, size in enumerate(shape):
        # Dimensions of size 1 leave `before` as it is: of those, the one that can count the records is meant.
        fits = size % max(count, 1) == 0 and (size or not count) if tag.rows is None else size == len(tag.rows)
        if before == tag.outer and fits:
            return axis
        before *= size
    return None


def settle(tensor: Tensor, place: int) -> None:
    """Put the records where a function says that they are, in a tensor of the batch that does not say so itself."""
    tag = tag_of(tensor)
    if type(tag) is not Batched or tag.rows is not None or tensor.shape[place] != tag.owner.count:
        return
    if tag.outer is None or record_axis(tensor.shape, tag, tag.owner.count) != place:
        set_tag(tensor, Batched(tag.owner, math.prod(tensor.shape[:place])))


def by_record(tensor: Tensor, tag: Batched, count: int) -> Tensor | None:
    """The tensor with its records in dimension 0 and, in dimension 1, their rows if they have several; None if none."""
    axis = record_axis(tensor.shape, tag, count)
    if tag.rows is not None:
        return None if axis is None else _padded(tensor.movedim(axis, 0), tag.rows, count)
    if axis is None:
        return None
    moved = tensor.movedim(axis, 0) if axis else tensor
    if moved.shape[0] == count:
        return moved
    return moved.reshape(count, moved.shape[0] // count, *moved.shape[1:])


def _padded(tensor: Tensor, rows: Tensor, count: int) -> Tensor:
    """Rows sorted by record, and zeros where a record has fewer than others; rows of no record are left out."""
    kept = rows >= 0
    if not bool(kept.all()):
        tensor, rows = tensor[kept], rows[kept]
    # Stable, so that the rows of a record keep their order; a row's place is its rank among those of its record.
    order = torch.argsort(rows, stable=True)
    sizes = torch.bincount(rows, minlength=count)
    starts = sizes.cumsum(0) - sizes
    sorted_rows = rows[order]
    place = torch.arange(len(rows), device=rows.device) - starts[sorted_rows]
    most = int(sizes.max()) if count else 0
    # (n, most rows of a record, ...).
    padded = tensor.new_zeros(count, most, *tensor.shape[1:])
    padded[sorted_rows, place] = tensor[order]
    return padded
