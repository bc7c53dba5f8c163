"""The noise of the private metrics that a run validates by."""

from collections.abc import Sequence

import lightning.pytorch as pl
from torch import Tensor

from lightning_pac.audits import AuditTest, deviation_test
from lightning_pac.callbacks.metrics import PrivateMetrics

__all__ = ["MetricNoise"]


class MetricNoise:
    """The noise that a Trainer's `PrivateMetrics` added to its sums, and a test of it for each metric.

    Args:
        callbacks: Those of the Trainer.
    """

    def __init__(self, callbacks: Sequence[pl.Callback]) -> None:
        self._watched = [callback for callback in callbacks if isinstance(callback, PrivateMetrics)]
        self._squares: dict[str, float] = {}
        self._numbers: dict[str, int] = {}
        for callback in self._watched:
            callback.show_noise(self._see)

    def close(self) -> None:
        """Look no longer."""
        for callback in self._watched:
            callback.show_noise(None)

    def tests(self) -> tuple[AuditTest, ...]:
        """Whether each metric that was released has the deviation that is paid for."""
        return tuple(
            deviation_test(
                f"noise of the metric {name}",
                squares,
                self._numbers[name],
                self._watched[0].noise_multiplier * self._watched[0].max_contribution,
            )
            for name, squares in self._squares.items()
        )

    def _see(self, name: str, noise: Tensor) -> None:
        self._squares[name] = self._squares.get(name, 0.0) + float((noise**2).sum())
        self._numbers[name] = self._numbers.get(name, 0) + noise.numel()
