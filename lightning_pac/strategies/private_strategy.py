"""The common part of strategies for several devices: ranks agree, and divide the records instead of padding them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.strategies.agreement import compare_loaders, trainer_declaration
from lightning_pac.strategies.ranks import Ranks

__all__ = ["PrivateStrategy", "broadcast_tensors"]


@validated
class PrivateStrategy(ParallelStrategy):
    """A strategy that leaves raw gradients on their ranks; it comes before one of Lightning's among the base classes.

    Args:
        args: Those of Lightning's strategy.
        kwargs: Those of Lightning's strategy.

    Raises:
        MisconfigurationException: In ``fit``, if nothing adds the gradients up.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._undo_division: Callable[[], object] | None = None
        self._undo_comparison: Callable[[], None] | None = None
        self._declaration: Mapping[str, Any] = {}

    def divide_records(self, trainer: pl.Trainer, declaration: Mapping[str, Any]) -> None:
        """Leave train loaders to the caller, who divides what they draw among the ranks; until the fit ends.

        The caller then also answers for the gradients, which this strategy leaves on their ranks.

        Args:
            trainer: Its train loader is not sharded.
            declaration: What the caller was given, which must be the same on all ranks; see `Ranks.agree`.
        """
        self._begin_division(trainer, whole_validation=False)
        self._declaration = declaration

    def end_division(self) -> None:
        """Go back to what an ordinary strategy does."""
        if self._undo_division is not None:
            self._undo_division()
        self._undo_division = None
        self._declaration = {}

    def _begin_division(self, trainer: pl.Trainer, whole_validation: bool) -> None:
        if self._undo_division is not None:
            raise MisconfigurationException(
                "SRPPSGD divides records among the ranks and SubsetEnsemble divides members: train them one at a time."
            )
        connector: Any = trainer._data_connector
        needs_sampler = type(connector)._requires_distributed_sampler

        def requires_distributed_sampler(dataloader: Any) -> bool:
            return not (trainer.training or whole_validation) and bool(needs_sampler(connector, dataloader))

        # A private name: Lightning pads with repeated records, and its switch would turn validation's sharding off too.
        connector._requires_distributed_sampler = requires_distributed_sampler
        self._undo_division = lambda: connector.__dict__.pop("_requires_distributed_sampler", None)

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        def declare() -> Mapping[str, Any]:
            if trainer.state.fn == TrainerFn.FITTING and self._undo_division is None:
                raise MisconfigurationException(
                    f"{type(self).__name__} leaves gradients on their ranks, and nothing here adds them up, so "
                    "every device would train a model of its own: add SRPPSGD to the callbacks, or use an ordinary "
                    "strategy."
                )
            return {**trainer_declaration(trainer), **self._declaration}

        Ranks.of(trainer).agree(declare)
        if self.world_size > 1:
            self._undo_comparison = compare_loaders(trainer)
        super().setup(trainer)

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        message = str(exception)
        if isinstance(exception, dist.DistError) or "/gloo/" in message:
            exception.__cause__ = RuntimeError(message)
            exception.args = (
                "Another rank ended before this one, or did not come to where all of them meet, so this one cannot go "
                "on: read what that rank says, and let every rank do the same in every batch.",
            )

    @override
    def teardown(self) -> None:
        self.end_division()
        if self._undo_comparison is not None:
            self._undo_comparison()
        self._undo_comparison = None
        super().teardown()


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Give all ranks rank zero's values, in place; called by all ranks at once."""
    for tensor in tensors:
        values = tensor.detach().contiguous()
        dist.broadcast(values, src=0)
        tensor.detach().copy_(values)
