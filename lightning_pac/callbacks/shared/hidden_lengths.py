"""The number of evaluated records, which checkpoints of Lightning tell by that of the batches."""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loops.progress import _BatchProgress
from typing_extensions import override

__all__ = ["hide_evaluated_lengths"]


class _Hidden(_BatchProgress):
    """Counts the batches of an evaluation, and saves none."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return _BatchProgress().state_dict()


def hide_evaluated_lengths(trainer: pl.Trainer) -> None:
    """Keep how many batches were evaluated out of checkpoints, also of later ones, and of those with weights alone.

    Where a record may be absent, one more may begin a batch, and the number of batches tells so. An evaluation that is
    resumed begins anew.
    """
    for loop in (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop):
        before = loop.batch_progress
        if not isinstance(before, _Hidden):
            loop.batch_progress = _Hidden(before.total, before.current, before.is_last_batch)
