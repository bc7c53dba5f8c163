"""One private answer, and a batch of them."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lightning_pac._shown import shows_itself
from lightning_pac.information import Array
from lightning_pac.mechanisms.responses.belief import ScoreChannel
from lightning_pac.mechanisms.responses.votes import vote_channel
from lightning_pac.mechanisms.variances import CompositionRule

__all__ = ["BatchRelease", "Release"]

LARGEST_DENSE = 4096


@shows_itself
@dataclasses.dataclass(frozen=True, eq=False)
class Release:
    """One private answer of `AdaptiveComposition`.

    Only `label` (or `value`, for scores) is meant for the user; the rest lets an auditor repeat the posterior.

    Attributes:
        label: The voted class with the largest released value (for scores, the coordinate).
        value: The noised vector: over `classes` for votes, of length d for scores.
        classes: The classes that occur among the votes, ascending; all coordinates for scores.
        masses: Belief mass of each class before the release; None for scores.
        cost: Mutual information charged, in nats; 0 when all outputs agree, where the answer is exact.
        rule: Noise rule.
        channel: The noise of scores, whose `loading()` is a d x r square root of the covariance; None otherwise.
    """

    label: int
    value: Array
    classes: npt.NDArray[np.int64]
    masses: Array | None
    cost: float
    rule: CompositionRule
    channel: ScoreChannel | None = dataclasses.field(default=None, repr=False)

    @property
    def unanimous(self) -> bool:
        """Whether all outputs were identical, so that the exact answer was given and nothing charged."""
        return self.cost == 0.0

    @property
    def covariance(self) -> Array:
        """Covariance of the noise, over `classes`.

        Raises:
            ValueError: If it would be larger than 4096 x 4096; `loading` is its square root.
        """
        size = len(self.value)
        if size > LARGEST_DENSE:
            raise ValueError(
                f"A dense {size} x {size} covariance is refused: use `channel.loading()`, its square root."
            )
        if self.unanimous:
            return np.zeros((size, size))
        if self.masses is not None:
            whitened, variances = vote_channel(self.masses, self.cost, self.rule)
            # W = U / sqrt(e), so that U e U^T = (W e^2) W^T.
            return np.asarray((whitened * variances**2) @ whitened.T)
        if self.channel is None:
            raise ValueError("The covariance of scores answered in a batch is not kept: answer them one by one.")
        loading = self.channel.loading()
        return np.asarray(loading @ loading.T)


@shows_itself
@dataclasses.dataclass(frozen=True, eq=False)
class BatchRelease:
    """Private answers to n queries, as arrays. `batch[i]` and iteration give each as a `Release`.

    Attributes:
        labels: Answers, shape (n,).
        values: Noised vectors, shape (n, K), filled with NaN beyond the classes of a row.
        classes: Classes that occur, ascending, shape (n, K), filled with -1.
        masses: Belief masses before each release, shape (n, K), filled with 0; None for scores.
        costs: Mutual information charged for each answer, in nats, shape (n,); 0 where all outputs agree.
        rule: Noise rule.
    """

    labels: npt.NDArray[np.int64]
    values: Array
    classes: npt.NDArray[np.int64]
    masses: Array | None
    costs: Array
    rule: CompositionRule

    @property
    def unanimous(self) -> npt.NDArray[np.bool_]:
        """True where all outputs were identical, shape (n,)."""
        return np.asarray(self.costs == 0.0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Release:
        present = np.flatnonzero(self.classes[index] >= 0)
        return Release(
            label=int(self.labels[index]),
            value=self.values[index, present],
            classes=self.classes[index, present],
            masses=None if self.masses is None else self.masses[index, present],
            cost=float(self.costs[index]),
            rule=self.rule,
        )

    def __iter__(self) -> Iterator[Release]:
        return (self[index] for index in range(len(self)))
