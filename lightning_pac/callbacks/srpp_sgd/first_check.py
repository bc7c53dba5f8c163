"""The check of a model's loss, state and hooks before its first private step."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader

from lightning_pac.callbacks.shared import monitored_names, named_if_slow, noised_names, watch_logging
from lightning_pac.callbacks.srpp_sgd.batch_shape import PAD
from lightning_pac.callbacks.srpp_sgd.guards import is_repeated, runs_in
from lightning_pac.callbacks.srpp_sgd.loss_check import OF_DATASET, STEPPED, LossCheck, check_loss
from lightning_pac.callbacks.srpp_sgd.reporting import is_ours, warn_of_raw_validation, warn_of_raw_values

__all__ = ["check_loss_first", "name_raw_evaluation", "name_raw_values"]
# By the way a problem begins; all others are the loss's own.
_ADVICE = {
    "is given its rows in an order": "keep record i in row i, and let the loader shuffle",
    "cannot be taken apart into records: create_graph": "penalize the difference of outputs at inputs that are a "
    "little apart, which takes no second derivative",
    "depends on rows of the dataset": "let the number of the epoch or public data decide what hooks set",
    "reaches the layers": "let the collate function keep each record in one row of the batch, with its windows or "
    "frames in a dimension of their own, and flatten that in training_step",
    "has gradients so large": "scale it down",
    "has gradients so small": "scale it up",
}


def check_loss_first(
    trainer: pl.Trainer, pl_module: pl.LightningModule, loader: DataLoader[Any]
) -> tuple[LossCheck, float]:
    """Refuse a loss without a gradient for each record, and state that keeps records; name what leaves unnoised.

    Returns:
        What was found, and how many seconds that took.

    Raises:
        MisconfigurationException: Says what the loss or the state does, and what to do instead.
    """
    datamodule: pl.LightningDataModule | None = trainer.datamodule  # type: ignore[attr-defined]
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    repeated = [callback for callback in callbacks if is_repeated(callback)]
    others = [callback for callback in callbacks if runs_in(callback, "train") and callback not in repeated]
    started = time.monotonic()
    with named_if_slow("Checking the loss on synthetic records"):
        found = check_loss(pl_module, loader, datamodule, 0, repeated)
        if found.unchecked and others:  # a step may look for one in the Trainer
            again = check_loss(pl_module, loader, datamodule, 0, [*repeated, *others])
            found = found if again.unchecked else again
    cost = time.monotonic() - started
    if found.pads:
        raise MisconfigurationException(f"Records of the dataset make batches of different shapes, {PAD}")
    if found.problem:
        advice = "return the mean of losses that each depend on one record only"
        advice = next((text for start, text in _ADVICE.items() if found.problem.startswith(start)), advice)
        raise MisconfigurationException(
            f"The loss of {type(pl_module).__name__} {found.problem}, so no record has a clipped gradient of "
            f"its own: {advice}."
        )
    if found.state and OF_DATASET in found.state[0]:
        raise MisconfigurationException(
            f"{found.state[0].replace('the', 'The', 1)} is set by private records, so that one decides what others "
            "become: let the number of the epoch decide it, or public data."
        )
    if STEPPED in found.state:
        raise MisconfigurationException(
            f"The step of {type(trainer.optimizers[0]).__name__} moves weights otherwise after other records, though "
            "the gradient is the same, so it uses records without noise (statistics of activations that a hook "
            "keeps): use an optimizer that reads nothing but the gradient and its own state."
        )
    if found.state:
        raise MisconfigurationException(
            f"The state {found.state[0]!r} of {type(pl_module).__name__} takes up private records without noise, "
            "and checkpoints hold it: compute it on public data, or leave it out."
        )
    if found.unchecked:
        rank_zero_warn(
            f"Synthetic records could not show that the loss of {type(pl_module).__name__} is a mean over records "
            f"({found.unchecked}): make sure that no record's loss depends on another record."
        )
    if found.unseen:  # no word on the card: which values there are is not public
        rank_zero_warn(
            f"The batch is made with {' and '.join(found.unseen)}, of which other records may hold values that were "
            "not tried: make sure that none lets a record's loss depend on another record, as a class of another "
            "weight does in a weighted mean."
        )
    if found.unread:
        rank_zero_warn(
            f"{' and '.join(found.unread)} could not be run on synthetic records: make sure that no record decides "
            "what it puts into checkpoints, or does to batches or weights."
        )
    if found.saving:
        rank_zero_warn(
            f"Checkpoints hold what {' and '.join(found.saving)} adds to them, without noise: make sure that nothing "
            "of it was read off the records (means, a vocabulary, their number), or keep checkpoints private."
        )
    noised = noised_names(trainer)  # whoever logs a raw value under these is stopped
    logged = [name for name in found.logged if not is_ours(name) and name not in noised]
    warn_of_raw_values([*logged, *monitored_names(trainer)])
    return found, cost


def name_raw_values(trainer: pl.Trainer, pl_module: pl.LightningModule, found: LossCheck) -> Callable[[], None]:
    """Name what is logged, as soon as it is: in training what was not on synthetic records, in validation the first.

    Where a callback noises metrics, it names what else an evaluation logs. Returned is how to undo that.
    """
    named = set(found.logged)
    is_named = bool(noised_names(trainer))

    def see(name: str, value: Any, options: Mapping[str, Any]) -> None:
        nonlocal is_named
        if trainer.validating and not is_named and not is_ours(name):
            is_named = True
            warn_of_raw_validation(name)
        if trainer.training and name not in named and not is_ours(name):
            named.add(name)
            # There gradients are the released ones.
            if pl_module._current_fx_name != "on_before_optimizer_step" or "grad" not in name.lower():
                warn_of_raw_values([name])

    return watch_logging(trainer, see)


def name_raw_evaluation(trainer: pl.Trainer) -> None:
    """Name the first value that an evaluation outside of a fit logs, where no callback noises metrics."""

    def see(name: str, value: Any, options: Mapping[str, Any]) -> None:
        if not is_ours(name):
            undo()
            warn_of_raw_validation(name)

    if not noised_names(trainer):
        undo = watch_logging(trainer, see)
