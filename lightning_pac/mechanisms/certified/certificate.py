"""Proven upper bounds on mutual information, as opposed to estimates."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Confidence, Device, Draws, Exponent, MatrixLike, VectorLike, validated
from lightning_pac.information import Array
from lightning_pac.mechanisms.certified.clusters import Cluster, cluster_outputs, clusters_entropy, covariance_of
from lightning_pac.mechanisms.certified.divergence_sample import DivergenceSample
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = [
    "Certificate",
    "certify_finite_secret",
    "donsker_varadhan_correction",
    "empirical_bernstein_margin",
    "two_point_information",
]

ABOUT_THE_SECRET = "the secret"

# Likelihoods held at a time: 8 MiB.
_CHUNK_VALUES = 2**20

# Two outputs further apart tell all but e^-800 of their entropy.
_APART = 80.0

# Surprisals of outputs with more energy vary too much to help; those of less energy underflow.
_SMALLEST_ENERGY, _LARGEST_ENERGY = 2.0**-900, 2.0**10


@validated
@dataclasses.dataclass(frozen=True)
class Certificate:
    """A proven upper bound on the mutual information between a release and what it is about.

    Attributes:
        mutual_information: The bound in nats.
        confidence: Probability, over the sampling that the proof used, that the bound holds; 1.0 without sampling.
        method: How it was proven: `"logdet"`, `"quadrature"`, `"monte_carlo"`, `"lattice"`, `"logdet-dv"`, `"entropy"`.
        estimate: Best estimate of the mutual information itself, where there is one; it proves nothing.
        about: The secret as a whole, or what of it alone the bound speaks of.
    """

    mutual_information: float
    confidence: float
    method: str
    estimate: float | None = None
    about: str = ABOUT_THE_SECRET


@validated
def certify_finite_secret(
    whitened: MatrixLike,
    weights: npt.ArrayLike | None = None,
    confidence: Confidence = 0.99,
    num_draws: Draws = 2**17,
    generator: SecureGenerator | None = None,
    device: Device | None = None,
) -> Certificate:
    r"""Bound the mutual information of a finite secret and its output plus standard normal noise.

    $$I = E_y\,\mathrm{KL}(P_{S|y} \,\|\, P), \qquad y = W_S + \mathcal{N}(0, I)$$

    The divergence of the posterior from the prior is never above $\ln(1 / \min_j P_j)$, so its mean over independent
    draws of y has an upper confidence bound (`upper_mean_bound`), narrowed by a second function of y with the same mean
    (`DivergenceSample`). Equal outputs are merged first, and outputs that no noise bridges are told apart without any
    draw (`Cluster`), so that the bound holds however far they are spread. Where at most two are left together,
    quadrature replaces sampling and the confidence is 1; so it is where the log-det bound, which needs no draws, is the
    smaller one.

    The bound is valid for a mechanism that was fixed before the draws were made. To scale the noise until a
    certificate suits, one must spend a share of the failure probability on each attempt.

    Args:
        whitened: Outputs divided by the noise's square root, one row per secret, shape (m, r).
        weights: Prior of the secret, uniform if None.
        confidence: Probability that the bound holds.
        num_draws: Number of draws of y. For 128 outputs that tell 0.01 nats the default leaves the bound less than 1 %
            above the information.
        generator: Source of the draws, the process-wide secure generator if None.
        device: A torch device to compute the posteriors on; numpy if None.

    Raises:
        ValueError: If the outputs are not finite or the weights are no distribution.

    Source: ours.

    Example:
        >>> certificate = certify_finite_secret([[-1.0], [1.0]])
        >>> round(certificate.mutual_information, 4), certificate.confidence
        (0.3368, 1.0)
    """
    outputs = np.asarray(whitened, dtype=np.float64)
    points, mass = merge_equal(outputs, check_weights(weights, len(outputs)))
    return certify_clusters(cluster_outputs(points, mass, np.asarray), confidence, num_draws, generator, device)


def certify_clusters(
    clusters: list[Cluster],
    confidence: float,
    num_draws: int,
    generator: SecureGenerator | None = None,
    device: str | None = None,
) -> Certificate:
    """`certify_finite_secret` for distinct outputs in clusters."""
    if max(len(cluster.weights) for cluster in clusters) <= 2:
        information = clusters_entropy(clusters)
        for cluster in clusters:
            if len(cluster.weights) == 2:
                distance = float(np.linalg.norm(cluster.whitened[1] - cluster.whitened[0]))
                information += cluster.probability * two_point_information(distance, float(cluster.weights.min()))
        return Certificate(information, 1.0, "quadrature", information)
    source = secure_generator() if generator is None else generator
    bound, estimate = posterior_divergences(clusters, num_draws, source, device).bound(1 - confidence)
    # H(C) + sum_c P(c) ln det(I + Cov_c) / 2: the log-det bound within each cluster.
    certain = clusters_entropy(clusters) + sum(
        cluster.probability * logdet_of(covariance_of(cluster.whitened, cluster.weights)) for cluster in clusters
    )
    return smallest_bound(bound, certain, clusters, confidence, estimate)


def smallest_bound(
    bound: float, certain: float, clusters: list[Cluster], confidence: float, estimate: float
) -> Certificate:
    """The least of a sampled bound, one that needs no sample, and the entropy of the outputs."""
    # The release tells no more than the exact output would, H(W).
    mass = np.concatenate([cluster.probability * cluster.weights for cluster in clusters])
    entropy = float(-(mass * np.log(mass)).sum())
    if min(certain, entropy) <= bound:
        return Certificate(min(certain, entropy), 1.0, "logdet" if certain <= entropy else "entropy", estimate)
    return Certificate(bound, confidence, "monte_carlo", estimate)


def empirical_bernstein_margin(variance: float, num_draws: int, value_range: float, failure: float) -> float:
    """One-sided margin of a mean of independent values of bounded range, from their sample variance.

    `sqrt(2 V ln(2/f) / n) + 7 range ln(2/f) / (3 (n - 1))` (Maurer and Pontil, 2009, Theorem 4).
    """
    log_term = math.log(2 / failure)
    return math.sqrt(2 * variance * log_term / num_draws) + 7 * value_range * log_term / (3 * (num_draws - 1))


def two_point_information(distance: float, probability: float) -> float:
    """Mutual information of a two-valued secret and its value plus standard normal noise, by quadrature.

    Args:
        distance: Distance of the two outputs in standard deviations of the noise.
        probability: Probability of either output; that of the rarer one has the digits.

    Example:
        >>> round(two_point_information(2.0, 0.5), 4)
        0.3368
    """
    other = 1 - probability
    if distance == 0 or probability <= 0 or other <= 0:
        return 0.0
    if distance > _APART:
        return -probability * math.log(probability) - other * math.log1p(-probability)
    # The trapezoidal rule converges geometrically for functions analytic in a strip, here pi/distance wide.
    step = min(1 / 16, 1 / (4 * distance))
    # At 10 deviations the normal density has fallen by a factor e^-50; farther out, to that share of what is rare.
    reach = math.ceil(math.sqrt(100 - 2 * math.log(min(probability, other))) / step)
    nodes = np.arange(-reach, reach + 1).astype(np.float64) * step
    density: Array = np.exp(-(nodes**2) / 2) * step / math.sqrt(2 * math.pi)
    information = 0.0
    for prior, sign in ((probability, -1.0), (other, 1.0)):
        # ln of the second output's likelihood over the first's, at y = true output + z: d z - d^2/2 or d z + d^2/2.
        ratio = distance * nodes + sign * distance**2 / 2
        information += prior * float((density * _two_point_divergence(ratio, probability, other)).sum())
    return information


@validated
def donsker_varadhan_correction(
    release_scores: VectorLike, gaussian_scores: VectorLike, bound: Exponent, confidence: Confidence = 0.99
) -> float:
    r"""Certified lower bound on the divergence of a release from the Gaussian with its moments.

    With a critic f bounded to [-F, F], $\mathrm{KL}(P \| N) \ge E_P f - \ln E_N e^f$. The log-det bound overstates the
    mutual information by exactly this divergence, so `logdet - correction` is again an upper bound.

    The critic must be fixed before the scores are drawn, the scores must be evaluated once, and the Gaussian must have
    the exact mean and covariance of the release (fitted ones overstate the divergence). New noise needs a new critic
    and new scores.

    Args:
        release_scores: f at independent draws of the release, shape (n,).
        gaussian_scores: f at independent draws of the Gaussian, shape (k,).
        bound: F.
        confidence: Probability that the returned value is a lower bound.

    Returns:
        The correction in nats, at least 0.

    Raises:
        ValueError: If there are less than two scores of either, the confidence or the bound is out of range, or a score
            passes the bound.

    Source: *Residual-PAC*, Algorithm 4, with empirical Bernstein for a single critic (ours).

    Example:
        >>> donsker_varadhan_correction(np.zeros(100), np.zeros(100), bound=1.0)
        0.0
    """
    first = np.asarray(release_scores, dtype=np.float64)
    second = np.asarray(gaussian_scores, dtype=np.float64)
    if first.ndim != 1 or second.ndim != 1 or min(len(first), len(second)) < 2:
        raise ValueError(
            f"release_scores has shape {first.shape} and gaussian_scores {second.shape}, but both must be rows of at "
            "least two numbers."
        )
    if not max(np.abs(first).max(), np.abs(second).max()) <= bound:
        raise ValueError(f"bound is {bound}, and the critic passes it: clip its output to [-{bound}, {bound}].")
    # Two margins, half of the failure probability each.
    failure = (1 - confidence) / 2
    exponentials = np.exp(second)
    margin = empirical_bernstein_margin(float(first.var(ddof=1)), len(first), 2 * bound, failure)
    # e^f lies between e^-F and e^F, a range of 2 sinh F.
    inflation = empirical_bernstein_margin(float(exponentials.var(ddof=1)), len(second), 2 * math.sinh(bound), failure)
    # E_P f from below less ln E_N e^f from above; a divergence is never negative, so 0 is valid too.
    return max(0.0, float(first.mean()) - margin - math.log(float(exponentials.mean()) + inflation))


def posterior_divergences(
    clusters: list[Cluster], num_draws: int, generator: SecureGenerator, device: str | None = None
) -> DivergenceSample:
    """Divergences of the posterior from the prior at independent draws of the release, under standard normal noise."""
    spans = [_within_span(cluster.whitened) for cluster in clusters]
    # E|W|^2 of each cluster, whose outputs have mean 0.
    energies = [float(cluster.weights @ (span**2).sum(axis=1)) for cluster, span in zip(clusters, spans, strict=True)]
    kernel = _divergences if device is None else _torch_divergences
    # Draws of clusters of one output keep 0: given the cluster they tell nothing.
    divergences, surprisals = np.zeros(num_draws), np.zeros(num_draws)
    for rows, index, secrets in draw_secrets(clusters, num_draws, generator):
        span = spans[index]
        releases = span[secrets] + generator.normal((len(rows), span.shape[1]))
        divergences[rows], log_evidence = kernel(releases, span, clusters[index].weights, device)
        # u = E|W|^2 / 2 - ln Z(y), given the cluster.
        surprisals[rows] = energies[index] / 2 - log_evidence
    return divergence_sample(clusters, divergences, surprisals, max(energies))


def divergence_sample(
    clusters: list[Cluster], divergences: Array, surprisals: Array | None = None, energy: float = 0.0
) -> DivergenceSample:
    """The sample of divergences given the cluster, and the clusters' entropy."""
    # Given its cluster no draw has v above this; the rarest output of any cluster decides.
    largest = max(-math.log(float(cluster.weights.min())) for cluster in clusters)
    useful = surprisals is not None and _SMALLEST_ENERGY <= energy <= _LARGEST_ENERGY
    return DivergenceSample(divergences, largest, surprisals if useful else None, energy, clusters_entropy(clusters))


def draw_secrets(
    clusters: list[Cluster], num_draws: int, generator: SecureGenerator
) -> Iterator[tuple[npt.NDArray[np.intp], int, npt.NDArray[np.intp]]]:
    """Independent draws of the secret, by cluster: which draws, the cluster's index, and the positions in it.

    Draws of clusters of one output are left out: they tell nothing more than the cluster.
    """
    # One table over all outputs, cluster by cluster; `first` is where each cluster begins in it.
    cumulative = np.cumsum(np.concatenate([cluster.probability * cluster.weights for cluster in clusters]))
    label = np.repeat(np.arange(len(clusters)), [len(cluster.weights) for cluster in clusters])
    first = np.searchsorted(label, np.arange(len(clusters)))
    step = max(1, _CHUNK_VALUES // max(len(cluster.weights) for cluster in clusters))
    for start in range(0, num_draws, step):
        size = min(start + step, num_draws) - start
        # Rounding leaves the last sum near 1 and not at it.
        drawn = np.searchsorted(cumulative, generator.uniform(size) * cumulative[-1])
        secrets = np.minimum(drawn, len(cumulative) - 1)
        # Draws in order of their clusters, split where the cluster changes: one kernel call a cluster.
        order = np.argsort(label[secrets], kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(label[secrets[order]])) + 1):
            index = int(label[secrets[rows[0]]])
            if len(clusters[index].weights) > 1:
                yield start + rows, index, secrets[rows] - first[index]


def logdet_of(covariance: Array) -> float:
    """`1/2 ln det(I + C)`, for the largest C that rounding its eigenvalues leaves possible."""
    eigenvalues = np.linalg.eigvalsh(covariance)
    # Symmetric eigenvalues are off by a small multiple of eps d times the largest.
    error = 4 * np.finfo(np.float64).eps * len(covariance) * max(float(eigenvalues[-1]), 0.0)
    return 0.5 * float(np.log1p(np.maximum(eigenvalues, 0.0) + error).sum())


def merge_equal(outputs: Array, weights: Array) -> tuple[Array, Array]:
    """Distinct outputs of positive weight, in order of appearance, and the sum of the weights of each."""
    distinct: list[int] = []
    mass: list[float] = []
    candidates: dict[int, list[int]] = {}
    for row in np.flatnonzero(weights > 0).tolist():
        # Adding zero makes the two zeros one. The hash only narrows the search; equality is exact.
        alike = candidates.setdefault(hash((outputs[row] + 0.0).tobytes()), [])
        group = next((index for index in alike if np.array_equal(outputs[distinct[index]], outputs[row])), None)
        if group is None:
            alike.append(len(distinct))
            distinct.append(row)
            mass.append(float(weights[row]))
        else:
            mass[group] += float(weights[row])
    return outputs if len(distinct) == len(outputs) else outputs[distinct], np.array(mass)


def check_weights(weights: npt.ArrayLike | None, size: int) -> Array:
    """Weights as an array with sum 1, uniform if None."""
    if weights is None:
        return np.full(size, 1 / size)
    mass = np.asarray(weights, dtype=np.float64)
    if mass.shape != (size,) or not (mass >= 0).all() or not math.isclose(mass.sum(), 1, abs_tol=1e-9):
        raise ValueError(
            f"weights must be {size} non-negative numbers with sum 1 to nine digits, got shape {mass.shape} with sum "
            f"{mass.sum():.9g}: divide them by their sum in float64."
        )
    normalized: Array = mass / mass.sum()
    return normalized


def _within_span(centred: Array) -> Array:
    """Coordinates within the span of the rows, where rows are fewer than coordinates: noise beyond it tells nothing."""
    if centred.shape[1] < len(centred):
        return centred
    # W = U S V^T: likelihoods depend on the inner products of outputs alone, and the rows of U S have the same.
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(left * sizes)


def _divergences(draws: Array, points: Array, mass: Array, device: str | None) -> tuple[Array, Array]:
    """Divergences of the posterior from the prior, and ln Z, at each draw."""
    # ln of N(y; W_j, I) / N(y; 0, I) = W_j^T y - |W_j|^2 / 2, shape (n, m).
    evidence = draws @ points.T
    evidence -= 0.5 * (points**2).sum(axis=1)
    # Without the largest exponent nothing overflows, and the total is at least the prior of the likeliest output.
    largest = evidence.max(axis=1, keepdims=True)
    likelihood = np.exp(evidence - largest)
    likelihood *= mass
    total = likelihood.sum(axis=1)
    log_total = largest[:, 0] + np.log(total)
    # KL(P_{S|y} || P) = E_{S|y}[W_S^T y - |W_S|^2 / 2] - ln Z(y).
    return np.einsum("nm,nm->n", likelihood, evidence) / total - log_total, log_total


def _torch_divergences(draws: Array, points: Array, mass: Array, device: str | None) -> tuple[Array, Array]:
    import torch

    where = torch.device(device or "cpu")
    released = torch.from_numpy(draws).to(where)
    rows, prior = torch.from_numpy(np.ascontiguousarray(points)).to(where), torch.from_numpy(mass).to(where)
    evidence = released @ rows.T - 0.5 * (rows**2).sum(dim=1)
    # P_j e^{W_j^T y - |W_j|^2 / 2} / Z(y), in log space.
    log_total = torch.logsumexp(evidence + prior.log(), dim=1)
    posterior = torch.exp(evidence + prior.log() - log_total[:, None])
    divergences = (posterior * evidence).sum(dim=1) - log_total
    return divergences.cpu().numpy(), log_total.cpu().numpy()


def _two_point_divergence(log_ratio: Array, probability: float, other: float) -> Array:
    """Divergence of the posterior from (probability, other), given the log-likelihood ratio of the other value."""
    size = np.abs(log_ratio)
    less, more = min(probability, other), max(probability, other)
    towards = log_ratio if other <= probability else -log_ratio
    # Measured from the value of more prior until the posterior turns to the other: digits of the smaller prior count.
    turned = max(1.0, -math.log(less))
    gain = np.minimum(towards, turned)
    log_total = np.log1p(less * np.expm1(gain))
    exact = less * np.exp(gain - log_total) * gain - log_total
    # From there on from the other value: the difference of two large logarithms would lose what counts.
    rest = more * np.exp(-size)
    exact = np.where(towards < turned, exact, -rest / (less + rest) * size - np.log(less + rest))
    # Nearly equal likelihoods cancel there. The divergence is L K'(L) - K(L) with K(L) = ln(p + q e^L), whose cumulants
    # k_n give the series sum_n k_n L^n (n - 1) / n!; from the ninth on less than 1e-13 of it is left out.
    spread, skew = probability * other, probability - other
    terms = (
        1 / 2,
        skew / 3,
        (1 - 6 * spread) / 8,
        skew * (1 - 12 * spread) / 30,
        (1 - 30 * spread + 120 * spread**2) / 144,
        skew * (1 - 60 * spread + 360 * spread**2) / 840,
        (1 - 126 * spread + 1680 * spread**2 - 5040 * spread**3) / 5760,
    )
    near = np.where(size < 0.05, log_ratio, 0.0)
    series = spread * near**2 * np.polyval(terms[::-1], near)
    return np.where(size < 0.05, series, exact)
