r"""The privacy loss of one step as finitely many losses, every rounding upwards.

The loss of a pair (P, Q) is `ln P/Q` under P. A law of losses bounds another one, however often and with whatever both
are composed, if it is got from it by raising losses, by adding mass, or by dividing the mass p of a loss l among two
losses around it such that both p and the mass `p e^-l` of Q are kept: who cannot tell the two apart sees the old pair,
so the new one dominates (this is how Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022 "connect the dots").

1. The line is cut into bins. The loss grows along it, so within a bin it lies between the losses at its ends; all of a
   bin's mass is divided among the two. The error is of the second order in the bin's width.
2. Each of these losses is divided among its neighbours on a lattice, for the Fourier transform.
3. What is left of the bins gets the loss at the first point; what is right of them, and the binomial terms left out,
   an infinite loss.
4. Computed masses are raised, Q's lowered, by bounds on their rounding errors; those of the losses are added up by the
   caller (`error`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from lightning_pac.accountants.privacy_loss.binomial import ROUNDING
from lightning_pac.accountants.privacy_loss.mixtures import MixturePair
from lightning_pac.information import Array

__all__ = ["LatticeLoss", "LossAtoms", "loss_atoms", "on_lattice"]

# Probability left outside the bins at either end.
_TAIL = 1e-26
# Deviations beyond the outermost components where the search for the ends begins: less than 1e-32 lies further out.
_DEVIATIONS = 12.0
_POINTS_PER_DEVIATION = 320
_MAX_POINTS = 1 << 15


@dataclass(frozen=True)
class LossAtoms:
    """Finitely many losses that bound those of a pair.

    Args:
        losses: in nats, not falling, shape (n,).
        masses: their probabilities in the first world, shape (n,).
        infinite: probability of an infinite loss.
        error: bound on the rounding error of the losses, to be added to a composed loss.
    """

    losses: Array = field(repr=False)
    masses: Array = field(repr=False)
    infinite: float
    error: float


@dataclass(frozen=True)
class LatticeLoss:
    """Finitely many losses `offset + step (start + i)`.

    Args:
        offset: where the lattice lies, in nats.
        start: lattice index of the first mass.
        masses: probabilities in the first world, shape (n,).
    """

    offset: float
    start: int
    masses: Array = field(repr=False)


def loss_atoms(pair: MixturePair) -> LossAtoms:
    """Losses at the ends of bins that bound those of a pair, with the same mass in both worlds but for rounding."""
    x = _points(pair)
    # The loss grows along the line; where rounding breaks that, it is raised.
    losses = np.maximum.accumulate(pair.log_ratio(x))
    first, second = pair.bin_masses(x)
    width = (x[1] - x[0]) / pair.noise_multiplier
    # A tail is right to 16 + z^2 roundings, and at least a fraction of about z times the width of it is in the bin.
    relative = 128 * ROUNDING / min(width, 1.0) + 1024 * ROUNDING + pair.weight_error
    error = pair.log_ratio_error(x) + 16 * ROUNDING * float(np.abs(losses).max())
    first = first * (1 + relative)
    with np.errstate(divide="ignore"):
        lowered = np.exp(losses[:-1] + np.log(second) - relative - error)
    # With p and q in a bin whose ends have losses l0 < l1, u = (p - q e^l0) / (1 - e^(l0 - l1)) at l1 and p - u at l0
    # keep both; a lowered q raises u.
    span = -np.expm1(losses[:-1] - losses[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(span > 0, (first - lowered) / span * (1 + 16 * ROUNDING), first)
    upper = np.clip(upper, 0.0, first)
    masses = np.zeros_like(x)
    masses[1:] += upper
    masses[:-1] += first - upper
    # Left of the bins the loss is below the first, which it is raised to; right of them it is infinite.
    below, above = pair.first_tails(x[[0, -1]])
    masses[0] += float(below[0]) * (1 + relative)
    return LossAtoms(losses, masses, float(above[1] * (1 + relative) + pair.first[2]), float(error))


def on_lattice(atoms: LossAtoms, step: float) -> LatticeLoss:
    """The same losses on a lattice through their median, each divided among its two neighbours.

    The lattice goes through the median since most of the mass of a step at a low rate is there: it is then not spread.

    Args:
        atoms: the losses.
        step: distance of lattice points, in nats.
    """
    cumulated = np.cumsum(atoms.masses)
    offset = float(atoms.losses[np.searchsorted(cumulated, cumulated[-1] / 2)])
    places = np.floor((atoms.losses - offset) / step)
    # A share (1 - e^-rest) / (1 - e^-step) of each mass goes up, which keeps it in both worlds; rounded up.
    rest = np.clip(atoms.losses - offset - places * step, 0.0, step)
    upper = np.minimum(atoms.masses * np.expm1(-rest) / math.expm1(-step) * (1 + 16 * ROUNDING), atoms.masses)
    start = int(places[0])
    index = (places - start).astype(np.int64)
    size = int(index[-1]) + 2
    masses = np.bincount(index, atoms.masses - upper, size) + np.bincount(index + 1, upper, size)
    return LatticeLoss(offset, start, np.asarray(masses * (1 + 2 * ROUNDING * len(atoms.masses)), dtype=np.float64))


def _points(pair: MixturePair) -> Array:
    """Points that leave little of the first distribution outside, dense enough to resolve its deviation."""
    counts, sigma = pair.first[0], pair.noise_multiplier
    low, high = float(counts[0]) - _DEVIATIONS * sigma, float(counts[-1]) + _DEVIATIONS * sigma
    # The furthest binomial terms weigh almost nothing: their own tails need not be covered.
    coarse = np.linspace(low, high, 257)
    below, above = pair.first_tails(coarse)
    low = float(coarse[max(0, int(np.searchsorted(below, _TAIL)) - 1)])
    high = float(coarse[min(256, int(np.searchsorted(-above, -_TAIL)))])
    number = min(_MAX_POINTS, math.ceil((high - low) / sigma * _POINTS_PER_DEVIATION))
    return np.linspace(low, high, number + 1)
