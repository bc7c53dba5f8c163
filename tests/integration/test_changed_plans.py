"""Runs whose plan changes after their first steps, which may have decided that: the largest plan's figures hold."""

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from tiny_fits import RECORDS, Classifier, make_loader, make_private, make_trainer

from lightning_pac import SRPPSGD, Poisson, SRPPAccountant, TwoWorldScenario
from lightning_pac.accountants import ledger_total
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.ledger import PrivacyLedger

NOISE = 4.0
ACCOUNTANT = SRPPAccountant(TwoWorldScenario(num_differing=2, num_records=RECORDS), Poisson(1 / 6), 4.0)
LONGER = "steps the plan was made longer, to"


class StopsAt(pl.Callback):
    """Ends a fit after some steps, and keeps a checkpoint of an earlier one."""

    def __init__(self, steps: int, saved: int | None = None) -> None:
        self.steps, self.saved = steps, saved

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.saved:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "kept.ckpt")
        trainer.should_stop = trainer.global_step == self.steps


def fit(folder: Path, private: SRPPSGD, steps: int, *callbacks: pl.Callback, resume: bool = False) -> dict[str, Any]:
    """The run's card; a checkpoint is kept at its end if no callback keeps another."""
    trainer = make_trainer(folder, private, *callbacks, max_epochs=-1, max_steps=steps)
    trainer.fit(Classifier(), make_loader(), ckpt_path=folder / "kept.ckpt" if resume else None)
    if not callbacks:
        trainer.save_checkpoint(folder / "kept.ckpt")
    return dict(json.loads((folder / "privacy_card.json").read_text()))


def private_run(folder: Path, **promise: Any) -> SRPPSGD:
    terms = {"ledger": folder / "study.db", "sampling": Poisson(1 / 6), **(promise or {"noise_multiplier": NOISE})}
    return make_private(**terms)


def bound_of(card: dict[str, Any]) -> float:
    return next(float(entry["value"]) for entry in card["guarantees"] if entry["name"] == "world_success_bound")


def of_steps(steps: int) -> float:
    return pytest.approx(ACCOUNTANT.world_success_bound(NOISE, steps), rel=1e-5)  # type: ignore[no-any-return]


@pytest.mark.parametrize("again", ["resumed", "the same callback"])
def test_a_plan_that_was_made_longer_says_so(again: str, tmp_path: Path) -> None:
    private = private_run(tmp_path)
    assert bound_of(fit(tmp_path, private, 5)) == of_steps(5)
    resumes = again == "resumed"
    goes_on = (private_run(tmp_path), 10) if resumes else (private, 5, StopsAt(3))
    with pytest.warns(UserWarning, match=f"After 5 {LONGER} 10: the figures hold for somebody who would have taken"):
        card = fit(tmp_path, *goes_on, resume=resumes)
    assert bound_of(card) == of_steps(10)
    assert (card["details"]["planned_steps"], card["details"]["extended_at"]) == (10, 5)
    assert any(LONGER in condition for condition in card["conditions"])
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        total = ledger_total(ledger)
    assert total.world_success_bound == of_steps(10)
    assert "if nothing that it showed decided how much it releases" in total.reason


def test_a_plan_that_was_made_shorter_keeps_its_figures(tmp_path: Path) -> None:
    fit(tmp_path, private_run(tmp_path), 12, StopsAt(4, saved=4))
    card = fit(tmp_path, private_run(tmp_path), 6, resume=True)
    assert (card["details"]["num_steps"], card["details"]["planned_steps"]) == (6, 12)
    assert bound_of(card) == of_steps(12)
    assert not any(LONGER in condition for condition in card["conditions"])


def test_a_run_without_end_that_is_given_one_says_so(tmp_path: Path) -> None:
    assert fit(tmp_path, private_run(tmp_path), -1, StopsAt(4, saved=4))["details"]["planned_steps"] is None
    card = fit(tmp_path, private_run(tmp_path), 6, resume=True)
    assert (card["details"]["planned_steps"], card["details"]["extended_at"]) == (6, 4)


@pytest.mark.parametrize("promise", [{}, {"epsilon": 2.0, "delta": 1e-5}])
def test_a_planned_run_that_goes_on_without_end_keeps_its_figures(promise: dict[str, float], tmp_path: Path) -> None:
    planned = fit(tmp_path, private_run(tmp_path, **promise), 12, StopsAt(4, saved=4))
    card = fit(tmp_path, private_run(tmp_path, **promise), -1, StopsAt(6), resume=True)
    assert (card["details"]["num_steps"], card["details"]["planned_steps"]) == (6, 12)
    assert bound_of(card) == pytest.approx(bound_of(planned))
    assert any("was not fixed beforehand" in condition for condition in card["conditions"])
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert ledger_total(ledger).world_success_bound == pytest.approx(bound_of(planned))
    if not promise:
        assert fit(tmp_path, private_run(tmp_path), 9, resume=True)["details"]["planned_steps"] == 12


def test_steps_that_are_replayed_are_part_of_the_plan(tmp_path: Path) -> None:
    fit(tmp_path, private_run(tmp_path), 8, StopsAt(5, saved=3))
    with pytest.warns(UserWarning, match=f"After 5 {LONGER} 10"):
        card = fit(tmp_path, private_run(tmp_path), 8, StopsAt(6), resume=True)
    # Five before, and from the third on to the eighth.
    assert (card["details"]["num_steps"], card["details"]["planned_steps"]) == (8, 10)
    assert bound_of(card) == of_steps(10)


@pytest.mark.parametrize("promise", [{"epsilon": 2.0, "delta": 1e-5}, {"world_success_bound": 0.7}])
def test_a_promise_holds_of_a_longer_plan(promise: dict[str, float], tmp_path: Path) -> None:
    fit(tmp_path, private_run(tmp_path, **promise), 8, StopsAt(5, saved=3))
    card = fit(tmp_path, private_run(tmp_path, **promise), 12, StopsAt(5), resume=True)
    (name, limit), *_ = promise.items()
    named = {"epsilon": "epsilon_at_delta"}.get(name, name)
    value = next(entry["value"] for entry in card["guarantees"] if entry["name"] == named)
    assert 0.95 * limit < value <= limit
    assert (card["details"]["num_steps"], card["details"]["planned_steps"]) == (7, 8)
    assert not any(LONGER in condition for condition in card["conditions"])


class SavesEpochs(pl.Callback):
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / "kept.ckpt")


class LeavesTheThirdOut(pl.Callback):
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = trainer.global_step == 9


def test_a_run_whose_steps_ended_with_an_epoch_goes_on(tmp_path: Path) -> None:
    fit(tmp_path, private_run(tmp_path), 6, SavesEpochs())
    card = fit(tmp_path, private_run(tmp_path), 18, resume=True)  # of which Lightning gives the first epoch one more
    assert (card["details"]["num_steps"], card["details"]["stretches"]) == (18, [6, 1, 11])
    assert bound_of(card) == of_steps(18)


def test_epochs_after_that_are_not_cut_short(tmp_path: Path) -> None:
    fit(tmp_path, private_run(tmp_path), 6, SavesEpochs())
    with pytest.raises(PrivacyViolationError, match="An epoch ended after 2 of 6"):
        fit(tmp_path, private_run(tmp_path), 18, LeavesTheThirdOut(), resume=True)
