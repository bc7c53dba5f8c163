"""Backward induction over the privacy loss: what the worst adaptive sequence of releases reaches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft

from lightning_pac.information import Array

__all__ = ["HockeyStickCurve", "ReleaseLoss", "backward_induction"]

# Every step's values are raised by this factor, for the rounding of some thousand additions of positive numbers.
_ROUNDING = 2.0**-34

# A transform of length n is off by at most 7 u log2(n) of its norm (Higham, 2002, Theorem 24.2); ten, to be safe.
_FFT_ERROR = 10.0 * 2.0**-53

# Head starts on the grid at most; multiplications up to which sums are formed directly, without a transform's error;
# and fine steps in one step of the coarse grid for rare losses.
_MAX_GRID_POINTS = 2**19
_DIRECT_OPERATIONS = 2e8
_FAR_STEPS = 16


@dataclass(frozen=True, eq=False)
class ReleaseLoss:
    """The privacy loss of one kind of release.

    Attributes:
        losses: Finite values of `ln(P / Q)` in nats.
        masses: Probability of each under P.
        infinite: Probability under P of what Q cannot produce.
    """

    losses: Array
    masses: Array
    infinite: float

    @classmethod
    def between(cls, upper: Array, lower: Array) -> "ReleaseLoss":
        """The loss between two distributions over the same outputs, rounded up."""
        finite = (upper > 0) & (lower > 0)
        above, below = np.log(upper[finite]), np.log(lower[finite])
        # Both logarithms and their difference are off by a few 2^-53 of the logarithms' size, so that this rounds up.
        allowance = 2.0**-50 * (np.abs(above) + np.abs(below))
        return cls(above - below + allowance, upper[finite], float(upper[lower == 0].sum()))

    def part(self, least: float, limit: float) -> "ReleaseLoss":
        """The losses of size above `least` and at most `limit`; the infinite one goes with the last of them."""
        size = np.abs(self.losses)
        within = (size <= limit) & ((size > least) | (least == 0.0))
        return ReleaseLoss(self.losses[within], self.masses[within], self.infinite if limit == math.inf else 0.0)

    @property
    def spread(self) -> float:
        """Root mean square of the loss where it is at most one under both P and Q."""
        # min(P, Q), as P min(1, e^-loss).
        common = self.masses * np.exp(np.minimum(-self.losses, 0.0))
        return math.sqrt(float(common @ np.minimum(self.losses**2, 1.0)))

    def tail(self, count: int, probability: float) -> float:
        """A value that the sum of `count` losses exceeds with at most that probability (Chernoff)."""
        if not self.losses.size or self.losses.max() <= 0.0:
            return 0.0
        logs = np.log(np.maximum(self.masses, 1e-300))
        # P[sum > x] <= e^(count K(t) - t x) at every tilt t; the best is of the order of one over the sum's deviation.
        tilts = np.geomspace(0.02, 100.0, 50) / math.sqrt(count * float(self.masses @ self.losses**2))
        cumulants = np.array([float(np.logaddexp.reduce(logs + tilt * self.losses)) for tilt in tilts])
        least = float(np.min((count * cumulants - math.log(probability)) / tilts))
        return max(0.0, min(least, count * float(self.losses.max())))


@dataclass(frozen=True, eq=False)
class HockeyStickCurve:
    """Upper bounds on the hockey-stick divergence of neighbours whose order does not matter.

    A hockey-stick divergence is convex in `e^epsilon`: between two grid points the chord is an upper bound, beyond the
    last one its value there. Where both orders of a pair have the same divergence,
    `delta(-epsilon) = 1 - e^-epsilon + e^-epsilon delta(epsilon)`.

    Attributes:
        step: Distance of the grid points in nats.
        deltas: The divergence at epsilon = 0, step, 2 step, ..., decreasing.
    """

    step: float
    deltas: Array

    def delta(self, epsilon: float) -> float:
        """An upper bound on the divergence at any epsilon."""
        if epsilon < 0.0:
            return 1.0 - math.exp(epsilon) + math.exp(epsilon) * self.delta(-epsilon)
        # Convex in e^epsilon: the chord between two grid points lies above the curve.
        index = math.floor(min(epsilon / self.step, float(self.deltas.size - 1)))
        if index == self.deltas.size - 1:
            return float(self.deltas[-1])
        share = math.expm1(epsilon - index * self.step) / math.expm1(self.step)
        return float((1.0 - share) * self.deltas[index] + share * self.deltas[index + 1])

    def epsilon(self, delta: float) -> float:
        """The least epsilon, not negative, at which the bound is at most delta; infinite if it nowhere is."""
        within = self.deltas <= delta
        if not within[-1]:
            return math.inf
        index = int(np.argmax(within))
        if index == 0:
            return 0.0
        above, below = float(self.deltas[index - 1]), float(self.deltas[index])
        # Invert the chord on which the bound crosses delta.
        share = (above - delta) / (above - below)
        return (index - 1) * self.step + math.log1p(share * math.expm1(self.step))

    def as_release(self, coarsening: int) -> ReleaseLoss:
        """The loss of a pair of distributions whose divergence is the chords over every `coarsening`-th point."""
        deltas, step = self.deltas[::coarsening], self.step * coarsening
        losses = np.arange(deltas.size) * step
        # The second difference of the chords is the mass of the loss at each grid point.
        drops = -np.diff(deltas)
        # Slopes in e^epsilon to the left and right of each point, falling ones positive, times e^epsilon there.
        rise = np.append(0.0, drops / -math.expm1(-step))
        fall = np.append(drops / math.expm1(step), 0.0)
        # Rounding can bend the curve the wrong way; to leave a mass at zero there only raises it.
        masses = np.maximum(rise - fall, 0.0) + 2.0**-50 * (rise + fall)
        # Exchanging P and Q turns a mass p of the loss l into p e^-l of -l; loss 0 gets the rest of the probability.
        reflected = masses[1:] * np.exp(-losses[1:])
        masses[0] = max(0.0, 1.0 - float(deltas[-1]) - float(masses[1:].sum()) - float(reflected.sum()))
        return ReleaseLoss(np.append(losses, -losses[1:]), np.append(masses, reflected), float(deltas[-1]))


def backward_induction(releases: Sequence[ReleaseLoss], count: int, step: float) -> HockeyStickCurve:
    r"""The curve that `count` releases reach when each may be any of `releases`, chosen by all that was seen before.

    With the head start l, $V_{count}(l) = (1 - e^{-l})_+$ and $V_t(l) = \max_d E[V_{t+1}(l + L_d)]$, an infinite loss
    counting as $V = 1$; the divergence at epsilon is $V_0(-\epsilon)$. Computed is an upper bound: a loss between two
    grid points is split between them such that its mass under both distributions stays (V is convex in $e^{-l}$),
    values below the grid are replaced by its lowest, and the errors of rounding and of the transforms are charged by
    their bounds.

    Args:
        releases: Kinds of release, such that neighbours may exchange their roles.
        count: How many releases are made, at least one.
        step: Distance of the grid points, exact in a few bits; doubled where the grid would be too long.
    """
    infinite = min(1.0, count * max(release.infinite for release in releases))
    floor = max(1e-15, infinite)  # tails far below what infinite losses cost anyway are cut off, safely
    tail = max(release.tail(count, 1e-3 * floor) for release in releases)
    while tail > step * _MAX_GRID_POINTS:
        step *= 2.0
    # A multiple of 16 steps, so that the coarse grid ends where the fine one does.
    size = _FAR_STEPS * (math.ceil(tail / step) // _FAR_STEPS + 1) + 1
    reach = max(_reach(release, 1e-4 * floor / count) for release in releases)
    # The values are held times e^{-tilt l}: they span many orders of magnitude, and a transform is accurate to its
    # largest value only.
    tilt = -math.log(floor) / ((size - 1) * step)
    axis = _Axis(step, size, tilt)
    advance = axis.convolution(releases, reach, count)
    # No value exceeds 1, which is e^{-tilt l} here; V_count is 0 for every l <= 0.
    ceiling = np.exp(tilt * step * np.arange(size - 1, -1, -1))
    values = np.zeros(size)
    for _ in range(count):
        # One release further back: the neighbour takes the better direction at every head start.
        futures, error = advance(values)
        values = futures.max(axis=0) * (1.0 + _ROUNDING) + error
        np.minimum(values, ceiling, out=values)
    # Values grow with l: what rounding bent is raised. Epsilon is -l, which reverses the order.
    return HockeyStickCurve(step, np.maximum.accumulate(np.clip(values / ceiling, 0.0, 1.0))[::-1])


_Advance = Callable[[Array], tuple[Array, float]]


@dataclass(frozen=True)
class _Axis:
    """Head starts `-(size - 1) step, ..., -step, 0`, on which values are held times `e^{-tilt l}`."""

    step: float
    size: int
    tilt: float

    def convolution(self, releases: Sequence[ReleaseLoss], reach: float, count: int) -> _Advance:
        """The expected values after each kind of release, shape (kinds, size), and a bound on their error.

        Losses beyond `reach` are split with infinity. Rare losses of many steps need no fine grid: their share is
        computed on every 16th point, with chords between (it is convex in `e^{-l}` as well).
        """
        # Multiplications of all steps: releases times kinds times grid points times weights of a kernel.
        direct = count * len(releases) * self.size * 2.0 * reach / self.step <= _DIRECT_OPERATIONS
        limit = 8.0 * max(release.spread for release in releases)
        if direct or reach <= 2.0 * limit:
            return self._single(releases, reach, direct)
        near = self._single([release.part(0.0, limit) for release in releases], limit, False)
        coarse = _Axis(self.step * _FAR_STEPS, (self.size - 1) // _FAR_STEPS + 1, self.tilt)
        far = coarse._single([release.part(limit, math.inf) for release in releases], reach, False)
        # Weights of the chord between two coarse points, at the fine points in between.
        places = self.step * np.arange(_FAR_STEPS)
        right = np.expm1(-places) / math.expm1(-coarse.step) * np.exp(self.tilt * (coarse.step - places))
        left = (1.0 - np.expm1(-places) / math.expm1(-coarse.step)) * np.exp(-self.tilt * places)

        def advance(values: Array) -> tuple[Array, float]:
            futures, error = near(values)
            rare, rare_error = far(values[::_FAR_STEPS])
            # (kinds, coarse intervals, 16), then one row of fine points a kind.
            chords = rare[:, :-1, None] * left + rare[:, 1:, None] * right
            futures[:, :-1] += chords.reshape(len(futures), -1)
            futures[:, -1] += rare[:, -1]
            # The weights of a chord add up to no more than e^{tilt times coarse step}.
            return futures, error + rare_error * math.exp(self.tilt * coarse.step)

        return advance

    def _single(self, releases: Sequence[ReleaseLoss], reach: float, direct: bool) -> _Advance:
        upwards = min(math.ceil(reach / self.step) + 1, self.size - 1)
        # A loss below -8 / tilt leaves next to nothing; it is rounded up to there.
        downwards = min(math.ceil(min(reach, 8.0 / max(self.tilt, 1e-9)) / self.step) + 1, self.size - 1)
        parts = [self._kernel(release, downwards, upwards) for release in releases]
        kernels = np.stack([kernel for kernel, _ in parts])
        constants = np.array([infinite for _, infinite in parts])[:, None] * np.exp(
            self.tilt * self.step * np.arange(self.size - 1, -1, -1)
        )
        # Values outside the grid: below it the lowest one, above it the reflection that both orders of a pair
        # share.
        beyond = self.step * np.arange(1, max(upwards, downwards) + 1)
        before = np.exp(self.tilt * beyond[:downwards][::-1])
        after = (np.exp(-self.tilt * beyond) * -np.expm1(-beyond))[:upwards]
        reflection = np.exp(-(1.0 + 2.0 * self.tilt) * beyond)[:upwards]
        extended = np.empty(downwards + self.size + upwards)
        convolve = _direct(kernels) if direct else _fast(kernels, self.size)

        def advance(values: Array) -> tuple[Array, float]:
            # Head starts below the grid, on it and above it, one step apart.
            extended[:downwards] = values[0] * before
            extended[downwards:-upwards] = values
            extended[-upwards:] = after + reflection * values[-2 : -2 - upwards : -1]
            futures, error = convolve(extended)
            futures += constants
            return futures, error

        return advance

    def _kernel(self, release: ReleaseLoss, downwards: int, upwards: int) -> tuple[Array, float]:
        """Weights of -downwards..upwards steps, tilted and in reverse, and the mass at infinity."""
        losses = np.clip(release.losses, -downwards * self.step, upwards * self.step)
        # Of a mass p at a loss l above the last step u, p e^(u - l) is put at u, which keeps the mass under Q; the rest
        # becomes infinite.
        beyond = np.minimum(upwards * self.step - release.losses, 0.0)
        masses = release.masses * np.exp(beyond)
        # Split each loss between its two grid points so that its mass under P and under Q stays what it is.
        index = np.floor(losses / self.step).astype(np.int64)
        share = np.clip(np.expm1(index * self.step - losses) / math.expm1(-self.step), 0.0, 1.0)
        length = downwards + upwards + 2
        weights = np.bincount(index + downwards, masses * (1.0 - share), length)
        weights += np.bincount(index + downwards + 1, masses * share, length)
        # A step of k on the grid takes the factor e^{tilt k step}. Reversed, since an expectation is a correlation.
        tilted = weights[:-1] * np.exp(self.tilt * self.step * np.arange(-downwards, upwards + 1))
        return tilted[::-1], release.infinite + float(release.masses @ -np.expm1(beyond))


def _direct(kernels: Array) -> _Advance:
    def convolve(extended: Array) -> tuple[Array, float]:
        # Sums of terms that are not negative: `_ROUNDING` covers their rounding.
        return np.stack([np.convolve(extended, kernel, "valid") for kernel in kernels]), 0.0

    return convolve


def _fast(kernels: Array, size: int) -> _Advance:
    skipped = kernels.shape[1] - 1
    length = fft.next_fast_len(size + skipped, real=True)
    # In extended precision where there is one: an error of the spectra would act on every step alike.
    spectra = fft.rfft(kernels.astype(np.longdouble), length, axis=1).astype(np.complex128)
    # No spectral value exceeds the sum of a kernel that is not negative. The error is that of a forward and an inverse
    # transform, at this gain, and that of the spectra, whose norm is sqrt(n) times the kernel's.
    gain = float(kernels.sum(axis=1).max())
    norm = math.sqrt(length) * float(np.linalg.norm(kernels, axis=1).max())
    extended_unit = float(np.finfo(np.longdouble).eps) / float(np.finfo(np.float64).eps)
    bound = _FFT_ERROR * math.log2(length) * (2.0 * gain + extended_unit * norm)

    def convolve(extended: Array) -> tuple[Array, float]:
        product = spectra * fft.rfft(extended, length)
        futures = fft.irfft(product, length, axis=1, overwrite_x=True)[:, skipped : skipped + size]
        return futures, bound * float(np.linalg.norm(extended))

    return convolve


def _reach(release: ReleaseLoss, probability: float) -> float:
    """The size that losses of at most that probability exceed."""
    order = np.argsort(-np.abs(release.losses))
    index = int(np.searchsorted(np.cumsum(release.masses[order]), probability))
    return float(np.abs(release.losses[order[index]])) if index < order.size else 0.0
