"""Trials of what a scheme declares, on all sets of a few records, before anything is trained with it."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math

import numpy as np
import numpy.typing as npt

from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios.sampling.scheme import Sampling

__all__ = ["check_class", "check_price"]

LARGEST_SIZE = 6
"""Records that are tried, from one up: 63 sets of differing records at most."""
NUM_PASSES = 500
"""Passes drawn for each number of records. A path of probability p is missed with probability (1 - p)^500."""
NUM_REPEATED = 40
"""Passes drawn a second time with the same key. Draws from elsewhere agree by chance below once in 1e12."""
LOG_ALARM = math.log(1e9)
"""A right expectation is taken for a wrong one once in 1e9 comparisons at most."""


def check_class(scheme: type[Sampling]) -> None:
    """Refuse a class that is not a sampling scheme of its own.

    Raises:
        TypeError: names what is missing.
    """
    if not (isinstance(scheme, type) and issubclass(scheme, Sampling)):
        raise TypeError(f"{scheme!r} is not a sampling scheme: derive a class from lightning_pac.scenarios.Sampling.")
    name = scheme.__name__
    if inspect.isabstract(scheme):
        raise TypeError(f"{name} leaves {', '.join(sorted(scheme.__abstractmethods__))} open: define them.")
    if not ("__dataclass_params__" in vars(scheme) and scheme.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise TypeError(f"{name} is compared and saved by its fields: decorate it with @dataclass(frozen=True) first.")
    if vars(scheme).get("_certified", False):
        return
    for base in scheme.__mro__[1:]:
        if vars(base).get("_certified", False):
            raise TypeError(
                f"{name} derives from {base.__name__}, whose proof does not cover it: derive from Sampling itself."
            )
    if {"amplified_rate", "amplified_steps"} & set(vars(scheme)) or scheme.independent_draws:
        raise TypeError(
            f"{name} claims what only the law of the draws can show, amplification or independence of the others: "
            "leave amplified_rate and independent_draws as they are, or sample by Poisson."
        )
    if scheme.draw_pass is Sampling.draw_pass:
        raise TypeError(f"{name} does not say how it draws: let its draw_pass yield the batches of a pass.")
    if not scheme.condition:
        raise TypeError(f"{name} has no condition: say in a sentence what its price assumes, for the privacy card.")


def check_price(scheme: type[Sampling]) -> None:
    """Count what the draws of a scheme's small cases do, and hold it against what it declares.

    Raises:
        ValueError: names the case that breaks the declaration.
    """
    cases = scheme.small_cases()
    if not cases:
        raise ValueError(
            f"{scheme.__name__}.small_cases() is empty: return schemes that draw from at most six records."
        )
    for sampling in cases:
        if scheme.from_dict(json.loads(json.dumps(sampling.to_dict()))) != sampling:
            raise ValueError(f"{sampling} does not survive to_dict and from_dict as JSON: override both.")
        sizes = [size for size in range(1, LARGEST_SIZE + 1) if _draws_from(sampling, size)]
        if not sizes or sizes[-1] == 1:
            raise ValueError(
                f"{sampling} draws from none of 2 to {LARGEST_SIZE} records, so nothing can be tried on it."
            )
        for size in sizes:
            _check_size(sampling, size)


def _draws_from(sampling: Sampling, num_records: int) -> bool:
    try:
        sampling.steps_per_epoch(num_records)
        list(sampling.draw_pass(num_records, SecureGenerator()))
    except ValueError:
        return False
    return True


def _check_size(sampling: Sampling, num_records: int) -> None:
    drawn = _draw(sampling, num_records, NUM_PASSES)
    if (_draw(sampling, num_records, NUM_REPEATED) != drawn[:NUM_REPEATED]).any():
        raise ValueError(f"{sampling} draws differently from equal generators: take all randomness from the generator.")
    per_pass = drawn.shape[1]
    if sampling.each_record_once and (drawn.sum(axis=1) > 1).any():
        raise ValueError(f"{sampling} drew a record twice in a pass: leave each_record_once as it is, or draw it once.")
    # Column s of `members` is one set of records; all but the empty set.
    members = np.array(list(itertools.product((0, 1), repeat=num_records))[1:]).T
    sizes = members.sum(axis=0)
    # Sums of K_t^2 over the first steps of each pass, shape (passes, steps + 1, sets).
    squares = np.cumsum((drawn @ members) ** 2, axis=1)
    squares = np.concatenate([np.zeros_like(squares[:, :1]), squares], axis=1)
    # Passes are drawn independently, so the worst of each may meet in one run.
    worst = squares.max(axis=0)
    for differing in range(1, num_records + 1):
        reached = worst[:, sizes <= differing]
        for first, second in itertools.product(range(1, per_pass + 1), {0, 1, per_pass}):
            # A second pass follows: after a complete first one in the same stretch, otherwise in one of its own.
            _check_worst(sampling, differing, num_records, [first, second], (reached[first] + reached[second]).max())
            if first == per_pass:
                _check_worst(sampling, differing, num_records, first + second, (reached[first] + reached[second]).max())
            elif not second:
                _check_worst(sampling, differing, num_records, first, reached[first].max())
        _check_expected(sampling, differing, num_records, squares[:, 1:, sizes == differing])


def _draw(sampling: Sampling, num_records: int, num_passes: int) -> npt.NDArray[np.int64]:
    """The multiplicity of each record in each batch, shape (passes, steps, records)."""
    # The key follows from the scheme, so that a scheme is always accepted or never.
    generator = SecureGenerator.from_key(hashlib.sha256(f"{sampling} {num_records}".encode()).digest())
    steps = sampling.steps_per_epoch(num_records)
    drawn = np.zeros((num_passes, steps, num_records), dtype=np.int64)
    for counts in drawn:
        batches = [np.asarray(batch, dtype=np.int64) for batch in sampling.draw_pass(num_records, generator)]
        if len(batches) != steps:
            raise ValueError(
                f"{sampling} drew {len(batches)} batches in a pass over {num_records} records, but its steps_per_epoch "
                f"says {steps}: let them agree."
            )
        for count, batch in zip(counts, batches, strict=True):
            if ((batch < 0) | (batch >= num_records)).any():
                raise ValueError(f"{sampling} drew {batch.tolist()} of {num_records} records: count them from 0.")
            count += np.bincount(batch, minlength=num_records)
    return drawn


def _check_worst(
    sampling: Sampling, differing: int, num_records: int, num_steps: int | list[int], reached: int
) -> None:
    declared = sampling.worst_case_square_sum(differing, num_records, num_steps)
    if declared < reached:
        raise ValueError(
            f"{sampling} declares that {differing} of {num_records} records bring sum K^2 to {declared} at most over "
            f"{num_steps} steps, but its own draws bring it to {reached}: correct worst_case_square_sum or draw_pass."
        )


def _check_expected(sampling: Sampling, differing: int, num_records: int, squares: npt.NDArray[np.int64]) -> None:
    if not sampling.random_draws:
        return
    means = squares.mean(axis=0)
    # Empirical Bernstein bound (Maurer and Pontil 2009), for values from 0 to the largest of them.
    margins = np.sqrt(2 * squares.var(axis=0, ddof=1) * LOG_ALARM / len(squares))
    margins += 7 * squares.max(axis=0) * LOG_ALARM / (3 * (len(squares) - 1))
    for step, (mean, margin) in enumerate(zip(means, margins, strict=True), start=1):
        declared = sampling.expected_square_sum(differing, num_records, step)
        if (mean - margin > declared).any():  # the differing records may be any of the sets
            raise ValueError(
                f"{sampling} declares that {differing} of {num_records} records bring sum K^2 to {declared:g} over "
                f"{step} steps on average, but its own draws bring it to {mean.max():.3g}: correct "
                "expected_square_sum or draw_pass, or set random_draws to False."
            )
