"""Runs that are stopped, killed and resumed: the account is the journal's, never the checkpoint's."""

import copy
import pickle
import random
import sqlite3
import time
from itertools import chain
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from prepared import Child
from tiny_fits import RECORDS, Classifier, make_data, make_loader, make_private, make_trainer
from torch.utils.data import DataLoader, Dataset

from lightning_pac import EpochShuffle, Poisson, PrivacyLedger, SRPPAccountant, TwoWorldScenario
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import restore_ledger
from lightning_pac.scenarios import Sampling


class Numbered(Dataset[Any]):
    """The small dataset, which notes the records that a step was computed on."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        inputs, label = make_data()[index]
        return inputs, label, index


class Noting(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.steps.append(batch[2].tolist())
        return super().training_step(batch[:2], batch_idx)


class NotingScheduled(Noting):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        steps = int(self.trainer.estimated_stepping_batches)  # loads the data before the checkpoint is restored
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)]


def numbered_loader(**kwargs: Any) -> DataLoader[Any]:
    return DataLoader(Numbered(), **{"batch_size": 10, "shuffle": True, **kwargs})


def test_a_copy_of_a_callback_goes_on_with_its_account(tmp_path: Path) -> None:
    model, private = Classifier(), make_private(sampling=Poisson(rate=0.2), ledger=tmp_path / "study.db")
    make_trainer(tmp_path, private).fit(model, make_loader())
    sent = pickle.loads(pickle.dumps(private))
    assert len(pickle.dumps(private)) < 20_000  # neither the model nor the data go along
    for copied in (copy.deepcopy(private), sent):
        assert repr(copied) == repr(private)
        assert copied.account is not None
        assert copied.account.num_steps == 5
    assert "steps=5, world_success_bound_so_far=0.7" in repr(private)
    make_trainer(tmp_path, sent, RefusedCopy(sent)).fit(model, make_loader())
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        (account,) = ledger.accounts()
        assert account.num_charges == 10


class CtrlC(pl.Callback):
    """Interrupts a fit after some steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.steps:
            raise KeyboardInterrupt


def test_ctrl_c_says_what_is_spent_and_how_to_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    private, ledger = make_private(sampling=Poisson(rate=0.2), ledger=tmp_path / "study.db"), str(tmp_path / "study.db")
    saves = OnExceptionCheckpoint(tmp_path)
    for callbacks, advice in (([], "OnExceptionCheckpoint(dirpath)"), ([saves], f"ckpt_path={saves.ckpt_path!r}")):
        caplog.clear()
        with caplog.at_level("INFO"), pytest.raises(SystemExit):
            make_trainer(tmp_path, private, CtrlC(2), *callbacks, enable_checkpointing=bool(callbacks)).fit(
                Classifier(), make_loader()
            )
        (told,) = [message for message in caplog.messages if "interrupted after" in message]
        assert ledger in told
        assert "guesses right at most" in told
        assert advice in told
    assert told.startswith("SRPPSGD: interrupted after 4 of 5 steps, which stay charged.")
    make_trainer(tmp_path, make_private(sampling=Poisson(rate=0.2), ledger=ledger)).fit(
        Classifier(), make_loader(), ckpt_path=saves.ckpt_path
    )


class RefusedCopy(pl.Callback):
    """Pickles another callback within a step."""

    def __init__(self, other: pl.Callback) -> None:
        self.other = other

    def on_train_batch_end(self, *args: Any) -> None:
        with pytest.raises(TypeError, match="copy a callback before or after its run"):
            pickle.dumps(self.other)


class StopAfter(pl.Callback):
    """Stops after a step, with a checkpoint of just that step if there is a path for it."""

    def __init__(self, steps: int, path: Path | None = None) -> None:
        self.steps = steps
        self.path = path

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.steps:
            trainer.should_stop = True
            if self.path is not None:
                trainer.save_checkpoint(self.path)


def fit(
    folder: Path, private: Any, model: Any, *callbacks: pl.Callback, loader: Any = None, **options: Any
) -> pl.Trainer:
    checkpoint = options.pop("ckpt_path", None)
    trainer = make_trainer(folder, private, *callbacks, **{"max_epochs": 3, "enable_checkpointing": True, **options})
    trainer.fit(model, loader or numbered_loader(), ckpt_path=checkpoint)
    return trainer


def epsilon_of(path: Path) -> float:
    with PrivacyLedger.read_only(path) as ledger:
        return ledger.spent("rpp")


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("model_class", [Noting, NotingScheduled])
def test_stopped_at_a_checkpoint_our_loader_goes_on_as_if_nothing_had_happened(
    model_class: Any, num_workers: int, tmp_path: Path
) -> None:
    arguments = {"noise_multiplier": 2.0, "sampling": EpochShuffle(10)}
    loader = numbered_loader(num_workers=num_workers)
    first, second = model_class(), model_class()
    ledger = tmp_path / "run.db"
    stop = StopAfter(8, tmp_path / "stop.ckpt")
    fit(tmp_path, make_private(ledger=ledger, **arguments), first, stop, loader=loader)
    resumed = make_private(ledger=ledger, **arguments)
    trainer = fit(tmp_path, resumed, second, loader=loader, ckpt_path=tmp_path / "stop.ckpt")
    steps = first.steps + second.steps
    assert trainer.global_step == len(steps) == 18
    for start in range(0, 18, 6):
        assert sorted(chain(*steps[start : start + 6])) == list(range(RECORDS))
    uninterrupted = SRPPAccountant(TwoWorldScenario(2, num_records=RECORDS), EpochShuffle(10), 4.0, "rpp")
    assert resumed.account.epsilon == pytest.approx(uninterrupted.epsilon(2.0, 18))
    assert epsilon_of(ledger) == pytest.approx(uninterrupted.epsilon(2.0, 18))


def test_a_stock_loader_opens_a_new_pass(tmp_path: Path) -> None:
    ledger = tmp_path / "run.db"
    fit(tmp_path, make_private(ledger=ledger), Noting(), StopAfter(8, tmp_path / "stop.ckpt"))
    resumed = make_private(ledger=ledger)
    fit(tmp_path, resumed, Noting(), ckpt_path=tmp_path / "stop.ckpt")
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=RECORDS), EpochShuffle(10), 4.0, "rpp")
    # One pass, two steps of the second, the remaining four redrawn, and the third.
    assert resumed.account.epsilon == pytest.approx(accountant.epsilon(1.0, [8, 4, 6]))
    assert epsilon_of(ledger) == pytest.approx(accountant.epsilon(1.0, [8, 4, 6]))
    assert resumed.account.epsilon > accountant.epsilon(1.0, 18)


@pytest.mark.parametrize("sampling", [EpochShuffle(10), Poisson(1 / 6)])
def test_replayed_steps_are_charged_again(sampling: Any, tmp_path: Path, capsys: Any) -> None:
    ledger = tmp_path / "run.db"
    first = make_private(ledger=ledger, sampling=sampling)
    checkpoint = ModelCheckpoint(tmp_path, filename="early", every_n_train_steps=4, save_top_k=1, monitor=None)
    fit(tmp_path, first, Noting(), checkpoint, StopAfter(7))
    resumed = make_private(ledger=ledger, sampling=sampling)
    with pytest.warns(UserWarning, match="last 3 steps before the interruption came after.*paid for twice"):
        fit(tmp_path, resumed, Noting(), ckpt_path=tmp_path / "early.ckpt")
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=RECORDS), sampling, 4.0, "rpp")
    assert resumed.account.num_steps == 7 + 14
    assert resumed.account.epsilon == pytest.approx(accountant.epsilon(1.0, [7, 2, 12]))
    assert epsilon_of(ledger) == pytest.approx(accountant.epsilon(1.0, [7, 2, 12]))


def test_replaying_stops_where_the_budget_ends(tmp_path: Path) -> None:
    arguments = {"epsilon": 3.0, "sampling": Poisson(1 / 6), "ledger": tmp_path / "run.db"}
    checkpoint = ModelCheckpoint(tmp_path, filename="early", every_n_train_steps=4, save_top_k=1, monitor=None)
    fit(tmp_path, make_private(**arguments), Noting(), checkpoint, StopAfter(7))
    resumed = make_private(**arguments)
    trainer = fit(tmp_path, resumed, Noting(), ckpt_path=tmp_path / "early.ckpt")
    assert trainer.global_step == 4 + 11
    assert resumed.account.num_steps == 18
    assert resumed.account.epsilon <= 3.0 * (1 + 1e-9)
    with pytest.raises(BudgetExceededError, match=r"18 steps were taken, and .* exceed the budget of account"):
        fit(tmp_path, make_private(**arguments), Noting(), ckpt_path=tmp_path / "early.ckpt")


def test_a_checkpoint_of_before_promises_goes_on_at_its_order(tmp_path: Path) -> None:
    """Then epsilon needed no second word, and neither the order nor the finite bits were in the state."""
    ledger = tmp_path / "run.db"
    first = make_private(epsilon=3.0, renyi_order=8, sampling=Poisson(1 / 6), ledger=ledger)
    fit(tmp_path, first, Noting(), StopAfter(4, tmp_path / "stop.ckpt"))
    state = torch.load(tmp_path / "stop.ckpt", weights_only=True)
    kept = state["callbacks"]["lightning_pac.SRPPSGD"]
    del kept["renyi_order"], kept["draws_per_step"]
    for name in ("delta", "world_success_bound", "prior"):
        del kept["arguments"][name]
    torch.save(state, tmp_path / "old.ckpt")
    with sqlite3.connect(ledger) as connection:  # as it was declared then
        connection.execute("UPDATE accounts SET declaration = json_remove(declaration, '$.draws_per_step')")
    restore_ledger(ledger, {}, otherwise=0.0)
    resumed = make_private(epsilon=3.0, renyi_order=8, sampling=Poisson(1 / 6), ledger=ledger)
    trainer = fit(tmp_path, resumed, Noting(), ckpt_path=tmp_path / "old.ckpt")
    assert trainer.global_step == resumed.account.num_steps
    assert (resumed.account.accountant.renyi_order, resumed.account.draws_per_step) == (8.0, 0)
    unstated = make_private(noise_multiplier=first.account.noise_multiplier, renyi_order=None, sampling=Poisson(1 / 6))
    given = unstated.arguments.to_dict()
    assert given["renyi_order"] is None
    unstated.arguments.compare({**given, "renyi_order": 8.0})


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 1.2},
        {"max_grad_norm": 2.0},
        {"renyi_order": 8},
        {"notion": "joint"},
        {"scenario": TwoWorldScenario(num_differing=1)},
        {"sampling": Poisson(0.1)},
    ],
)
def test_a_changed_configuration_is_an_error(change: dict[str, Any], tmp_path: Path) -> None:
    fit(tmp_path, make_private(), Noting(), StopAfter(4, tmp_path / "stop.ckpt"))
    name = next(iter(change)) if "scenario" not in change else "scenario.num_differing"
    with pytest.raises(LedgerMismatchError, match=rf"other arguments: {name} \(was"):
        fit(tmp_path, make_private(**change), Noting(), ckpt_path=tmp_path / "stop.ckpt")


@pytest.mark.parametrize("options", [{"loader": numbered_loader(batch_size=12)}, {"accumulate_grad_batches": 2}])
def test_changed_batches_are_an_error(options: dict[str, Any], tmp_path: Path) -> None:
    fit(tmp_path, make_private(), Noting(), StopAfter(4, tmp_path / "stop.ckpt"))
    with pytest.raises(LedgerMismatchError, match=r"sampling.batch_size \(10, now"):
        fit(tmp_path, make_private(), Noting(), ckpt_path=tmp_path / "stop.ckpt", **options)


def test_a_checkpoint_without_our_state_is_refused(tmp_path: Path) -> None:
    trainer = fit(tmp_path, make_private(), Noting(), StopAfter(4))
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    plain = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    plain.fit(Noting(), numbered_loader())
    plain.save_checkpoint(tmp_path / "raw.ckpt")
    with pytest.raises(MisconfigurationException, match=r"holds no account of SRPPSGD.*load the weights alone"):
        fit(tmp_path, make_private(), Noting(), ckpt_path=tmp_path / "raw.ckpt")
    with pytest.raises((MisconfigurationException, KeyError)):
        fit(tmp_path, make_private(), Noting(), ckpt_path=tmp_path / "weights.ckpt")


def test_a_journal_that_is_gone_or_older_is_refused(tmp_path: Path) -> None:
    fit(tmp_path, make_private(), Noting(), StopAfter(4, tmp_path / "stop.ckpt"))
    journal = tmp_path / "privacy_ledger.db"
    moved = journal.rename(tmp_path / "moved.db")
    journal.with_name("privacy_ledger.db-mark").rename(tmp_path / "moved.db-mark")
    with pytest.raises(LedgerMismatchError, match="which is gone, so what it cost is unknown: give ledger="):
        fit(tmp_path, make_private(), Noting(), ckpt_path=tmp_path / "stop.ckpt")
    with pytest.raises(LedgerMismatchError, match=r"has no account 'training-.*where this run was journalled before"):
        fit(tmp_path, make_private(ledger=tmp_path / "new.db"), Noting(), ckpt_path=tmp_path / "stop.ckpt")
    resumed = make_private(ledger=moved)
    fit(tmp_path, resumed, Noting(), ckpt_path=tmp_path / "stop.ckpt")
    assert resumed.account.num_steps == 18


def test_no_state_of_poisson_draws_is_written(tmp_path: Path) -> None:
    fit(tmp_path, make_private(sampling=Poisson(0.2)), Noting(), StopAfter(4, tmp_path / "stop.ckpt"))
    checkpoint = torch.load(tmp_path / "stop.ckpt", weights_only=True)
    assert checkpoint["callbacks"]["lightning_pac.SRPPSGD"]["loader"] is None
    assert "combined_loader" not in checkpoint["loops"]["fit_loop"]["state_dict"]
    assert not any(torch.is_tensor(value) for value in checkpoint["callbacks"]["lightning_pac.SRPPSGD"].values())


def test_a_second_fit_goes_on_with_the_account(tmp_path: Path) -> None:
    private, model = make_private(), Noting()
    trainer = fit(tmp_path, private, model, max_epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, numbered_loader())
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=RECORDS), EpochShuffle(10), 4.0, "rpp")
    assert private.account.num_steps == trainer.global_step == 12
    assert private.account.epsilon == pytest.approx(accountant.epsilon(1.0, 12))


def test_a_shared_ledger_stays_open_for_others(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with PrivacyLedger(path) as ledger:
        private, model = make_private(ledger=path), Noting()
        trainer = fit(tmp_path, private, model, max_epochs=1)
        private.on_exception(trainer, model, ValueError())  # of a later validate, say
        assert not ledger.closed
        assert ledger.spent("rpp") > 0


class Failing(Noting):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if len(self.steps) == self.at:
            raise ConnectionError("the machine went away")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("sampling", "at"),
    [
        *((None, at) for at in (3, 4)),
        *((drawn, 3) for drawn in (EpochShuffle(20), Poisson(1 / 3))),
        *(pytest.param(None, at, marks=pytest.mark.slow) for at in (2, 7)),
        *(pytest.param(drawn, 4, marks=pytest.mark.slow) for drawn in (EpochShuffle(20), Poisson(1 / 3))),
    ],
)
def test_a_checkpoint_between_two_microbatches_can_be_resumed(sampling: Any, at: int, tmp_path: Path) -> None:
    ledger = tmp_path / "run.db"
    first = make_private(ledger=ledger, sampling=sampling)
    with pytest.raises(ConnectionError):
        fit(
            tmp_path,
            first,
            Failing(at),
            OnExceptionCheckpoint(tmp_path, "failed"),
            accumulate_grad_batches=2,
        )
    resumed = make_private(ledger=ledger, sampling=sampling)
    trainer = fit(tmp_path, resumed, Noting(), ckpt_path=tmp_path / "failed.ckpt", accumulate_grad_batches=2)
    assert trainer.global_step == 9
    assert resumed.account.num_steps == 9


def test_a_run_resumed_at_ends_of_epochs_and_within_them_goes_through_each_pass(tmp_path: Path) -> None:
    """After two such ends Lightning took the place for one within a batch, and the epoch lacked its last."""
    path, seen = tmp_path / "last.ckpt", []
    for stop in (6, 12, 15, 18):
        model, private = Noting(), make_private(ledger=tmp_path / "run.db", sampling=EpochShuffle(10))
        trainer = fit(tmp_path, private, model, StopAfter(stop, path), ckpt_path=path if seen else None)
        seen += model.steps
    assert (trainer.global_step, trainer.current_epoch, private.account.num_steps) == (18, 3, 18)
    for first in (0, 6, 12):
        assert sorted(chain(*seen[first : first + 6])) == list(range(RECORDS))


class LosingTheMachine(pl.Callback):
    """Raises an error in a hook once there are so many steps."""

    def __init__(self, hook: str, steps: int) -> None:
        def fail(trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == steps:
                raise ConnectionError("the machine went away")

        setattr(self, hook, fail)


@pytest.mark.parametrize("sampling", [None, EpochShuffle(10)])
@pytest.mark.parametrize(
    ("stop", "hook", "steps"), [(None, "on_before_optimizer_step", 8), (6, "on_train_epoch_end", 12)]
)
def test_an_error_within_a_step_or_at_the_end_of_an_epoch_can_be_resumed(
    stop: int | None, hook: str, steps: int, sampling: Any, tmp_path: Path
) -> None:
    """Lightning's count of batches and epochs is then another than the loader's, which ended the next epoch early."""
    ledger, path = tmp_path / "run.db", None
    if stop is not None:
        path = tmp_path / "stop.ckpt"
        fit(tmp_path, make_private(ledger=ledger, sampling=sampling), Noting(), StopAfter(stop, path))
    lost, private = LosingTheMachine(hook, steps), make_private(ledger=ledger, sampling=sampling)
    with pytest.raises(ConnectionError):
        fit(tmp_path, private, Noting(), lost, OnExceptionCheckpoint(tmp_path, "failed"), ckpt_path=path)
    model, resumed = Noting(), make_private(ledger=ledger, sampling=sampling)
    trainer = fit(tmp_path, resumed, model, ckpt_path=tmp_path / "failed.ckpt")
    assert trainer.current_epoch == 3
    assert sorted(chain(*model.steps[-6:])) == list(range(RECORDS)), "the last pass is complete"
    assert resumed.account.num_steps >= 18


class NotingTheEnd(pl.Callback):
    """Has an attribute that the end of a run sets, which is asked of copies then."""

    ended = False

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.ended = True


@pytest.mark.parametrize("sampling", [None, EpochShuffle(10)])
def test_a_run_that_was_complete_ends_at_once(sampling: Any, tmp_path: Path) -> None:
    """It ended in an AttributeError, since no batch had come."""
    ledger, path = tmp_path / "run.db", tmp_path / "stop.ckpt"
    fit(tmp_path, make_private(ledger=ledger, sampling=sampling), Noting(), StopAfter(18, path))
    resumed, noting = make_private(ledger=ledger, sampling=sampling), NotingTheEnd()
    assert fit(tmp_path, resumed, Noting(), noting, ckpt_path=path).global_step == 18
    assert noting.ended
    assert resumed.account.num_steps == 18


class Validating(Noting):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.network(batch[0])


@pytest.mark.parametrize("sampling", [EpochShuffle(30), Poisson(1 / 2)])
def test_epochs_whose_last_step_is_cut_short_can_be_resumed(sampling: Any, tmp_path: Path) -> None:
    """Four microbatches make a step of three and one of one, after which the next epoch lacked its first."""
    options: dict[str, Any] = {"accumulate_grad_batches": 3, "limit_train_batches": 4, "enable_checkpointing": True}
    path = None
    for epochs in (1, 2):
        private = make_private(ledger=tmp_path / "run.db", sampling=sampling)
        saves = ModelCheckpoint(tmp_path, filename="validated", save_on_train_epoch_end=False)
        trainer = make_trainer(tmp_path, private, saves, max_epochs=epochs, num_sanity_val_steps=0, **options)
        trainer.fit(Validating(), numbered_loader(), numbered_loader(shuffle=False), ckpt_path=path)
        assert trainer.global_step == private.account.num_steps == 2 * epochs
        path = tmp_path / "validated.ckpt"


class Counting(pl.Callback):
    """Notes each noised step in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_before_optimizer_step(self, *arguments: Any) -> None:
        with self._path.open("a") as file:
            file.write(".")


def train_until_killed(folder: Path, sampling: Sampling) -> None:
    checkpoint = ModelCheckpoint(
        folder,
        filename="last",
        every_n_train_steps=3,
        save_top_k=1,
        monitor=None,
        enable_version_counter=False,
        save_on_train_epoch_end=False,
    )
    path = folder / "last.ckpt"
    private = make_private(ledger=folder / "run.db", sampling=sampling)
    ckpt_path = path if path.exists() else None
    fit(folder, private, Noting(), checkpoint, Counting(folder / "noised"), max_epochs=100000, ckpt_path=ckpt_path)


def kill_and_resume(folder: Path, sampling: Sampling, times: int, seed: int) -> None:
    generator = random.Random(seed)
    noised, noted = folder / "noised", 0
    for kill in range(1, times + 1):
        child = Child(train_until_killed, folder, sampling)
        deadline, target = time.monotonic() + 120, noted + generator.randint(4, 15)
        while not noised.exists() or noised.stat().st_size < target:
            assert child.poll() is None, child.finish().decode()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(generator.uniform(0.0, 0.02))
        child.kill()
        child.finish()
        noted = noised.stat().st_size
        with PrivacyLedger.read_only(folder / "run.db") as ledger:
            (account,) = ledger.accounts()
            lengths, spent = [attempt.num_steps for attempt in account.attempts()], account.spent
        # A step is noted once its gradient is written, so the step that was killed may be on the journal alone.
        assert noted <= sum(lengths) <= noted + kill
    state = torch.load(folder / "last.ckpt", weights_only=True)["callbacks"]["lightning_pac.SRPPSGD"]
    assert state["journal"]["num_steps"] <= sum(lengths)
    scenario = TwoWorldScenario(2, num_records=RECORDS)
    accountant = SRPPAccountant(scenario, sampling, 4.0, "rpp")
    if isinstance(sampling, Poisson):
        assert spent == pytest.approx(accountant.epsilon(1.0, sum(lengths)))
    else:
        assert accountant.epsilon(1.0, sum(lengths)) <= spent * (1 + 1e-9) <= accountant.epsilon(1.0, lengths) * 1.001


def test_the_account_of_a_killed_run_is_its_journal(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, EpochShuffle(10), times=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [EpochShuffle(10), Poisson(1 / 6)])
def test_the_account_of_a_run_killed_fifty_times_is_its_journal(sampling: Sampling, tmp_path: Path) -> None:
    kill_and_resume(tmp_path, sampling, times=50, seed=2)


def test_the_kill_test_would_notice_a_step_that_is_not_journalled(tmp_path: Path) -> None:
    """Without a journal, the checkpoint alone misses the steps after it."""
    private = make_private(ledger=tmp_path / "run.db", sampling=EpochShuffle(10))
    checkpoint = ModelCheckpoint(tmp_path, filename="early", every_n_train_steps=4, save_top_k=1, monitor=None)
    fit(tmp_path, private, Noting(), checkpoint, StopAfter(7))
    known = torch.load(tmp_path / "early.ckpt", weights_only=True)["callbacks"]["lightning_pac.SRPPSGD"]
    assert known["journal"]["num_steps"] == 4 < private.account.num_steps == 7
