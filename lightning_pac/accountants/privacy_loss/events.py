"""A release as a ledger keeps it: enough to compose it exactly with everything else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from lightning_pac._validation import Natural, Noise, validated
from lightning_pac.scenarios import Adjacency, TwoWorldScenario

__all__ = ["GaussianRelease", "PoissonSteps", "PrivacyEvent", "SpreadSteps", "event_from_dict"]

_MAX_SPLITS = 40
# Sums over a million releases, and their squares' shares, are finite.
_MAX_MU_SQUARED = 1e200


@validated
@dataclass(frozen=True)
class GaussianRelease:
    """Releases no easier to tell apart than N(0, 1) and N(mu, 1): unamplified steps, noised metrics.

    Args:
        mu_squared: `sum_t (kappa K_t / sigma)^2`, not negative; it adds over releases.

    Raises:
        ValueError: if mu_squared is negative or above 1e200.

    Example:
        >>> GaussianRelease(mu_squared=0.25).pairs
        ()
    """

    mu_squared: float

    def __post_init__(self) -> None:
        if not 0 <= self.mu_squared <= _MAX_MU_SQUARED:
            raise ValueError(f"mu_squared is {self.mu_squared}, but must lie between 0 and {_MAX_MU_SQUARED:g}.")

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """No records are sampled, so nothing is split between the worlds."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values, for `event_from_dict`."""
        return {"kind": "gaussian", "mu_squared": self.mu_squared}


@validated
@dataclass(frozen=True)
class PoissonSteps:
    """Steps whose batches are drawn secretly by Poisson sampling, with clipped gradients summed and noised.

    Args:
        noise_multiplier: deviation of the noise on the sum, in clipping norms; the effective one of several blocks.
        rate: probability q that a record is drawn, in (0, 1].
        num_steps: steps started.
        num_differing: records d that differ; `(d1, d2)` under `add_remove` and `zero_out` for those that only the
            first or the second world has.
        adjacency: `replace`, `add_remove` or `zero_out`.
        nested: under `add_remove` and `zero_out` with an integer d, whether one world holds all differing records. If
            not, the split between the worlds is unknown but the same in all steps of all events.
        holder: the world that holds the records of a nested event.

    Raises:
        ValueError: if a number does not describe steps.

    Example:
        >>> PoissonSteps(noise_multiplier=6.4, rate=0.01, num_steps=100, num_differing=10, adjacency="zero_out").pairs
        ((10, 0),)
    """

    noise_multiplier: Noise
    rate: float
    num_steps: Natural
    num_differing: int | tuple[int, int]
    adjacency: Adjacency
    nested: bool = True
    holder: Literal["first", "second"] = "first"

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate}, but a record is drawn with a probability in (0, 1].")
        object.__setattr__(self, "num_differing", self._scenario.num_differing)

    @classmethod
    def of(cls, scenario: TwoWorldScenario, rate: float, noise_multiplier: float, num_steps: int) -> PoissonSteps:
        """The steps of a run in two declared worlds.

        Args:
            scenario: the two worlds.
            rate: Poisson sampling rate.
            noise_multiplier: deviation of the noise on the sum, in clipping norms.
            num_steps: steps started.
        """
        return cls(noise_multiplier, rate, num_steps, scenario.num_differing, scenario.adjacency, scenario.nested)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Records of the first and of the second world alone, for each split that may be the true one.

        Beyond 40 splits neighbouring ones are covered by a pair with as many records as any of them in either world.
        """
        d = self.num_differing
        if isinstance(d, tuple):
            return (d,)
        if self.adjacency == "replace":
            return ((d, d),)
        if self.nested:
            return ((d, 0),) if self.holder == "first" else ((0, d),)
        # A pair has in either world as many records as each split (d - j, j), j = low, ..., low + width - 1, and more
        # records never make the worlds harder to tell apart.
        width = math.ceil((d + 1) / _MAX_SPLITS)
        return tuple((d - low, min(d, low + width - 1)) for low in range(0, d + 1, width))

    @property
    def mu_squared(self) -> float:
        """The cost of the steps if the draws were known, as a Gaussian's mu^2: a bound."""
        scenario = self._scenario
        shift = scenario.sensitivity_factor * scenario.total_differing
        return self.num_steps * (shift / self.noise_multiplier) ** 2

    @property
    def _scenario(self) -> TwoWorldScenario:
        return TwoWorldScenario(self.num_differing, adjacency=self.adjacency, nested=self.nested)

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values, for `event_from_dict`."""
        values = dataclasses.asdict(self)
        if isinstance(self.num_differing, tuple):
            values["num_differing"] = list(self.num_differing)
        return {"kind": "poisson", **values}


@validated
@dataclass(frozen=True)
class SpreadSteps(PoissonSteps):
    """Poisson-sampled steps that each differing record has to itself, or shares with some of the others.

    Records in blocks of a `BlockedPoisson`: each may come in at most `num_steps` steps, in others than the rest, and
    correlated noise lies over all of them. Worlds that differ in one record are told apart no better than by
    `PoissonSteps` of one record, and d records are changed one after the other (`group_curve`). Arguments are those of
    `PoissonSteps`, with the steps of a record in place of all.

    Example:
        >>> SpreadSteps(6.4, 0.04, num_steps=25, num_differing=10, adjacency="zero_out").of_one.num_differing
        1
    """

    @property
    @override
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """No two records need to meet, so nothing is split between the worlds."""
        return ()

    @property
    def of_one(self) -> PoissonSteps:
        """The steps of one differing record."""
        return PoissonSteps(self.noise_multiplier, self.rate, self.num_steps, 1, self.adjacency)

    @property
    def total_differing(self) -> int:
        """Differing records d in both worlds."""
        return self._scenario.total_differing

    @override
    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "kind": "spread"}


PrivacyEvent = GaussianRelease | PoissonSteps
"""Anything that composes exactly."""


def event_from_dict(values: Mapping[str, Any]) -> PrivacyEvent:
    """The event that `to_dict` wrote.

    Args:
        values: plain values.

    Raises:
        ValueError: if they are no event, or one of a kind that is not known.

    Example:
        >>> event_from_dict({"kind": "gaussian", "mu_squared": 0.25})
        GaussianRelease(mu_squared=0.25)
    """
    arguments = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name != "kind"
    }
    kinds: dict[Any, Callable[..., PrivacyEvent]] = {
        "gaussian": GaussianRelease,
        "poisson": PoissonSteps,
        "spread": SpreadSteps,
    }
    kind = values.get("kind")
    if kind not in kinds:
        raise ValueError(f"An event of the kind {kind!r} is not known to this version: install a later one.")
    try:
        return kinds[kind](**arguments)
    except TypeError as error:  # a number that is a text, or an argument that is missing or unknown
        raise ValueError(f"values is not an event of the kind {kind!r}: {error}") from error
