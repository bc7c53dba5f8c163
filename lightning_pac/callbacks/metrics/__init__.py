"""Private metrics: sums clipped record by record and noised before a value is computed."""

from lightning_pac.callbacks.metrics.callback import PrivateMetrics

__all__ = [
    "PrivateMetrics",
]
