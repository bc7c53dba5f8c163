"""Operations that the processes of a private run carry out together."""

import pickle
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from lightning_pac._validation import Count, Natural, checks_itself, validated
from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["Ranks", "reduce_scatter"]

Value = TypeVar("Value")
Share = TypeVar("Share")

# Torch 2.14 has other names, and warns of the earlier ones in every step.
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@validated
class Ranks:
    """The processes of a run, one for each device; one process alone is the simplest case.

    Every method is called by all ranks, in the same order.

    Args:
        rank: This process's number.
        size: Number of processes.
        device: Where small tensors are exchanged: the rank's own device.

    Example:
        >>> Ranks().from_first(lambda: "drawn once")
        'drawn once'
    """

    def __init__(self, rank: Natural = 0, size: Count = 1, device: torch.device | None = None) -> None:
        if rank >= size:
            raise ValueError(f"rank is {rank}, but must be below size ({size}).")
        self.rank = rank
        self.size = size
        self._device = device or torch.device("cpu")

    @classmethod
    def of(cls, trainer: Annotated[pl.Trainer, "from a hook of Lightning"]) -> "Ranks":
        """The processes of a Trainer, whose strategy has connected them."""
        return cls(trainer.global_rank, trainer.world_size, trainer.strategy.root_device)

    @property
    def is_first(self) -> bool:
        """Whether this is rank zero, which owns the ledger."""
        return self.rank == 0

    @checks_itself
    def from_first(self, action: Callable[[], Value]) -> Value:
        """Run an action on rank zero; every rank returns its value or raises its error, so that none is left waiting.

        Args:
            action: Its value can be pickled.

        Raises:
            Exception: On every rank, the error of rank zero.
        """
        if self.size == 1:
            return action()
        outcome: list[Any] = [None]
        if self.is_first:
            try:
                outcome = [(action(), None)]
            except Exception as error:
                outcome = [(None, _portable(error))]
        dist.broadcast_object_list(outcome, src=0)
        value: Value
        value, problem = outcome[0]
        if problem is not None:
            raise problem
        return value

    def exchange(self, bring: Callable[[], Share], answer: Callable[[list[Share]], Value]) -> Value:
        """Give rank zero what every rank brings; every rank returns its answer, or raises the first error of any.

        Args:
            bring: Called on every rank; its value can be pickled.
            answer: Called on rank zero with what was brought, in the order of the ranks; its value can be pickled.

        Raises:
            Exception: On every rank, the first error of any rank.

        Example:
            >>> Ranks().exchange(lambda: 3, sum)
            3
        """
        if self.size == 1:
            return answer([bring()])
        try:
            share: tuple[Any, Exception | None] = (bring(), None)
        except Exception as error:
            share = (None, _portable(error))
        shares: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(share, shares, dst=0)

        def reply() -> Value:
            assert shares is not None
            for _, problem in shares:
                if problem is not None:
                    raise problem
            return answer([brought for brought, _ in shares])

        return self.from_first(reply)

    def together(self, action: Callable[[], Value]) -> Value:
        """Run an action on every rank; each returns its own value, or all raise the first error of any.

        Raises:
            Exception: On every rank, the first error of any rank.
        """
        own: list[Value] = []
        self.exchange(lambda: own.append(action()), len)
        return own[0]

    def agree(self, declare: Callable[[], Mapping[str, Any]]) -> None:
        """Raise on every rank unless all declare the same.

        Args:
            declare: Values by what they are called in the error, of plain types; bytes are never shown.

        Raises:
            MisconfigurationException: On every rank, names the first value that differs.
            Exception: On every rank, the first error of any rank.

        Example:
            >>> Ranks().agree(lambda: {"max_grad_norm": 1.0})
        """
        self.exchange(declare, _compare)

    def anywhere(self, flag: bool) -> bool:
        """Whether it is so on any rank.

        Example:
            >>> Ranks().anywhere(True)
            True
        """
        if self.size == 1:
            return flag
        found = torch.tensor(int(flag), device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    @checks_itself
    def check_equal(self, number: int, what: str) -> None:
        """Raise on every rank unless all of them hold the same integer below 2**63.

        Args:
            number: What this rank holds.
            what: Its name in the error.

        Raises:
            PrivacyViolationError: If two ranks differ.
        """
        if self.size == 1:
            return
        extremes = torch.tensor([number, -number], dtype=torch.int64, device=self._device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        if int(extremes.sum()) != 0:
            raise PrivacyViolationError(
                f"The ranks do not agree on {what}, so a record could count twice: give every rank the same "
                "dataset, loader and Trainer, and remove what depends on the rank."
            )

    @checks_itself
    def release(self, total: Tensor, make_public: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Sum a tensor over all ranks and make the sum public, each coordinate on exactly one rank.

        This is an all-reduce whose two halves, reduce-scatter and all-gather, have the noise between them: it is added
        once, to complete sums, and every rank receives the same bits. The work of drawing it is divided by the number
        of ranks.

        Args:
            total: This rank's part of the sum, shape (d,); it may be overwritten.
            make_public: Adds noise to coordinates and rounds them, each independently of the others, possibly in place;
                called with a part of the sum and the position at which it starts.

        Returns:
            The released sum, shape (d,), equal on all ranks.
        """
        if self.size == 1:
            return make_public(total, 0)
        length = -(-total.numel() // self.size)
        padded = total.new_zeros(length * self.size)
        padded[: total.numel()] = total
        own = total.new_empty(length)
        reduce_scatter(own, padded)
        start = self.rank * length
        present = min(length, max(0, total.numel() - start))
        own[:present] = make_public(own[:present], start)
        _all_gather(padded, own)
        return padded[: total.numel()]


def _compare(declared: list[Mapping[str, Any]]) -> None:
    first = declared[0]
    for rank, other in enumerate(declared):
        for name in [*first, *other]:
            expected, found = first.get(name, "missing"), other.get(name, "missing")
            if expected != found:
                hidden = isinstance(expected, bytes) or isinstance(found, bytes)
                values = "" if hidden else f" ({expected!r} and {found!r})"
                raise MisconfigurationException(
                    f"The ranks of one private run must not differ, and {name} differs between rank 0 and rank {rank}"
                    f"{values}: give every rank the same script, arguments and data."
                )


def _portable(error: Exception) -> Exception:
    """The error, or one like it if it cannot be sent to other processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
