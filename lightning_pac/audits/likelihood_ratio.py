"""The best attack on two worlds: compare how likely each of them makes everything that was released."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from lightning_pac._validation import Confidence, Count, Noise, Seed, validated
from lightning_pac.audits.attack_result import AttackResult, proportion_interval
from lightning_pac.scenarios import Sampling, TwoWorldScenario

__all__ = ["likelihood_ratio_attack"]

# `_mixture_ratio` holds (runs, steps, differing records + 1) values.
_RUNS_PER_CHUNK = 2000


@validated
def likelihood_ratio_attack(
    scenario: TwoWorldScenario,
    sampling: Sampling,
    noise_multiplier: Noise,
    num_steps: Count,
    num_runs: Count = 10_000,
    confidence: Confidence = 0.95,
    rng: np.random.Generator | Seed | None = None,
) -> AttackResult:
    """Simulate training runs in both worlds and attack each with the likelihood-ratio test.

    The runs are the worst that the scenario allows: every differing record has a gradient of the full clipping norm,
    all in one direction, opposite in the two worlds under `replace`. The other records cancel, since the attacker
    knows them. By Neyman and Pearson no attacker who sees all noised gradients does better on such runs, so a success
    above `world_success_bound` refutes the account; staying below it proves nothing.

    Under Poisson sampling with secret draws the attacker knows the rate and weighs the binomial mixture of every step
    (within blocks, of every turn of the one record's block). Otherwise the attacker also sees how many differing
    records each batch drew.

    Args:
        scenario: The two worlds, with `num_records` where batches are not Poisson.
        sampling: How batches are drawn.
        noise_multiplier: Standard deviation of the noise on the sum, in clipping norms.
        num_steps: Optimizer steps of a run.
        num_runs: Simulated runs, half in each world.
        confidence: Probability that the interval covers.
        rng: Generator or seed of the simulation.

    Raises:
        ValueError: The noise is not positive, a count is below 1, or the number of records is needed and missing.

    Example:
        >>> from lightning_pac.scenarios import Poisson, TwoWorldScenario
        >>> worlds = TwoWorldScenario(num_differing=3)
        >>> result = likelihood_ratio_attack(worlds, Poisson(rate=0.1), 1.0, num_steps=20, num_runs=400, rng=0)
        >>> result.success > 0.7
        True
    """
    generator = np.random.default_rng(rng)
    groups = _groups(scenario)
    # The differing records come first in the data, and those of a block wait for its turn.
    turns = (sampling.separation(scenario.num_records) or 1) if sampling.amplifies_one_record else 1
    block = np.arange(sum(size for size, _ in groups)) % turns
    group = np.repeat(np.arange(len(groups)), [size for size, _ in groups])
    hidden_rate = sampling.amplified_rate
    right = 0
    for start in range(0, num_runs, _RUNS_PER_CHUNK):
        runs = min(_RUNS_PER_CHUNK, num_runs - start)
        world = generator.integers(2, size=runs)
        sizes = [size for size, _ in groups]
        # Drawn records of each group, shape (runs, steps, groups).
        counts = sampling.draw_counts(sizes, scenario.num_records, (runs, num_steps), generator)
        shifts = _shifts(counts, groups)
        # Everything that the attacker sees: the sum of each step, noised, in units of the clipping norm.
        released = np.where(world[:, None] == 0, shifts[0], shifts[1])
        released = released + noise_multiplier * generator.standard_normal(released.shape)
        if hidden_rate is not None:
            ratio = np.zeros(runs)
            for turn in sorted(set(block)):
                present = np.bincount(group[block == turn], minlength=len(groups))
                own = tuple((int(size), signs) for size, (_, signs) in zip(present, groups, strict=True))
                ratio += _mixture_ratio(released[:, turn::turns], own, hidden_rate, noise_multiplier)
        else:
            # With known draws the worlds differ by a shift, and the test statistic is linear.
            ratio = ((shifts[1] - shifts[0]) * (released - (shifts[0] + shifts[1]) / 2)).sum(axis=1)
        # Runs in which no differing record was drawn are decided by a coin.
        guess = np.where(ratio == 0, generator.integers(2, size=runs), ratio > 0)
        right += int(np.count_nonzero(guess == world))
    seen = "all noised gradients" + (" and every draw" if hidden_rate is None else ", but not the draws")
    return AttackResult(
        name="likelihood_ratio",
        success=right / num_runs,
        interval=proportion_interval(right, num_runs, confidence),
        confidence=confidence,
        num_trials=num_runs,
        method=f"the likelihood-ratio test on {num_runs} simulated worst-case runs by an attacker who sees {seen}",
    )


def _groups(scenario: TwoWorldScenario) -> tuple[tuple[int, tuple[int, int]], ...]:
    """Sizes of the groups of differing records, and the sign of their gradients in either world (0: absent)."""
    if scenario.adjacency == "replace":
        return ((scenario.total_differing, (-1, 1)),)
    first, second = scenario.num_differing if isinstance(scenario.num_differing, tuple) else scenario.splits[0]
    return tuple((size, signs) for size, signs in ((first, (-1, 0)), (second, (0, 1))) if size)


def _shifts(
    counts: npt.NDArray[np.int64], groups: tuple[tuple[int, tuple[int, int]], ...]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Noiseless sums in either world, shape (num_runs, num_steps), in clipping norms."""
    # Every drawn record of a group adds its sign to the sum, which is measured in clipping norms.
    first, second = np.array([signs for _, signs in groups], dtype=float).T
    return counts @ first, counts @ second


def _mixture_ratio(
    released: npt.NDArray[np.float64],
    groups: tuple[tuple[int, tuple[int, int]], ...],
    rate: float,
    noise_multiplier: float,
) -> npt.NDArray[np.float64]:
    """Log likelihood of world 1 against world 0 when the draws are hidden, shape (num_runs,)."""
    log_likelihoods = []
    for world in (0, 1):
        # Each step's density is a binomial mixture of shifted Gaussians.
        # Each world has at most one group of differing records: k ~ Binomial(n, q) of them are drawn and shift by s k.
        present = sum(size for size, signs in groups if signs[world])
        sign = next((signs[world] for _, signs in groups if signs[world]), 0)
        drawn = np.arange(present + 1)
        weights = stats.binom.logpmf(drawn, present, rate)
        # ln sum_k Bin(k; n, q) exp(-(r - s k)^2 / (2 sigma^2)), summed over independent steps. The normal's
        # constant is the same in both worlds.
        terms = weights - (released[..., None] - sign * drawn) ** 2 / (2 * noise_multiplier**2)
        log_likelihoods.append(special.logsumexp(terms, axis=-1).sum(axis=1))
    return np.asarray(log_likelihoods[1] - log_likelihoods[0])
