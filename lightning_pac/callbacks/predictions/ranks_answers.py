"""Private answers for several processes, of which the first alone has the secret and the ledger."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac.strategies import Ranks

__all__ = ["RanksAnswers"]

Answer = Callable[[npt.NDArray[Any]], npt.NDArray[np.int64]]
Compute = Callable[[int], npt.NDArray[Any]]


class RanksAnswers:
    """Rounds in which every rank brings the outputs of a batch and takes its labels home.

    Rank zero answers the batches of a round in the order of the ranks. Ranks may have different numbers of batches: one
    that has no more keeps taking part with nothing until all are done, so that none is left waiting. An error of one
    rank is raised by all.

    Args:
        ranks: The processes.
        answer: Gives rank zero the labels of a batch of outputs; not called elsewhere.
        draw_dummies: How many dummy queries rank zero lets each batch be asked with, drawn before any of a round is
            asked; None asks none.
    """

    def __init__(self, ranks: Ranks, answer: Answer, draw_dummies: Callable[[], int] | None = None) -> None:
        self._ranks = ranks
        self._answer = answer
        self._draw_dummies = draw_dummies
        self._finished = False

    def exchange(self, check: Callable[[], None], compute: Compute) -> npt.NDArray[np.int64]:
        """One round with a batch, which gives its labels.

        Args:
            check: Raises if dummies cannot be asked with the batch; called before any are drawn.
            compute: Gives the outputs of the batch's queries, asked together with that many dummies.

        Raises:
            BudgetExceededError: On every rank, if the budget does not pay for some rank's batch; the ranks before it
                have their answers on record, and nobody is shown one of this round.
        """
        replies = self._round(check, compute)
        assert replies is not None
        labels: npt.NDArray[np.int64] = replies[self._ranks.rank]
        return labels

    def finish(self) -> None:
        """Take part until no rank has a batch left."""
        while not self._finished:
            self._finished = self._round(None, None) is None

    def _round(self, check: Callable[[], None] | None, compute: Compute | None) -> list[Any] | None:
        try:
            num_dummies = 0 if self._draw_dummies is None else self._dummies(self._draw_dummies, check)
            return self._ranks.exchange(lambda: None if compute is None else compute(num_dummies), self._reply)
        except BaseException:
            self._finished = True
            raise

    def _dummies(self, draw: Callable[[], int], check: Callable[[], None] | None) -> int:
        def has_batch() -> bool:
            if check is not None:
                check()
            return check is not None

        drawn = self._ranks.exchange(has_batch, lambda batches: [draw() if batch else 0 for batch in batches])
        return drawn[self._ranks.rank]

    def _reply(self, brought: list[npt.NDArray[Any] | None]) -> list[Any] | None:
        if all(outputs is None for outputs in brought):
            return None
        return [None if outputs is None else self._answer(outputs) for outputs in brought]
