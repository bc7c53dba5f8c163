r"""Sums of independent privacy losses, by tilted Fourier transforms with a bound on their rounding.

Let $f_e$ be the law of the loss of event e on a lattice, and $n_e$ how often it happens. With
$K(\lambda) = \sum_e n_e \ln \sum_l f_e(l) e^{\lambda l}$ the sum's law is $F(l) = e^{K(\lambda) - \lambda l} G(l)$,
where G is the same convolution of the *tilted* laws $f_e(l) e^{\lambda l}$, each divided by its sum. The transform's
absolute error in G is thereby a relative one in F near the tilted mean $K'(\lambda)$, however small F is there: a delta
of 1e-15 is as good as one of 0.1.

- *Rounding.* Every coefficient of a fast transform is a sum of its inputs with factors off by at most
  `gamma = 8 u log2 N` (u = 2^-53; a stage of radix 2 contributes less than 8 roundings, higher radices fewer), hence
  right to gamma where the inputs sum to 1. As $|z^n - w^n| \le (|z| + \gamma)^n - |z|^n$ for $|z - w| \le \gamma$, that
  bounds the error of the product's coefficients. The inverse transform adds the mean of these errors, and gamma times
  the mean size of the coefficients, to each point of G.
- *Window.* A transform of length N sums G over all indices that are equal modulo N. What falls from below the window
  into it is added at a higher loss, which errs upwards. What lies above it is lost, so its Chernoff bound
  $F(> U) \le e^{K(\theta) - \theta U}$ is added to delta. From the start of the window on delta is then a bound,
  wherever the window was put.
- *Delta* at the lattice points satisfies `delta_j = (1 - e^-h) P(loss > j) + e^-h delta_(j+1)`, sums of nonnegative
  terms: nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft, signal

from lightning_pac.accountants.privacy_loss.binomial import ROUNDING
from lightning_pac.accountants.privacy_loss.curves import LatticeCurve
from lightning_pac.accountants.privacy_loss.discretization import LatticeLoss, LossAtoms, on_lattice
from lightning_pac.information import Array

__all__ = ["LossSum"]

# Variance that a lattice may add to the bulk, as a share of it.
_INFLATION = 2e-5
# Coefficients of the product below e to this are left at 0 and charged in full.
_NEGLIGIBLE = -100.0
# -ln of the tilted probability beyond either end of the window.
_LOG_OUTSIDE = 28.0
_RARE = 10.0
_MIN_LENGTH = 1 << 16
_MAX_LENGTH = 1 << 20
# Distances of the tilts that Chernoff's bounds try, in units of one over the sum's deviation.
_ANGLES = np.geomspace(1e-3, 64.0, 36)
# Groups of losses that stand for all of them where only a place to look is wanted.
_GROUPS = 400
# The largest product of a tilt and the finest lattice's step.
_STEEPEST = 0.05


@dataclass(frozen=True)
class LossSum:
    """The sum of independent losses, each of which is repeated.

    Args:
        parts: the losses of single events.
        counts: how often each of them happens.
    """

    parts: Sequence[LossAtoms]
    counts: Sequence[int]

    @property
    def infinite(self) -> float:
        """A bound on the probability that any loss is infinite."""
        return sum(count * part.infinite for part, count in zip(self.parts, self.counts, strict=True))

    @property
    def error(self) -> float:
        """A bound on the rounding error of the sum of the losses."""
        return sum(count * part.error for part, count in zip(self.parts, self.counts, strict=True))

    def tilt_for_rarity(self, rarity: float) -> float:
        """The tilt at whose mean Chernoff's bound `e^(K(t) - t K'(t))` is `e^-rarity`, or the largest there is."""
        if rarity <= 0:
            return 0.0

        def reached(tilt: float) -> bool:
            log_moment, mean, _ = self.tilted(tilt)
            return tilt * mean - log_moment >= rarity

        if not self._width:  # a single loss, which no tilt moves
            return 0.0
        # A steeper tilt than the finest lattice can follow would magnify its roundings.
        steepest = _STEEPEST * _MAX_LENGTH / self._width
        # For a Gaussian t K' - K = t^2 K'' / 2, which tells where to begin.
        low, high = 0.0, min(steepest, math.sqrt(2 * rarity / self.tilted(0.0)[2]))
        while not reached(high):
            if high == steepest:
                return steepest
            low, high = high, min(steepest, 2 * high)
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return low

    def tilted(self, tilt: float) -> tuple[float, float, float]:
        """`K`, `K'` and `K''` at a tilt, of losses gathered into groups: where to look, no bound."""
        log_moment, mean, variance = 0.0, 0.0, 0.0
        for (losses, log_masses), count in zip(self._grouped, self.counts, strict=True):
            exponents = log_masses + tilt * losses
            peak = float(exponents.max())
            masses = np.exp(exponents - peak)
            total = float(masses.sum())
            own = float(masses @ losses) / total
            log_moment += count * (peak + math.log(total))
            mean += count * own
            variance += count * float(masses @ (losses - own) ** 2) / total
        return log_moment, mean, variance or 1e-300

    def _log_moments(self, tilts: Array) -> Array:
        """`K` at many tilts, of losses gathered into groups."""
        total = np.zeros(len(tilts))
        for (losses, log_masses), count in zip(self._grouped, self.counts, strict=True):
            exponents = log_masses + tilts[:, None] * losses
            peaks = exponents.max(axis=1)
            total += count * (peaks + np.log(np.exp(exponents - peaks[:, None]).sum(axis=1)))
        return total

    def curve(self, tilt: float) -> LatticeCurve:
        """Delta at every epsilon from the tilted window on, rounded upwards; loose far from the tilted mean."""
        low, high = self._window(tilt)
        step = self._step(tilt, high - low)
        lattices = [on_lattice(part, step) for part in self.parts]
        # The sum lies on a lattice again, through the sum of the offsets; `first` is its index at the window's start.
        offset = sum(count * lattice.offset for lattice, count in zip(lattices, self.counts, strict=True))
        first = math.floor((low - offset) / step)
        length = fft.next_fast_len(math.ceil((high - low) / step) + 2, real=True)
        tilted, log_scale = self._tilted_sum(lattices, step, tilt, first, length)
        losses = offset + step * np.arange(first, first + length)
        # F(l) = e^(K - t l) G(l). Where the exponent is cut to stay finite, delta is 1 by far anyway.
        masses = tilted * np.exp(np.minimum(log_scale - tilt * losses, 700.0))
        tail = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)  # P(loss > l) at each lattice point
        # delta_j = (1 - e^-h) P(loss > j) + e^-h delta_(j+1), as a recursive filter from the far end.
        deltas = signal.lfilter([-math.expm1(-step)], [1.0, -math.exp(-step)], tail[::-1])[::-1]
        steps = sum(self.counts)
        # Relative errors of the sums along the window, and of the weights e^(t l) of every loss.
        rounding = 1 + ROUNDING * (8 * length + steps * (128 + 8 * tilt * self._reach))
        added = self._beyond(lattices, step, float(losses[-1]), tilt) + self.infinite
        # All losses may be too low by their rounding errors: delta at epsilon is then that of epsilon less the error.
        shift = self.error + 16 * ROUNDING * (steps + length) * (step + self._reach)
        return LatticeCurve(float(losses[0]) + shift, step, np.minimum(1.0, deltas * rounding + added))

    @cached_property
    def _width(self) -> float:
        return max(float(part.losses[-1] - part.losses[0]) for part in self.parts)

    @cached_property
    def _reach(self) -> float:
        return max(float(np.abs(part.losses).max()) for part in self.parts)

    def _step(self, tilt: float, width: float) -> float:
        """Distance of lattice points: dividing losses among them adds two parts in 10^5 to the variance of the bulk.

        Losses that are met less than ten times in all are no bulk: the sum is then lumpy, and its lumps are as narrow
        as what else there is. A sum of few losses gets at least 2^16 points, which cost little.
        """
        steps = sum(self.counts)
        # K''(t) without the losses at either end that are met less than `_RARE` times in all.
        bulk = sum(
            count * _bulk_variance(losses, log_masses + tilt * losses, min(0.1, _RARE / steps))
            for (losses, log_masses), count in zip(self._grouped, self.counts, strict=True)
        )
        # Dividing a loss between points h apart adds h^2 / 6 to its variance, on average.
        step = min(math.sqrt(6 * _INFLATION * bulk / steps), width / _MIN_LENGTH)
        return max(step, max(width, self._width) / _MAX_LENGTH) or 2.0**-20  # any, where there is a single loss

    def _tilted_sum(
        self, lattices: Sequence[LatticeLoss], step: float, tilt: float, first: int, length: int
    ) -> tuple[Array, float]:
        """G on the window from a lattice index on, each point raised by its error, and the `K` it was scaled by."""
        gamma = 8 * ROUNDING * math.log2(length)
        raised, transforms, shift, log_scale = np.zeros(length // 2 + 1), [], 0, 0.0
        for lattice, count in zip(lattices, self.counts, strict=True):
            index = lattice.start + np.arange(len(lattice.masses))
            with np.errstate(divide="ignore"):
                exponents = np.log(lattice.masses) + tilt * step * index
            peak = float(exponents.max())
            masses = np.exp(exponents - peak)
            total = float(masses.sum())
            masses /= total
            scale = peak + math.log(total)
            # Centred at the mean, so that the phases, which are multiplied by the count, stay small.
            center = round(float(masses @ index))
            transforms.append(fft.rfft(np.bincount((index - center) % length, masses, minlength=length)))
            raised += count * np.log(np.abs(transforms[-1]) + gamma)
            shift += count * center
            log_scale += count * (scale + tilt * lattice.offset)
        # `raised` sums n ln(|z| + gamma) over the events: its exponential bounds the product, and so the error
        # of a product that is left at 0.
        product, errors = np.zeros(len(raised), dtype=np.complex128), np.exp(raised)
        kept = np.flatnonzero(raised > _NEGLIGIBLE)
        exponent, slack, rounding = np.zeros(len(kept), dtype=np.complex128), np.zeros(len(kept)), np.zeros(len(kept))
        for transform, count in zip(transforms, self.counts, strict=True):
            with np.errstate(divide="ignore"):
                logarithm = np.log(transform[kept])
                slack += count * np.log1p(gamma / np.abs(transform[kept]))
            exponent += count * logarithm
            rounding += count * 8 * ROUNDING * (1 + np.minimum(np.abs(logarithm), 1e3))
        # (|z| + gamma)^n - |z|^n = (|z| + gamma)^n (1 - e^-slack) with slack = n ln(1 + gamma/|z|) cannot cancel;
        # then the rounding of the power, which logarithms form, and that of the inverse transform.
        product[kept] = np.exp(exponent)
        errors[kept] *= -np.expm1(-slack)
        errors[kept] += np.abs(product[kept]) * (np.expm1(np.minimum(rounding, 1.0)) + gamma)
        weights = np.full(len(errors), 2.0)  # a real transform leaves out the conjugates
        weights[0] = 1.0
        bound = float(weights @ errors) / length * (1 + 1e-6)
        summed = np.roll(fft.irfft(product, length), (shift - first) % length)
        return np.maximum(summed, 0.0) + bound, log_scale

    @cached_property
    def _grouped(self) -> list[tuple[Array, Array]]:
        groups = []
        for part in self.parts:
            # Neighbouring losses at their mean.
            starts = np.arange(0, len(part.losses), max(1, len(part.losses) // _GROUPS))
            masses = np.maximum(np.add.reduceat(part.masses, starts), 1e-300)
            losses = np.add.reduceat(part.masses * part.losses, starts) / masses
            groups.append((losses, np.log(masses)))
        return groups

    def _window(self, tilt: float) -> tuple[float, float]:
        """Losses outside which the tilted sum lies with a probability of about e^-28 on either side."""
        here, mean, variance = self.tilted(tilt)
        # The tilted law has cumulants K(t + s) - K(t): it exceeds (K(t + s) - K(t) + 28) / s with
        # probability e^-28 at most, for every s > 0.
        angles = _ANGLES / math.sqrt(variance)
        high = ((self._log_moments(tilt + angles) - here + _LOG_OUTSIDE) / angles).min()
        low = ((here - self._log_moments(tilt - angles) - _LOG_OUTSIDE) / angles).max()
        return float(min(low, mean)), float(max(high, mean))

    def _beyond(self, lattices: Sequence[LatticeLoss], step: float, loss: float, tilt: float) -> float:
        """Chernoff's bound on the probability that the sum on the lattice is above a loss."""
        candidates = tilt + _ANGLES / math.sqrt(self.tilted(tilt)[2])
        # The groups only choose the tilt; the bound is a sum over the lattices themselves.
        best = float(candidates[np.argmin(self._log_moments(candidates) - candidates * loss)])
        exponent = -best * loss
        for lattice, count in zip(lattices, self.counts, strict=True):
            met = np.flatnonzero(lattice.masses)
            exponents = best * (lattice.offset + step * (lattice.start + met))
            peak = float(exponents.max())
            exponent += count * (peak + math.log(float(lattice.masses[met] @ np.exp(exponents - peak))))
        return math.exp(min(0.0, exponent + 1e-9 * (1 + abs(exponent))))


def _bulk_variance(losses: Array, exponents: Array, trimmed: float) -> float:
    masses = np.exp(exponents - exponents.max())
    # Variance between the quantiles `trimmed` and 1 - `trimmed` of the tilted law.
    cumulated = np.cumsum(masses) / masses.sum()
    kept = (cumulated > trimmed) & (cumulated < 1 - trimmed)
    if not kept.any():
        kept = np.ones_like(kept)
    mean = float(masses[kept] @ losses[kept]) / float(masses[kept].sum())
    return float(masses[kept] @ (losses[kept] - mean) ** 2) / float(masses.sum())
