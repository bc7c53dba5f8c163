"""Batches that may not fit into a public number of rows: what their end of the run tells, against exact enumeration."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from lightning_pac.data import most_records

ANYWHERE = np.linspace(-14.0, 16.0, 30_001)


class World(NamedTuple):
    """What one step tells: the density of its sum, and how likely it is that there is one."""

    density: np.ndarray
    goes_on: float


def world(rows: int | None, shared: int, differing: int, rate: float) -> World:
    """Shared records contribute nothing, each of the differing ones 1; a batch that passes `rows` ends the run."""
    fit = np.zeros(differing + 1)
    for others, drawn in itertools.product(range(shared + 1), range(differing + 1)):
        if rows is None or others + drawn <= rows:
            fit[drawn] += stats.binom.pmf(others, shared, rate) * stats.binom.pmf(drawn, differing, rate)
    one = sum(chance * stats.norm.pdf(ANYWHERE, drawn) for drawn, chance in enumerate(fit))
    return World(np.asarray(one), float(fit.sum()))


def hockey_stick(first: World, second: World, gamma: float) -> float:
    """Of a single step: its sum, or that it ended the run."""
    seen = np.maximum(first.density - gamma * second.density, 0).sum() * (ANYWHERE[1] - ANYWHERE[0])
    return float(seen + max(1 - first.goes_on - gamma * (1 - second.goes_on), 0))


@pytest.mark.parametrize(("shared", "differing", "rate", "rows"), [(6, 1, 0.3, 3), (9, 2, 0.2, 4), (4, 3, 0.5, 5)])
def test_an_end_of_the_run_adds_its_chance_to_delta(shared: int, differing: int, rate: float, rows: int) -> None:
    more, less = (world(rows, shared, number, rate) for number in (differing, 0))
    ideal, without = (world(None, shared, number, rate) for number in (differing, 0))
    no_room = stats.binom.sf(rows - differing, shared, rate)  # of both worlds alike
    too_many = stats.binom.sf(rows, shared + differing, rate)
    is_needed = False
    for gamma in np.exp(np.linspace(0, 3, 13)):
        for pair, bound in (((more, less), (ideal, without)), ((less, more), (without, ideal))):
            truth, claimed = hockey_stick(*pair, gamma), hockey_stick(*bound, gamma)
            assert truth <= claimed + no_room + 1e-9
            assert truth <= claimed + (1 + gamma) * too_many + 1e-9
            is_needed |= truth > claimed + 1e-6
    assert is_needed, "without the chance the figure would be below the truth"


def test_a_batch_that_does_not_fit_is_as_rare_as_it_is_charged_for() -> None:
    for mean in np.geomspace(1e-4, 1e6, 200):
        for differing, rate in ((1, 1e-3), (1, 1.0), (10, 0.01), (1_000, 0.01), (100, 0.5)):
            rows = most_records(mean, differing, differing * rate)
            no_room = stats.poisson.sf(rows - differing, mean)
            too_many = stats.poisson.sf(rows, mean + differing * rate)
            assert min(no_room, (1 + math.exp(16)) * too_many) <= 2.0**-64
