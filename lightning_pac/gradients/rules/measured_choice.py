"""Choice among exact methods by measuring each once on the shapes at hand."""

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from lightning_pac.gradients.contributions import Contribution

__all__ = ["build_fastest", "instantiates", "instantiating"]

_logger = logging.getLogger("lightning_pac.gradients")
_chosen: dict[Hashable, str] = {}
_REPEATS = 4
# Half of it is the memory's own: what is measured is taken once and stays in the cache, what a model keeps is not.
_PRICE_OF_MEMORY = 2.0
_instantiating: list[bool] = []  # of all threads: autograd has one for each device


@contextmanager
def instantiating() -> Iterator[None]:
    """Inside, gradients are instantiated where they can be: Gram matrices raise norms, and suit some sizes only."""
    _instantiating.append(True)
    try:
        yield
    finally:
        _instantiating.pop()


def instantiates() -> bool:
    """Whether gradients are to be instantiated, whatever that costs."""
    return bool(_instantiating)


def build_fastest(
    layer: object,
    key: tuple[Hashable, ...],
    factors: tuple[Tensor, Tensor],
    candidates: Mapping[str, Callable[[Tensor, Tensor], Contribution]],
    out_shape: torch.Size,
    kept_bytes: Mapping[str, int],
) -> Contribution:
    """Build the contribution by the method that takes least time, norm and weighted sum included.

    A method that keeps less memory until the sum wins unless it takes twice as long.

    The first call for a key measures every candidate; later calls with it, and with a batch of like size, take the
    winner at once. Poisson batches differ in size at every step, so a choice for each size would be one for each step.
    What is measured is made up: methods round apart, some processors take far longer for subnormal numbers, and a
    record of those would decide how all others are rounded.

    Args:
        layer: Name for the log, or what gives it.
        key: Everything else the time depends on: kind, shapes of an example, device, number of threads.
        factors: Inputs and output gradients, each with the examples in dimension 0, at least one; sizes up to the same
            power of two count as alike.
        candidates: Methods by name, called with such factors; the first instantiates.
        out_shape: Shape of the parameter.
        kept_bytes: What each method keeps from its layer's backward pass to the end of the step.
    """
    if instantiates():
        return next(iter(candidates.values()))(*factors)
    key = (*key, (len(factors[0]) - 1).bit_length(), *candidates)
    name = _chosen.get(key)
    if name is None:
        times = _measure(candidates, factors, out_shape) if len(candidates) > 1 else dict.fromkeys(candidates, 0.0)
        name = _choose(times, kept_bytes)
        _chosen[key] = name
        listing = ", ".join(f"{method} {1e3 * seconds:.2f} ms" for method, seconds in times.items() if seconds)
        _logger.info(
            "Per-example gradients of %s by %s%s.",
            layer() if callable(layer) else layer,
            name,
            listing and f" ({listing})",
        )
    return candidates[name](*factors)


def _choose(times: Mapping[str, float], kept_bytes: Mapping[str, int]) -> str:
    allowed = _PRICE_OF_MEMORY * min(times.values())
    return min((name for name in times if times[name] <= allowed), key=lambda name: (kept_bytes[name], times[name]))


def _measure(
    candidates: Mapping[str, Callable[[Tensor, Tensor], Contribution]],
    factors: tuple[Tensor, Tensor],
    out_shape: torch.Size,
) -> dict[str, float]:
    """Least time of each method, in turns, so that a busy moment of the machine falls on all of them."""
    # From a generator of its own: that of the process belongs to the model.
    inputs, gradients = (
        torch.empty_like(factor).uniform_(0.5, 1.0, generator=torch.Generator(factor.device)) for factor in factors
    )
    times = dict.fromkeys(candidates, float("inf"))
    for _ in range(_REPEATS):
        for name, build in candidates.items():
            times[name] = min(times[name], _seconds(partial(build, inputs, gradients), out_shape))
    return times


def _seconds(build: Callable[[], Contribution], out_shape: torch.Size) -> float:
    # With one thread the thread's own time leaves out what other processes took.
    clock = time.thread_time if torch.get_num_threads() == 1 and not torch.cuda.is_available() else time.perf_counter
    start = clock()
    contribution = build()
    squares = contribution.squares().float()
    contribution.weighted_sum(squares, squares.new_empty(out_shape))
    if squares.is_cuda:
        torch.cuda.synchronize(squares.device)
    return clock() - start
