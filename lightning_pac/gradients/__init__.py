"""Sums of clipped per-example gradients, from an ordinary backward pass."""

from lightning_pac.gradients.engine import GradientEngine, make_engine

__all__ = ["GradientEngine", "make_engine"]
