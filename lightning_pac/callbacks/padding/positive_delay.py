"""Steps that do not tell how long they took."""

import math
import time
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_pac._validation import PrivateReal, validated
from lightning_pac.callbacks.padding.clocks import refuse_clocks
from lightning_pac.callbacks.padding.noise_account import Noise, NoiseAccount
from lightning_pac.callbacks.padding.padding_callback import PaddingCallback
from lightning_pac.callbacks.shared import refuse_searches
from lightning_pac.cards import PrivacyCard
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.ledger import LedgerArgument
from lightning_pac.mechanisms.one_sided import DPNoise, PACNoise
from lightning_pac.strategies import Ranks

__all__ = ["PositiveDelay"]

# Clocks tell no more than nanoseconds; of longer times floats have too few digits to carry a delay.
_SHORTEST, _LONGEST = 1e-9, 1e6
# Seconds that every deadline lies later than its noise says: within them the noise is drawn and the ranks hear of it.
_DRAWING = 1e-3


@validated
class PositiveDelay(PaddingCallback):
    """Pad the duration of every training or prediction step with one-sided noise.

    A step counts from the end of the step before (in an epoch's first step and after a validation, from its own start)
    and ends at a deadline: its true duration in whole units, plus noise, plus a millisecond in which that is drawn
    (where that takes longer, as among ranks on a slow network, a step may end late). Only then is it charged, and only
    then do other callbacks and loggers see its results, so that files and times of theirs tell of the deadline alone;
    what they do counts into the next step. Training and predicting stop when the releases that the noise was designed
    for are spent.

    With noise for differential privacy of sensitivity s, the steps of neighbouring runs must not differ by more than s
    units. Declare `max_duration` to have that hold by construction: shorter steps are first padded to
    `max_duration - s * unit`, longer ones are an error. Without it, it is your assumption.

    With `PositiveNoise.for_pac` a training step costs what an output of the declared variance does, since nobody
    chooses steps by their times. A client of predictions may, so that each costs what any duration up to
    `max_duration` does, which must be declared (`PACNoise.adaptive_information`).

    What it does not hide: the number of steps and epochs, what lies between the loops (validation), what is written
    within a step (by the module, or in the ledger of a private callback, which the keeper of the data has), memory,
    power, cache lines and network traffic, and the duration as seen from inside the process. Other callbacks that act
    within a step are named in a warning; those that are known to write down a time there are refused. An overrun is
    visible.

    On several devices a training step is as long as that of the slowest rank; one delay is drawn for all ranks, each of
    which waits for it from the end of its own last step, so that what they show together is one observation.

    A privacy card is kept with the ledger's account.

    Logged: `privacy/time_releases` (or `time_maximal_leakage`, `time_mutual_information`, in nats) and
    `privacy/time_mean_overhead` in seconds, as designed; the realised overhead would give the true duration away.

    Args:
        noise: Made by `PositiveNoise`; its values count units.
        unit: Seconds in one unit, from 1e-9 to 1e6.
        max_duration: Longest true step in seconds.
        on_overrun: `"raise"` ends the run at a step longer than `max_duration`; `"count"` pads it like any other and
            reports the number at the end.
        ledger: Where observations are charged; None keeps the count in checkpoints only.

    Raises:
        TypeError: If the noise has no known guarantee.
        ValueError: If `unit` or `max_duration` is out of range.

    Example:
        `Trainer(callbacks=[PositiveDelay(PositiveNoise.for_dp(1.0, 1e-6, compositions=500), unit=0.001)])`
    """

    def __init__(
        self,
        noise: Noise,
        unit: float = 0.001,
        max_duration: float | None = None,
        on_overrun: Literal["raise", "count"] = "raise",
        ledger: LedgerArgument | None = None,
    ) -> None:
        for name, seconds in (("unit", unit), ("max_duration", 1.0 if max_duration is None else max_duration)):
            if not _SHORTEST <= seconds <= _LONGEST:
                raise ValueError(
                    f"{name} must be a positive number of seconds, from {_SHORTEST:g} to {_LONGEST:g}, got {seconds!r}."
                )
        self.noise, self.unit, self.max_duration, self.on_overrun = noise, unit, max_duration, on_overrun
        self.num_overruns = 0
        super().__init__(NoiseAccount(noise, "time", ledger, "positive_delay"))
        self._ranks = Ranks()
        self._start: float | None = None

    @override
    def card(self) -> PrivacyCard:
        """The guarantees for the steps that a budget allows, or those so far where none does."""
        hidden = (
            "the number of steps and epochs, what lies between the loops, what is written within a step (as in a "
            "ledger), memory, power or network traffic"
        )
        conditions = [f"A clock shows durations of whole steps only; the padding does not hide {hidden}."]
        if self.num_overruns:
            conditions.append(f"Steps that overran the declared maximum, which no bound covers: {self.num_overruns}.")
        return self._account.card(
            "Durations of steps",
            "How long a step really took, from anyone who sees when steps end.",
            tuple(conditions),
        )

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        refuse_searches(trainer, self, stage)
        refuse_clocks(trainer, stage)
        self._ranks = Ranks.of(trainer)
        if stage == "predict" and self._ranks.size > 1:
            raise MisconfigurationException(
                f"Of the {self._ranks.size} processes that predict, each takes steps and ends by itself, so no "
                "delay fits all of them: predict with devices=1."
            )
        # What other callbacks do at the end of a step is done behind the deadline. Lightning goes through the old list,
        # so that no callback is left out; one that was changed in place would skip the next.
        others = [callback for callback in trainer.callbacks if callback is not self]  # type: ignore[attr-defined]
        trainer.callbacks = [self, *others]  # type: ignore[attr-defined]
        self._account.open(self._ranks, self._output_range() if stage == "predict" else None)
        if self.max_duration is None and isinstance(self.noise, DPNoise):
            rank_zero_warn(
                "PositiveDelay: without max_duration it is your assumption that the steps of neighbouring runs differ "
                f"by at most {self.noise.guarantee.sensitivity * self.unit:g} s; declare one to have it checked."
            )

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        self._start = None

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if not self._account.affords_another():
            trainer.should_stop = True
            raise StopIteration
        self._begin()

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._start = None  # what lies between two steps belongs to neither

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for name, value in self._account.metrics(self.unit).items():
            pl_module.log(name, value, batch_size=1)
        self._pad(pl_module, {"step": trainer.global_step})
        self._end_if_spent(trainer, "steps")

    @override
    def on_predict_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._start = None

    @override
    def on_predict_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not self._account.affords_another():
            rank_zero_warn(
                f"PositiveDelay: predicting stopped after {self.num_observations} padded steps, since all releases are "
                "spent."
            )
            # Lightning's prediction loop ends cleanly on this and keeps the predictions that were made.
            raise StopIteration
        self._begin()

    @override
    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._pad(pl_module, {"batch": batch_idx})

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.num_overruns:
            rank_zero_warn(
                f"PositiveDelay: {self.num_overruns} of {self.num_observations} steps took longer than max_duration = "
                f"{self.max_duration:g} s and are not covered by the guarantee: declare a longer one."
            )
        super().teardown(trainer, pl_module, stage)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "num_overruns": self.num_overruns}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.num_overruns = state_dict["num_overruns"]

    def padded_duration(self, duration: PrivateReal) -> float:
        """Seconds that a step of that true duration is shown to take; draws noise.

        Raises:
            PrivacyViolationError: If it is longer than `max_duration` and `on_overrun="raise"`.
        """
        if abs(duration) > _LONGEST:
            raise ValueError(f"duration is too long: steps of at most {_LONGEST:g} seconds can be padded.")
        if self.max_duration is not None and duration > self.max_duration:
            self.num_overruns += 1
            if self.on_overrun == "raise":
                raise PrivacyViolationError(
                    f"A step took longer than max_duration = {self.max_duration:g} s, so its length shows: declare a "
                    'longer one, or set on_overrun="count".'
                )
        units = math.ceil(duration / self.unit)
        if isinstance(self.noise, DPNoise) and self.max_duration is not None:
            # All durations are then from D - s to D units, D the longest: any two differ by s at most.
            units = max(units, math.ceil(self.max_duration / self.unit) - self.noise.guarantee.sensitivity)
        if isinstance(self.noise, PACNoise):
            return self.unit * self.noise.pad(float(units))
        return self.unit * self.noise.pad(units)

    def _begin(self) -> None:
        if self._start is None:
            self._start = time.monotonic()

    def _pad(self, pl_module: pl.LightningModule, event: dict[str, Any]) -> None:
        start = self._start
        assert start is not None
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        try:
            deadline = (
                start
                + _DRAWING
                + self._ranks.exchange(
                    lambda: time.monotonic() - start, lambda durations: self.padded_duration(max(durations))
                )
            )
            wait_until(deadline)
            # The next step counts from the deadline, not from when we woke up: lateness does not add up.
            self._start = max(deadline, time.monotonic() - self.unit)
        finally:
            # Nothing has shown the step yet, and the time at which the ledger's file changes must not.
            self._account.pay(event, lambda: None)

    def _output_range(self) -> float | None:
        """Of predictions in units, under noise for mutual information."""
        if not isinstance(self.noise, PACNoise):
            return None
        if self.max_duration is None:
            raise MisconfigurationException(
                "A client may choose the next query by how long the last one took, and the variance that "
                "PositiveNoise.for_pac was given bounds nothing then: declare PositiveDelay(max_duration=...)."
            )
        return float(math.ceil(self.max_duration / self.unit))


def wait_until(deadline: float, spin: float = 0.002) -> None:
    """Sleep until shortly before a time of the monotonic clock, then spin until it has come."""
    remaining = deadline - time.monotonic()
    if remaining > spin:
        time.sleep(remaining - spin)
    while time.monotonic() < deadline:
        pass
