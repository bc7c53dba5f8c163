"""The states of a metric that its value depends on."""

import math

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from lightning_pac.callbacks.metrics.metric_memory import constant_states

__all__ = ["influential_states"]

_PROBES = 8


def influential_states(blank: Metric) -> list[str]:
    """Sums that the value depends on, found by changing one at a time at random sums.

    A state that is missed here is never released, so privacy does not rest on the search.
    """
    found, constants = [], constant_states(blank)
    sums = {n: zero for n, zero in blank._defaults.items() if isinstance(zero, Tensor) and n not in constants}
    generator = torch.Generator().manual_seed(0)
    for name in sums:
        for _ in range(_PROBES):
            values = {other: 1.0 + 100.0 * torch.rand(zero.shape, generator=generator) for other, zero in sums.items()}
            before = _value_at(blank, values)
            # No multiple of what it was, so that a value made of ratios within the state changes as well.
            values[name] = values[name] * 2.0 + 1.0
            if not _same(before, _value_at(blank, values)):
                found.append(name)
                break
    return found or list(sums)


def _value_at(blank: Metric, values: dict[str, Tensor]) -> list[Tensor]:
    probe = blank.clone()
    for name, value in values.items():
        setattr(probe, name, value.to(blank.device))
    probe._update_count = 1
    collected: list[Tensor] = []
    apply_to_collection(probe.compute(), Tensor, collected.append)
    return collected


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(
        math.isclose(float(one), float(other), rel_tol=1e-9, abs_tol=0.0) or (one.isnan() and other.isnan())
        for a, b in zip(first, second, strict=True)
        for one, other in zip(a.reshape(-1), b.reshape(-1), strict=True)
    )
