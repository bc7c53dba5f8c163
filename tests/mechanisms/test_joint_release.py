"""What several certified mechanisms tell together, against quadrature."""

import math

import numpy as np
import pytest
from test_noise_certificate import density_of, mixture

from lightning_pac.accountants import ResidualPrivacy
from lightning_pac.mechanisms import (
    BoundedOutputs,
    Certificate,
    Composed,
    FiniteOutputs,
    JointRelease,
    MixtureNoise,
    ReleasedMechanism,
    certify_mechanism,
)
from lightning_pac.mechanisms.certified.certificate import two_point_information

SECRET = "Which of the possible values it is."
UNIT = MixtureNoise.gaussian([[1.0]])


def mechanism(rows, noise=UNIT, told=5.0, weights=None, basis=None, confidence=1.0):
    """One whose proof is taken as given, so that its noise is known."""
    law = FiniteOutputs(np.asarray(rows, dtype=float), weights)
    return ReleasedMechanism(noise, Certificate(told, confidence, "quadrature"), law, SECRET, basis)


def information_by_quadrature(rows, prior, densities):
    """Mutual information of a secret and two numbers with independent noises, on a grid of both."""
    grid = np.linspace(-14, 14, 1_401)
    first, second = (
        np.array([density(grid - point) for point in column])
        for column, density in zip(np.asarray(rows).T, densities, strict=True)
    )
    joint = np.einsum("sa,sb->sab", first, second)
    marginal = np.einsum("s,sab->ab", prior, joint)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(joint > 1e-200, joint * np.log(joint / marginal), 0.0)
    return float(np.einsum("s,sab->", prior, terms) * (grid[1] - grid[0]) ** 2)


@pytest.mark.parametrize("second", [UNIT, mixture([0.3, 0.7], [1.4, -0.6], [0.5, 0.8])], ids=["gaussian", "mixture"])
def test_the_joint_bound_is_just_above_the_truth_and_below_the_sum(second):
    """Two numbers that tell partly the same of four values."""
    prior = np.array([0.4, 0.3, 0.2, 0.1])
    first_rows, second_rows = [[0.0], [1.5], [1.5], [-1.0]], [[0.0], [2.0], [1.0], [-2.0]]
    noises = [UNIT, second]
    flat = lambda x: np.zeros_like(x) + 1 / 28  # noqa: E731 - a number that tells nothing
    single = [
        information_by_quadrature(np.hstack([rows, np.zeros((4, 1))]), prior, [density_of(noise), flat])
        for rows, noise in zip((first_rows, second_rows), noises, strict=True)
    ]
    truth = information_by_quadrature(
        np.hstack([first_rows, second_rows]), prior, [density_of(noise) for noise in noises]
    )
    joint = JointRelease(
        [
            mechanism(rows, noise, told, prior)
            for rows, noise, told in zip((first_rows, second_rows), noises, single, strict=True)
        ]
    )
    proven = joint.certify(num_draws=2**16)
    assert joint.composed.mutual_information == pytest.approx(sum(single))
    assert truth < 0.9 * sum(single)
    # Below the truth with probability 0.01 at most by its own statement, and in fact below 1e-3: never by 1 %.
    assert 0.99 * truth < proven.mutual_information < 1.05 * truth
    assert proven.confidence == pytest.approx(0.99)


def test_mechanisms_that_tell_of_different_bits_tell_the_sum():
    """Two independent bits: the joint information is the sum, and no bound below it is returned."""
    bits = np.array([[a, b] for a in (0.0, 2.0) for b in (0.0, 2.0)])
    told = two_point_information(2.0, 0.5)
    joint = JointRelease([mechanism(bits[:, [place]], told=told) for place in (0, 1)])
    proven = joint.certify(num_draws=2**15)
    assert joint.composed == Composed(pytest.approx(2 * told), 1.0)
    assert 0.98 * 2 * told < proven.mutual_information <= 2 * told


def test_the_same_answer_again_is_one_with_less_noise():
    rows = [[0.0], [1.0]]
    told = two_point_information(1.0, 0.5)
    joint = JointRelease([mechanism(rows, told=told)] * 9)
    proven = joint.certify()
    assert proven.mutual_information == pytest.approx(two_point_information(3.0, 0.5))
    assert proven.confidence == 1.0
    assert proven.mutual_information < 0.55 * joint.composed.mutual_information
    residual = ResidualPrivacy(joint.entropy, math.log(2), proven)
    assert residual.conditional_entropy == pytest.approx(math.log(2) - two_point_information(3.0, 0.5))


def test_one_budget_for_all_needs_less_noise_than_its_shares():
    rows = np.array([[0.0, 0.0], [1.0, 1.1], [3.0, 3.2], [4.0, 3.9]])
    shares = [
        certify_mechanism(UNIT, FiniteOutputs(rows[:, [place]]), 0.4, secret=SECRET, num_draws=2**15)
        for place in (0, 1)
    ]
    joint = JointRelease(shares)
    once = certify_mechanism(joint.noise, FiniteOutputs(joint.outputs), 0.8, secret=SECRET, num_draws=2**15)
    assert once.mutual_information <= 0.8
    assert once.power < 0.9 * sum(share.power for share in shares)


def test_a_joint_noise_that_were_one_noise_would_be_noticed():
    """Broken on purpose: shared noise lets the difference of two answers tell everything."""
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    joint = JointRelease([mechanism(rows[:, [place]]) for place in (0, 1)])
    truth = information_by_quadrature(rows, np.full(3, 1 / 3), [density_of(UNIT)] * 2)
    assert joint.certify(num_draws=2**15).mutual_information == pytest.approx(truth, rel=0.05)
    broken = MixtureNoise.gaussian([[1.0, 0.999], [0.999, 1.0]])
    assert JointRelease([mechanism(rows, broken)]).certify(num_draws=2**12).mutual_information > 2 * truth


def test_released_directions_are_what_is_read_jointly():
    rows = np.outer([0.0, 1.0, 3.0, 7.0], [3.0, 4.0])
    released = certify_mechanism(MixtureNoise.gaussian(np.eye(2)), FiniteOutputs(rows), 0.5, secret=SECRET)
    assert released.basis is not None
    joint = JointRelease([released, mechanism(rows[:, [0]])])
    assert joint.dimension == 2
    stacked = joint.stack([released.release(rows), rows[:, [0]]])
    assert stacked.shape == (4, 2)
    # Along the line, up to its sign and noise; the second column as it was given.
    assert stacked[:, 1] == pytest.approx(rows[:, 0])
    assert abs(joint.outputs[3, 0] - joint.outputs[0, 0]) == pytest.approx(35.0)


@pytest.mark.parametrize("far", [2.0**40, 2.0**52, 2.0**60])
def test_outputs_far_from_zero_differ_by_as_much_as_near_it(far):
    """Their products with a direction were rounded before they were subtracted: 5 % too little was proven at 2^52."""
    step = max(1.0, np.spacing(far))
    rows, basis = np.array([[0.0, 1.0], [3.0, -2.0], [1.0, 5.0]]), np.array([[0.6], [0.8]])
    tables = [JointRelease([mechanism(where + by * rows, basis=basis)]).outputs for where, by in ((0, 1), (far, step))]
    assert np.diff(tables[1], axis=0) / step == pytest.approx(np.diff(tables[0], axis=0), rel=1e-12)


def test_failure_probabilities_add_where_both_bounds_are_from_samples():
    rows = np.array([[0.0], [1.0], [4.0]])
    joint = JointRelease([mechanism(rows, confidence=0.99), mechanism(rows, confidence=0.98)])
    assert joint.composed.confidence == pytest.approx(0.97)
    assert joint.certify(confidence=0.99, num_draws=2**12).confidence == pytest.approx(0.96)


def test_the_card_keeps_guarantees_and_estimates_apart():
    from lightning_pac.audits import decoder_leakage

    rows = np.array([[0.0], [1.0], [4.0]])
    joint = JointRelease([mechanism(rows, told=0.7), mechanism(rows, told=0.6)])
    proven = joint.certify(num_draws=2**12)
    found = decoder_leakage(np.full(100, math.log(1 / 3)), np.arange(100) % 3, joint.weights)
    card = joint.card(proven, [found.to_estimate()])
    assert card.guarantees[0].value == proven.mutual_information < 1.3
    assert [estimate.name for estimate in card.estimates] == ["decoder_leakage"]
    assert card.details["sum_of_single_releases"] == pytest.approx(1.3)
    assert joint.card().guarantees[0].value == pytest.approx(1.3)


def test_what_cannot_be_certified_jointly_is_refused():
    rows = [[0.0], [1.0], [3.0]]
    with pytest.raises(ValueError, match="at least one certified mechanism"):
        JointRelease([])
    with pytest.raises(TypeError, match="mechanisms is an object of type ReleasedMechanism, but must be a sequence"):
        JointRelease(mechanism(rows))
    with pytest.raises(
        TypeError, match=r"mechanisms\[1\] is an object of type MixtureNoise, but must be a ReleasedMechanism"
    ):
        JointRelease([mechanism(rows), UNIT])
    other = ReleasedMechanism(UNIT, Certificate(0.1, 1.0, "logdet"), FiniteOutputs(np.array(rows)), "Another.")
    with pytest.raises(ValueError, match="speak of different secrets"):
        JointRelease([mechanism(rows), other])
    with pytest.raises(ValueError, match="secrets with 3 and 2 values"):
        JointRelease([mechanism(rows), mechanism(rows[:2])])
    with pytest.raises(ValueError, match="or other probabilities"):
        JointRelease([mechanism(rows), mechanism(rows, weights=np.array([0.5, 0.25, 0.25]))])
    ball = ReleasedMechanism(UNIT, Certificate(0.1, 1.0, "capacity"), BoundedOutputs(np.zeros(1), 1.0), SECRET)
    with pytest.raises(ValueError, match="one is certified for BoundedOutputs"):
        JointRelease([mechanism(rows), ball])
    many = mixture(np.full(40, 1 / 40), np.zeros(40), np.ones(40))
    with pytest.raises(ValueError, match="a mixture of more than 1024 Gaussians"):
        JointRelease([mechanism(rows, many)] * 2).certify()
    with pytest.raises(ValueError, match="releases must be of all 2 mechanisms, got those of 1"):
        JointRelease([mechanism(rows)] * 2).stack([rows])
