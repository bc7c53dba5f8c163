"""Private answers for several processes, of which the first alone has the secret and the ledger."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from lightning_pac.strategies import Ranks

__all__ = ["RanksAnswers"]

Answer = Callable[[npt.NDArray[Any]], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class _Query:
    """What a rank brings to a round: outputs, an error, or neither once it has no more batches."""

    outputs: npt.NDArray[Any] | None = None
    error: Exception | None = None


class RanksAnswers:
    """Rounds in which every rank brings the outputs of a batch and takes its labels home.

    Rank zero answers the batches of a round in the order of the ranks. Ranks may have different numbers of batches: one
    that has no more keeps taking part with nothing until all are done, so that none is left waiting. An error of one
    rank is raised by all.

    Args:
        ranks: The processes.
        answer: Gives rank zero the labels of a batch of outputs; not called elsewhere.
    """

    def __init__(self, ranks: Ranks, answer: Answer) -> None:
        self._ranks = ranks
        self._answer = answer
        self._finished = False

    def exchange(self, compute: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """One round with a batch of outputs, which gives its labels.

        Raises:
            BudgetExceededError: On every rank, if the budget does not pay for some rank's batch; the ranks before it
                have their answers on record, and nobody is shown one of this round.
        """
        try:
            query = _Query(outputs=compute())
        except Exception as error:
            query = _Query(error=error)
        replies = self._round(query)
        assert replies is not None
        labels: npt.NDArray[np.int64] = replies[self._ranks.rank]
        return labels

    def finish(self) -> None:
        """Take part until no rank has a batch left."""
        while not self._finished:
            self._finished = self._round(_Query()) is None

    def _round(self, query: _Query) -> list[Any] | None:
        queries: list[Any] | None = [None] * self._ranks.size if self._ranks.is_first else None
        dist.gather_object(query, queries, dst=0)

        def reply() -> list[Any] | None:
            assert queries is not None
            for brought in queries:
                if brought.error is not None:
                    raise brought.error
            if all(brought.outputs is None for brought in queries):
                return None
            return [None if brought.outputs is None else self._answer(brought.outputs) for brought in queries]

        try:
            return self._ranks.from_first(reply)
        except BaseException:
            self._finished = True
            raise
