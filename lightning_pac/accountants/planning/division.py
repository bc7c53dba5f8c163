"""One promise divided among releases: how much noise each of them gets, exactly.

Of the `mu^2` that the promise allows a Gaussian, each release is given the part that its weight says, and the noise at
which it alone keeps the figure of that part. What they tell together is then found from their joint curve, by one
factor for all noise: parts of `mu^2` add up for Gaussians, and nearly so for what is amplified or selected.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from lightning_pac.accountants.composed_ledger import Share
from lightning_pac.accountants.planning.releases import PlannedTraining, PlannedValues
from lightning_pac.accountants.privacy_loss import (
    EpsilonDelta,
    GaussianCurve,
    GaussianRelease,
    PoissonSteps,
    PrivacyCurve,
    Promise,
    SuccessBound,
    least_noise,
)
from lightning_pac.accountants.private_selection import SelectionPrice
from lightning_pac.accountants.srpp import SRPPAccountant

__all__ = ["divide_promise", "round_down"]

Terms = Mapping[str, tuple[PlannedTraining, SRPPAccountant, int] | PlannedValues]
"""Each release by its name; a training with its account and its number of steps."""


def divide_promise(promise: Promise, terms: Terms, draws_per_run: Mapping[str, float]) -> dict[str, Share]:
    """The shares of all releases, which together keep the promise and use it up.

    Args:
        promise: what all of them keep together.
        terms: the releases.
        draws_per_run: values of noise of one run, by the names of selections.

    Raises:
        ValueError: If a release is given too little for any noise.
    """
    whole = math.fsum(_weight(term) for term in terms.values())
    shares: dict[str, Share] = {}
    for name, term in terms.items():
        part = _weight(term) / whole
        if isinstance(term, PlannedValues):
            shares[name] = GaussianRelease(part * promise.largest_mu**2)
            continue
        training, accountant, steps = term
        score = training.score_share * part if training.runs is not None else 0.0
        alone = _part(promise, part - score, name)
        (fit,) = accountant.events(accountant.noise_for(alone, steps), steps)
        if training.runs is None:
            shares[name] = fit
            continue
        one_run = (fit, GaussianRelease(score * promise.largest_mu**2))
        best = SelectionPrice(one_run, training.runs, draws_per_run[name])
        shares[name] = _scaled(_part(promise, part, name), {name: best})[name]
    shares = _scaled(promise, shares) if len(shares) > 1 else shares
    return {name: _written_out(share) for name, share in shares.items()}


def round_down(value: float) -> float:
    """The value with five digits, not above it: a number that people can type."""
    size = 10.0 ** (math.floor(math.log10(value)) - 4)
    return float(f"{math.floor(value / size * (1 - 1e-12)) * size:.5g}")


def round_up(value: float) -> float:
    """The value with five digits, not below it."""
    size = 10.0 ** (math.floor(math.log10(value)) - 4)
    return float(f"{math.ceil(value / size * (1 + 1e-12)) * size:.5g}")


def _louder(share: Share, factor: float) -> Share:
    """The same releases with noise that is larger by a factor."""
    if isinstance(share, SelectionPrice):
        return dataclasses.replace(share, one_run=tuple(_scaled_event(event, factor) for event in share.one_run))
    return _scaled_event(share, factor)


def _scaled_event(event: GaussianRelease | PoissonSteps, factor: float) -> GaussianRelease | PoissonSteps:
    if isinstance(event, PoissonSteps):
        return dataclasses.replace(event, noise_multiplier=event.noise_multiplier * factor)
    return GaussianRelease(event.mu_squared / factor**2)


def _written_out(share: Share) -> Share:
    """A share of no more than that, in numbers of five digits."""
    if isinstance(share, SelectionPrice):
        return dataclasses.replace(share, one_run=tuple(_five_digits(event) for event in share.one_run))
    return _five_digits(share)


def _five_digits(event: GaussianRelease | PoissonSteps) -> GaussianRelease | PoissonSteps:
    if isinstance(event, PoissonSteps):
        noise = event.noise_multiplier
        short = float(f"{noise:.5g}")
        # Rounded upwards: one more in the last digit where rounding went down.
        raised = short if short >= noise else float(f"{short + 10.0 ** (math.floor(math.log10(noise)) - 4):.5g}")
        return dataclasses.replace(event, noise_multiplier=raised)
    return GaussianRelease(round_down(event.mu_squared))


def _scaled(promise: Promise, shares: Mapping[str, Share]) -> dict[str, Share]:
    """Shares with the least factor on all noise at which they keep the promise together."""

    def events(factor: float) -> list[GaussianRelease | PoissonSteps]:
        scaled = [_louder(share, factor) for share in shares.values()]
        return [share for share in scaled if not isinstance(share, SelectionPrice)]

    def others(factor: float) -> list[PrivacyCurve]:
        scaled = [_louder(share, factor) for share in shares.values()]
        return [share.curve for share in scaled if isinstance(share, SelectionPrice)]

    # The last digits of a share of mu^2 are left to the rounding of a sum, which a plan adds.
    factor = least_noise(promise, events, others) * (1 + 1e-9)
    return {name: _louder(share, factor) for name, share in shares.items()}


def _weight(term: tuple[PlannedTraining, SRPPAccountant, int] | PlannedValues) -> float:
    return term.weight if isinstance(term, PlannedValues) else term[0].weight


def _part(promise: Promise, part: float, name: str) -> Promise:
    """The promise that a Gaussian with this part of the `mu^2` keeps."""
    if part == 1:
        return promise
    figure = promise.figure(GaussianCurve(promise.largest_mu * math.sqrt(part)))
    if figure <= promise.blind:
        raise ValueError(f"weight of {name!r} leaves it {part:.2g} of the promise, for which no noise is enough.")
    if isinstance(promise, SuccessBound):
        return dataclasses.replace(promise, bound=figure)
    assert isinstance(promise, EpsilonDelta)
    return dataclasses.replace(promise, epsilon=figure)
