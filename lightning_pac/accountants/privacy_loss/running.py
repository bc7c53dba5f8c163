"""Figures of a run while it is going on, from curves that few of its steps compute."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from lightning_pac._validation import checks_itself, validated
from lightning_pac.accountants.privacy_loss.composition import privacy_curve
from lightning_pac.accountants.privacy_loss.events import PrivacyEvent

__all__ = ["StepFigures"]


@validated
@dataclass(frozen=True)
class StepFigures:
    """Epsilon and the bound on guessing after any number of steps: those of the next of a few numbers, an upper bound.

    A figure is computed when a step first needs it, a few dozen times in a run, and looked up by all others.

    Args:
        steps: numbers of steps for which there are figures, increasing.
        figures_of: epsilon at delta, in nats, and the bound on guessing after so many steps.
    """

    steps: tuple[int, ...]
    figures_of: Callable[[int], tuple[float, float]]
    _known: dict[int, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        events: Callable[[int], Sequence[PrivacyEvent]],
        num_steps: int,
        delta: float,
        prior: float = 0.5,
        points: int = 32,
    ) -> StepFigures:
        """The figures of a run of up to `num_steps` steps.

        The numbers of steps are squares of an even grid: figures grow about like the root of the steps.

        Args:
            events: everything released, as a function of the number of steps.
            num_steps: the most steps there will be; the figures after them are exact.
            delta: failure probability that epsilon goes with.
            prior: probability of one of the worlds before anything is released.
            points: how many numbers of steps.

        Raises:
            ValueError: if there are no steps.

        Example:
            >>> from lightning_pac.accountants.privacy_loss import GaussianRelease
            >>> figures = StepFigures.of(lambda steps: [GaussianRelease(0.01 * steps)], num_steps=100, delta=1e-5)
            >>> print(f"{figures.epsilon(100):.3f} {figures.success_bound(100):.4f}")
            4.377 0.6915
        """
        if num_steps < 1:
            raise ValueError(f"num_steps is {num_steps}, but there must be at least one.")
        steps = sorted({0, *(-(-num_steps * i * i // points**2) for i in range(1, points + 1))})
        return cls(tuple(steps), lambda number: _figures(tuple(events(number)), delta, prior))

    @checks_itself
    def epsilon(self, num_steps: int) -> float:
        """Epsilon after so many steps, or a little more."""
        return self._find(num_steps)[0]

    @checks_itself
    def success_bound(self, num_steps: int) -> float:
        """The bound on guessing after so many steps, or a little more."""
        return self._find(num_steps)[1]

    def _find(self, num_steps: int) -> tuple[float, float]:
        if num_steps > self.steps[-1]:
            raise ValueError(f"There are figures for up to {self.steps[-1]} steps, not for {num_steps}.")
        place = bisect_left(self.steps, num_steps)
        if place not in self._known:
            self._known[place] = self.figures_of(self.steps[place])
        return self._known[place]


@lru_cache(maxsize=4096)
def _figures(events: tuple[PrivacyEvent, ...], delta: float, prior: float) -> tuple[float, float]:
    """Epsilon and the bound on guessing: kept, since short runs and runs of one process ask for the same ones."""
    curve = privacy_curve(events)
    return curve.epsilon(delta), curve.success_bound(prior)
