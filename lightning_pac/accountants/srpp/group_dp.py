"""The group-DP-SGD baseline that the SRPP paper compares with; it does not protect the secret."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from lightning_pac._validation import Cost, Noise, validated
from lightning_pac.accountants.srpp.accountant import SRPPAccountant
from lightning_pac.scenarios import Poisson, Sampling, TwoWorldScenario

__all__ = ["GroupDPAccountant"]


@validated
@dataclass(frozen=True)
class GroupDPAccountant:
    """DP-SGD's account scaled to a group of `sqrt(E[K^2])` records (SRPP paper, appendix O.3), a baseline.

    It is not a bound for the secret: the two worlds differ in d records, more than the group that it speaks of, and
    no group-DP guarantee at a smaller size says anything about them (appendix C). It warns when it is made.

    The paper takes the DP-SGD accountant at sampling rate `B / N`, and multiplies its (epsilon, delta) epsilon by the
    group size. A group holds at least one record.

    Args:
        scenario: the two worlds, with the number of records bound where the sampling needs it.
        sampling: how batches are drawn.
        delta: failure probability of the DP-SGD account.

    Raises:
        ValueError: if there is no random draw to average over, or delta is not in (0, 1).
    """

    scenario: TwoWorldScenario
    sampling: Sampling
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is {self.delta}, but a failure probability lies strictly between 0 and 1.")
        size = self.group_size
        warnings.warn(
            f"Group-DP at group size {size:.3g} does not bound what is learned about the secret, which touches "
            f"{self.scenario.total_differing} records: use it as a baseline only.",
            UserWarning,
            stacklevel=4,
        )

    @property
    def group_size(self) -> float:
        """`sqrt(E[K^2])` of one step, at least 1."""
        squares = self.sampling.expected_square_sum(self.scenario.total_differing, self.scenario.num_records, 1)
        return max(1.0, math.sqrt(squares))

    def epsilon(self, noise_multiplier: Noise, num_steps: int) -> float:
        """Epsilon of the group at `delta`: the group size times DP-SGD's.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps.
        """
        epsilon, _ = self._dp_sgd.epsilon_at_delta(noise_multiplier, num_steps, self.delta)
        return self.group_size * epsilon

    def noise_multiplier(self, epsilon: Cost, num_steps: int) -> float:
        """The least noise at which the group's epsilon is at most `epsilon`.

        Args:
            epsilon: the group's epsilon at `delta`.
            num_steps: optimizer steps.

        Raises:
            ValueError: if epsilon is not positive.
        """
        return self._dp_sgd.noise_multiplier(epsilon / self.group_size, num_steps, self.delta)

    @property
    def _dp_sgd(self) -> SRPPAccountant:
        rate = self.sampling.inclusion_rate(self.scenario.num_records)
        return SRPPAccountant(TwoWorldScenario.differential_privacy(), Poisson(rate))
