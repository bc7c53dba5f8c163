"""Roots on the safe side of their own rounding."""

from collections.abc import Callable

__all__ = ["moved_until"]


def moved_until(holds: Callable[[float], bool], number: float, step: float) -> float:
    """A number that a search found, moved in growing steps until a condition holds.

    A root is as exact as its function is steep: where that is flat against its own rounding, steps of the size of a
    rounding would take hours.

    Args:
        holds: The condition, which decides.
        number: Where to begin.
        step: The first move, about a rounding of the number and of its sign where that is the safe side.
    """
    while not holds(number):
        number, step = number + step, 2 * step
    return number
