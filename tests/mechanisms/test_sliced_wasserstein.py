"""The sliced mechanism against divergences integrated numerically, and against a general convex solver."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import logsumexp

from lightning_pac.audits import sliced_divergence
from lightning_pac.exceptions import PrivacyError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import SlicedWassersteinMechanism
from lightning_pac.mechanisms.sliced_wasserstein import (
    isotropic_covariance,
    optimized_covariance,
    sliced_cost,
    unsliced_cost,
)
from lightning_pac.scenarios import AttributeScenario, SliceProfile

PROFILE = SliceProfile.random(2, 12, seed=0)


@pytest.fixture(scope="module")
def scenario() -> AttributeScenario:
    rng = np.random.default_rng(0)
    centres = {"a": [0.0, 0.0], "b": [2.0, 0.3], "c": [-0.5, 0.8]}
    sizes = {"a": 9, "b": 14, "c": 6}
    return AttributeScenario(
        {value: rng.normal(centre, 0.4, size=(sizes[value], 2)) for value, centre in centres.items()}
    )


def unsliced_divergence(first: np.ndarray, second: np.ndarray, covariance: np.ndarray, order: float) -> float:
    """Two-dimensional quadrature of the definition."""
    deviation = np.sqrt(np.linalg.eigvalsh(covariance)[-1])
    reach = 8 * deviation + order * 3
    axis = np.linspace(-reach, reach, 701)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    logs = [
        logsumexp([stats.multivariate_normal(centre, covariance).logpdf(grid) for centre in law], axis=0)
        - np.log(len(law))
        for law in (first, second)
    ]
    total = logsumexp(order * logs[0] + (1 - order) * logs[1]) + 2 * np.log(axis[1] - axis[0])
    return float(total / (order - 1))


@pytest.mark.parametrize("covariance", ["isotropic", "optimized"])
@pytest.mark.parametrize("notion", ["ave", "joint"])
def test_measured_divergence_is_below_epsilon_for_all_pairs(
    scenario: AttributeScenario, notion: str, covariance: str
) -> None:
    mechanism = SlicedWassersteinMechanism(
        scenario, None, PROFILE, epsilon=0.8, renyi_order=3, notion=notion, covariance=covariance
    )
    for first, second in scenario.pairs:
        measured = sliced_divergence(scenario.laws[first], scenario.laws[second], mechanism.covariance, PROFILE, 3)
        assert measured[notion] <= 0.8 * (1 + 1e-9)


@pytest.mark.parametrize("notion", ["ave", "joint"])
def test_point_laws_meet_epsilon_exactly_so_less_noise_fails(notion: str) -> None:
    scenario = AttributeScenario.from_shifts({"a": [0.0, 0.0], "b": [1.0, 0.5]})
    mechanism = SlicedWassersteinMechanism(scenario, None, PROFILE, epsilon=0.8, renyi_order=3, notion=notion)
    points = [np.atleast_2d(scenario.laws[value]) for value in "ab"]
    measured = sliced_divergence(*points, mechanism.covariance, PROFILE, 3)[notion]
    assert measured == pytest.approx(0.8, rel=1e-6)
    weaker = sliced_divergence(*points, 0.9 * mechanism.covariance, PROFILE, 3)[notion]
    assert weaker > 0.8


def test_ave_is_below_joint_is_below_unsliced(scenario: AttributeScenario) -> None:
    covariance = np.array([[0.6, 0.1], [0.1, 0.3]])
    for pair in (("a", "b"), ("c", "a")):
        laws = [scenario.laws[value] for value in pair]
        measured = sliced_divergence(*laws, covariance, PROFILE, 2)
        unsliced = unsliced_divergence(*laws, covariance, 2)
        assert measured["ave"] < measured["joint"] < unsliced


@pytest.mark.slow
def test_the_unsliced_figure_of_the_card_bounds_the_unsliced_divergence(scenario: AttributeScenario) -> None:
    mechanism = SlicedWassersteinMechanism(scenario, None, PROFILE, epsilon=0.8, renyi_order=2, notion="ave")
    truth = max(
        unsliced_divergence(scenario.laws[one], scenario.laws[other], mechanism.covariance, 2)
        for one, other in scenario.pairs
    )
    assert mechanism.unsliced_epsilon >= truth
    figures = {entry.name: entry.value for entry in mechanism.card().guarantees}
    assert figures == {"srpp_ave_epsilon": pytest.approx(0.8), "rpp_epsilon": mechanism.unsliced_epsilon}


def test_tighter_joint_needs_less_noise_than_the_papers(scenario: AttributeScenario) -> None:
    arguments = {"epsilon": 0.8, "renyi_order": 3, "notion": "joint"}
    tight = SlicedWassersteinMechanism(scenario, None, PROFILE, **arguments)
    paper = SlicedWassersteinMechanism(scenario, None, PROFILE, joint="max", **arguments)
    assert tight.power < paper.power
    assert tight.cost == pytest.approx(0.8, rel=1e-9)
    largest = max(np.max(tight.sensitivities), 0)
    assert paper.power == pytest.approx(2 * 3 / (2 * 0.8) * largest**2)


def test_the_optimized_covariance_is_the_optimum_of_a_general_solver() -> None:
    """Coordinate slices and Ave: minimize sum v_l under a linear constraint in 1 / v_l, solved by SLSQP."""
    profile = SliceProfile.coordinate(3)
    sensitivities = np.array([[3.0, 0.5, 0.2], [1.0, 2.0, 0.1]])
    epsilon, order = 0.7, 4.0
    found = optimized_covariance(sensitivities, profile, epsilon, order, "ave", floor=0.0)

    def spent(log_variances: np.ndarray) -> np.ndarray:
        return epsilon - (sensitivities**2 * np.exp(-log_variances)) @ np.full(3, order / 6)

    best = minimize(
        lambda log_variances: np.exp(log_variances).sum(),
        np.full(3, 3.0),
        constraints={"type": "ineq", "fun": spent},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    assert best.success
    assert np.trace(found) == pytest.approx(best.fun, rel=5e-3)
    assert np.trace(found) < 0.95 * np.trace(isotropic_covariance(sensitivities, profile, epsilon, order, "ave"))
    assert sliced_cost(sensitivities, profile, found, order, "ave") <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(("order", "distance"), [(1.0001, 1e-3), (2.0, 1e-6)])
def test_a_small_joint_cost_is_not_below_its_digits(order: float, distance: float) -> None:
    distances = [distance, distance / 2, distance / 3]
    cost = sliced_cost(np.array([distances]), SliceProfile.coordinate(3), np.eye(3), order, "joint")
    with mpmath.workdps(50):
        terms = [mpmath.exp((mpmath.mpf(order) - 1) * order * mpmath.mpf(d) ** 2 / 2) for d in distances]
        exact = mpmath.log(sum(terms) / 3) / (mpmath.mpf(order) - 1)
    assert cost == pytest.approx(float(exact), rel=1e-12)


def test_of_two_static_releases_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = AttributeScenario.from_shifts({"a": [0.0, 0.0], "b": [1.0, 0.0]})
    spent = PrivacyLedger.spent

    def slowly(self: PrivacyLedger, currency: str) -> float:
        found = spent(self, currency)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(PrivacyLedger, "spent", slowly)
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        mechanism = SlicedWassersteinMechanism(scenario, None, SliceProfile.coordinate(2), 1.0, ledger=ledger)

        def release(_: int) -> bool:
            try:
                mechanism.release([0.0, 0.0])
            except PrivacyError:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            assert sum(pool.map(release, range(2))) == 1


def test_releases_have_the_stated_covariance() -> None:
    scenario = AttributeScenario.from_shifts({"a": [0.0, 0.0], "b": [2.0, 0.5]})
    mechanism = SlicedWassersteinMechanism(scenario, None, PROFILE, epsilon=0.5, covariance="optimized")
    answers = mechanism.release(np.zeros((4000, 2)))
    whitened = np.linalg.solve(np.linalg.cholesky(mechanism.covariance), answers.T)
    # Two tests at 1e-7 each.
    for coordinate in whitened:
        assert stats.kstest(coordinate, "norm").pvalue > 1e-7
    assert abs(np.corrcoef(whitened)[0, 1]) < 5.4 / np.sqrt(4000)


def test_a_second_static_release_is_refused_with_the_counterexample(tmp_path: Path) -> None:
    """X1, X2 fair bits, secret X1 xor X2: each bit costs nothing, both reveal the secret."""
    bits = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)
    world = {"bits": bits, "xor": bits.sum(axis=1) % 2}
    scenario = AttributeScenario.from_table(world, secret="xor")
    line = SliceProfile.coordinate(1)
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        first, second = (
            SlicedWassersteinMechanism(
                scenario, lambda rows, column=column: rows["bits"][:, [column]], line, epsilon=1.0, ledger=ledger
            )
            for column in (0, 1)
        )
        assert first.sensitivities.max() == second.sensitivities.max() == 0
        first.release(world)
        with pytest.raises(PrivacyError, match=r"xor.*into one vector"):
            second.release(world)
    together = SlicedWassersteinMechanism(scenario, lambda rows: rows["bits"], PROFILE, epsilon=1.0)
    assert together.sensitivities.max() > 0


def test_an_estimated_world_gives_estimates_and_no_guarantee() -> None:
    scenario = AttributeScenario.from_samplers(
        {shift: (lambda count, rng, shift=shift: rng.normal(shift, 1.0, size=(count, 2))) for shift in (0, 1)}, 50
    )
    card = SlicedWassersteinMechanism(scenario, None, PROFILE, epsilon=1.0).card()
    assert card.guarantees == ()
    assert {entry.name for entry in card.estimates} == {"srpp_joint_epsilon", "rpp_epsilon"}


def test_gaussians_with_one_covariance_are_as_far_apart_as_their_quantiles() -> None:
    means, covariance = {"a": [0.0, 0.0], "b": [2.0, -0.5]}, np.array([[2.0, 0.3], [0.3, 0.5]])
    scenario = AttributeScenario.from_gaussians(means, covariance)
    mechanism = SlicedWassersteinMechanism(scenario, None, PROFILE, epsilon=1.0)
    levels = np.linspace(0.001, 0.999, 99)
    for column, direction in enumerate(PROFILE.directions):
        deviation = np.sqrt(direction @ covariance @ direction)
        quantiles = [stats.norm(direction @ np.array(means[value]), deviation).ppf(levels) for value in "ab"]
        gap = np.abs(quantiles[0] - quantiles[1]).max()
        assert mechanism.sensitivities[:, column] == pytest.approx([gap, gap])
    each = AttributeScenario.from_gaussians(means, {"a": covariance, "b": covariance})
    assert SlicedWassersteinMechanism(each, None, PROFILE, epsilon=1.0).power == pytest.approx(mechanism.power)


def test_gaussians_with_other_covariances_have_no_finite_distance() -> None:
    """The gap between their quantiles grows without end, so the refusal is not for want of a formula."""
    gaps = [abs(stats.norm(0, 1).ppf(level) - stats.norm(0, 1.1).ppf(level)) for level in (1e-3, 1e-30, 1e-300)]
    assert gaps[0] < gaps[1] < gaps[2]
    with pytest.raises(ValueError, match="W-infinity distance is infinite"):
        AttributeScenario.from_gaussians({"a": [0.0], "b": [1.0]}, {"a": [[1.0]], "b": [[1.21]]})


TABLE = {"x": np.arange(8.0).reshape(4, 2), "s": ["a", "a", "b", "b"]}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: AttributeScenario.from_table({"x": [1, 2, 3], "s": ["a", "a", "b"]}, "s"), "Only one record has"),
        (lambda: AttributeScenario.from_table(TABLE, "s", pairs=[]), "pairs is empty"),
        (lambda: AttributeScenario.from_table(TABLE, "s", pairs=[("a", "a")]), "two different values"),
        (lambda: AttributeScenario.from_table(TABLE, "s", prior={"a": 0.5, "b": 0.6}), "must sum to 1"),
        (lambda: AttributeScenario.from_gaussians({"a": [0.0], "b": [1.0]}, {"a": [[1.0]]}), "the same values"),
        (lambda: AttributeScenario.from_gaussians({"a": [0.0], "b": [1.0]}, np.eye(2)), "its mean has dimension 1"),
        (lambda: AttributeScenario({"a": [[0.0]]}), "at least two"),
        (lambda: AttributeScenario.from_samplers({"a": np.zeros, "b": np.zeros}, 1), "at least two samples"),
        (lambda: SliceProfile(np.array([[1.0, 1.0]])), "has norm 1.41421"),
        (lambda: SliceProfile(np.eye(2), np.array([0.5, 0.6])), "weights sum to 1.1"),
        (lambda: build(lambda rows: rows["x"] * np.nan), "NaN or infinity"),
        (lambda: build(lambda rows: rows["x"][:, :1]), "have dimension 2"),
        (lambda: build(epsilon=0.0), "epsilon is 0.0"),
        (lambda: build(renyi_order=1.0), "renyi_order is 1.0"),
        (lambda: build(notion="mean"), "notion is 'mean'"),
        (lambda: build(covariance="best"), "covariance is 'best'"),
        (lambda: build().release({"x": np.full((1, 2), np.inf)}), "NaN or infinity on the private data"),
        (lambda: build().release({"x": np.zeros(3)}), "has shape \\(3,\\)"),
        (lambda: build().release({"x": np.array([["secret", "1"]])}), "^The answer holds something that is no number"),
        (
            lambda: isotropic_covariance(np.array([[np.inf]]), SliceProfile.coordinate(1), 1.0, 4.0, "ave"),
            "sensitivities has shape .*, but must be a finite",
        ),
    ],
)
def test_bad_input_is_one_sentence(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match="secret is 'race', but"):
        AttributeScenario.from_table(TABLE, "race")


def build(query=lambda rows: rows["x"], **changes) -> SlicedWassersteinMechanism:
    arguments = {"epsilon": 1.0, "renyi_order": 4.0, "notion": "joint", **changes}
    return SlicedWassersteinMechanism(AttributeScenario.from_table(TABLE, "s"), query, PROFILE, **arguments)


def test_a_cost_without_noise_is_infinite_whatever_rounding_leaves_of_the_variance() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        loud, still = rng.normal(size=(2, 3))
        still -= still @ loud / (loud @ loud) * loud
        directions = np.stack([still, loud])
        profile = SliceProfile(directions / np.linalg.norm(directions, axis=1, keepdims=True))
        for notion in ("ave", "joint"):
            assert sliced_cost(np.ones((1, 2)), profile, np.outer(loud, loud), 2.0, notion) == math.inf
            beside = sliced_cost(np.array([[0.0, 1.0]]), profile, np.outer(loud, loud), 2.0, notion)
            assert 0 < beside < math.inf
    coordinates = SliceProfile.coordinate(2)
    assert sliced_cost(np.array([[1e-170, 0.0]]), coordinates, np.zeros((2, 2)), 2.0, "ave") == math.inf
    assert sliced_cost(np.array([[1e200, 0.0]]), coordinates, 1e300 * np.eye(2), 2.0, "joint") == pytest.approx(1e100)
    ignored = SliceProfile(np.eye(2), np.array([1.0, 0.0]))
    assert sliced_cost(np.ones((1, 2)), ignored, np.diag([1.0, 0.0]), 2.0, "ave") == 1.0
    with pytest.raises(ValueError, match="covariance has a direction without noise"):
        unsliced_cost([np.ones((1, 3))], np.outer(loud, loud), 2.0)


def test_weights_that_miss_one_a_little_make_no_cost_smaller() -> None:
    profile = SliceProfile(np.eye(2), np.full(2, 0.5 - 4e-10))
    assert sliced_cost(np.ones((1, 2)), profile, np.eye(2), 2.0, "ave") == pytest.approx(1.0, rel=1e-13)


@pytest.mark.parametrize("far", [1e12, 2.0**53])
def test_sensitivities_of_outputs_far_from_zero(far: float) -> None:
    """Milliseconds since 1970, for instance: projected as they are, their difference was lost."""
    step = max(1.0, float(np.spacing(far)))
    scenario = AttributeScenario.from_shifts({"a": [far, far], "b": [far + step, far]})
    found = SlicedWassersteinMechanism(scenario, None, PROFILE, epsilon=1.0).sensitivities
    assert np.allclose(found, step * np.abs(PROFILE.directions[:, 0]), rtol=1e-12)
