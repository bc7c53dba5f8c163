"""Random draws that belong to records, so that a random loss can be compared between batches."""

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["SEEDS", "FixedDraws", "Seed", "generator_states", "seeded", "seeds_of", "states_after"]

Seed = int | tuple[int, int, int]
"""One for the global generators of torch, Python and NumPy, or one for each."""

SEEDS = (1, 2, 3)

# Under these the first three numbers that each generator draws between 0 and 1 are below 0.05, or above 0.95, so that
# what is done to a batch with a probability is done, down to one in twenty.
_EXTREME: tuple[Seed, ...] = ((10392, 8916, 7142), (3844, 12024, 27421))


def seeds_of(number: int) -> tuple[Seed, ...]:
    """Those of the check with that number, from 0; a repetition has others.

    Example:
        >>> with seeded(seeds_of(0)[3]):
        ...     draws = random.random(), np.random.rand(), float(torch.rand(()))
        >>> max(draws) < 0.05
        True
    """
    return *(len(SEEDS) * number + seed for seed in SEEDS), *_EXTREME


def generator_states() -> tuple[Any, ...]:
    """Those of the global generators of torch, Python and NumPy."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state[1].tobytes(), numpy_state[2:]


@functools.cache
def states_after(seed: Seed) -> tuple[Any, ...]:
    """Those before any draw under that seed."""
    with seeded(seed):
        return generator_states()


@contextmanager
def seeded(seed: Seed) -> Iterator[None]:
    """Run with fixed global generators, and leave them as they were, also after an error."""
    of_torch, of_python, of_numpy = (seed, seed, seed) if isinstance(seed, int) else seed
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(of_torch)
            random.seed(of_python)
            np.random.seed(of_numpy)  # noqa: NPY002
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


class FixedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every record gets the draws that it has in any other batch, whatever its place and its company.

    The k-th call of a random function draws for each record under a seed that k and the record decide, where one
    dimension of what is drawn (the first that fits) counts the records, and under a seed that k decides otherwise.
    Functions that draw from a generator of their own, NumPy's and Python's are not held.

    Args:
        numbers: A number for each record of the batch.
        seed: All seeds follow from it.

    Example:
        >>> with FixedDraws([3, 7], seed=1):
        ...     both = torch.randn(2, 4)
        >>> with FixedDraws([7], seed=1):
        ...     alone = torch.randn(1, 4)
        >>> bool((both[1] == alone[0]).all())
        True
    """

    def __init__(self, numbers: Sequence[int], seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers, self._seed, self._calls = list(numbers), seed, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        self._calls += 1
        state = torch.get_rng_state()
        try:
            return self._draw(func, args, kwargs)
        finally:
            torch.set_rng_state(state)
            torch.rand(())  # shows that there were draws

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not given:
            self._reseed(-1)
            drawn = func(*args, **kwargs)
            dim = self._records_of(drawn)
            if dim is None:
                return drawn
            own_shape = list(self._part(drawn, dim, 0).shape)
            own_args = [own_shape if arg == list(drawn.shape) else arg for arg in args]
            for place, number in enumerate(self._numbers):
                self._reseed(number)
                self._part(drawn, dim, place).copy_(func(*own_args, **kwargs).narrow(dim, 0, own_shape[dim]))
            return drawn
        dim = self._records_of(given[0])
        if dim is None:
            self._reseed(-1)
            return func(*args, **kwargs)
        parts = []
        for place, number in enumerate(self._numbers):
            self._reseed(number)
            own = [self._part(leaf, dim, place) if self._fits(leaf, given[0], dim) else leaf for leaf in leaves]
            own_args, own_kwargs = pytree.tree_unflatten(own, structure)
            parts.append(func(*own_args, **own_kwargs))
        # The parts are views, so what was drawn is in place already.
        if func._schema.is_mutable:
            return given[0]
        if isinstance(parts[0], Tensor):
            return torch.cat(parts, dim)
        return tuple(torch.cat(pieces, dim) for pieces in zip(*parts, strict=True))

    def _records_of(self, drawn: Tensor) -> int | None:
        count = len(self._numbers)
        return next((dim for dim, size in enumerate(drawn.shape) if size and size % count == 0), None)

    def _fits(self, leaf: Any, like: Tensor, dim: int) -> bool:
        return isinstance(leaf, Tensor) and leaf.dim() > dim and leaf.shape[dim] == like.shape[dim]

    def _part(self, tensor: Tensor, dim: int, place: int) -> Tensor:
        rows = tensor.shape[dim] // len(self._numbers)
        return tensor.narrow(dim, place * rows, rows)

    def _reseed(self, number: int) -> None:
        torch.default_generator.manual_seed(hash((self._seed, self._calls, number)))
