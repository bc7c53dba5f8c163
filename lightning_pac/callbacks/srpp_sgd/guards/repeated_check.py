"""Asking again, during a run, whether the loss is a mean over records, and whether anything keeps or repeats them."""

import time
from collections.abc import Callable, Sequence

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac.callbacks.shared import named_if_slow
from lightning_pac.callbacks.srpp_sgd.guards.unseen_state import SHARE, UnseenState
from lightning_pac.callbacks.srpp_sgd.guards.writing_callbacks import WritingCallbacks
from lightning_pac.callbacks.srpp_sgd.loss_check import OF_DATASET, OPTIMIZER_STATE, LossCheck, StateWatch
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.strategies import Ranks

__all__ = ["RepeatedCheck"]


class RepeatedCheck:
    """Repeats the check of the loss while a model trains, since a model may come to do what it did not do at first.

    It is due before the steps 2, 4, 8 and so on and in the epochs of these numbers, whenever it takes less than 1 % of
    the time since the last, whenever an attribute is changed that had not been, and whenever a buffer, a weight or the
    optimizer is written to outside the optimizer's own update that no check has seen a step write to. What a step, the
    user's callbacks that write, and the schedules do to such state is then repeated from the same state with other
    synthetic records, and must come to the same.

    Args:
        watch: Of the model that is trained, and its optimizer.
        writing: Finds the callbacks that write.
        check: Checks the model as it is now; called with how often that was done before, the callbacks to repeat, and
            whether training has ended.
        first: What the check at the start has shown.
        cost: Seconds that it took.
        ranks: Those that must check together.
        unseen: Knows whether an attribute has changed that had not; another check is due then, too.
    """

    def __init__(
        self,
        watch: StateWatch,
        writing: WritingCallbacks,
        check: Callable[[int, Sequence[pl.Callback], bool], LossCheck],
        first: LossCheck,
        cost: float,
        ranks: Ranks,
        unseen: UnseenState,
    ) -> None:
        self._watch, self._writing, self._check, self._ranks = watch, writing, check, ranks
        self._unseen = unseen
        self._explained = set(first.written)
        self._modes: dict[str, bool] | None = None
        self._by_validation: set[str] = set()
        self._before_validation: set[str] | None = None
        self._cost, self._last = cost, time.monotonic()
        self._repeated = 0
        self._told = set[str]()

    def begin_step(self, step: int, epoch: int, starts_epoch: bool) -> None:
        """Before the step with that number, from 1, in the epoch with that number, from 0."""
        self.end_validation()
        due = _is_power_of_two(step) and step > 1
        due |= starts_epoch and _is_power_of_two(epoch)
        due |= time.monotonic() - self._last > self._cost / SHARE
        if not due and (starts_epoch or self._ranks.size == 1):  # clocks differ
            due = self._unseen.is_new(starts_epoch)
        if self._ranks.anywhere(due):
            self._repeat()

    def begin_validation(self) -> None:
        """Tell apart what is written from now on, until `end_validation`, by code that sees other data."""
        self._before_validation = self._watch.changed()

    def end_validation(self) -> None:
        """After a validation, and before a training step."""
        if self._before_validation is not None:
            self._by_validation |= self._watch.changed() - self._before_validation
            self._before_validation = None

    def check_writes(self) -> None:
        """After all hooks of a step, before the optimizer writes to the weights; and before they are saved.

        Raises:
            PrivacyViolationError: If a record may have decided what is written.
        """
        if self._writing.locked.has_ended:
            self.check_end()
            return
        self.end_validation()
        written = self._watch.changed(norms=True) - self._explained
        modes, self._modes = self._modes, self._watch.modes()
        passes_on = bool(self._writing.passing - self._explained) or (modes or self._modes) != self._modes
        if self._ranks.anywhere(bool(written) or passes_on):
            self._explained |= self._repeat().written
        if self._ranks.anywhere(bool(written - self._explained)):
            self._explained |= self._repeat(all_callbacks=True).written
            self._ranks.together(lambda: self._refuse(written - self._explained))
        self._by_validation.clear()

    def check_end(self) -> None:
        """After the last hook of the run, of which a threshold by the scores of all batches may come, or as it saves.

        Raises:
            PrivacyViolationError: If a record may have decided what is written, or saved from now on.
        """
        written = self._watch.changed(norms=True) - self._explained
        is_new = self._unseen.is_new(now=True)
        if self._ranks.anywhere(bool(written) or self._writing.acts_at_the_end or is_new):
            found = self._ranks.together(lambda: self._checked(False, ended=True))
            unseen = written - found.written
            if found.problem:
                raise PrivacyViolationError(
                    f"The loss {found.problem}: let nothing keep what records hold, and do not publish the model."
                )
            if unseen or found.unchecked:
                rank_zero_warn(
                    f"{_listed(unseen) or 'What is saved'} was written to at the end of the run, by code that "
                    "synthetic records could not repeat: make sure that no record of the training data decides what is "
                    "written."
                )
            self._explained |= written

    def after_update(self) -> None:
        """After the optimizer wrote to the weights.

        Raises:
            RuntimeError: If what it wrote is not finite.
        """
        self._watch.note()
        diverged = self._watch.note_norms()
        if self._ranks.anywhere(diverged is not None):
            self._ranks.together(lambda: self._refuse_divergence(diverged))

    def close(self) -> None:
        """Leave callbacks and model as they were."""
        self._writing.restore()

    def _refuse_divergence(self, diverged: str | None) -> None:
        if diverged is not None:  # decided by what is public only, never by a gradient
            what = "The optimizer state is" if diverged == OPTIMIZER_STATE else "The parameters are"
            raise RuntimeError(
                f"{what} no longer finite, so training has diverged: lower the learning rate, or use a larger "
                "batch for less noise."
            )

    def _refuse(self, unexplained: set[str]) -> None:
        if unexplained - self._by_validation:
            raise PrivacyViolationError(
                f"{_listed(unexplained - self._by_validation)} was written to outside the optimizer, which a "
                "repetition of the step and of all callbacks on synthetic records does not do, so private records "
                "may decide it: let a scheduler or the number of the step decide what a callback or a hook writes."
            )
        if unexplained:
            rank_zero_warn(
                f"{_listed(unexplained)} was written to during a validation, by code that synthetic records could not "
                "repeat: make sure that no record of the training data decides what is written."
            )
            self._explained |= unexplained

    def _repeat(self, all_callbacks: bool = False) -> LossCheck:
        start = time.monotonic()
        self._repeated += 1
        passing = self._writing.passing - self._explained
        self._explained |= passing  # unless the check finds what it does to a gradient
        found = self._ranks.together(lambda: self._checked(all_callbacks))
        unseen = {name for name in passing - found.written if OF_DATASET in name}
        if unseen:
            rank_zero_warn(
                f"{_listed(unseen)} was written to by a callback, which synthetic records could not repeat: make sure "
                "that no record decides what others become (as in a curriculum by the loss)."
            )
        self._last = time.monotonic()
        self._cost = self._last - start
        return found

    def _checked(self, all_callbacks: bool, ended: bool = False) -> LossCheck:
        telling = named_if_slow("Checking the loss on synthetic records again, which comes now and then", self._told)
        with telling, self._writing.locked.opened():  # a hook may save a checkpoint, which is checked
            found = self._check(self._repeated, self._writing.repeated(all_callbacks), ended)
            if found.unchecked and not all_callbacks:  # a step may look for one in the Trainer
                found = self._check(self._repeated, self._writing.repeated(True), ended)
        if ended and found.state:
            raise PrivacyViolationError(
                f"At the end of the run, the state {found.state[0]!r} takes up records without noise, so the model is "
                "not to be published: compute it on public data, or in a release of its own."
            )
        if found.problem or found.state:
            what = f"the loss {found.problem}" if found.problem else f"the state {found.state[0]!r} takes up records"
            raise PrivacyViolationError(
                f"During the run, {what}, which it did not do at the start: make the loss a mean over records in every "
                "step, and let nothing keep what records hold."
            )
        return found


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
