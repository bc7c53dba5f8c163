"""The white-box tests of a run, gathered step by step."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_pac.audits import AuditTest, count_test, deviation_test, exact_test, law_test
from lightning_pac.gradients import ROUNDING

__all__ = ["Layer", "WhiteBoxTests", "declared_scale"]

_CLIP_CHANNEL = 0.1
# Values of noise whose law is looked at.
_LOOKED_AT = 20_000
# Of the clipping norm: what single precision and the slack of the engine's clipping may move a record's share by.
_PRECISION = 1e-3

Layer = tuple[str, int, float]
"""Name of a parameter, its size, and the declared deviation of its noise."""


def declared_scale(counts_clipped: bool) -> float:
    r"""The factor $(1 + \eta) \sqrt{1 + s^2}$ on all noise, for roundings and for the count of clipped records."""
    return (1 + ROUNDING) * math.sqrt(1 + (_CLIP_CHANNEL**2 if counts_clipped else 0.0))


class WhiteBoxTests:
    """The sums and draws of a run's steps, which an insider sees, and the tests of them.

    Args:
        layers: What is trained, from the account and not from what draws the noise.
        norm: Largest clipping norm.
        num_records: Records that may be drawn.
        rate: Declared probability of each draw.
    """

    def __init__(self, layers: Sequence[Layer], norm: float, num_records: int, rate: float) -> None:
        self._layers = list(layers)
        self._norm = norm
        self._num_records, self._rate = num_records, rate
        self._squares = dict.fromkeys((name for name, _, _ in layers), 0.0)
        self._looked_at: list[np.ndarray[Any, Any]] = []
        self._most_at_once = self._drawn = 0
        self._worst = 0.0
        self.num_steps = 0

    def see(self, drawn: Sequence[int], clipped_sum: Tensor, expected_sum: Tensor, released: Tensor) -> None:
        """Note one step.

        Args:
            drawn: Records that were drawn.
            clipped_sum: The engine's exact sum, shape (parameters,), float64 like the others.
            expected_sum: That of plain backward passes.
            released: The sum with noise.
        """
        self.num_steps += 1
        self._drawn += len(drawn)
        self._most_at_once = max([self._most_at_once, *Counter(drawn).values()])
        off = float((clipped_sum - expected_sum).norm()) / (self._norm * max(1, len(drawn)))
        self._worst = max(self._worst, off)
        sizes = [size for _, size, _ in self._layers]
        for (name, _, deviation), noise in zip(self._layers, torch.split(released - clipped_sum, sizes), strict=True):
            self._squares[name] += float((noise**2).sum())
            if sum(map(len, self._looked_at)) < _LOOKED_AT:
                self._looked_at.append((noise / deviation).numpy())

    def tests(self, draws_are_secret: bool) -> tuple[AuditTest, ...]:
        """Every test of the steps that were seen."""
        layers = [
            deviation_test(f"noise of {name}", self._squares[name], self.num_steps * size, deviation)
            for name, size, deviation in self._layers
        ]
        return (
            *layers,
            law_test("law of the noise", np.concatenate(self._looked_at)[:_LOOKED_AT]),
            exact_test(
                "clipped sum",
                self._worst < _PRECISION,
                f"{self._worst:.3g} clipping norms a record away from clipping each record alone",
            ),
            count_test("number of draws", self._drawn, self.num_steps * self._num_records, self._rate),
            exact_test(
                "secrecy of the draws",
                draws_are_secret,
                "two passes differ" if draws_are_secret else "the same seeds draw the same",
            ),
            exact_test("multiplicity", self._most_at_once <= 1, f"a record up to {self._most_at_once} times in a step"),
        )
