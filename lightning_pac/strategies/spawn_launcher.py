"""Processes that hand back what a private run has cost."""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from typing_extensions import override

__all__ = ["SpawnLauncher"]


class SpawnLauncher(_MultiProcessingLauncher):
    """Starts ranks as functions, and returns the state of this package's callbacks to the process that started them.

    Lightning returns parameters and metrics only. A callback that does not know what its model has cost would open a
    new account when the model is trained on.
    """

    @override
    def get_extra_results(self, trainer: pl.Trainer) -> dict[str, Any]:
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        states = {callback.state_key: callback.state_dict() for callback in callbacks if _is_ours(callback)}
        return {**super().get_extra_results(trainer), "lightning_pac": states}

    @override
    def update_main_process_results(self, trainer: pl.Trainer, extra: dict[str, Any]) -> None:
        states = extra.pop("lightning_pac")
        super().update_main_process_results(trainer, extra)
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if states.get(callback.state_key):
                callback.load_state_dict(states[callback.state_key])


def _is_ours(callback: pl.Callback) -> bool:
    return callback.state_key.startswith("lightning_pac.")
