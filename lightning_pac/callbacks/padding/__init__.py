"""Padding that hides counts and durations behind one-sided noise."""

from lightning_pac.callbacks.padding.dummy_padding import DummyPadding
from lightning_pac.callbacks.padding.positive_delay import PositiveDelay

__all__ = [
    "DummyPadding",
    "PositiveDelay",
]
