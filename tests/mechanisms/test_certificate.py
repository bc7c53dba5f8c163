import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats
from slow_cases import mostly_slow

from lightning_pac.mechanisms import (
    MixtureNoise,
    certify_finite_secret,
    certify_noise,
    divergence_sample,
    donsker_varadhan_correction,
)
from lightning_pac.mechanisms.certified import empirical_bernstein_margin
from lightning_pac.mechanisms.certified.certificate import posterior_divergences, two_point_information
from lightning_pac.mechanisms.certified.clusters import cluster_outputs
from lightning_pac.randomness import secure_generator


def information_by_quadrature(points, weights):
    """Entropy of the mixture minus that of its noise, on a fine grid in one or two dimensions."""
    points = np.asarray(points)
    step = 0.02 if points.shape[1] == 1 else 0.12
    axes = [np.arange(points[:, i].min() - 7, points[:, i].max() + 7, step) for i in range(points.shape[1])]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    density = np.zeros(len(grid))
    for point, weight in zip(points, weights, strict=True):
        density += weight * np.exp(-((grid - point) ** 2).sum(axis=1) / 2) / (2 * math.pi) ** (len(axes) / 2)
    entropy = -(density[density > 0] * np.log(density[density > 0])).sum() * step ** len(axes)
    return entropy - len(axes) / 2 * math.log(2 * math.pi * math.e)


def one_cluster(points, weights):
    (cluster,) = clusters = cluster_outputs(points, weights, np.asarray)
    assert cluster.probability == pytest.approx(1.0)
    return clusters


def random_problem(rng):
    dimension = int(rng.integers(1, 3))
    points = rng.standard_normal((int(rng.integers(3, 9)), dimension)) * rng.uniform(0.1, 2.5)
    return points, rng.dirichlet(np.full(len(points), 2.0))


@pytest.mark.parametrize("probability", [0.5, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize("distance", [1e-6, 5e-5, 1e-3, 0.02])
def test_two_points_that_tell_next_to_nothing(distance, probability):
    """The series of the information in its distance: half the variance less a quarter of its square, and so on."""
    variance, skew = probability * (1 - probability), 1 - 2 * probability
    squares = distance**2
    # I = v d^2 / 2 - v^2 d^4 / 4 + (v^3 / 6 - (v s)^2 / 12) d^6 + ..., from the cumulants of the two points.
    series = variance * squares / 2 - (variance * squares) ** 2 / 4
    series += (variance**3 / 6 - (variance * skew) ** 2 / 12) * squares**3
    assert two_point_information(distance, probability) == pytest.approx(series, rel=1e-12 + squares**2)


@pytest.mark.parametrize(
    ("distance", "rare"),
    mostly_slow(
        itertools.product([1.0, 2.0, 6.0, 12.0, 90.0], [1e-12, 1e-17, 1e-20, 1e-30]),
        *((1.0, 1e-30), (2.0, 1e-12), (6.0, 1e-20), (12.0, 1e-17), (90.0, 1e-12), (90.0, 1e-30)),
    ),
)
def test_two_points_of_which_one_is_rare(distance, rare):
    """It was NaN, or below 0, where the rarer prior is lost beside 1; the truth has sixty digits."""
    with mpmath.workdps(60):
        p, q = mpmath.mpf(rare), 1 - mpmath.mpf(rare)

        def integrand(z):
            told = 0
            for prior, sign in ((p, -1), (q, 1)):
                ratio = distance * z + sign * mpmath.mpf(distance) ** 2 / 2
                total = p + q * mpmath.exp(ratio)
                told += prior * ((1 - p / total) * ratio - mpmath.log(total))
            return mpmath.npdf(z) * told

        if distance < 80:
            ends = [-60, -30, *range(-20, 21), 30, 60]
            exact = mpmath.quad(integrand, ends, maxdegree=4)
        else:
            exact = -p * mpmath.log(p) - q * mpmath.log(q)
    assert two_point_information(distance, rare) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_rare_secret_is_certified_in_either_place(order):
    weights = np.array([1.0, 1e-20])[list(order)]
    found = certify_finite_secret([[0.0], [2.0]], weights).mutual_information
    assert found == pytest.approx(2e-20, rel=1e-9)  # p d^2 / 2


@pytest.mark.parametrize("size", [1e-150, 1e-200, 5e-324])
def test_outputs_whose_squares_underflow_are_certified(size):
    outputs = np.array([[0.0], [1.0], [2.0]]) * size
    for found in (certify_finite_secret(outputs), certify_noise(outputs, MixtureNoise.gaussian(np.eye(1)))):
        assert 0 <= found.mutual_information < 1e-12


@pytest.mark.parametrize("distance", [1e-3, 0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("probability", [0.5, 0.1, 1e-4])
def test_two_points_by_quadrature(distance, probability):
    other = 1 - probability

    def integrand(z, sign):
        ratio = distance * z + sign * distance**2 / 2
        mine = probability if sign < 0 else other
        posterior = np.logaddexp(math.log(probability), math.log(other) + ratio) - (ratio if sign > 0 else 0.0)
        return -mine * posterior * stats.norm.pdf(z)

    points = [-distance / 2, 0, distance / 2, math.log(probability / other) / distance]
    inside = [x for x in points if abs(x) < 12]
    truth = sum(
        integrate.quad(integrand, -12, 12, args=(sign,), points=inside, epsabs=1e-15, epsrel=1e-12, limit=400)[0]
        for sign in (-1, 1)
    )
    assert two_point_information(distance, probability) == pytest.approx(truth, rel=1e-6, abs=1e-13)


@pytest.mark.parametrize("distance", [60.0, 200.0, 1e9])
def test_two_distant_points_tell_their_entropy_and_not_less(distance):
    # 0.6931471641 at distance 200 was 1.6e-8 below the truth, and at 1e9 the nodes did not fit into memory.
    assert two_point_information(distance, 0.5) == pytest.approx(math.log(2), rel=1e-14)
    entropy = -0.01 * math.log(0.01) - 0.99 * math.log(0.99)
    assert two_point_information(distance, 0.01) == pytest.approx(entropy, rel=1e-14)


def count_failures(num_problems, num_draws, seed):
    rng = np.random.default_rng(seed)
    failures, ratios = 0, []
    for _ in range(num_problems):
        points, weights = random_problem(rng)
        truth = information_by_quadrature(points, weights)
        certificate = certify_finite_secret(points, weights, confidence=0.99, num_draws=num_draws)
        failures += certificate.mutual_information < truth - 1e-9
        ratios.append(certificate.mutual_information / truth)
    return failures, float(np.median(ratios))


def test_the_bound_covers_the_truth():
    failures, _ = count_failures(60, 4_000, seed=0)
    # Binomial(60, 0.01): seven or more with probability 2e-6 if the confidence were only just met.
    assert failures <= 6


@pytest.mark.slow
def test_the_bound_covers_the_truth_on_five_hundred_problems():
    failures, ratio = count_failures(500, 20_000, seed=1)
    print(f"{failures} of 500 bounds below the truth; median bound / truth {ratio:.3f}")
    assert failures <= 5


def test_the_coverage_check_notices_a_bound_without_a_margin(monkeypatch):
    monkeypatch.setattr(divergence_sample, "upper_mean_bound", lambda values, *_: float(values.mean()))
    failures, _ = count_failures(60, 4_000, seed=0)
    assert failures > 6


def test_the_coverage_check_notices_a_second_function_with_another_mean(monkeypatch):
    """ln Z without its constant: the bound would be below the truth by up to half of the outputs' energy."""
    honest = divergence_sample.DivergenceSample
    monkeypatch.setattr(
        "lightning_pac.mechanisms.certified.certificate.DivergenceSample",
        lambda values, largest, surprisals, energy, *rest: honest(
            values, largest, surprisals - energy / 2, energy, *rest
        ),
    )
    failures, _ = count_failures(60, 4_000, seed=0)
    assert failures > 6


def test_both_functions_of_a_release_have_the_information_as_mean_and_keep_their_limits():
    rng = np.random.default_rng(8)
    for _ in range(10):
        points, weights = random_problem(rng)
        truth = information_by_quadrature(points, weights)
        sample = posterior_divergences(one_cluster(points, weights), 40_000, secure_generator())
        for values, largest in (
            (sample.divergences, math.log(1 / weights.min())),
            (sample.surprisals, weights @ ((points - weights @ points) ** 2).sum(axis=1)),
        ):
            # Six standard errors: 2e-9 each.
            assert abs(values.mean() - truth) < 6 * values.std() / 200 + 1e-9
            assert values.max() <= largest + 1e-9
        assert sample.energy == pytest.approx(largest)


def test_the_second_function_narrows_the_bound():
    """Eight clusters at a quarter of a nat: within half a percent, where the divergence alone leaves over one."""
    points = np.random.default_rng(0).standard_normal((8, 4)) * 0.35
    sample = posterior_divergences(one_cluster(points, np.full(8, 1 / 8)), 2**16, secure_generator())
    alone = divergence_sample.DivergenceSample(sample.divergences, sample.largest)
    margins = [bound - estimate for bound, estimate in (sample.bound(0.01), alone.bound(0.01))]
    assert margins[0] < 0.4 * margins[1]
    assert margins[0] < 0.005 * alone.bound(0.01)[1]


@pytest.mark.parametrize("failure", [0.05, 0.3])
@pytest.mark.parametrize("law", ["rare and large", "unbounded below", "two values"])
def test_the_bound_on_a_mean_covers_with_the_confidence_that_was_asked_for(law, failure):
    """Whatever the values' law and however wrong the variance: Markov's inequality is all that it rests on."""
    rng = np.random.default_rng(2)
    misses = {0.0: 0, 0.01: 0, 100.0: 0}
    for _ in range(1_000):
        if law == "rare and large":
            values, mean, largest = (rng.random(400) < 0.004).astype(float), 0.004, 1.0
        elif law == "unbounded below":
            values, mean, largest = 1.0 - rng.exponential(0.9, 400), 0.1, 1.0
        else:
            values, mean, largest = rng.choice([-1.0, 2.0], 400), 0.5, 2.0
        for variance in misses:
            misses[variance] += divergence_sample.upper_mean_bound(values, largest, failure, variance) < mean
    # At the level itself, six standard deviations more have probability 1e-9.
    limit = 1_000 * failure + 6 * math.sqrt(1_000 * failure)
    assert max(misses.values()) <= limit


def test_the_margin_covers_skewed_bounded_values():
    rng = np.random.default_rng(2)
    misses = 0
    for _ in range(2_000):
        values = (rng.random(400) < 0.004).astype(float)
        misses += values.mean() + empirical_bernstein_margin(values.var(ddof=1), 400, 1.0, 0.05) < 0.004
    assert misses <= 2_000 * 0.05


def test_no_bound_is_above_the_entropy_of_the_secret():
    far = 20 * np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.9]])
    for num_draws in (2, 64):
        assert certify_finite_secret(far, num_draws=num_draws).mutual_information <= np.log(3) * (1 + 1e-12)


def test_equal_outputs_are_merged_exactly():
    points = np.array([[0.0], [2.0], [-0.0], [2.0]])
    certificate = certify_finite_secret(points)
    assert certificate.confidence == 1.0
    assert certificate.mutual_information == pytest.approx(two_point_information(2.0, 0.5))
    assert certify_finite_secret(np.ones((5, 3))).mutual_information == 0.0
    # Nearly equal is not equal: three outputs have to be sampled.
    assert certify_finite_secret([[0.0], [2.0], [2.0 + 1e-15 * 4]], num_draws=20_000).confidence == 0.99


def test_far_outputs_tell_the_entropy_and_never_more():
    certificate = certify_finite_secret(np.eye(3) * 100, num_draws=1_000)
    assert certificate.mutual_information == pytest.approx(math.log(3))


def test_the_torch_kernel_agrees():
    torch = pytest.importorskip("torch")
    from lightning_pac.mechanisms.certified.certificate import _divergences, _torch_divergences

    rng = np.random.default_rng(3)
    points, draws, mass = rng.standard_normal((7, 3)), rng.standard_normal((50, 3)), rng.dirichlet(np.ones(7))
    expected = _divergences(draws, points, mass, None)
    posterior = mass * np.exp(-((draws[:, None] - points) ** 2).sum(axis=2) / 2)
    posterior /= posterior.sum(axis=1, keepdims=True)
    assert expected[0] == pytest.approx((posterior * np.log(posterior / mass)).sum(axis=1))
    assert expected[1] == pytest.approx(np.log(np.exp(draws @ points.T - (points**2).sum(axis=1) / 2) @ mass))
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        found = _torch_divergences(draws, points, mass, device)
        assert found[0] == pytest.approx(expected[0])
        assert found[1] == pytest.approx(expected[1])


def test_the_correction_is_below_the_divergence_and_helps_for_clusters():
    """A balanced two-point output: the divergence from its Gaussian is log-det minus the information."""
    rng = np.random.default_rng(4)
    distance = 4.0
    truth = 0.5 * math.log1p(distance**2 / 4) - two_point_information(distance, 0.5)
    deviation = math.sqrt(1 + distance**2 / 4)
    grid = np.linspace(-20, 20, 40_001)
    density = 0.5 * stats.norm.pdf(grid, -distance / 2) + 0.5 * stats.norm.pdf(grid, distance / 2)
    logs = np.log(density) - stats.norm.logpdf(grid, scale=deviation)
    assert truth == pytest.approx(float((density * logs).sum() * (grid[1] - grid[0])), rel=1e-6)

    def critic(y):
        mixture = 0.5 * stats.norm.pdf(y, -distance / 2) + 0.5 * stats.norm.pdf(y, distance / 2)
        return np.clip(np.log(mixture / stats.norm.pdf(y, scale=deviation)), -3, 3)

    corrections = []
    for _ in range(100):
        release = rng.choice([-1, 1], 20_000) * distance / 2 + rng.standard_normal(20_000)
        corrections.append(
            donsker_varadhan_correction(critic(release), critic(deviation * rng.standard_normal(20_000)), 3.0)
        )
    # At confidence 0.99 more than eight misses in a hundred have probability 1e-6 (the bound is far from tight).
    assert sum(correction > truth for correction in corrections) <= 8
    assert np.median(corrections) > 0.6 * truth


def test_a_poor_critic_gains_nothing_but_stays_valid():
    rng = np.random.default_rng(5)
    scores = rng.uniform(-1, 1, 1_000)
    assert donsker_varadhan_correction(scores, rng.uniform(-1, 1, 1_000), 1.0) == 0.0
    with pytest.raises(ValueError, match="the critic passes it"):
        donsker_varadhan_correction(scores * 2, scores, 1.0)
    with pytest.raises(ValueError, match="must be rows of at least two numbers"):
        donsker_varadhan_correction([0.0], scores, 1.0)


@pytest.mark.slow
def test_ten_thousand_secrets_in_ten_dimensions_within_thirty_seconds():
    import time

    points = np.random.default_rng(6).standard_normal((10_000, 10)) * 0.3
    start, processor = time.perf_counter(), time.process_time()
    certificate = certify_finite_secret(points, num_draws=100_000)
    print(
        f"{time.perf_counter() - start:.1f} s, {time.process_time() - processor:.1f} s of processor time: {certificate}"
    )
    assert time.process_time() - processor < 30


@pytest.mark.parametrize("kwargs", [{"confidence": 1.0}, {"num_draws": 1}, {"weights": [0.3, 0.3]}])
def test_bad_arguments_are_refused(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        certify_finite_secret([[0.0], [1.0]], **kwargs)
    with pytest.raises(ValueError, match="a finite, non-empty array"):
        certify_finite_secret([[math.inf], [1.0]])
