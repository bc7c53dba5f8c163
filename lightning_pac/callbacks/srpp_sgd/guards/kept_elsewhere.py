"""Attributes that the user's code sets on the Trainer, its strategy, an optimizer or a parameter: copies lack them."""

import inspect
from typing import Any

import lightning.pytorch as pl

from lightning_pac.callbacks.srpp_sgd.loss_check import differing, digests_of, own_attributes

__all__ = ["KeptElsewhere"]

# All that Lightning and torch set themselves, beside names with an underscore that are there when a training begins.
_LIGHTNINGS = {
    *inspect.signature(pl.Trainer.__init__).parameters,
    *("datamodule", "should_stop", "val_check_batch", "defaults", "param_groups", "state", "step", "_opt_called"),
    *("_last_val_time", "_train_start_time", "_val_check_time_interval"),
}


class KeptElsewhere:
    """Knows what they were when the training began.

    Args:
        trainer: Of the training.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        strategy = trainer.strategy
        wrappers = vars(strategy).get("_lightning_optimizers", ())
        optimizers = [one for one in trainer.optimizers if type(one).__module__.startswith("torch.optim.")]
        self._holders: list[tuple[str, Any]] = [("trainer", trainer), ("trainer.strategy", strategy)]
        self._holders += [("optimizer", one) for one in (*optimizers, *wrappers)]
        self._holders += [(name, one) for name, one in trainer.lightning_module.named_parameters()]
        self._known = _LIGHTNINGS | vars(strategy).keys()
        private = (own_attributes(holder).keys() for _, holder in self._holders)
        self._known |= {name for names in private for name in names if name[0] == "_"}
        self._first = digests_of(self._held())

    def changed(self) -> set[str]:
        """Names of those that are others by now."""
        places = differing(self._first, digests_of(self._held()))
        return {f"{self._holders[number][0]}.{name}" for number, name, _ in places}

    def _held(self) -> list[dict[str, Any]]:
        return [
            {
                name: value
                for name, value in own_attributes(holder).items()
                if name not in self._known and not type(value).__module__.startswith("lightning.")
            }
            for _, holder in self._holders
        ]
