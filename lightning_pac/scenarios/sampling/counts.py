"""Numbers of records and of steps, checked."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_pac._validation import Natural, validated

__all__ = [
    "as_stretches",
    "check_count",
    "check_differing",
    "count_passes",
    "hypergeometric_square",
    "require_records",
]


def as_stretches(num_steps: int | Sequence[int]) -> list[int]:
    """Steps of each stretch of a run (see `Sampling`): one stretch where a single number is given.

    Args:
        num_steps: steps, or those of each stretch.

    Raises:
        ValueError: if a number is negative.

    Example:
        >>> as_stretches(98), as_stretches([50, 60])
        ([98], [50, 60])
    """
    if type(num_steps) is int and num_steps >= 0:  # asked in every step
        return [num_steps]
    return _checked_stretches(num_steps)


@validated
def _checked_stretches(num_steps: Natural | Sequence[Natural]) -> list[int]:
    return [int(steps) for steps in (num_steps if isinstance(num_steps, Sequence) else [num_steps])]


def count_passes(num_steps: int | Sequence[int], steps_per_pass: int) -> tuple[int, list[int]]:
    """Complete passes, and the lengths of the partial ones."""
    stretches = as_stretches(num_steps)
    partial = [steps % steps_per_pass for steps in stretches]
    return sum(steps // steps_per_pass for steps in stretches), [steps for steps in partial if steps]


def hypergeometric_square(num_differing: int, num_records: int, batch_size: int) -> float:
    """`E[K^2]` of a batch of distinct records, `mu^2 + mu (1 - d/N)(N - B)/(N - 1)` with `mu = B d / N`."""
    share = num_differing / num_records
    mean = batch_size * share
    correction = (num_records - batch_size) / (num_records - 1) if num_records > 1 else 0.0
    return mean**2 + mean * (1 - share) * correction


def require_records(scheme: object, num_records: int | None) -> int:
    """The number of records, for a scheme that cannot do without it."""
    if num_records is None:
        raise ValueError(
            f"num_records is None, and {type(scheme).__name__} needs it: state num_records in the scenario."
        )
    check_count("num_records", num_records)
    return num_records


def check_differing(num_differing: int, num_records: int | None) -> None:
    """Refuse more differing records than there are, or fewer than one."""
    check_count("num_differing", num_differing)
    if num_records is not None and num_differing > num_records:
        raise ValueError(f"num_differing is {num_differing}, but there are only {num_records} records.")


def check_count(name: str, value: int) -> None:
    """Refuse what is no whole number from one up."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, but it must be a whole number.")
    if value < 1:
        raise ValueError(f"{name} is {value}, but it must be at least 1.")
