"""The attribute attack: optimal where the optimum is known, and blind where there is nothing to see."""

import numpy as np
import pytest
from scipy.stats import norm

from lightning_pac.audits import gaussian_map_attack
from lightning_pac.mechanisms import SlicedWassersteinMechanism
from lightning_pac.scenarios import AttributeScenario, SliceProfile

SHIFTS = {"a": np.array([0.0, 0.0]), "b": np.array([1.0, 0.0])}


def attack(epsilon: float, notion: str, prior: dict[str, float], trials: int = 20_000):
    rng = np.random.default_rng(0)
    scenario = AttributeScenario.from_shifts(SHIFTS, prior=prior)
    mechanism = SlicedWassersteinMechanism(
        scenario, None, SliceProfile.random(2, 50), epsilon=epsilon, renyi_order=4, notion=notion
    )
    secrets = rng.choice(list(prior), p=list(prior.values()), size=trials)
    answers = mechanism.release(np.array([SHIFTS[secret] for secret in secrets]))
    return gaussian_map_attack(answers, secrets, SHIFTS, prior, mechanism.covariance), mechanism


@pytest.mark.parametrize("prior", [{"a": 0.86, "b": 0.14}, {"a": 0.5, "b": 0.5}])
def test_success_is_that_of_the_optimal_test(prior: dict[str, float]) -> None:
    result, mechanism = attack(2.0, "joint", prior)
    sigma = np.sqrt(mechanism.covariance[0, 0])
    threshold = 0.5 + sigma**2 * np.log(prior["a"] / prior["b"])
    optimum = prior["a"] * norm.cdf(threshold / sigma) + prior["b"] * norm.sf((threshold - 1) / sigma)
    # Five and a half standard errors: a false alarm in 4e-8 of runs.
    assert result.accuracy == pytest.approx(optimum, abs=5.5 * 0.5 / np.sqrt(20_000))


def test_no_budget_leaves_the_prior_and_joint_is_below_ave() -> None:
    prior = {"a": 0.5, "b": 0.5}
    blind, _ = attack(1e-6, "ave", prior)
    assert abs(blind.advantage) < 5.5 * 0.5 / np.sqrt(20_000)
    accuracies = {
        notion: [attack(eps, notion, prior)[0].accuracy for eps in (0.1, 1.0, 10.0)] for notion in ("ave", "joint")
    }
    for curve in accuracies.values():
        assert curve == sorted(curve)
    # At 1 and at 10 the gap is more than eight standard errors.
    assert accuracies["joint"][1] < accuracies["ave"][1]
    assert accuracies["joint"][2] < accuracies["ave"][2]


def test_a_value_without_a_mean_is_named() -> None:
    with pytest.raises(ValueError, match=r"means has none for the value.*'b'"):
        gaussian_map_attack(np.zeros((1, 1)), ["b"], {"a": [0.0]}, {"a": 1.0}, np.eye(1))
