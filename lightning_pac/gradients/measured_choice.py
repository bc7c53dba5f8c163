"""Choice among exact methods by measuring each once on the shapes at hand."""

import logging
import time
from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor

from lightning_pac.gradients.contributions import Contribution

__all__ = ["build_fastest"]

_logger = logging.getLogger("lightning_pac.gradients")
_chosen: dict[Hashable, str] = {}
_REPEATS = 3


def build_fastest(
    layer: str, key: tuple[Hashable, ...], candidates: Mapping[str, Callable[[], Contribution]], out_shape: torch.Size
) -> Contribution:
    """Build the contribution by the method that takes least time, norm and weighted sum included.

    The first call for a key measures every candidate; later calls with it take the winner at once.

    Args:
        layer: Name for the log.
        key: Everything the time depends on: kind, shapes, device, number of threads.
        candidates: Methods by name.
        out_shape: Shape of the parameter.
    """
    name = _chosen.get(key)
    if name is None:
        times = {name: _seconds(build, out_shape) for name, build in candidates.items()}
        name = min(times, key=lambda method: times[method])
        _chosen[key] = name
        listing = ", ".join(f"{method} {1e3 * seconds:.2f} ms" for method, seconds in times.items())
        _logger.info("Per-example gradients of %s by %s (%s).", layer, name, listing)
    return candidates[name]()


def _seconds(build: Callable[[], Contribution], out_shape: torch.Size) -> float:
    best = float("inf")
    out: Tensor | None = None
    for _ in range(_REPEATS):
        start = time.perf_counter()
        contribution = build()
        squares = contribution.squares()
        if out is None:
            out = squares.new_empty(out_shape)
        contribution.weighted_sum(squares, out)
        if out.is_cuda:
            torch.cuda.synchronize(out.device)
        best = min(best, time.perf_counter() - start)
        del contribution
    return best
