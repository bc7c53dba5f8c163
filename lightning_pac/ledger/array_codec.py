"""Arrays as bytes, for what the ledger stores of an answer: a few bytes of header each, and nothing executable."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import validated

__all__ = ["pack_arrays", "unpack_arrays"]

# Only ever appended to: the position is what is on the disk.
DTYPES = tuple(np.dtype(name) for name in ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "|u1", "<u2", "<u4"))
_POSITION = {dtype: position for position, dtype in enumerate(DTYPES)}


def pack_arrays(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """The arrays, one after the other, with their types and shapes.

    Raises:
        TypeError: If an array holds anything but real numbers of at most 64 bits.

    Example:
        >>> unpack_arrays(pack_arrays([np.array([1.5, 2.0]), np.arange(3)]))
        [array([1.5, 2. ]), array([0, 1, 2])]
    """
    parts = []
    for array in arrays:
        if not isinstance(array, np.ndarray | np.generic) or (little := array.dtype.newbyteorder("<")) not in _POSITION:
            raise TypeError(f"arrays must hold real numbers, got {getattr(array, 'dtype', type(array).__name__)}.")
        parts.append(struct.pack(f"<BB{array.ndim}I", _POSITION[little], array.ndim, *array.shape))
        parts.append(array.astype(little, copy=False).tobytes())
    return b"".join(parts)


@validated
def unpack_arrays(payload: bytes) -> list[npt.NDArray[Any]]:
    """The arrays that `pack_arrays` was given.

    Raises:
        ValueError: If they are not what it returned.
    """
    try:
        return _unpack(payload)
    except (IndexError, struct.error, ValueError) as error:
        raise ValueError(f"payload is not what pack_arrays returned: {error}.") from error


def _unpack(payload: bytes) -> list[npt.NDArray[Any]]:
    arrays = []
    position = 0
    while position < len(payload):
        dtype, ndim = DTYPES[payload[position]], payload[position + 1]
        shape = struct.unpack_from(f"<{ndim}I", payload, position + 2)
        position += 2 + 4 * ndim
        count = 1
        for length in shape:
            count *= length
        arrays.append(np.frombuffer(payload, dtype, count, position).reshape(shape))
        position += count * dtype.itemsize
    return arrays


def smallest_integers(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integer labels in the narrowest stored type that holds them all: one byte a vote where that is enough."""
    if labels.dtype.kind not in "biu":
        raise TypeError(f"labels must be integers, got {labels.dtype}.")
    for name in ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4"):
        limits = np.iinfo(name)
        if not labels.size or (labels.min() >= limits.min and labels.max() <= limits.max):
            return labels.astype(name)
    return labels.astype("<i8")
