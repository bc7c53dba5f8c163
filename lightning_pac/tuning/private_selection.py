"""The best of a secret number of private runs, paid for once."""

from __future__ import annotations

import math
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_pac._durable_files import move_file
from lightning_pac._validation import NonNegative, Order, validated
from lightning_pac.accountants import (
    Allowance,
    LedgerPlan,
    NumberOfRuns,
    PrivacyEvent,
    SelectionPrice,
    ledger_order,
    share_terms,
)
from lightning_pac.cards import PrivacyCard
from lightning_pac.exceptions import LedgerMismatchError, PrivacyError
from lightning_pac.ledger import LedgerAccount, LedgerArgument, LedgerHandle, PrivacyLedger
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import TwoWorldScenario
from lightning_pac.tuning.quiet import quiet, showing_time
from lightning_pac.tuning.rehearsal import begin, rehearse
from lightning_pac.tuning.sealed_draw import MOVED, WEIGHTS, SealedDraw
from lightning_pac.tuning.selection_card import selection_card
from lightning_pac.tuning.selection_run import (
    SelectionRun,
    check_begins_anew,
    check_callbacks_apart,
    check_run,
    check_scenario,
    check_shares,
    check_writers,
    train_run,
    trainable,
)
from lightning_pac.tuning.space import SearchSpace

__all__ = ["PrivateSelection", "SelectionResult"]

MakeTrainer = Callable[[SelectionRun], tuple[pl.Trainer, pl.LightningModule, pl.LightningDataModule]]


@dataclass(frozen=True)
class SelectionResult:
    """The released run of a selection.

    Attributes:
        settings: What it was trained with.
        score: Its noised score.
        module: A module with its weights after training; what its evaluation set is not kept.
        price: What the whole selection cost.
        card: Its privacy card, which also lies in the folder.
    """

    settings: dict[str, Any]
    score: float
    module: pl.LightningModule
    price: SelectionPrice
    card: PrivacyCard


@validated
class PrivateSelection:
    r"""Trains a secret number of times with settings drawn at random, and releases the best run only.

    The ledger is charged once, before the number of runs is drawn, and less than for two runs where twenty are expected
    (`SelectionPrice`); a sweep pays for each. What that rests on is kept here: the number comes from the secure
    generator; settings are drawn from a public space, independently; a run is private by itself, which a ledger of its
    own with a plan enforces, and it is scored by one value of `PrivateMetrics`; the losing runs, their number, logs and
    checkpoints stay in a private folder and are removed, nothing of them is printed, and they leave no state in the
    process. A run that fails counts with the worst score. After a crash `run` goes on with the same draw; the run that
    it ended has failed.

    Note:
        Its duration hints at the number of runs: give `wall_time`, or take care who sees it. Who can watch the
        machine (its load, its files as the same user) sees the runs. `make_trainer` must not let a run know of others,
        and a space must not be stated after looking at private data.

    Example::

        (steps,) = SRPPAccountant(scenario, sampling).events(noise_multiplier=4.0, num_steps=400)
        selection = PrivateSelection(
            SearchSpace({"learning_rate": LogUniform(1e-3, 1.0)}),
            "val/accuracy",
            {"fit": steps, "score": GaussianRelease(2 * 0.05 / 16)},
            scenario,
            ledger="study.db",
            folder="selection",
        )

        def make_trainer(run):
            private = SRPPSGD(scenario, sampling=sampling, noise_multiplier=4.0, ledger=run.ledger("fit"))
            ledger = run.ledger("score")
            scored = PrivateMetrics(["val/accuracy"], scenario, epsilon=0.05, renyi_order=16, ledger=ledger)
            trainer = Trainer(max_steps=400, callbacks=[private, scored], logger=False, default_root_dir=run.folder)
            return trainer, Classifier(**run.settings), Data()

        best = selection.run(make_trainer)

    Args:
        space: Distributions of the settings, public.
        score: Name under which ``validation_step`` logs the score.
        one_run: The most that one run releases, its score included, by names of shares.
        scenario: The two worlds of all runs.
        ledger: Where the selection is charged; if it has a plan, to a share that is a selection with these runs.
        folder: The private folder, which need not exist; it keeps the released run.
        runs: The number of runs; left out, the logarithmic one that expects 20.
        mode: Whether the largest or the smallest score is the best.
        renyi_order: Order at which the ledger counts; left out, that at which it counts already, or 16.
        wall_time: Seconds that a selection takes at least, so that shorter ones cannot be told apart.
        num_draws: The most values of noise that one run draws (parameters times steps), whose finite bits count.

    Raises:
        ValueError: If an argument is out of range.
        MisconfigurationException: In `run`, before anything is charged, if a run would not be private.
        BudgetExceededError: In `run`, if the ledger cannot pay; nothing is drawn.
        LedgerMismatchError: In `run`, if the folder holds another selection, or its draw is lost.
    """

    def __init__(
        self,
        space: SearchSpace,
        score: str,
        one_run: Mapping[str, PrivacyEvent],
        scenario: TwoWorldScenario,
        ledger: LedgerArgument,
        folder: str | Path,
        runs: NumberOfRuns | None = None,
        mode: Literal["max", "min"] = "max",
        renyi_order: Order | None = None,
        wall_time: NonNegative | None = None,
        num_draws: NonNegative = 2.0**27,
    ) -> None:
        self.space = space
        self.score = score
        self.scenario = scenario
        self.runs = NumberOfRuns.expecting(20.0) if runs is None else runs
        self.mode = mode
        self.wall_time = wall_time
        self.folder = Path(folder)
        if not one_run:
            raise ValueError("one_run is empty, so a run might release nothing: name its training and its score.")
        self.plan = LedgerPlan(dict(one_run), num_draws=num_draws)
        self.price = SelectionPrice(list(one_run.values()), self.runs, self.plan.num_draws)
        self._ledger = LedgerHandle(ledger)
        self._order = renyi_order

    def run(self, make_trainer: MakeTrainer, generator: SecureGenerator | None = None) -> SelectionResult:
        """Train, choose and release; after a crash, go on.

        Args:
            make_trainer: Makes a Trainer, a module and a data module from a `SelectionRun`. It is called for every run,
                twice before anything is charged, for a rehearsal up to the first step and the first evaluated batch
                (the second shows whether runs share weights or callbacks, which is refused), and once for the module
                that is released.
            generator: For tests; left out, the one of the process, which has no seed.
        """
        began = time.monotonic()
        draw = SealedDraw(self.folder, self._terms)
        if not draw.best.exists():
            if not draw.is_drawn:
                self._rehearse(make_trainer, draw)
            self._charge_and_draw(draw, generator)
            try:
                with showing_time():
                    for path, settings in draw.pending():
                        self._run_one(make_trainer, draw, SelectionRun(settings, draw.begin(path), self.plan))
            except (KeyboardInterrupt, SystemExit):  # Lightning ends an interrupted fit by exit(1)
                rank_zero_info(
                    f"PrivateSelection: interrupted. {self._ledger.path} was charged for all runs at once; the "
                    f"same selection in {self.folder} continues after the run that was interrupted, and is not charged "
                    "again."
                )
                raise
            if draw.has_early_end:
                warnings.warn(
                    "PrivateSelection: trainer.should_stop or an error ended a run early, and the price does not cover "
                    "that if private records or their loss decided it: end runs by a number of steps, public data or a "
                    "metric of PrivateMetrics. Keep this line to yourself.",
                    stacklevel=2,
                )
            self._choose(draw)
            if self.wall_time is not None:
                time.sleep(max(0.0, self.wall_time - (time.monotonic() - began)))
            if self.wall_time is None or time.monotonic() - began > self.wall_time + 1:
                warnings.warn(
                    "PrivateSelection: its duration hints at the number of runs: keep that to yourself, or give a "
                    "wall_time that is seldom exceeded.",
                    stacklevel=2,
                )
        return self._released(make_trainer, draw)

    @property
    def _terms(self) -> dict[str, Any]:
        space = {name: repr(setting) for name, setting in self.space.settings.items()}
        return {"price": self.price.to_dict(), "score": self.score, "mode": self.mode, "space": space}

    def _rehearse(self, make_trainer: MakeTrainer, draw: SealedDraw) -> None:
        """Refuse before the charge what every run would be refused for."""
        folder = draw.new_folder()
        with quiet(folder / "output.txt"):
            run = SelectionRun(self.space.draw(), folder, self.plan)
            draw.check(run.settings)
            trainer, module, data = make_trainer(run)
            check_run(run, trainer, self.score)
            check_scenario(trainer, self.scenario)
            check_shares(run, trainer, module)
            other, beside, its_data = make_trainer(run)
            check_callbacks_apart(trainer, other)
            begin(other, beside, its_data)
            told = rehearse(trainer, module, data, self.score, beside)
            # Also those callbacks that modules give by `configure_callbacks`.
            check_callbacks_apart(trainer, other)
            check_writers(run, other)
        for sentence in told:
            warnings.warn(sentence, stacklevel=3)

    def _charge_and_draw(self, draw: SealedDraw, generator: SecureGenerator | None) -> None:
        with self._ledger as ledger:
            account = self._open_account(ledger, draw.name)
            if not account.num_charges:
                # The number of runs is independent of their draws: a union bound over all of them holds with its mean.
                draws = math.ceil(self.runs.mean * self.plan.num_draws)
                Allowance(ledger, account, [self.price]).check(1, draws)
                account.charge(account.declaration["cost"], {"release": "selection", "draws": draws})
            if not draw.is_drawn:
                if account.num_charges > 1:
                    raise LedgerMismatchError(
                        f"{draw.folder} has lost the draw of {draw.name}, and another one would be another selection: "
                        "name a new folder, which is charged anew."
                    )
                number = self.runs.draw(generator)
                with quiet(draw.new_folder() / "output.txt"):  # Optuna, for one, tells of every draw
                    settings = [self.space.draw(generator) for _ in range(number)]
                draw.seal(settings)
            if account.num_charges == 1:
                account.charge(0.0, {"release": "nothing: the draw is on the disk"})

    def _open_account(self, ledger: PrivacyLedger, name: str) -> LedgerAccount:
        order = self._order or ledger_order(ledger) or 16.0
        declaration = {
            "coupling": {"scenario": self.scenario.coupling(), "renyi_order": order},
            "selection": self.price.to_dict(),
            "cost": self.price.renyi(order),
            **share_terms(ledger, [self.price], self._ledger.share),
        }
        return ledger.account(name, "rpp", declaration)

    def _run_one(self, make_trainer: MakeTrainer, draw: SealedDraw, run: SelectionRun) -> None:
        with quiet(run.folder / "output.txt"):
            try:
                trainer, module, data = make_trainer(run)
                check_run(run, trainer, self.score)
                check_begins_anew(module, draw.moved())
                begun = trainable(module)

                def keep(state: dict[str, Any], ended_early: bool) -> None:
                    if ended_early:
                        draw.note_early_end(run.folder)
                    _save(state, run.folder / WEIGHTS)
                    moved = {
                        name: state[name].cpu() for name in begun if not torch.equal(state[name].cpu(), begun[name])
                    }
                    _save(moved, run.folder / MOVED)

                score = train_run(run, trainer, module, data, self.score, keep)
                if math.isfinite(score):
                    draw.finish(run.folder, score)
            except Exception:  # also tells of a record, so that nobody may see it
                draw.note_early_end(run.folder)
                traceback.print_exc()

    def _choose(self, draw: SealedDraw) -> None:
        """Keep the best run, the first of several as good, and remove everything else."""
        sign = 1 if self.mode == "max" else -1
        best = max(draw.scores(), key=lambda scored: sign * scored[0], default=None)
        released: dict[str, Any] = {"settings": None}
        if best is not None:
            score, path, settings = best
            weights = torch.load(path / WEIGHTS, weights_only=True)
            released = {"settings": settings, "score": score, "weights": weights}
        _save(released, draw.best)
        draw.remove_runs()

    def _released(self, make_trainer: MakeTrainer, draw: SealedDraw) -> SelectionResult:
        released = torch.load(draw.best, weights_only=True)
        if released["settings"] is None:
            raise PrivacyError(
                "No run of the selection came to an end, and why is kept from everyone: look at what the rehearsal "
                "warned of, or train once with fixed settings on public data to find out."
            )
        again = SealedDraw(self.folder, self._terms)
        run = SelectionRun(released["settings"], again.new_folder(), self.plan)
        with quiet(run.folder / "output.txt"):
            _, module, _ = make_trainer(run)
            module.configure_model()
            module.load_state_dict(released["weights"])
        again.remove_runs()
        settings, score = released["settings"], released["score"]
        card = self._leave_card(draw, {"model": type(module).__name__, "settings": settings, self.score: score})
        return SelectionResult(settings, score, module, self.price, card)

    def _leave_card(self, draw: SealedDraw, released: dict[str, Any]) -> PrivacyCard:
        with self._ledger as ledger:
            account = next((one for one in ledger.accounts() if one.name == draw.name and one.num_charges), None)
            if account is None:
                raise LedgerMismatchError(
                    f"{self._ledger.path} has not paid for {draw.name}, whose run is in {draw.folder}: name the ledger "
                    "that was charged for it."
                )
            card = selection_card(ledger, account, self.scenario, released)
            account.attach_card(card)
        card.save(self.folder)
        return card


def _save(values: dict[str, Any], path: Path) -> None:
    """Write what `torch.load` reads, durably: the losing runs are removed in reliance on it."""
    partial = path.with_suffix(".partial")
    torch.save(values, partial)
    partial.chmod(0o600)
    move_file(partial, path)
