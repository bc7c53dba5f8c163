"""Tests of a run by someone who sees its clipped sums and its draws: is the mechanism the one that is accounted for?

Every test has a p-value that is exact, or rounded upwards: under a run that is as declared it is below x with
probability x at most. Where several are made, each is held against its share of the stated rate of false alarms
(Bonferroni), which then holds for all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lightning_pac._validation import (
    Count,
    Natural,
    Noise,
    NonNegative,
    OpenProbability,
    Probability,
    VectorLike,
    validated,
)

__all__ = ["AuditTest", "alarms", "count_test", "deviation_test", "exact_test", "law_test"]


@validated
@dataclass(frozen=True)
class AuditTest:
    """One test of a run.

    Attributes:
        name: what is tested.
        p_value: how often a run that is as declared looks at least as odd.
        seen: what was seen, beside what was declared, in words.
    """

    name: str
    p_value: float
    seen: str


@validated
def deviation_test(name: str, sum_of_squares: NonNegative, number: Count, deviation: Noise) -> AuditTest:
    r"""Whether noise has its deviation: $\sum z_i^2 / s^2$ is chi-squared of that many degrees, tested on both sides.

    Args:
        name: whose noise it is.
        sum_of_squares: of all values of it.
        number: of values.
        deviation: the declared one.

    Example:
        >>> deviation_test("noise of a layer", 250.0, 1000, 1.0).p_value < 1e-100  # it is half as large
        True
    """
    law, seen = stats.chi2(number), sum_of_squares / deviation**2
    p_value = min(1.0, 2 * min(float(law.cdf(seen)), float(law.sf(seen))))
    return AuditTest(name, p_value, f"deviation {(seen / number) ** 0.5:.4g} of the declared one in {number:,} values")


@validated
def law_test(name: str, noise: VectorLike) -> AuditTest:
    """Whether values are independent draws of N(0, 1), by Kolmogorov's and Smirnov's distance.

    Args:
        name: whose noise it is.
        noise: values of it in deviations, shape (n,).
    """
    values = np.asarray(noise, dtype=np.float64)
    found = stats.kstest(values, "norm")
    seen = f"distance {found.statistic:.3g} from the normal law in {len(values):,} values"
    return AuditTest(name, float(found.pvalue), seen)


@validated
def count_test(name: str, number: Natural, trials: Count, rate: Probability) -> AuditTest:
    """Whether a number of draws is binomial, tested on both sides.

    Args:
        name: what is counted.
        number: draws that were made.
        trials: draws that could have been made.
        rate: the declared probability of each.
    """
    found = stats.binomtest(number, trials, rate).pvalue
    return AuditTest(name, float(found), f"{number:,} of {trials:,} where {rate * trials:,.1f} are expected")


@validated
def exact_test(name: str, holds: bool, seen: str) -> AuditTest:
    """Something that is always so in a run that is as declared.

    Args:
        name: what is tested.
        holds: whether it is so.
        seen: what was seen.
    """
    return AuditTest(name, 1.0 if holds else 0.0, seen)


@validated
def alarms(tests: Sequence[AuditTest], rate: OpenProbability) -> tuple[AuditTest, ...]:
    """The tests that a run fails, with one false alarm among all of them at a rate of at most this.

    Args:
        tests: all that were made.
        rate: probability of any alarm in a run that is as declared.

    Example:
        >>> found = alarms([AuditTest("a", 0.02, ""), AuditTest("b", 0.002, "")], rate=0.01)
        >>> [test.name for test in found]
        ['b']
    """
    return tuple(test for test in tests if test.p_value < rate / len(tests))
