"""Private means at one success bound: PAC noise, for all secrets or for one record, and differential privacy."""

import dataclasses

import numpy as np
from scipy import stats

from lightning_pac._shown import shows_itself
from lightning_pac._validation import Count, MatrixLike, Seed, validated
from lightning_pac.accountants.bounds import dp_epsilon_for_success, membership_success_bound
from lightning_pac.information import Array, check_budget, entropy
from lightning_pac.mechanisms.pac_noise import GaussianNoise, NoiseRule, calibrate_gaussian, individual_noise
from lightning_pac.scenarios.secret_space import SecretSpace

__all__ = ["MeanComparison", "compare_private_means"]

# Quantiles of the records' norms that are tried as clipping norms.
_CLIPPING_QUANTILES = np.linspace(0.02, 1.0, 50)


@shows_itself
@dataclasses.dataclass(frozen=True)
class MeanComparison:
    """Expected distances of private means from the mean of all records, all at the same membership success bound.

    Each pair holds the distance without noise (from subsampling, or from clipping) and with it.

    Attributes:
        mutual_information: Budget of the PAC releases, in nats.
        success: The bound on membership inference that all of them have.
        epsilon: Of pure differential privacy with that bound.
        subset: PAC noise for any secret about the subset.
        individual: PAC noise for the membership of single records, one at a time.
        laplace: Pure differential privacy, records clipped in the L1 norm.
        gaussian: The Gaussian mechanism, records clipped in the L2 norm.
    """

    mutual_information: float
    success: float
    epsilon: float
    subset: tuple[float, float]
    individual: tuple[float, float]
    laplace: tuple[float, float]
    gaussian: tuple[float, float]


@validated
def compare_private_means(
    records: MatrixLike,
    space: SecretSpace,
    mutual_information: float,
    rule: NoiseRule = "logdet",
    num_trials: Count = 1000,
    rng: np.random.Generator | Seed | None = None,
) -> MeanComparison:
    r"""Compare PAC and differentially private means where an attacker with prior 1/2 has the same bound on success.

    With success p, the Laplace mechanism has $\epsilon = \ln(p / (1-p))$ and scale $C / (n \epsilon)$ on every
    coordinate, C being the clipping norm in L1: Laplace noise is calibrated to the L1 sensitivity. (Clipping in L2 with
    the same scale, as in the paper's comparison, falls short by up to $\sqrt d$.) The Gaussian mechanism's best attack
    succeeds with exactly $\Phi(C / (2 n \sigma))$, which gives $\sigma$. The number n of records is public, and an
    absent record counts as zero. Both clipping norms are the best ones for these records, found without privacy, in
    favour of differential privacy.

    The guarantees differ in kind: PAC bounds hold on average over the subset and for any question about it,
    differential privacy for every dataset, and with the whole of the records instead of half of them.

    Args:
        records: Shape (N, d).
        space: Balanced subsets of the N records.
        mutual_information: Budget in nats.
        rule: Noise rule of the subset release.
        num_trials: Draws for each expected distance.
        rng: Generator or seed of these draws; nothing is released.

    Raises:
        ValueError: If the numbers of records differ, or a record is not in half of the subsets.

    Source: *PAC-Private Algorithms*, section 6.3 and Table 2, with the sensitivity corrected (ours).

    Example:
        >>> from lightning_pac.scenarios import ComplementaryHalves
        >>> data = np.random.default_rng(0).random((60, 2))
        >>> result = compare_private_means(data, ComplementaryHalves(60, 16), 0.25, num_trials=50, rng=0)
        >>> round(result.success, 3), round(result.epsilon, 2)
        (0.838, 1.64)
    """
    rows = np.asarray(records, dtype=np.float64)
    if len(rows) != space.num_records:
        raise ValueError(f"records has {len(rows)} rows and the space {space.num_records}: make the space for them.")
    check_budget(mutual_information, "mutual_information")
    if mutual_information >= (most := float(entropy(space.prior))):
        raise ValueError(f"mutual_information is {mutual_information:g}, but the secret has an entropy of {most:g}.")
    generator = np.random.default_rng(rng)
    success = membership_success_bound(mutual_information, space.individual_prior)
    epsilon = dp_epsilon_for_success(success, delta=0.0)
    table = space.membership_table().astype(np.float64)
    # Means of the subsets, shape (m, d); the table has a row per record and a column per subset.
    outputs = (table.T @ rows) / table.sum(axis=0)[:, None]
    noises = (
        calibrate_gaussian(outputs, mutual_information, space.prior, rule),
        individual_noise(outputs, table > 0, mutual_information),
    )
    pairs = [_pac_distances(outputs, rows.mean(axis=0), space.prior, noise, num_trials, generator) for noise in noises]
    shape = (num_trials, rows.shape[1])
    # Both noises are drawn for C / n = 1 and scaled later, so that one set of draws serves all clipping norms.
    laplace = 1 / epsilon * generator.laplace(size=shape)
    # Phi(C / (2 n sigma)) = p, solved for sigma.
    gaussian = generator.standard_normal(shape) / (2 * stats.norm.ppf(success))
    return MeanComparison(
        mutual_information=mutual_information,
        success=success,
        epsilon=epsilon,
        subset=pairs[0],
        individual=pairs[1],
        laplace=_best_clipping(rows, 1, laplace),
        gaussian=_best_clipping(rows, 2, gaussian),
    )


def _pac_distances(
    outputs: Array, mean: Array, prior: Array, noise: GaussianNoise, num_trials: int, generator: np.random.Generator
) -> tuple[float, float]:
    chosen = outputs[generator.choice(len(outputs), num_trials, p=prior)]
    draws = noise.directions.expand(
        generator.standard_normal((num_trials, len(noise.variances))) * np.sqrt(noise.variances)
    )
    return _distance(chosen - mean), _distance(chosen + draws - mean)


def _best_clipping(rows: Array, order: int, unit_noise: Array) -> tuple[float, float]:
    """Distances by clipping alone and with noise, at the clipping norm of least total distance."""
    norms = np.linalg.norm(rows, ord=order, axis=1)
    pairs = []
    for clip in np.unique(np.quantile(norms, _CLIPPING_QUANTILES)):
        # The floor spares a row of zeros, which clipping leaves alone, a division by 0.
        shares = np.minimum(1.0, clip / np.maximum(norms, 1e-300))
        # Mean of the clipped rows less the mean of the rows.
        bias = (rows * (shares - 1)[:, None]).mean(axis=0)
        pairs.append((_distance(bias[None]), _distance(bias + unit_noise * clip / len(rows))))
    return min(pairs, key=lambda pair: pair[1])


def _distance(deviations: Array) -> float:
    return float(np.linalg.norm(deviations, axis=1).mean())
