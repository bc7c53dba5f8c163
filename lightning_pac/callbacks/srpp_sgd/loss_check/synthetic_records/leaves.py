"""Numbers of a record: tensors, arrays, single numbers and lists of them, and others like these."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "GROUP",
    "KEPT_EIGHTHS",
    "changed_by",
    "filled",
    "holds",
    "integers_of",
    "is_floating",
    "is_leaf",
    "length_of",
    "random_like",
    "size_of",
    "with_special",
]

GROUP = 4
"""Records in each of the four groups that are compared."""

# Eighths of a row that are kept, by record: the groups differ in their longest, and no group is in order of length.
KEPT_EIGHTHS = (8, 5, 7, 6, 6, 3, 5, 4, 2, 5, 3, 4, 1, 4, 2, 3)


def is_leaf(value: Any) -> bool:
    """Whether it is made of numbers alone."""
    if isinstance(value, Tensor):
        return value.layout is torch.strided  # others stay as they are
    if isinstance(value, np.generic | bool | int | float):
        return not (isinstance(value, np.generic) and value.dtype.kind not in "biuf")
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return isinstance(value, list) and bool(value) and all(isinstance(entry, int | float) for entry in value)


def is_floating(leaf: Any) -> bool:
    """Whether these are floating-point numbers."""
    return not isinstance(leaf, bool | int) and torch.as_tensor(leaf).is_floating_point()


def length_of(leaf: Any) -> int:
    """Entries along the first dimension; 0 for a single number."""
    if isinstance(leaf, Tensor | np.ndarray):
        return len(leaf) if leaf.ndim else 0
    return len(leaf) if isinstance(leaf, list) else 0


def size_of(leaf: Any) -> int:
    """How many numbers these are."""
    return leaf.numel() if isinstance(leaf, Tensor) else np.asarray(leaf).size


def holds(leaf: Any, special: int) -> bool:
    """Whether the leaf is made of integers of which one can have that value."""
    if isinstance(leaf, Tensor | np.ndarray | np.generic):
        dtype = torch.as_tensor(np.asarray(leaf)).dtype if not isinstance(leaf, Tensor) else leaf.dtype
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            return False
        return torch.iinfo(dtype).min <= special <= torch.iinfo(dtype).max
    entries = leaf if isinstance(leaf, list) else [leaf]
    if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in entries):
        return False
    return -(2**63) <= special < 2**63  # a float that an integer is compared with may be larger


def integers_of(leaf: Any) -> Tensor:
    """The integers of a leaf in one row; none if it holds something else."""
    return torch.as_tensor(leaf).reshape(-1).long() if holds(leaf, 0) else torch.empty(0, dtype=torch.long)


def filled(leaf: Any, value: float) -> Any:
    """As many numbers, all of that value."""
    if isinstance(leaf, Tensor):
        return torch.full_like(leaf, value)
    if isinstance(leaf, np.ndarray):
        return np.full_like(leaf, value)
    return [type(leaf[0])(value)] * len(leaf) if isinstance(leaf, list) else type(leaf)(value)


def with_special(leaf: Any, special: int, index: int) -> Any:
    """The record's integers, the last of them special; of single numbers and short rows all, in some records."""
    if isinstance(leaf, list):
        return with_special(torch.tensor(leaf), special, index).tolist()
    if isinstance(leaf, np.ndarray | np.generic):
        values = with_special(torch.as_tensor(np.asarray(leaf)), special, index).numpy()
        return values if isinstance(leaf, np.ndarray) else leaf.dtype.type(values)
    if isinstance(leaf, int):
        return int(with_special(torch.tensor(leaf), special, index))
    group, place = divmod(index, GROUP)
    values = leaf.clone().reshape(-1)
    size = len(values)
    # In rows of eight and more, what is beyond their eighths; of shorter ones, all in the first g records of group g.
    number = size - -(-size * KEPT_EIGHTHS[index] // 8) if size >= 8 else size * (place < group)
    if number:
        values[-number:] = special
    return values.reshape(leaf.shape)


def random_like(leaf: Any, values: Tensor, generator: torch.Generator) -> Any:
    """As many numbers, drawn uniformly between 0 and 1, or integers from among those values."""
    if isinstance(leaf, Tensor):
        return _random_tensor(leaf, values, generator)
    if isinstance(leaf, np.ndarray | np.generic):
        drawn = _random_tensor(torch.as_tensor(np.asarray(leaf)), values, generator).numpy()
        return drawn if isinstance(leaf, np.ndarray) else leaf.dtype.type(drawn)
    return _random_tensor(torch.as_tensor(leaf), values, generator).tolist()


def _random_tensor(leaf: Tensor, values: Tensor, generator: torch.Generator) -> Tensor:
    if leaf.is_floating_point() or leaf.is_complex():
        return torch.rand(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)
    return values[torch.randint(len(values), leaf.shape, generator=generator)].to(leaf.dtype)


def changed_by(
    law: str, index: int, places: list[int], generator: torch.Generator, recurring: list[float | None]
) -> Callable[[Any, int], Any]:
    """How fields at these places become numbers of another law, in the record with that index in two groups."""
    return lambda leaf, place: (
        _by_law(leaf, law, index, generator, recurring[place] or 0.0) if place in places else leaf
    )


def _by_law(leaf: Any, law: str, index: int, generator: torch.Generator, recurring: float) -> Any:
    """Numbers of another law for the record with that index in two groups."""
    if not isinstance(leaf, Tensor):
        changed = _by_law(torch.as_tensor(leaf), law, index, generator, recurring)
        if isinstance(leaf, np.ndarray | np.generic):
            return changed.numpy() if isinstance(leaf, np.ndarray) else leaf.dtype.type(changed)
        return changed.tolist()
    normal = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
    group, place = divmod(index, GROUP)
    values = {
        # Places 0 to 3 of a group differ in scale by up to 10^6. Of bits, a quarter are set in the first group, and
        # three quarters in the second: P(N > 0.7) = 0.24.
        "wide": lambda: normal * 100.0**place,
        "bits": lambda: normal * 0 + ((place == 0) != group) if leaf.numel() == 1 else normal > 0.7 - 1.4 * group,
        "zeros": lambda: normal * 0 if place % 2 else leaf,
        "marks": lambda: normal * 0 - 1 if place % 2 else leaf,
        "recurring": lambda: normal * 0 + recurring if place % 2 else leaf,
        "missing": lambda: normal + torch.nan if place == 1 else leaf,
    }
    return values[law]().to(leaf.dtype)
