"""Recorded answers as they were released, with the belief of their time."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from lightning_pac.mechanisms.responses.adaptive_composition import AdaptiveComposition
from lightning_pac.mechanisms.responses.answer import BatchRelease
from lightning_pac.mechanisms.responses.recorded_answers import RecordedAnswers
from lightning_pac.mechanisms.variances import CompositionRule

__all__ = ["replay_releases"]


def replay_releases(
    answers: Iterable[RecordedAnswers], prior: npt.ArrayLike, rule: CompositionRule = "logdet"
) -> Iterator[BatchRelease]:
    """Repeat the belief over recorded votes, to learn each class's mass before each release.

    A ledger keeps votes and released vectors; filters also need what was believed at the time. Nothing is drawn, no
    secret is needed and nothing is spent.

    Args:
        answers: All answers of one responder, from the first on.
        prior: Probabilities of the m secrets.
        rule: Noise rule of the answers.

    Yields:
        For each entry, what `AdaptiveComposition.release_batch` returned.

    Raises:
        ValueError: If the answers are scores, which have no classes.

    Example:
        >>> composition = AdaptiveComposition(np.full(4, 0.25), secret=1)
        >>> votes = np.array([[0, 1, 1, 1], [2, 2, 2, 2], [0, 0, 1, 1]])
        >>> release = composition.release_batch(votes, 0.1)
        >>> recorded = RecordedAnswers.of(votes, release, 0.1)
        >>> replayed = next(replay_releases([recorded], np.full(4, 0.25)))
        >>> bool(np.allclose(replayed.masses, release.masses)), replayed.costs.tolist()
        (True, [0.1, 0.0, 0.1])
    """
    composition = AdaptiveComposition(prior, None, rule)
    possible = np.flatnonzero(composition.belief > 0)
    for recorded in answers:
        if recorded.outputs.ndim != 2:
            raise ValueError("The recorded answers are scores: only votes have classes with masses to replay.")
        votes = recorded.outputs[:, possible]
        classes = np.full(recorded.values.shape, -1, dtype=np.int64)
        masses = np.zeros(recorded.values.shape)
        costs = np.zeros(len(recorded))
        for row, budget in enumerate(recorded.budgets.tolist()):
            present, position = np.unique(votes[row], return_inverse=True)
            classes[row, : len(present)] = present
            masses[row, : len(present)] = np.bincount(position, weights=composition.belief[possible])
            if len(present) > 1:
                costs[row] = budget
                composition.replay(recorded.outputs[row : row + 1], recorded.values[row : row + 1], budget)
        yield BatchRelease(recorded.labels, recorded.values, classes, masses, costs, rule)
