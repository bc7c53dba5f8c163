"""Certified mechanisms: what is proven, what is covered, what is charged, and what is refused."""

import math

import numpy as np
import pytest
from scipy import stats
from test_noise_certificate import density_of, information_by_quadrature, mixture

from lightning_pac.cards import Estimate
from lightning_pac.exceptions import BudgetExceededError, PrivacyViolationError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import (
    BoundedOutputs,
    Certificate,
    FiniteOutputs,
    JointRelease,
    KnownMoments,
    MixtureNoise,
    ReleasedMechanism,
    calibrate_gaussian,
    certify_mechanism,
    compose_releases,
    logdet_information,
    sliced_wasserstein_correction,
)
from lightning_pac.randomness import secure_generator

SECRET = "Which of the possible values it is."
ROWS = np.array([[0.0, 0.0], [3.0, 0.1], [0.0, 5.0], [-2.0, 1.0]])


def certified(noise=None, law=None, budget=0.5, **kwargs):
    options = {"num_draws": 20_000, "secret": SECRET, **kwargs}
    return certify_mechanism(noise or MixtureNoise.gaussian(np.eye(2)), law or FiniteOutputs(ROWS), budget, **options)


@pytest.mark.parametrize(
    "noise",
    [
        mixture([1.0], [0.0], [1e-6]),
        mixture([0.5, 0.5], [-1e-6, 1e-6], [1e-9, 1e-9]),
        mixture([0.5, 0.5], [-1.0, 1.0], [1e-3, 1e-3]),
        mixture([1.0], [0.0], [1e6]),
    ],
    ids=["none", "nearly none", "two values", "far too much"],
)
def test_whatever_noise_is_brought_the_certified_one_keeps_the_budget(noise):
    points, prior = np.array([0.0, 1.0, 4.0]), np.array([0.2, 0.5, 0.3])
    released = certified(noise, FiniteOutputs(points[:, None], prior), 0.3)
    truth = information_by_quadrature(points * (released.basis[0, 0] if released.basis is not None else 1), prior,
                                      density_of(released.noise))  # fmt: skip
    # The certificate fails with probability 0.01 at most, and in truth far more rarely; then by less than this slack.
    assert truth <= released.mutual_information * 1.05
    assert released.mutual_information <= 0.3
    assert released.power <= calibrate_gaussian(points[:, None], 0.3, prior).power * (1 + 1e-9)


def test_the_test_above_notices_a_certificate_without_proof(monkeypatch):
    monkeypatch.setattr(
        "lightning_pac.mechanisms.certified.output_laws.scale_noise",
        lambda points, mass, noise, budget, *rest: (noise, Certificate(budget, 0.99, "monte_carlo")),
    )
    with pytest.raises(AssertionError):
        test_whatever_noise_is_brought_the_certified_one_keeps_the_budget(mixture([1.0], [0.0], [1e-6]))


def test_nothing_but_a_certificate_makes_a_release():
    law = FiniteOutputs(ROWS)
    estimate = Estimate("mutual_information", 0.1, "nats", "An estimate.")
    for proof in (None, estimate, 0.1):
        with pytest.raises(PrivacyViolationError, match="on the strength of a Certificate"):
            ReleasedMechanism(MixtureNoise.gaussian(np.eye(2)), proof, law, SECRET)
    assert not hasattr(MixtureNoise.gaussian(np.eye(2)), "release")
    with pytest.raises(
        TypeError, match=r"mechanisms\[1\] is an object of type MixtureNoise, but must be a ReleasedMechanism"
    ):
        compose_releases([certified(), MixtureNoise.gaussian(np.eye(2))])


def test_only_outputs_of_the_finite_law_are_released():
    released = certified()
    assert released.release(ROWS[1]).shape == (2,)
    jitter = 1e-6 * released.noise.smallest_deviation
    assert np.array_equal(released.check(ROWS + jitter), ROWS)
    with pytest.raises(PrivacyViolationError, match=r"^values has one that is not among the outputs"):
        released.release([[0.0, 0.0], [0.5, 0.5]])
    with pytest.raises(ValueError, match="not finite"):
        released.release([np.nan, 0.0])
    with pytest.raises(ValueError, match=r"shape \(n, 2\)"):
        released.release([1.0, 2.0, 3.0])


@pytest.mark.parametrize("radius", [1e-8, 2e-8, 1e-6, 1.0])
@pytest.mark.parametrize("centre", [np.zeros(3), np.full(3, 1e8)])
def test_outputs_are_cut_to_the_ball_however_far_from_zero_it_lies(centre, radius):
    if centre[0] and radius < 1e-7:  # numbers there lie 1.5e-8 apart
        with pytest.raises(ValueError, match="too little for floating-point numbers as far from zero"):
            BoundedOutputs(centre, radius)
        return
    law, rng = BoundedOutputs(centre, radius), np.random.default_rng(0)
    values = centre + radius * rng.normal(size=(2_000, 3)) * 10.0 ** rng.uniform(-1, 3, size=(2_000, 1))
    lengths = [math.hypot(*row) for row in law.admit(values, 1.0) - centre]
    assert 0.9 * radius < max(lengths) <= radius


@pytest.mark.parametrize("far", [2.0**52, 2.0**60])
def test_noise_is_the_same_for_outputs_far_from_zero(far):
    rows = np.round(8 * np.random.default_rng(1).normal(size=(6, 2)))
    basis = FiniteOutputs(rows).reference(0.3)[1]
    moved = FiniteOutputs(far + np.spacing(far) * rows).along(basis).outputs / np.spacing(far)
    near = FiniteOutputs(rows).along(basis).outputs
    # Information depends on differences, which must not be rounded away.
    assert np.allclose(moved - moved[0], near - near[0], atol=1e-9)


def test_what_is_shown_of_a_mechanism_holds_no_output():
    """Printed in a notebook or a log, noise and mechanism show neither an output nor the mean of all."""
    rows = np.array([[12345.678, 1.0], [12345.678, 2.0], [24680.135, 3.0]])
    released = certified(law=FiniteOutputs(rows))
    joint = JointRelease([released, released])
    shown = [repr(released), repr(joint), repr(FiniteOutputs(rows))]
    shown += [repr(calibrate_gaussian(rows, 0.3, rule=rule)) for rule in ("logdet", "coordinate", "isotropic")]
    shown.append(repr(calibrate_gaussian(np.tile(rows, 3), 0.3)))
    for text in shown:
        assert not any(digits in text for digits in ("12345", "1.2345", "24680", "2.468", "16457", "1.6457"))


def test_a_value_between_two_outputs_is_refused():
    rows = np.array([[0.0, 0.0], [1e-7, 0.0], [0.0, 5.0], [-2.0, 1.0]])
    released = certified(law=FiniteOutputs(rows))
    assert np.array_equal(released.check(rows), rows)
    with pytest.raises(PrivacyViolationError, match="between two outputs"):
        released.check([[5e-8, 0.0]])


@pytest.mark.parametrize("with_basis", [True, False])
def test_releases_lie_on_a_public_grid_around_the_output(with_basis):
    released = certified(MixtureNoise.gaussian(np.eye(2) * (1e6 if with_basis else 1.0)))
    step = 2.0 ** math.floor(math.log2(2**-10 * released.noise.smallest_deviation))
    draws = np.array([released.release(ROWS[2]) for _ in range(200)])
    if released.basis is None:
        on_grid = draws
    else:
        centre = ROWS.mean(axis=0)
        on_grid = np.rint((draws - centre) @ released.basis / step * 1e6) / 1e6 * step
    assert np.abs(on_grid / step - np.rint(on_grid / step)).max() < 1e-6
    spread = math.sqrt(released.power / 200)
    # Seven standard errors: 3e-12.
    assert np.linalg.norm(draws.mean(axis=0) - ROWS[2]) < 7 * spread


def test_noise_on_lines_removes_what_it_does_not_cover():
    """Outputs on a line: the log-det shape has rank one, and what is orthogonal to it is constant in the release."""
    rows = np.outer([0.0, 1.0, 3.0, 7.0], [3.0, 4.0])
    released = certified(law=FiniteOutputs(rows), noise=MixtureNoise.gaussian(np.diag([1.0, 1.0])))
    assert released.shape == "logdet"
    draws = np.array([released.release(row) for row in rows for _ in range(5)])
    across = draws @ np.array([-0.8, 0.6])
    assert np.ptp(across) < 1e-9 * released.power


def test_bounded_outputs_hold_for_any_law():
    law = BoundedOutputs(np.array([1.0, 1.0]), 2.0)
    released = certified(MixtureNoise.gaussian(np.diag([1.0, 4.0])), law, 0.4)
    assert released.certificate.confidence == 1.0
    assert released.mutual_information <= 0.4
    cut = released.check(np.array([[100.0, 1.0], [1.5, 1.0]]))
    assert cut == pytest.approx(np.array([[3.0, 1.0], [1.5, 1.0]]))
    # No output ends the release, which would tell of its record: it is the centre.
    extremes = np.array([[np.nan, 1.0], [np.inf, -np.inf], [1.7e308, -1.7e308]])
    assert np.array_equal(released.check(extremes), np.ones((3, 2)))
    # The worst law on the ball that Gaussian noise allows: opposite points of the sphere, by quadrature.
    deviation = math.sqrt(released.noise.second_moment()[0, 0])
    truth = information_by_quadrature([-2.0, 2.0], np.array([0.5, 0.5]), lambda x: stats.norm.pdf(x, 0, deviation))
    assert truth <= 0.4


def test_the_critic_lowers_the_bound_of_clusters_and_stays_above_the_truth():
    """A balanced two-point output through its moments and draws: less noise than log-det, and enough."""
    rng = np.random.default_rng(0)
    law = KnownMoments(np.zeros(1), np.eye(1), lambda size: rng.choice([-1.0, 1.0], (size, 1)))
    noise = MixtureNoise.gaussian([[1.0]])
    plain = certified(noise, KnownMoments(law.mean, law.covariance), 0.6)
    released = certified(noise, law, 0.6, num_draws=60_000)
    assert plain.certificate.method == "logdet"
    assert released.certificate.method == "logdet-dv"
    assert released.power < 0.93 * plain.power
    deviation = math.sqrt(released.power)
    truth = information_by_quadrature([-1.0, 1.0], np.array([0.5, 0.5]), lambda x: stats.norm.pdf(x, 0, deviation))
    assert truth <= released.mutual_information <= 0.6


def test_gaussian_outputs_gain_nothing_from_a_critic():
    rng = np.random.default_rng(1)
    law = KnownMoments(np.zeros(2), np.eye(2), lambda size: rng.standard_normal((size, 2)))
    released = certified(law=law, budget=0.5, num_draws=20_000)
    # The information of Gaussian outputs is log-det exactly, so anything less would be wrong.
    assert released.mutual_information <= 0.5
    assert logdet_information(np.eye(2), released.noise) <= 0.5 + 1e-9


def test_noise_with_a_mean_is_compared_with_the_gaussian_of_its_own_moments():
    # Compared with a centred Gaussian, the shift alone looks like non-Gaussianity: 0.43 nats were certified for 0.82.
    rng = np.random.default_rng(1)
    law = KnownMoments(np.zeros(1), np.eye(1), lambda size: rng.standard_normal((size, 1)))
    shifted = MixtureNoise(np.ones(1), np.full((1, 1), 3.0), np.ones((1, 1, 1)))
    noise, certificate = law.scale(shifted, 0.5, 0.99, 20_000, secure_generator())
    assert logdet_information(np.eye(1), noise) <= certificate.mutual_information + 1e-9 <= 0.5 + 1e-8


def test_slices_estimate_the_divergence_from_below():
    rng = np.random.default_rng(2)
    release = np.stack([rng.choice([-3.0, 3.0], 20_000) + rng.standard_normal(20_000), rng.standard_normal(20_000)], 1)
    grid = np.linspace(-12, 12, 20_001)
    density = 0.5 * stats.norm.pdf(grid, 3) + 0.5 * stats.norm.pdf(grid, -3)
    truth = (density * np.log(density / stats.norm.pdf(grid, 0, math.sqrt(10)))).sum() * (grid[1] - grid[0])
    estimate = sliced_wasserstein_correction(release, np.zeros(2), np.diag([10.0, 1.0]))
    assert isinstance(estimate, Estimate)
    assert 0.03 * truth < estimate.value < truth


def test_charges_compose_and_confidence_is_counted_per_mechanism(tmp_path):
    first, second = certified(budget=1.0, num_draws=60_000), certified(budget=0.9, num_draws=60_000)
    together = compose_releases([first, second, first], [3, 1, 2])
    assert together.mutual_information == pytest.approx(5 * first.mutual_information + second.mutual_information)
    assert together.confidence == pytest.approx(0.98)
    with pytest.raises(ValueError, match="different secrets"):
        compose_releases([first, certified(secret="Another.")])
    with PrivacyLedger(tmp_path / "a.db", budget={"mutual_information": 2.0}) as ledger:
        account = first.open_account(ledger, "clusters")
        account.charge(first.mutual_information)
        with pytest.raises(BudgetExceededError):
            account.charge(2 * first.mutual_information)
        assert account.declaration["secret"] == SECRET


@pytest.mark.parametrize(
    "law",
    [
        FiniteOutputs(ROWS, np.array([0.4, 0.3, 0.2, 0.1])),
        BoundedOutputs(np.ones(2), 3.0),
        KnownMoments(np.ones(2), np.diag([1.0, 2.0])),
    ],
    ids=["finite", "bounded", "moments"],
)
def test_a_saved_mechanism_is_the_same(law, tmp_path):
    released = certified(law=law, budget=0.3)
    path = released.save(tmp_path / "released")
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = ReleasedMechanism.load(path)
    assert loaded.certificate == released.certificate
    assert loaded.declaration() == released.declaration()
    assert np.array_equal(loaded.noise.loadings, released.noise.loadings)
    assert np.array_equal(loaded.check(ROWS), released.check(ROWS))
    assert [file.name for file in tmp_path.iterdir()] == ["released.npz"]
    np.savez(tmp_path / "other.npz", a=np.ones(1))
    with pytest.raises(ValueError, match="is not a released mechanism"):
        ReleasedMechanism.load(tmp_path / "other.npz")


def test_the_card_says_what_is_secret_and_on_what_it_rests():
    released = certified(budget=1.0, num_draws=60_000)
    card = released.card(num_releases=3)
    text = card.to_markdown()
    assert SECRET in text
    assert "probability 0.99" in text
    assert "one of 4 known possibilities" in text
    assert card.guarantees[0].value == pytest.approx(3 * released.mutual_information)


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf])
def test_budgets_must_be_positive(budget):
    with pytest.raises(ValueError, match=r"^budget(_per_response)? is "):
        certified(budget=budget)


def test_more_bad_input_is_refused():
    with pytest.raises(ValueError, match="releasing the output exactly is within it"):
        certified(budget=1.4)
    with pytest.raises(ValueError, match="hides nothing"):
        FiniteOutputs(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="one row per secret"):
        FiniteOutputs(np.zeros((3, 0)))
    with pytest.raises(ValueError, match="Output 1 is not finite"):
        FiniteOutputs(np.array([[0.0], [np.inf]]))
    with pytest.raises(ValueError, match="does not fit outputs of 2"):
        certified(MixtureNoise.gaussian(np.eye(3)))
    with pytest.raises(ValueError, match="confidence"):
        certified(confidence=1.0)
    with pytest.raises(ValueError, match="symmetric"):
        KnownMoments(np.zeros(2), np.array([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="direction of variance -1"):
        KnownMoments(np.zeros(2), np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(ValueError, match="radius"):
        BoundedOutputs(np.zeros(2), 0.0)


def test_a_certified_mechanism_never_has_more_power_than_logdet():
    rng = np.random.default_rng(7)
    for _ in range(12):
        rows = rng.standard_t(3, (int(rng.integers(3, 20)), int(rng.integers(1, 4)))) * rng.uniform(0.1, 10)
        factor = rng.standard_normal((rows.shape[1], rows.shape[1] + 1))
        budget = float(rng.uniform(0.05, 0.9) * math.log(len(rows)))
        released = certified(MixtureNoise.gaussian(factor @ factor.T), FiniteOutputs(rows), budget, num_draws=2_000)
        assert released.mutual_information <= budget * (1 + 1e-9)
        assert released.power <= calibrate_gaussian(rows, budget).power * (1 + 1e-6)


def test_a_disk_that_fails_leaves_the_saved_mechanism_as_it_was(tmp_path, monkeypatch):
    released = certified(budget=0.3)
    path = released.save(tmp_path / "released")
    before = path.read_bytes()

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="No space left"):
        released.save(path)
    assert path.read_bytes() == before
