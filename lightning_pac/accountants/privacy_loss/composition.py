"""Events composed into one curve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from typing_extensions import override

from lightning_pac._shown import shows_itself
from lightning_pac._validation import validated
from lightning_pac.accountants.privacy_loss.convolution import LossSum
from lightning_pac.accountants.privacy_loss.curve_losses import curve_losses
from lightning_pac.accountants.privacy_loss.curves import CombinedCurve, GaussianCurve, LatticeCurve, PrivacyCurve
from lightning_pac.accountants.privacy_loss.discretization import LossAtoms, loss_atoms
from lightning_pac.accountants.privacy_loss.events import GaussianRelease, PoissonSteps, PrivacyEvent, SpreadSteps
from lightning_pac.accountants.privacy_loss.group_curve import group_curve
from lightning_pac.accountants.privacy_loss.mixtures import MixturePair

__all__ = ["privacy_curve"]

# Binomial weight left out of either mixture of a step; that of the first is charged as an infinite loss.
_DROPPED = 1e-26
# Distance of the rungs in nats of rarity, and their number: the last is at e^-56.
_RUNG = 7.0
_NUM_RUNGS = 8


@validated
def privacy_curve(events: Sequence[PrivacyEvent], others: Sequence[PrivacyCurve] = ()) -> PrivacyCurve:
    """The curve of everything that was released.

    Gaussian releases alone give the exact Gaussian curve. Otherwise the privacy losses of all steps are convolved, once
    for each order of the worlds and each split of the differing records between them, and the worst is taken at every
    epsilon; which world holds the records, and the split, are those of the two worlds and hence the same in all events.
    Never more than if the adversary saw all draws.

    All events speak of one pair of worlds. The curve holds for events that were fixed before the first release, in any
    order and stopped at any time, also if these, and the replacement of a step by one with more noise or fewer records,
    depend on what was released. It does not hold where noise, rates or numbers of steps may grow with releases: a later
    run chosen after an earlier outcome can tell more than both realised totals say.

    Args:
        events: what was released.
        others: curves of further releases, of which nothing else is known (a private selection).

    Raises:
        ValueError: if two events leave the split of different numbers of records open.

    Example:
        >>> steps = PoissonSteps(1.314, rate=512 / 50_000, num_steps=3906, num_differing=1, adjacency="add_remove")
        >>> print(f"{privacy_curve([steps]).success_bound():.4f}")
        0.6108
        >>> print(f"{privacy_curve([steps, GaussianRelease(0.01)]).success_bound():.4f}")
        0.6125
    """
    drawn = [event for event in events if isinstance(event, PoissonSteps) and event.num_steps]
    steps = [event for event in drawn if not isinstance(event, SpreadSteps)]
    mu_squared = math.fsum(event.mu_squared for event in events if isinstance(event, GaussianRelease))
    known = math.fsum([mu_squared, *(event.mu_squared for event in drawn)])
    unamplified = GaussianCurve(math.sqrt(known))
    if not others and all(event.rate == 1 for event in drawn):
        return unamplified
    spread = _spread_curves([event for event in drawn if isinstance(event, SpreadSteps)])
    alone = [*others, *spread]
    if not steps and not mu_squared and len(alone) == 1:
        return others[0] if others else CombinedCurve([*spread, unamplified], min)
    splits = _joint_splits(steps)
    atoms = [curve_losses(curve) for curve in alone]
    # Every split in both orders of the worlds, which are exchanged in all events at once.
    worlds = {*splits, *(tuple((second, first) for first, second in pairs) for pairs in splits)}
    worst = [SummedLosses(_loss_sum(steps, pairs, mu_squared, atoms)) for pairs in sorted(worlds)]
    amplified = worst[0] if len(worst) == 1 else CombinedCurve(worst, max)
    if others:
        return amplified
    # Showing the draws as well only helps the adversary, so both curves are bounds and the lesser counts.
    return CombinedCurve([amplified, unamplified], min)


def _spread_curves(events: Sequence[SpreadSteps]) -> list[PrivacyCurve]:
    """A curve for all spread steps of as many records: of one record's steps together, then of all records."""
    of_one: dict[int, list[PoissonSteps]] = {}
    for event in events:
        of_one.setdefault(event.total_differing, []).append(event.of_one)
    return [group_curve(privacy_curve(steps), number) for number, steps in of_one.items()]


def _joint_splits(steps: Sequence[PoissonSteps]) -> list[tuple[tuple[int, int], ...]]:
    """For each split of the differing records, the pair of every event."""
    pairs = [event.pairs for event in steps]
    open_splits = {choices for choices in pairs if len(choices) > 1}
    if len(open_splits) > 1:
        raise ValueError(
            "Two events leave open how different numbers of records are split between the worlds: declare the same "
            "num_differing for both, since they speak of the same worlds."
        )
    number = max((len(choices) for choices in pairs), default=1)
    return [tuple(choices[split if len(choices) > 1 else 0] for choices in pairs) for split in range(number)]


def _loss_sum(
    steps: Sequence[PoissonSteps], pairs: Sequence[tuple[int, int]], mu_squared: float, others: Sequence[LossAtoms]
) -> LossSum:
    counts: Counter[MixturePair] = Counter()
    for event, (first, second) in zip(steps, pairs, strict=True):
        counts[MixturePair(event.noise_multiplier, event.rate, first, second, _DROPPED)] += event.num_steps
    if mu_squared:
        # All Gaussian releases are one step at rate 1, N(1, s^2) against N(0, s^2) with s = 1 / mu.
        counts[MixturePair(1 / math.sqrt(mu_squared), 1.0, 1, 0)] += 1
    return LossSum([*map(_atoms, counts), *others], [*counts.values(), *[1] * len(others)])


@lru_cache(maxsize=256)
def _atoms(pair: MixturePair) -> LossAtoms:
    return loss_atoms(pair)


@shows_itself
@dataclass(frozen=True)
class SummedLosses(PrivacyCurve):
    """The curve of a sum of losses, tilted to where it is read.

    A ladder of tilts, 7 nats of rarity apart, is fixed by the sum alone; a rung is computed when it is first needed.
    """

    total: LossSum
    _tilts: dict[int, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    _curves: dict[int, LatticeCurve] = field(default_factory=dict, repr=False, compare=False)

    @override
    def delta(self, epsilon: float) -> float:
        # Every rung gives a bound, though only 1 below its window; the one with the least Chernoff factor errs least.
        rung = 0
        while rung < _NUM_RUNGS and self._chernoff(rung + 1, epsilon) < self._chernoff(rung, epsilon):
            rung += 1
        while rung and self._curve(rung).start > epsilon:
            rung -= 1
        return self._curve(rung).delta(epsilon)

    @override
    def epsilon(self, delta: float) -> float:
        # The rung whose tilted mean is about as rare as delta.
        rung = min(_NUM_RUNGS, int(-math.log(delta) / _RUNG)) if 0 < delta < 1 else 0
        while rung and self._curve(rung).delta(max(0.0, self._curve(rung).start)) <= delta:
            rung -= 1  # delta is reached before this rung's window
        return self._curve(rung).epsilon(delta)

    @override
    def error_bounds(self, false_positive_rate: float) -> tuple[float, float]:
        # Lines of every rung are bounds: rare false alarms are read where the loss is as rare.
        steep, flat = self._curve(0).error_bounds(false_positive_rate)
        if false_positive_rate > 0:
            rung = min(_NUM_RUNGS, int(-math.log(false_positive_rate) / _RUNG))
            steep = max(steep, self._curve(rung).error_bounds(false_positive_rate)[0])
        return steep, flat

    def _chernoff(self, rung: int, epsilon: float) -> float:
        """Logarithm of what a rung's absolute errors are multiplied by at epsilon."""
        tilt, log_moment = self._tilt(rung)
        return log_moment - tilt * epsilon

    def _tilt(self, rung: int) -> tuple[float, float]:
        """The tilt of a rung, and `K` there."""
        if rung not in self._tilts:
            tilt = self.total.tilt_for_rarity(_RUNG * rung)
            self._tilts[rung] = tilt, self.total.tilted(tilt)[0]
        return self._tilts[rung]

    def _curve(self, rung: int) -> LatticeCurve:
        if rung not in self._curves:
            self._curves[rung] = self.total.curve(self._tilt(rung)[0])
        return self._curves[rung]
