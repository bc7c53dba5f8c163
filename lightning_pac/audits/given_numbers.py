"""Numbers of secrets and labels as they are given: what is none would index, wrap around or be cut to another one."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["whole_numbers"]


def whole_numbers(name: str, given: npt.ArrayLike, limit: int, num_axes: int, meaning: str) -> npt.NDArray[np.int64]:
    """The array, if it has so many axes and its entries are integers from 0 up to the limit, which is left out.

    Args:
        name: Of the argument.
        given: The array; True and False are no numbers.
        limit: Above every entry.
        num_axes: Of the array.
        meaning: What has one number each, and of what.

    Raises:
        ValueError: If it is something else.

    Example:
        >>> whole_numbers("secrets", [0, 3], 4, 1, "trial: that of the subset that was drawn").tolist()
        [0, 3]
    """
    array: npt.NDArray[Any] = np.asarray(given)
    if (
        array.ndim != num_axes
        or array.dtype.kind not in "iu"
        or array.min(initial=0) < 0
        or array.max(initial=0) >= limit
    ):
        highest = f" to {limit - 1}" if limit < 2**63 else ""
        raise ValueError(
            f"{name}, of shape {array.shape} and type {array.dtype}, must be one whole number from 0{highest} for each "
            f"{meaning}."
        )
    return array.astype(np.int64)
