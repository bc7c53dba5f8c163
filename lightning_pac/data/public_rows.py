"""A public number of rows for batches whose number of records is secret."""

import math

from lightning_pac._validation import Natural, NonNegative, Positive, validated

__all__ = ["largest_mean", "most_records"]

_NATS = 64 * math.log(2)


def largest_mean(stated: float) -> float:
    """The most records that a rate may give a batch of that stated size on average: a standard deviation more."""
    return stated + math.sqrt(stated)


@validated
def most_records(expected: Positive, num_differing: Natural = 1, expected_differing: NonNegative = 1.0) -> int:
    r"""Rows that a Poisson batch passes with a chance so small that it counts as one more value of noise.

    By Bernstein's inequality a batch of mean b passes $r(b, L) = b + L/3 + \sqrt{L^2/9 + 2 b L}$ with probability at
    most $e^{-L}$. A batch that does not fit ends the run, and both worlds tell the same up to there, whatever they
    draw of the records that they share. Either those leave room for all d that differ, $r(b, L) + d$ rows: whether
    they do is an event of both worlds alike, which adds its probability to every delta (hockey sticks are jointly
    convex). Or all records fit, of which a world has one of mean $b + b_d$: what happens otherwise moves either world
    by its probability, weighted by up to $e^{16}$ as an epsilon may demand. Both add at most $2^{-64}$ a batch to
    delta, which `missing_tail` charges for a value of noise; the lesser number is taken. Ours.

    Under `add_remove` batches are filled up to so many rows. Both worlds then compute all other records at the same
    places of batches of the same shape, hence alike to the bit, and what one record does to a clipped sum beyond C is
    the engine's `ROUNDING`, which is proven. Without filling no share would do: libraries choose the order of sums by
    the number of rows, so that one record more moves all others by a rounding, and across a kink of the network (the
    zero of a ReLU) by their whole gradients. Ours.

    Args:
        expected: Mean number, in a batch, of the records that both worlds have.
        num_differing: Records that differ.
        expected_differing: Mean number of those in a batch.

    Raises:
        ValueError: If a mean is above 2**53.

    Example:
        >>> most_records(400.0)
        605
    """
    for name, number in {"expected": expected, "expected_differing": expected_differing}.items():
        if number > 2**53:
            raise ValueError(f"{name} is {number}, but must be at most 2**53: no batch holds more records.")
    of_both = _passed(expected, _NATS) + num_differing
    of_all = _passed(expected + expected_differing, _NATS + 16 + math.log(2))
    return math.ceil(min(of_both, of_all))


def _passed(mean: float, nats: float) -> float:
    return mean + nats / 3 + math.sqrt(nats**2 / 9 + 2 * mean * nats)
