"""One way to spend a promise: the runs of a plan, their shares, and what is left of the signal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_pac.accountants.composed_ledger import LedgerPlan
from lightning_pac.accountants.planning.figures import RunFigures
from lightning_pac.scenarios import Poisson, TwoWorldScenario

__all__ = ["PlannedRun", "ProjectOption"]


@dataclass(frozen=True)
class PlannedRun:
    """A training of a plan.

    Attributes:
        scenario: its two worlds.
        sampling: how its batches are drawn.
        batch_size: records expected in a batch.
        epochs: passes over the data.
        num_steps: optimizer steps.
        figures: what it comes to alone; one run, if the best of several is released.
    """

    scenario: TwoWorldScenario
    sampling: Poisson
    batch_size: int
    epochs: int
    num_steps: int
    figures: RunFigures


@dataclass(frozen=True)
class ProjectOption:
    """One way to spend the promise.

    Attributes:
        runs: its trainings by name.
        shares: the plan of its ledger; None where nothing about two worlds is released.
        noise_of_values: by name, the noise multiplier of a value, for `PrivateMetrics`.
        score: the expected score, by a proxy; None without one.
    """

    runs: Mapping[str, PlannedRun]
    shares: LedgerPlan | None
    noise_of_values: Mapping[str, float]
    score: float | None = None

    @property
    def signal(self) -> float:
        """The least signal of its trainings, of one parameter; infinite without any."""
        return min(
            (run.batch_size * math.sqrt(run.num_steps) / run.figures.noise_multiplier for run in self.runs.values()),
            default=math.inf,
        )
