"""A private selection with real runs: what is charged, what is shown, and what is left behind."""

import ctypes
import io
import json
import os
import signal
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging, Timer
from lightning.pytorch.profilers import SimpleProfiler
from prepared import Child
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import cli
from lightning_pac.accountants import (
    GaussianRelease,
    LedgerPlan,
    NumberOfRuns,
    SelectionPrice,
    SRPPAccountant,
    ledger_total,
)
from lightning_pac.callbacks import SRPPSGD, PrivateMetrics
from lightning_pac.cards import PrivacyCard, at_most
from lightning_pac.data import Persons
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError, PrivacyError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.scenarios import Poisson, TwoWorldScenario
from lightning_pac.tuning import Choice, PrivateSelection, SearchSpace, SelectionRun, Uniform
from lightning_pac.tuning.quiet import quiet
from lightning_pac.tuning.sealed_draw import SealedDraw
from lightning_pac.tuning.selection_run import check_run, check_shares

pytestmark = pytest.mark.metrics_asked_once

SCENARIO, SAMPLING = TwoWorldScenario(num_differing=1, num_records=60), Poisson(rate=0.2)
(STEPS,) = SRPPAccountant(SCENARIO, SAMPLING).events(noise_multiplier=4.0, num_steps=3)
KEPT = {"selection.json", "best.pt", "privacy_card.json", "privacy_card.md"}
ONE_RUN = {"fit": STEPS, "score": GaussianRelease(2 * 0.05 / 16)}


class Model(pl.LightningModule):
    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.network = nn.Linear(4, 2)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.accuracy.update(self.network(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.learning_rate)


class Data(pl.LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        self.dataset = TensorDataset(inputs, (inputs[:, 0] > 0).long())

    def train_dataloader(self) -> Any:
        return DataLoader(self.dataset, 12)

    def val_dataloader(self) -> Any:
        return DataLoader(self.dataset, 30)


class Maker:
    """Makes trainers, notes what they were made with, and spoils what a test asks for."""

    def __init__(self, **spoiled: Any) -> None:
        self.spoiled = spoiled
        self.made: list[SelectionRun] = []

    def __call__(self, run: SelectionRun) -> Any:
        self.made.append(run)
        if len(self.made) == self.spoiled.get("fails_at"):
            raise self.spoiled["error"]
        fit = {"scenario": SCENARIO, "sampling": SAMPLING, "noise_multiplier": 4.0, "ledger": run.ledger("fit")}
        private = SRPPSGD(**(fit | self.spoiled.get("fit", {})))
        of_score = {"names": ["val/accuracy"], "epsilon": 0.05, "renyi_order": 16.0, "ledger": run.ledger("score")}
        scored = PrivateMetrics(scenario=SCENARIO, **(of_score | self.spoiled.get("score", {})))
        options = {
            "callbacks": [private, scored],
            "logger": False,
            "default_root_dir": run.folder,
            "max_steps": 3,
            "accelerator": "cpu",
        }
        left_out = self.spoiled.get("left_out")
        options["callbacks"] = [one for one in options["callbacks"] if not isinstance(one, left_out or ())]
        print("a losing run prints")
        warnings.warn("a losing run warns", stacklevel=1)
        torch.rand(3)
        os.environ["OF_A_LOSING_RUN"] = "1"
        options["callbacks"] += self.spoiled.get("shared", [])
        options["callbacks"] += [make() for make in self.spoiled.get("beside", [])]
        kind, data = self.spoiled.get("module", Model), self.spoiled.get("data", Data)
        return pl.Trainer(**(options | self.spoiled.get("trainer", {}))), kind(run.settings["learning_rate"]), data()


class PlateauModel(Model):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/accuracy"}}


class BatchNormModel(Model):
    def __init__(self, learning_rate: float) -> None:
        super().__init__(learning_rate)
        self.network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class MisnamingModel(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy.update(self.network(batch[0]), batch[1])
        self.log("val_accuracy", self.accuracy)


class ExactModel(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/accuracy", (self.network(batch[0]).argmax(1) == batch[1]).float().mean())


class TwiceModel(Model):
    def on_validation_epoch_end(self) -> None:
        self.log("val/accuracy", 1.0)


class MixingModel(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits = self.network(batch[0])
        self.accuracy.update(logits - logits.mean(0), batch[1])
        self.log("val/accuracy", self.accuracy)


class BrokenModel(Model):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        raise TypeError(f"told of a record: {batch[0].tolist()}")


PRETRAINED = nn.Linear(4, 2)


class FineTuned(Model):
    """Goes on from a network that was loaded once."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__(learning_rate)
        self.network = PRETRAINED


class FineTunedLate(Model):
    def setup(self, stage: str) -> None:
        self.network.load_state_dict(PRETRAINED.state_dict(), assign=True)


class GivesACheckpoint(Model):
    def configure_callbacks(self) -> Any:
        return [ModelCheckpoint("elsewhere")]


class GivesATimer(Model):
    timer = Timer()

    def configure_callbacks(self) -> Any:
        return [self.timer]


class TwoLoaders(Data):
    def val_dataloader(self) -> Any:
        return [super().val_dataloader(), super().val_dataloader()]


class TellingChoice(Choice):
    """A choice that tells of every draw, as Optuna does."""

    def draw(self, generator: Any) -> Any:
        print("a setting is drawn")
        return super().draw(generator)


class FixedRuns(NumberOfRuns):
    """Three runs, whatever is drawn."""

    def draw(self, generator: Any = None) -> int:
        return 3


def selection(root: Path, **changed: Any) -> PrivateSelection:
    arguments: dict[str, Any] = {
        "space": SearchSpace({"learning_rate": TellingChoice([0.1, 0.5, 1.0])}),
        "score": "val/accuracy",
        "one_run": ONE_RUN,
        "scenario": SCENARIO,
        "ledger": root / "study.db",
        "folder": root / "selection",
        "runs": FixedRuns(0.05),
    }
    return PrivateSelection(**(arguments | changed))


def charges(path: Path) -> list[Any]:
    with PrivacyLedger.read_only(path) as ledger:
        return [(charge.cost, charge.event) for account in ledger.accounts() for charge in account.events()]


def test_one_charge_and_no_trace(tmp_path, capfd):
    chosen, make, state = selection(tmp_path), Maker(), torch.get_rng_state()
    with pytest.warns(UserWarning, match="duration hints at the number") as told:
        best = chosen.run(make)
    # What any fit of three steps is told, once, and what the selection says.
    assert [str(warning.message)[:23] for warning in told] == ["This run will probably ", "PrivateSelection: its d"]
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), state)
    assert "OF_A_LOSING_RUN" not in os.environ
    # A rehearsal of two runs, three runs, and the module that is released.
    assert len(make.made) == 6
    assert best.settings == make.made[5].settings
    assert best.settings in [run.settings for run in make.made[2:5]]
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        (account,) = ledger.accounts()
        assert account.spent == pytest.approx(chosen.price.renyi(16.0))
        assert [charge.cost > 0 for charge in account.events()] == [True, False]
    private = tmp_path / "selection"
    assert private.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in private.iterdir()} == KEPT
    assert all((private / name).stat().st_mode & 0o077 == 0 for name in ("selection.json", "best.pt"))
    assert not any(run.folder.name in path.read_bytes().decode("latin1") for run in make.made
                   for path in private.iterdir())  # fmt: skip
    again = selection(tmp_path).run(Maker())
    assert (again.settings, again.score) == (best.settings, best.score)
    assert all(map(torch.equal, again.module.state_dict().values(), best.module.state_dict().values()))
    assert len(charges(tmp_path / "study.db")) == 2


class EndsByTheLoss(pl.Callback):
    """As guards against diverged runs do."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = bool(outputs["loss"] > 0) and trainer.global_step == 2


def test_runs_that_their_loss_ends_are_told_of(tmp_path, capfd):
    """A record decided how many steps were released, which a fit warns of, and no selection did."""
    with pytest.warns(UserWarning, match=r"should_stop or an error ended a run early, and the price does not cover"):
        best = selection(tmp_path).run(Maker(beside=[EndsByTheLoss]))
    assert any("no private record decided when" in condition for condition in best.card.conditions)
    assert capfd.readouterr() == ("", "")


def test_the_released_run_has_a_card_with_the_figures_of_its_ledger(tmp_path, capsys):
    best = selection(tmp_path).run(Maker())
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        total = ledger_total(ledger)
        assert ledger.accounts()[0].card == best.card
    card = PrivacyCard.from_json((tmp_path / "selection" / "privacy_card.json").read_text())
    assert card == best.card
    figures = {entry.name: entry.value for entry in card.guarantees}
    assert figures == {
        "world_success_bound": total.world_success_bound,
        "epsilon_at_delta": total.epsilon_at_delta,
        "rpp_epsilon": total.renyi_epsilon,
    }
    assert cli.main(["report", str(tmp_path / "selection")]) == 0
    assert at_most(total.world_success_bound) in capsys.readouterr().out


def test_no_card_is_left_for_a_ledger_that_has_not_paid(tmp_path):
    """It said that nothing had been spent."""
    selection(tmp_path).run(Maker())
    card = (tmp_path / "selection" / "privacy_card.json").read_text()
    with pytest.raises(LedgerMismatchError, match=r"other\.db has not paid for selection-\w+, whose run is in"):
        selection(tmp_path, ledger=tmp_path / "other.db").run(Maker())
    assert (tmp_path / "selection" / "privacy_card.json").read_text() == card
    with PrivacyLedger.read_only(tmp_path / "other.db") as ledger:
        assert not ledger.accounts()


class GoesOn(Model):
    """Begins with the last weights, where there are any."""

    weights: ClassVar[dict[str, Any]] = {}

    def __init__(self, learning_rate: float) -> None:
        super().__init__(learning_rate)
        if self.weights:
            self.network.load_state_dict(self.weights)

    def on_train_end(self) -> None:
        self.weights.update({name: value.clone() for name, value in self.network.state_dict().items()})


def test_a_run_that_goes_on_from_another_does_not_count(tmp_path, monkeypatch):
    """Steps of several runs would be released at the price of one of them."""
    GoesOn.weights.clear()
    finished, finish = [], SealedDraw.finish
    monkeypatch.setattr(SealedDraw, "finish", lambda *args: finished.append(args[1]) or finish(*args))
    make = Maker(module=GoesOn)
    best = selection(tmp_path).run(make)
    assert finished == [make.made[2].folder]
    assert best.settings == make.made[2].settings


class OfTheHead(Model):
    """Begins with public weights, of which the optimizer has a part."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__(learning_rate)
        self.backbone = nn.Linear(4, 4)
        nn.init.ones_(self.backbone.weight)
        nn.init.zeros_(self.backbone.bias)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.network.parameters(), self.learning_rate)


def test_runs_that_begin_with_the_same_public_weights_count(tmp_path, monkeypatch):
    finished, finish = [], SealedDraw.finish
    monkeypatch.setattr(SealedDraw, "finish", lambda *args: finished.append(args[1]) or finish(*args))
    selection(tmp_path).run(Maker(module=OfTheHead))
    assert len(finished) == 3


def test_a_notebook_shows_no_run(tmp_path):
    """Lightning's tables and bars come there as displays, which no stream carries: counted, they are the runs."""
    InteractiveShell.instance()
    try:
        with capture_output() as shown:
            display("before")
            with quiet(tmp_path / "output.txt"):
                display("a run")
            display("after")
        assert [output.data["text/plain"] for output in shown.outputs] == ["'before'", "'after'"]
    finally:
        InteractiveShell.clear_instance()


@pytest.mark.filterwarnings("ignore:PrivateSelection")
def test_a_selection_draws_on_the_share_of_a_plan(tmp_path):
    price = SelectionPrice(list(ONE_RUN.values()), FixedRuns(0.05), 2.0**27)
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        LedgerPlan({"values": GaussianRelease(0.1), "model": price}).declare(ledger)
    selection(tmp_path, runs=FixedRuns(0.05)).run(Maker())
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert [account.declaration["share"] for account in ledger.accounts()] == ["model"]
        assert ledger_total(ledger).basis == "plan"
    with pytest.raises(BudgetExceededError, match="has 1 selections: other accounts took 1"):
        selection(tmp_path, folder=tmp_path / "another").run(Maker())


@pytest.mark.filterwarnings("ignore:PrivateSelection")
def test_a_crash_continues_the_same_draw(tmp_path, caplog):
    crashing = Maker(fails_at=4, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), caplog.at_level("INFO"):
        selection(tmp_path).run(crashing)
    assert "continues after the run that was interrupted, and is not charged again" in caplog.text
    before = charges(tmp_path / "study.db")
    sealed = json.loads((tmp_path / "selection" / "secret" / "draw.json").read_text())
    assert len(sealed) == 3
    make = Maker()
    best = selection(tmp_path).run(make)
    assert charges(tmp_path / "study.db") == before
    # The run that crashed is not begun again; the first one is not, either.
    assert [run.folder.name for run in make.made[:-1]] == [sealed[2]["name"]]
    assert best.settings in [sealed[0]["settings"], sealed[2]["settings"]]


class KilledModel(Model):
    """A model in whose second step the process is killed, as where memory runs out; told by the run's own journal."""

    ledger: Path

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if steps_in(self.ledger):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def steps_in(path: Path) -> list[int]:
    with PrivacyLedger.read_only(path) as ledger:
        return [attempt.num_steps for account in ledger.accounts() for attempt in account.attempts()]


class KilledMaker(Maker):
    """Kills the process inside the second run of a selection."""

    def __call__(self, run: SelectionRun) -> Any:
        trainer, module, data = super().__call__(run)
        if len(self.made) == 4:  # the first two are of the rehearsal, and are not trained
            module = KilledModel(module.learning_rate)
            module.ledger = run.path
        return trainer, module, data


def select_until_killed(root: Path) -> None:
    selection(root).run(KilledMaker())


@pytest.mark.filterwarnings("ignore:PrivateSelection")
def test_a_kill_inside_a_run_continues_the_same_draw(tmp_path):
    child = Child(select_until_killed, tmp_path)
    child.finish()
    assert child.poll() == -signal.SIGKILL
    before = charges(tmp_path / "study.db")
    assert [cost > 0 for cost, _ in before] == [True, False]
    sealed = json.loads((tmp_path / "selection" / "secret" / "draw.json").read_text())
    killed = tmp_path / "selection" / "secret" / sealed[1]["name"] / "ledger.db"
    assert steps_in(killed) == [1], "it was in its second step"
    make = Maker()
    best = selection(tmp_path).run(make)
    assert charges(tmp_path / "study.db") == before
    assert [run.folder.name for run in make.made[:-1]] == [sealed[2]["name"]]
    assert best.settings in [sealed[0]["settings"], sealed[2]["settings"]]
    assert {path.name for path in (tmp_path / "selection").iterdir()} == KEPT


@pytest.mark.filterwarnings("ignore:PrivateSelection")
def test_a_run_that_fails_is_the_worst(tmp_path, capfd):
    best = selection(tmp_path).run(Maker(fails_at=3, error=RuntimeError("of a record")))
    assert best.score == pytest.approx(best.score)
    assert "of a record" not in "".join(capfd.readouterr())
    broken = selection(tmp_path, folder=tmp_path / "broken")
    failing = Maker()
    rehearsed = failing.__call__

    def fails_after_rehearsal(run):
        if len(failing.made) > 1:
            raise RuntimeError("of a record")
        return rehearsed(run)

    with (
        pytest.warns(UserWarning, match="should_stop or an error ended a run early"),
        pytest.raises(PrivacyError, match="No run of the selection came to an end"),
    ):
        broken.run(fails_after_rehearsal)
    assert not (tmp_path / "broken" / "secret").exists()


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ({"left_out": PrivateMetrics}, "is not private"),
        ({"left_out": SRPPSGD}, "private by itself"),
        ({"fit": {"ledger": "elsewhere.db"}}, "how many there"),
        ({"score": {"ledger": "elsewhere.db"}}, "how many there"),
        ({"trainer": {"default_root_dir": "elsewhere"}}, "default_root_dir"),
        ({"trainer": {"profiler": SimpleProfiler(dirpath="elsewhere")}}, "dirpath of SimpleProfiler"),
        ({"trainer": {"logger": True, "default_root_dir": None}}, "use run.folder"),
        ({"fit": {"noise_multiplier": None, "epsilon": 1.0, "delta": 1e-5}}, "promise of its own"),
        ({"fit": {"noise_multiplier": 1.0}}, "does not cover"),
        ({"score": {"epsilon": 0.5}}, "Share 'score' of one_run does not pay"),
        ({"score": {"names": ["val/accuracy", "val/recall"]}}, "Share 'score' of one_run does not pay"),
        (
            {"fit": {"scenario": TwoWorldScenario(2, num_records=60)}},
            "priced for .*, and SRPPSGD in make_trainer is for",
        ),
        ({"module": FineTuned}, "Every run has the same weight 'network.weight'"),
        ({"module": FineTunedLate}, "Every run has the same weight 'network.weight'"),
        ({"fit": {"unit": Persons(of=0, at_most=2)}}, "are about records"),
        ({"trainer": {"fast_dev_run": True}}, "has fast_dev_run"),
        ({"beside": [partial(EarlyStopping, "val/accuracy", mode="max")]}, "EarlyStopping looks at 'val/accuracy'"),
        ({"beside": [partial(EarlyStopping, "train_loss", strict=False)]}, "EarlyStopping looks at 'train_loss'"),
        ({"beside": [partial(StochasticWeightAveraging, 0.1)]}, "swa_epoch_start"),
        ({"shared": [Timer()]}, "Every run has the same Timer"),
        ({"module": GivesACheckpoint}, "dirpath of ModelCheckpoint"),
        ({"module": GivesATimer}, "Every run has the same Timer"),
        ({"module": PlateauModel}, "ReduceLROnPlateau looks at 'val/accuracy'"),
        ({"trainer": {"max_steps": -1, "max_epochs": 1}}, "plans more steps than a share"),
        ({"trainer": {"max_steps": 0}}, "does not come to a first step"),
        ({"trainer": {"limit_val_batches": 0}}, "does not come to a batch of the evaluation"),
        ({"data": TwoLoaders}, "The evaluation has 2 loaders"),
        ({"module": BatchNormModel}, "BatchNorm1d"),
        ({"module": MisnamingModel}, r"logs no torchmetrics object as 'val/accuracy' .*\(it logs 'val_accuracy'\)"),
        ({"module": ExactModel}, "logs a number as 'val/accuracy'"),
        ({"module": TwiceModel}, "logs a number as 'val/accuracy'"),
        ({"module": MixingModel}, "with rows that one record decides beside its own"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_refused_before_anything_is_charged(tmp_path, monkeypatch, spoiled, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((MisconfigurationException, BudgetExceededError, ValueError), match=message):
        selection(tmp_path).run(Maker(**spoiled))
    assert not (tmp_path / "study.db").exists()


def test_a_rehearsal_reads_no_batch_and_tells_what_it_could_not_try(tmp_path):
    """Code that ends in an error on synthetic records may take real ones, of whose errors nobody may see anything."""
    with (
        pytest.warns(UserWarning, match=r"of BrokenModel is a mean over records \(TypeError in training_step") as told,
        pytest.raises(PrivacyError, match="what the rehearsal warned of"),
    ):
        selection(tmp_path).run(Maker(module=BrokenModel))
    assert not any("told of a record" in str(warning.message) for warning in told)


class LateModel(Model):
    """Looks at what copies lack before it logs its score."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy.update(self.network(batch[0]), batch[1])

    def on_validation_epoch_end(self) -> None:
        assert self.trainer.val_dataloaders.dataset.tensors
        self.log("val/accuracy", self.accuracy)


def test_a_rehearsal_tells_why_it_did_not_see_the_score(tmp_path):
    with pytest.warns(UserWarning, match=r"was not logged for synthetic records \(an error in on_validation_epoch_end"):
        selection(tmp_path).run(Maker(module=LateModel))


def test_a_rehearsal_of_epochs_counts_no_evaluation_within_them(tmp_path):
    """Each run is evaluated once, after its training, for which its share has one value."""
    (ten,) = SRPPAccountant(SCENARIO, SAMPLING).events(noise_multiplier=4.0, num_steps=10)
    with PrivacyLedger(tmp_path / "poor.db", budget={"rpp": 1e-3}):  # so that only the rehearsal takes place
        pass
    chosen = selection(tmp_path, one_run={**ONE_RUN, "fit": ten}, ledger=tmp_path / "poor.db")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*evaluations that this run plans")
        with pytest.raises(BudgetExceededError):
            chosen.run(Maker(trainer={"max_steps": -1, "max_epochs": 2}))


def test_what_could_not_be_kept_is_refused_before_anything_is_charged(tmp_path):
    class Complex(Uniform):
        def draw(self, generator: Any) -> Any:
            return 1j

    with pytest.raises(TypeError, match=r"^space draws settings that JSON does not hold"):
        selection(tmp_path, space=SearchSpace({"learning_rate": Complex(0.0, 1.0)})).run(Maker())
    assert not (tmp_path / "study.db").exists()


def test_a_ledger_that_cannot_pay_draws_nothing(tmp_path):
    with PrivacyLedger(tmp_path / "poor.db", budget={"rpp": 1e-3}):
        pass
    with pytest.raises(BudgetExceededError):
        selection(tmp_path, ledger=tmp_path / "poor.db").run(Maker())
    assert not (tmp_path / "selection" / "secret" / "draw.json").exists()
    with PrivacyLedger(tmp_path / "planned.db") as ledger:
        LedgerPlan([STEPS]).declare(ledger)
    with pytest.raises(LedgerMismatchError, match="does not pay for this: None of the shares"):
        selection(tmp_path, ledger=tmp_path / "planned.db").run(Maker())
    with pytest.raises(LedgerMismatchError, match="other terms"):
        selection(tmp_path, mode="min").run(Maker())


@pytest.mark.filterwarnings("ignore:PrivateSelection")
def test_another_space_is_another_selection(tmp_path):
    """The settings of the first came back, which the second does not have."""
    selection(tmp_path).run(Maker())
    other = selection(tmp_path)
    other.space = SearchSpace({"learning_rate": Uniform(10.0, 20.0)})
    with pytest.raises(LedgerMismatchError, match="a selection under other terms"):
        other.run(Maker())


def test_a_lost_draw_is_not_drawn_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        selection(tmp_path).run(Maker(fails_at=3, error=KeyboardInterrupt()))
    (tmp_path / "selection" / "secret" / "draw.json").unlink()
    with pytest.raises(LedgerMismatchError, match="lost the draw"):
        selection(tmp_path).run(Maker())


def test_nothing_that_was_held_back_is_printed_afterwards(tmp_path, capfd, monkeypatch):
    stream, libc = io.TextIOWrapper(io.FileIO(1, "w", closefd=False)), ctypes.CDLL(None)
    monkeypatch.setattr(sys, "stdout", stream)
    with quiet(tmp_path / "output.txt"):
        stream.write("by Python")
        libc.printf(b"by C")
    stream.flush()
    libc.fflush(None)
    assert capfd.readouterr().out == ""
    told = (tmp_path / "output.txt").read_text()
    assert "by Python" in told
    assert "by C" in told


def test_a_run_that_is_given_the_path_of_its_ledger_is_held_to_its_plan(tmp_path):
    maker = Maker(fit={"ledger": tmp_path / "ledger.db"}, score={"ledger": tmp_path / "ledger.db"})
    plan = LedgerPlan(ONE_RUN)
    run = SelectionRun({"learning_rate": 0.1}, tmp_path, plan)
    trainer, module, _ = maker(run)
    check_run(run, trainer, "val/accuracy")
    with PrivacyLedger.read_only(run.path) as ledger:
        assert LedgerPlan.of(ledger) == plan
    trainer.fit_loop.epoch_loop.max_steps = 30
    with pytest.raises(BudgetExceededError, match="does not pay for a run, which needs 30 of 3"):
        check_shares(run, trainer, module)


class CalibratedModel(Model):
    """Keeps what it finds in the records that score it."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__(learning_rate)
        self.register_buffer("mean", torch.zeros(()))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.mean.copy_(batch[0].mean())


def test_what_the_score_leaves_in_a_model_is_not_released(tmp_path):
    class CalibratedMaker(Maker):
        def __call__(self, run: SelectionRun) -> Any:
            trainer, _, data = super().__call__(run)
            return trainer, CalibratedModel(run.settings["learning_rate"]), data

    best = selection(tmp_path).run(CalibratedMaker())
    assert best.module.mean == 0
    assert not torch.equal(best.module.network.weight, torch.zeros_like(best.module.network.weight))
