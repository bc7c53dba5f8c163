"""A public number of rows for batches whose number of records is secret."""

import math

__all__ = ["most_records"]


def most_records(expected: float) -> int:
    r"""Records that a Poisson batch of that expected size does not pass: $\lceil b + 8 \sqrt b + 16 \rceil$.

    By Bernstein's inequality the probability is at most $e^{-24}$ for any b, and below $10^{-13}$ from b = 1 on.

    Under `add_remove` batches are filled up to so many rows. Both worlds then compute all other records at the same
    places of batches of the same shape, hence alike to the bit, and what one record does to a clipped sum beyond C is
    the engine's `ROUNDING`, which is proven. Without filling no share would do: libraries choose the order of sums by
    the number of rows, so that one record more moves all others by a rounding, and across a kink of the network (the
    zero of a ReLU) by their whole gradients. Ours.

    Example:
        >>> most_records(400.0)
        576
    """
    return math.ceil(expected + 8 * math.sqrt(expected) + 16)
