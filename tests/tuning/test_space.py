"""Spaces: what is drawn, and what is refused."""

import numpy as np
import pytest
from scipy import stats

from lightning_pac.randomness import SecureGenerator
from lightning_pac.tuning import Choice, Integers, LogUniform, OptunaSpace, SearchSpace, Uniform


@pytest.fixture
def generator():
    with pytest.warns(UserWarning, match="tests only"):
        return SecureGenerator(seed=1)


def test_draws_follow_their_distributions(generator):
    space = SearchSpace.from_dict(
        {"a": {"uniform": [-1.0, 3.0]}, "b": {"log_uniform": [0.01, 100.0]}, "c": {"integers": [2, 4]},
         "d": {"choice": ["x", None]}}
    )  # fmt: skip
    assert space.settings == {
        "a": Uniform(-1, 3),
        "b": LogUniform(0.01, 100),
        "c": Integers(2, 4),
        "d": Choice(["x", None]),
    }
    drawn = [space.draw(generator) for _ in range(2000)]
    assert stats.kstest([row["a"] for row in drawn], stats.uniform(-1, 4).cdf).pvalue > 1e-3
    assert stats.kstest(np.log10([row["b"] for row in drawn]), stats.uniform(-2, 4).cdf).pvalue > 1e-3
    assert stats.chisquare([sum(row["c"] == number for row in drawn) for number in (2, 3, 4)]).pvalue > 1e-3
    assert {row["d"] for row in drawn} == {"x", None}
    # Rounding leads to neither side of an end, and the width of a range may be no float.
    assert LogUniform(0.1, 0.1).draw(generator) == 0.1
    assert abs(Uniform(-1.5e308, 1.5e308).draw(generator)) <= 1.5e308


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.1), (1e-300, 1.7e308), (0.7, 0.7000000000000001)])
def test_draws_keep_within_their_ends(generator, low, high):
    settings = [Uniform(low, high), Uniform(-high, low), LogUniform(low, high)]
    assert all(s.low <= s.draw(generator) <= s.high for s in settings for _ in range(50))


@pytest.mark.parametrize("of_data", [lambda data: 0.1, np.ones(2), 0.1, [0.1]])
def test_a_space_that_reads_data_is_refused(of_data):
    with pytest.raises(TypeError, match="public and may not read data"):
        SearchSpace({"norm": of_data})
    with pytest.raises(TypeError, match=r"values\[0\] is an object of type ndarray"):
        Choice([np.ones(2)])


def test_optuna_draws_at_random_only():
    optuna = pytest.importorskip("optuna")
    distributions = {"lr": optuna.distributions.FloatDistribution(0.01, 1.0, log=True)}
    drawn = {OptunaSpace(distributions).draw()["lr"] for _ in range(3)}
    assert len(drawn) == 3
    assert all(0.01 <= value <= 1 for value in drawn)
    OptunaSpace(distributions, optuna.samplers.RandomSampler())
    with pytest.raises(TypeError, match="TPESampler, which chooses settings by earlier runs"):
        OptunaSpace(distributions, optuna.samplers.TPESampler())
    with pytest.raises(TypeError, match="distribution of Optuna"):
        OptunaSpace({"lr": 0.1})


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
@pytest.mark.parametrize("choice", [(8, 8), np.int64(8), object()])
def test_what_optuna_chooses_from_can_be_kept(choice):
    optuna = pytest.importorskip("optuna")
    OptunaSpace({"layers": optuna.distributions.CategoricalDistribution([8, 0.5, True, None, "deep"])})
    with pytest.raises(TypeError, match=r"^settings has .* among the choices of 'layers'"):
        OptunaSpace({"layers": optuna.distributions.CategoricalDistribution([8, choice])})
