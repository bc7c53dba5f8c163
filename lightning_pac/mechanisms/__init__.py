"""Where noise enters, and how much of it."""

from lightning_pac.mechanisms.composition import AdaptiveComposition
from lightning_pac.mechanisms.release import BatchRelease, Release

__all__ = ["AdaptiveComposition", "BatchRelease", "Release"]
