"""Asking again, during a run, whether the loss is a mean over records and whether anything keeps them."""

import time
from collections.abc import Callable

from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac.callbacks.srpp_sgd.loss_check import LossCheck, StateWatch
from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["RepeatedCheck"]

SHARE = 0.01
"""Of the time since the last check that one may take, where it is not due anyway."""


class RepeatedCheck:
    """Repeats the check of the loss while a model trains, since a model may come to do what it did not do at first.

    It is due before the steps 2, 4, 8 and so on and in the epochs of these numbers, whenever it takes less than 1 % of
    the time since the last, and whenever a buffer or a weight is written to outside the optimizer that no check has
    seen a step write to. What a step does to such state is then repeated from the same state with other synthetic
    records, and must come to the same.

    Args:
        watch: Of the model that is trained.
        check: Checks the model as it is now; called with how often that was done before.
        first: What the check at the start has shown.
        cost: Seconds that it took.
    """

    def __init__(self, watch: StateWatch, check: Callable[[int], LossCheck], first: LossCheck, cost: float) -> None:
        self._watch, self._check = watch, check
        self._explained = set(first.written)
        self._cost, self._last = cost, time.monotonic()
        self._repeated = 0

    def begin_step(self, step: int, epoch: int, starts_epoch: bool) -> None:
        """Before the step with that number, from 1, in the epoch with that number, from 0."""
        due = _is_power_of_two(step) and step > 1
        due |= starts_epoch and _is_power_of_two(epoch)
        if due or time.monotonic() - self._last > self._cost / SHARE:
            self._repeat()

    def before_update(self) -> None:
        """After all hooks of a step, before the optimizer writes to the weights."""
        written = self._watch.changed() - self._explained
        if written:
            self._explained |= self._repeat().written
            unexplained = written - self._explained
            self._explained |= unexplained
            if unexplained:
                rank_zero_warn(
                    f"{', '.join(sorted(unexplained))} was written to outside the optimizer, by code that synthetic "
                    "records could not repeat (a callback or a validation loop): make sure that no record decides what "
                    "is written, as for averages of weights."
                )
        self._watch.note()

    def after_update(self) -> None:
        """After the optimizer wrote to the weights."""
        self._watch.note()

    def _repeat(self) -> LossCheck:
        start = time.monotonic()
        self._repeated += 1
        found = self._check(self._repeated)
        self._last = time.monotonic()
        self._cost = self._last - start
        if found.problem or found.state:
            what = f"the loss {found.problem}" if found.problem else f"the state {found.state[0]!r} takes up records"
            raise PrivacyViolationError(
                f"During the run, {what}, which it did not do at the start: make the loss a mean over records in every "
                "step, and let nothing keep what records hold."
            )
        return found


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
