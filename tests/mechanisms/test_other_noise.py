import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.mechanisms import (
    StreamingCoordinateNoise,
    calibrate_gaussian,
    calibrate_lattice,
    confidence_auto_pac,
    coupled_differences,
    individual_noise,
)
from lightning_pac.scenarios import BalancedSubsets, ComplementaryHalves


def test_the_stream_has_the_variances_of_its_outputs_and_stops_by_the_rule_of_the_paper():
    rng = np.random.default_rng(0)
    outputs = 1e6 + rng.standard_normal((3_000, 4)) * [1.0, 0.1, 0.01, 0.0]
    basis = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    for axes in (None, basis):
        stream = StreamingCoordinateNoise(tolerance=1e-3, check_every=10, basis=axes)
        history = []
        for count, row in enumerate(outputs, start=1):
            converged = stream.update(row)
            seen = outputs[:count] if axes is None else outputs[:count] @ axes
            if count % 10 == 0:
                history.append(seen.var(axis=0))
            if converged:
                break
        assert stream.variances == pytest.approx(history[-1], abs=1e-6)
        changes = [np.abs(new - old).max() for old, new in itertools.pairwise(history)]
        assert changes[-1] < 1e-3 <= min(changes[:-1])
        noise = stream.noise(0.25)
        roots = np.sqrt(stream.variances)
        assert noise.variances == pytest.approx(roots * roots.sum() / 0.5)
        with pytest.raises(PrivacyViolationError, match="proves nothing"):
            noise.release(outputs[0])
    exact = calibrate_gaussian(outputs[:count], 0.25, rule="coordinate", basis=basis)
    assert noise.covariance() == pytest.approx(exact.covariance(), abs=1e-4)


def test_a_stream_refuses_what_it_cannot_use():
    stream = StreamingCoordinateNoise()
    with pytest.raises(ValueError, match="No output has been seen"):
        stream.noise(0.1)
    stream.update([1.0, 2.0])
    with pytest.raises(ValueError, match="same shape"):
        stream.update([1.0])
    with pytest.raises(ValueError, match="finite vector"):
        stream.update([1.0, math.nan])
    with pytest.raises(ValueError, match="positive"):
        StreamingCoordinateNoise(tolerance=0)


def test_confidence_auto_pac_takes_both_branches_and_certifies_nothing():
    rng = np.random.default_rng(1)
    outputs = rng.standard_normal((5_000, 2)) * [3.0, 0.1]
    radius = float(np.linalg.norm(outputs, axis=1).max())
    separated = confidence_auto_pac(outputs, 0.5, 0.1, radius, security=1e-4)
    spectrum = np.linalg.eigvalsh(np.cov(outputs.T, bias=True)) + 10 * 1e-4 * 0.4 / 0.1
    assert np.sort(separated.variances) == pytest.approx(np.sqrt(spectrum) * np.sqrt(spectrum).sum() / 0.8)
    fallback = confidence_auto_pac(outputs, 0.5, 0.1, radius, security=1.0)
    assert fallback.variances == pytest.approx([(np.cov(outputs.T, bias=True).trace() + 2.0) / 0.8] * 2)
    # Paying for the estimation costs power: part (i) of Proposition 3.
    assert separated.power > calibrate_gaussian(outputs[:500], 0.5).power
    with pytest.raises(PrivacyViolationError, match="proves nothing"):
        _ = separated.mutual_information
    with pytest.raises(ValueError, match=r"radius is .*, but an output has length"):
        confidence_auto_pac(outputs, 0.5, 0.1, 1.0, 1e-4)
    with pytest.raises(ValueError, match=r"confidence_budget is .* and budget"):
        confidence_auto_pac(outputs, 0.5, 0.5, radius, 1e-4)


def membership_information(outputs, table, variance):
    """Largest information of any record's membership in the noised output."""
    deviation = math.sqrt(variance)
    grid = np.linspace(outputs.min() - 9 * deviation, outputs.max() + 9 * deviation, 20_001)
    density = stats.norm.pdf(grid[:, None], outputs[:, 0], deviation)
    everyone = density.mean(axis=1)
    largest = 0.0
    for members in table:
        laws = density[:, members].mean(axis=1), density[:, ~members].mean(axis=1)
        terms = sum(np.where(law > 0, law * np.log(law / everyone), 0.0) for law in laws) / 2
        largest = max(largest, float(terms.sum() * (grid[1] - grid[0])))
    return largest


@pytest.mark.parametrize("pool", [BalancedSubsets(30, 16), ComplementaryHalves(30, 16)], ids=["balanced", "halves"])
def test_individual_noise_protects_every_record(pool):
    """The membership information of each record, by quadrature over the release, is within the budget."""
    rng = np.random.default_rng(2)
    outputs = (pool.membership_table().T @ rng.standard_normal(30) / 15)[:, None]
    table = pool.membership_table()
    noise = individual_noise(outputs, table, 0.05)
    assert membership_information(outputs, table, noise.power) <= 0.05 == pytest.approx(noise.mutual_information)
    assert membership_information(outputs, table, noise.power / 30) > 0.05


def test_the_coupling_is_the_best_matching():
    rng = np.random.default_rng(3)
    outputs = rng.standard_normal((8, 2))
    table = BalancedSubsets(5, 8).membership_table()
    for members, found in zip(table, coupled_differences(outputs, table), strict=True):
        inside, outside = outputs[members], outputs[~members]
        best = min(((inside - outside[list(p)]) ** 2).sum() for p in itertools.permutations(range(4)))
        assert 4 * found.sum() == pytest.approx(best)
    with pytest.raises(ValueError, match="half of the subsets"):
        coupled_differences(outputs, np.ones((1, 8), dtype=bool))
    with pytest.raises(ValueError, match="one finite row per subset"):
        coupled_differences(outputs[:7], table)


def direct_lattice_information(outputs, weights, ratio):
    shown = np.arange(min(outputs) - 4_000, max(outputs) + 4_001)
    laws = (1 - ratio) / (1 + ratio) * ratio ** np.abs(shown - np.array(outputs)[:, None]).astype(float)
    mixture = np.array(weights) @ laws
    terms = np.where(laws > 0, laws * np.log(np.maximum(laws, 1e-300) / np.maximum(mixture, 1e-300)), 0)
    return float((np.array(weights) * terms.sum(axis=1)).sum())


@pytest.mark.parametrize(
    ("outputs", "weights", "budget"),
    [([0, 1], [127 / 128, 1 / 128], 0.03), ([3, 5, 5, -2], [0.1, 0.2, 0.3, 0.4], 0.2), ([0, 40], [0.5, 0.5], 0.01)],
)
def test_lattice_noise_meets_the_budget_exactly(outputs, weights, budget):
    noise = calibrate_lattice(outputs, budget, weights)
    assert direct_lattice_information(outputs, weights, noise.ratio) == pytest.approx(budget, rel=1e-6)
    assert noise.mutual_information <= budget
    assert direct_lattice_information(outputs, weights, noise.ratio * 0.99) > budget
    assert noise.probabilities(np.arange(-5_000, 5_001)).sum() == pytest.approx(1)


def test_lattice_noise_is_not_less_than_it_should_be_for_the_smallest_budgets():
    # In differences of logarithms 1e-16 is lost: for a budget of 1e-18 that gave a hundredth of the power needed.
    noise = calibrate_lattice([0, 3], 2.0**-46, [0.3, 0.7])
    with localcontext() as context:
        context.prec = 50
        ratio, total = Decimal(noise.ratio), Decimal(0)
        weights = {0: Decimal("0.3"), 3: Decimal("0.7")}
        for shown in range(4):
            likelihood = {output: ratio ** abs(shown - output) for output in weights}
            mixture = sum(weights[output] * likelihood[output] for output in weights)
            told = sum(weights[j] * likelihood[j] * (likelihood[j] / mixture).ln() for j in weights)
            total += told / (1 - ratio) if shown in (0, 3) else told
        truth = float(total * (1 - ratio) / (1 + ratio))
    assert truth == pytest.approx(2.0**-46, rel=1e-6)
    with pytest.raises(ValueError, match="draws are not that even"):
        calibrate_lattice([0, 1], 1e-18)
    with pytest.raises(ValueError, match="spread over 18446744073709551615 steps"):
        calibrate_lattice([-(2**63), 2**63 - 1], 0.1)


def test_lattice_noise_beats_gaussian_noise_on_rare_outputs():
    weights = [127 / 128, 1 / 128]
    lattice = calibrate_lattice([0, 1], 0.03, weights)
    assert lattice.power == pytest.approx(0.032, abs=5e-4)
    assert lattice.power < calibrate_gaussian([[0.0], [1.0]], 0.03, weights, "exact").power / 3


def test_lattice_samples_follow_their_law():
    noise = calibrate_lattice([0, 3], 0.1)
    sample = noise.sample(20_000)
    values = np.arange(-6, 7)
    observed = [(sample == value).sum() for value in values]
    expected = noise.probabilities(values) * 20_000
    rest = [20_000 - sum(observed), 20_000 - expected.sum()]
    assert stats.chisquare([*observed, rest[0]], [*expected, rest[1]]).pvalue > 1e-7
    assert isinstance(noise.release(3), int)


@pytest.mark.parametrize(
    ("outputs", "budget", "message"),
    [
        ([0.5, 1.0], 0.1, "integers"),
        ([0, 1], 0.0, "positive and finite"),
        ([0, 1], 0.8, "releasing the output exactly is within it"),
        ([0, 10**9], 0.1, "public unit"),
    ],
)
def test_lattice_bad_arguments(outputs, budget, message):
    with pytest.raises(ValueError, match=message):
        calibrate_lattice(outputs, budget)


@pytest.mark.parametrize(
    ("first", "kind"), [(2**53, np.uint64), (2**60, np.uint64), (2**63 - 4, np.uint64), (2**63 - 4, np.int64)]
)
def test_lattice_noise_of_large_integers_is_that_of_small_ones(first, kind):
    large = calibrate_lattice(np.array([first, first + 1, first + 3], dtype=kind), 0.1)
    assert large.power == calibrate_lattice([0, 1, 3], 0.1).power
    assert abs(large.release(first) - first) < 1000


@pytest.mark.parametrize(
    "values", [np.array([-100, 100], dtype=np.int8), torch.tensor([-128, 0, 127], dtype=torch.int8)]
)
def test_distances_of_short_integers_do_not_wrap_around(values):
    # In eight bits 100 - -100 is -56: no noise was added, and 0 nats were stated.
    noise = calibrate_lattice(values, 0.03)
    weights = np.full(len(values), 1 / len(values))
    assert direct_lattice_information(values.tolist(), weights, noise.ratio) == pytest.approx(0.03, rel=1e-3)


def test_lattice_noise_of_the_rounded_ratio_is_within_the_budget():
    # The ratio is 0.999994 here, and the nearest float told 2e-11 of the budget more.
    assert calibrate_lattice([-(2**31), -(2**31) + 10**5], 0.03).mutual_information <= 0.03


def test_lattice_refuses_integers_that_no_release_can_have():
    with pytest.raises(ValueError, match=r"integers below 2\*\*63"):
        calibrate_lattice(np.array([2**63 + 5, 2**63 + 6], dtype=np.uint64), 0.1)


def test_lattice_releases_only_its_outputs():
    assert calibrate_lattice([4, 4], 0.1).release(4) == 4
    with pytest.raises(ValueError, match="not among the outputs"):
        calibrate_lattice([0, 1], 0.1).release(2)
