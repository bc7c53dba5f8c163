"""The number of bands that leaves the least noise in the weights, at the promise of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lightning_pac._validation import Count, validated
from lightning_pac.accountants.correlated_noise import SGDWorkload, optimal_bands
from lightning_pac.accountants.srpp.accountant import SRPPAccountant
from lightning_pac.scenarios import BlockedPoisson, Poisson, Sampling

__all__ = ["BestBands", "best_bands"]

# Neighbouring numbers of bands that are tried last differ by no more than this: errors are flat there.
_FINEST = 1.5


@validated
@dataclass(frozen=True)
class BestBands:
    """The bands that were found best, and what they were compared with.

    Attributes:
        bands: their number; 1 is independent noise.
        sampling: the draw that goes with them: under Poisson sampling as many blocks as bands, otherwise that asked of.
        errors: for every number of bands that was tried, the noise in prefix sums: the noise multiplier that keeps the
            promise, times the share of independent noise that the bands leave.
    """

    bands: int
    sampling: Sampling
    errors: dict[int, float]

    def __str__(self) -> str:
        least, alone = self.errors[self.bands], self.errors[1]
        if self.bands == 1:
            return "independent noise leaves the least in sums of steps"
        return (
            f"{self.bands} bands leave {100 * least / alone:.0f} % of the noise that independent noise would leave in "
            "sums of steps"
        )


@validated
def best_bands(
    accountant: SRPPAccountant,
    num_steps: Count,
    noise: Callable[[SRPPAccountant], float],
    at_most: Count | None = None,
    fits: Callable[[int], bool] | None = None,
) -> BestBands:
    r"""The number of bands at which a promise leaves the least noise in prefix sums.

    .. math:: \min_b \; \sigma_b \Big( \sum_k (T - k) s_k^2 \Big/ \sum_k (T - k) \Big)^{1/2}

    :math:`\sigma_b` is the noise that keeps the promise, and the root what b bands leave of it
    (`BandedMatrix.noise_left`). In one order, noise is the same for all b as long as the differing records fit into one
    batch. Under secret Poisson draws, b bands need as many blocks, and the noise grows with them. Powers of two are
    tried, the most, and numbers between the best and its neighbours, since errors hardly change within a factor of 1.5.
    Everything that is asked is public, and the choice is no part of any guarantee.

    Args:
        accountant: terms of independent noise. Its sampling is `Poisson`, for blocks, or keeps records apart.
        num_steps: T.
        noise: the noise multiplier that keeps the promise under given terms.
        at_most: bands that memory allows; as many as the sampling does if left out.
        fits: whether so many blocks fit into a pass of the Trainer; any number if left out.

    Raises:
        ValueError: if the sampling neither keeps records apart nor is Poisson sampling with secret draws.

    Example:
        >>> from lightning_pac.scenarios import CyclicShuffle, TwoWorldScenario
        >>> terms = SRPPAccountant(TwoWorldScenario(1, num_records=1000), CyclicShuffle(batch_size=100))
        >>> print(best_bands(terms, 100, lambda account: account.noise_multiplier(3.0, 100, delta=1e-5)))
        10 bands leave 41 % of the noise that independent noise would leave in sums of steps
    """
    sampling, workload = accountant.sampling, SGDWorkload(num_steps)
    blocks = sampling.amplified_rate is not None and isinstance(sampling, Poisson)
    if blocks and accountant.scenario.adjacency == "add_remove":
        raise ValueError(
            "Blocks are made by position, which a record's absence moves, so more than one band does not hold for "
            "add_remove: use the adjacency zero_out or replace."
        )
    apart = int(1 / sampling.rate) if isinstance(sampling, Poisson) and blocks else None
    if apart is None:
        apart = sampling.separation(accountant.scenario.num_records)
    if apart is None:
        raise ValueError(
            f"sampling is {sampling}, under which a record may come back at once, so no bands are best: give "
            "CyclicShuffle(batch_size), or Poisson(rate) with secret draws."
        )
    most = min(apart, num_steps, at_most or apart)
    noises: dict[float, float] = {}
    errors: dict[int, float] = {}

    def terms(bands: int) -> SRPPAccountant:
        if bands == 1:
            return accountant
        drawn = BlockedPoisson(sampling.rate, bands, sampling.batch_size) if isinstance(sampling, Poisson) else sampling
        return replace(accountant, sampling=drawn, correlation=optimal_bands(workload, bands))

    def error(bands: int) -> float:
        if bands not in errors:
            account = terms(bands)
            left = 1.0 if account.correlation is None else account.correlation.noise_left(num_steps)
            # Where blocks do not change with the bands, the noise depends on the units alone.
            key = bands if blocks else account.units(num_steps)
            if key not in noises:
                noises[key] = noise(account)
            errors[bands] = noises[key] * left
        return errors[bands]

    tried = [b for b in sorted({*(1 << k for k in range(most.bit_length())), most}) if fits is None or fits(b)]
    while True:
        best = min(tried, key=error)
        place = tried.index(best)
        # The geometric middles between the best and its neighbours.
        between = {
            round((best * tried[other]) ** 0.5)
            for other in (place - 1, place + 1)
            if 0 <= other < len(tried) and max(best, tried[other]) > _FINEST * min(best, tried[other])
        }
        new = [b for b in between if b not in tried and (fits is None or fits(b))]
        if not new:
            return BestBands(best, terms(best).sampling, dict(sorted(errors.items())))
        tried = sorted([*tried, *new])
