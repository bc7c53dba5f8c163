"""The ledger's record of private answers: all that an auditor needs to repeat the belief."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac.ledger import pack_arrays, smallest_integers, unpack_arrays
from lightning_pac.mechanisms.responses.answer import BatchRelease

__all__ = ["RecordedAnswers"]


@dataclass(frozen=True, eq=False)
class RecordedAnswers:
    """The answers of one entry of a ledger. Only `labels` is meant for users.

    Attributes:
        outputs: What the m models gave: n x m labels or n x m x d scores.
        labels: The answers, shape (n,).
        values: The released vectors, n x K, filled with NaN beyond the classes that occur.
        budgets: Mutual information asked for each answer in nats, shape (n,).
    """

    outputs: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    budgets: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def unanimous(self) -> npt.NDArray[np.bool_]:
        """True where all models agreed, so that the answer was exact and free, shape (n,)."""
        agree = (self.outputs == self.outputs[:, :1]).reshape(len(self), -1)
        return np.asarray(agree.all(axis=1))

    @classmethod
    def of(cls, outputs: npt.NDArray[Any], release: BatchRelease, budgets: npt.ArrayLike) -> "RecordedAnswers":
        """Answers as they were released."""
        asked = np.broadcast_to(np.asarray(budgets, dtype=np.float64), (len(release),))
        return cls(outputs, release.labels, release.values, asked)

    def encode(self) -> bytes:
        """The answers as bytes: m for the votes of up to 256 classes, and 8 for each noised number."""
        outputs = self.outputs if self.outputs.ndim == 3 else smallest_integers(self.outputs)
        widths = np.isfinite(self.values).sum(axis=1)
        if self.outputs.ndim == 2:
            # A vote that all agree on is released as the number 1, which needs no record.
            widths[self.unanimous] = 0
        # `decode` fills the same mask in the same row-major order.
        stored = np.arange(self.values.shape[1]) < widths[:, None]
        budgets = self.budgets[:1] if (self.budgets == self.budgets[0]).all() else self.budgets
        arrays = [outputs, smallest_integers(self.labels), smallest_integers(widths), self.values[stored], budgets]
        return pack_arrays(arrays)

    @classmethod
    def decode(cls, payload: bytes) -> "RecordedAnswers":
        """The answers that `encode` wrote."""
        outputs, labels, widths, stored, budgets = unpack_arrays(payload)
        values = np.full((len(labels), max(1, int(widths.max()))), np.nan)
        values[widths == 0, 0] = 1.0
        values[np.arange(values.shape[1]) < widths[:, None]] = stored
        if outputs.ndim == 2:
            outputs = outputs.astype(np.int64)
        return cls(outputs, labels.astype(np.int64), values, np.broadcast_to(budgets, (len(labels),)))
