"""Several gloo processes under one guarantee: one account, one noise, one set of parameters, no record twice."""

import itertools
import os
import signal
from itertools import chain
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from gloo_ranks import RankProcesses, on_ranks
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from scipy import stats
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch.utils.data import DataLoader, Dataset

from lightning_pac import EpochShuffle, FixedSize, Poisson, PrivacyLedger, Sequential, SRPPAccountant, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd.step.noisy_sum import NoisySum
from lightning_pac.data import RankShare
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.strategies import Ranks

THRESHOLD = 1e-6  # false alarms of each test on unseeded noise
SIZES = (1, 5, 13, 24, 37, 50, 61)


class Numbered(Dataset[Any]):
    """Records that carry their number."""

    def __init__(self, records: int = 60) -> None:
        self.data = make_data(records)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return (*self.data[index], index)


class Noting(Classifier):
    """Notes the records of each batch, by epoch, and the gradients that the optimizer used."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epochs: list[list[int]] = []
        self.used: list[torch.Tensor] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if not self.epochs:  # resumed within a pass
            self.epochs.append([])
        loader: Any = self.trainer.train_dataloader if self._trainer is not None else None
        if loader is None or vars(loader).get("num_drawn") != 0:  # which no step may ask the loader itself
            self.epochs[-1] += batch[2].tolist()
        return super().training_step(batch[:2], batch_idx)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.used.append(torch.cat([p.grad.flatten().clone() for p in self.parameters() if p.grad is not None]))


class Silent(Noting):
    """Every gradient is zero, so that a released one is noise alone."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) * 0.0


def fit(folder: Path, model: Any, private: Any, loader: Any, *callbacks: Any, **options: Any) -> pl.Trainer:
    checkpoint = options.pop("ckpt_path", None)
    trainer = make_trainer(folder, private, *callbacks, **{"strategy": "ddp_private", **options})
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return trainer


def loader(records: int = 60, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(Numbered(records), **{"batch_size": 5, "shuffle": True, **kwargs})


def parameters(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def whole_run(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """An ordinary loader, whose batch size is each rank's, with a ledger at a path and a logger."""
    torch.manual_seed(rank)  # ranks start from different parameters, and must not stay there
    model, private = Noting(), make_private(ledger=folder / "run.db")
    options = {"devices": size, "max_epochs": 3, "logger": CSVLogger(folder), "log_every_n_steps": 1}
    trainer = fit(folder, model, private, loader(), **options, enable_checkpointing=True)
    return {
        "parameters": parameters(model),
        "epochs": model.epochs,
        "used": torch.stack(model.used),
        "epsilon": private.account.epsilon,
        "steps": private.account.num_steps,
        "metrics": {name: value for name, value in trainer.callback_metrics.items() if name.startswith("privacy/")},
    }


def sizes_run(rank: int, size: int, folder: Path) -> list[Any]:
    """Passes over datasets whose sizes do not divide."""
    found = []
    for records, accumulate in zip(SIZES, itertools.cycle((1, 3)), strict=False):
        model = Noting()
        private = make_private(sampling=EpochShuffle(8), scenario=TwoWorldScenario(1), ledger=folder / f"{records}.db")
        options = {"devices": size, "max_epochs": 2, "accumulate_grad_batches": accumulate}
        fit(folder, model, private, loader(records), **options)
        found.append(model.epochs)
    return found


def draws_run(rank: int, size: int, folder: Path) -> list[Any]:
    """Batches that are empty on some ranks or on all of them, fixed sizes, accumulation; parameters at the end."""
    found = []
    for number, (sampling, accumulate) in enumerate([(Poisson(0.02), 1), (Poisson(0.1), 3), (FixedSize(4), 3)]):
        model = Noting()
        private = make_private(sampling=sampling, ledger=folder / f"{number}.db")
        options = {"devices": size, "max_steps": 20, "max_epochs": -1, "accumulate_grad_batches": accumulate}
        fit(folder, model, private, loader(), **options)
        found.append((parameters(model), [len(records) for records in model.epochs], private.account.epsilon))
    return found


def gradients_run(rank: int, size: int, folder: Path, strategy: str = "ddp_private") -> torch.Tensor:
    """Gradients almost without noise, over batches that do not divide; nothing is learnt, so all are comparable."""
    torch.manual_seed(0)
    model = Noting(learning_rate=0.0)
    private = make_private(
        sampling=Sequential(7), noise_multiplier=1e-7, max_grad_norm=0.4, ledger=folder / f"{strategy}.db"
    )
    fit(folder, model, private, loader(), devices=size, strategy=strategy, accumulate_grad_batches=3)
    return torch.stack(model.used)


def noise_run(rank: int, size: int, folder: Path, steps: int, noise_by_all: bool = False) -> torch.Tensor:
    """Noise alone; `noise_by_all` breaks it as an ordinary all-reduce of noised gradients would."""
    if noise_by_all:

        def release(self: Ranks, total: torch.Tensor, make_public: Any) -> torch.Tensor:
            released = make_public(total.clone(), 0)
            dist.all_reduce(released)
            return released

        Ranks.release = release  # type: ignore[method-assign]
    model = Silent()
    private = make_private(noise_multiplier=1.5, max_grad_norm=0.7, ledger=folder / f"{noise_by_all}.db")
    fit(folder, model, private, loader(), devices=size, max_steps=steps, max_epochs=-1)
    return torch.stack(model.used)


def two_ranks(rank: int, size: int, folder: Path, steps: int) -> dict[str, Any]:
    return {
        "whole": whole_run(rank, size, folder),
        "draws": draws_run(rank, size, folder),
        "gradients": gradients_run(rank, size, folder),
        "noise": noise_run(rank, size, folder, steps),
        "budget": budget_run(rank, size, folder),
        "resumed": stopped_run(rank, size, folder),
        "stock": stopped_run(rank, size, folder, "stock"),
    }


def three_ranks(rank: int, size: int, folder: Path, steps: int, checkpoint: Path) -> dict[str, Any]:
    return {
        "sizes": sizes_run(rank, size, folder),
        "whole": whole_run(rank, size, folder),
        "resumed": resumed_run(rank, size, folder, checkpoint),
        "gradients": gradients_run(rank, size, folder),
        "noise": noise_run(rank, size, folder, steps),
        "broken": noise_run(rank, size, folder, steps, noise_by_all=True),
    }


class StopAt(pl.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == 8:
            trainer.should_stop = True
            trainer.save_checkpoint(self.path)


def resumable(folder: Path, name: str = "stop") -> Any:
    sampling = EpochShuffle(11) if name == "stop" else None  # or what the loader does on so many ranks
    return make_private(sampling=sampling, ledger=folder / f"{name}.db")


def stopped_run(rank: int, size: int, folder: Path, name: str = "stop") -> list[list[int]]:
    """Stops in the middle of the second pass."""
    model = Noting()
    fit(folder, model, resumable(folder, name), loader(), StopAt(folder / f"{name}.ckpt"), devices=size, max_epochs=3)
    return model.epochs


def resumed_run(rank: int, size: int, folder: Path, checkpoint: Path) -> tuple[list[list[int]], float]:
    model, private = Noting(), resumable(checkpoint.parent)
    fit(folder, model, private, loader(), devices=size, max_epochs=3, ckpt_path=checkpoint)
    return model.epochs, private.account.epsilon


def budget_run(rank: int, size: int, folder: Path) -> tuple[int, int, str]:
    """A run that its budget stops on every rank, and one that it does not even begin."""
    with_budget = {"noise_multiplier": 1.0, "sampling": Poisson(0.1), "ledger": folder / "budget.db"}
    if rank == 0:
        with PrivacyLedger(folder / "budget.db", budget={"rpp": 10.0}):
            pass
    dist.barrier()
    private = make_private(**with_budget)
    trainer = fit(folder, Noting(), private, loader(), devices=size, max_steps=500, max_epochs=-1)
    with pytest.raises(BudgetExceededError) as refused:
        fit(folder, Noting(), make_private(**with_budget), loader(), devices=size, max_steps=500, max_epochs=-1)
    return trainer.global_step, private.account.num_steps, str(refused.value)


@pytest.fixture(scope="module")
def steps() -> int:
    return 60


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, steps: int) -> tuple[list[dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("two")
    return on_ranks(two_ranks, 2, folder, steps), folder


@pytest.fixture(scope="module")
def three(two: Any, tmp_path_factory: pytest.TempPathFactory, steps: int) -> tuple[list[dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("three")
    return on_ranks(three_ranks, 3, folder, steps, two[1] / "stop.ckpt"), folder


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_share_one_account_and_stay_equal_to_the_bit(size: int, request: pytest.FixtureRequest) -> None:
    results, folder = request.getfixturevalue({2: "two", 3: "three"}[size])
    runs = [result["whole"] for result in results]
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=60), EpochShuffle(5 * size), 4.0, "rpp")
    steps = 3 * 60 // (5 * size)
    for run in runs:
        assert run["steps"] == steps
        assert run["epsilon"] == runs[0]["epsilon"] == pytest.approx(accountant.epsilon(1.0, steps))
        assert run["metrics"] == runs[0]["metrics"]
        assert torch.equal(run["parameters"], runs[0]["parameters"])
        assert torch.equal(run["used"], runs[0]["used"])
    for epoch in zip(*(run["epochs"] for run in runs), strict=True):
        assert sorted(chain(*epoch)) == list(range(60))
    with PrivacyLedger.read_only(folder / "run.db") as ledger:
        assert ledger.spent("rpp") == pytest.approx(runs[0]["epsilon"])
        (account,) = ledger.accounts()
        assert account.num_charges == steps


@pytest.mark.slow
def test_no_record_comes_twice_in_a_pass_for_sizes_that_do_not_divide(three: Any) -> None:
    by_rank = [result["sizes"] for result in three[0]]
    for records, epochs in zip(SIZES, zip(*by_rank, strict=True), strict=True):
        assert all(len(rank) == 2 for rank in epochs)
        for epoch in zip(*epochs, strict=True):
            assert sorted(chain(*epoch)) == list(range(records))


def test_ranks_without_records_neither_hang_nor_drift(two: Any) -> None:
    for number, sampling in enumerate([Poisson(0.02), Poisson(0.1), FixedSize(4)]):
        runs = [result["draws"][number] for result in two[0]]
        accountant = SRPPAccountant(TwoWorldScenario(2, num_records=60), sampling, 4.0, "rpp")
        for values, _, epsilon in runs:
            assert torch.equal(values, runs[0][0])
            assert epsilon == pytest.approx(accountant.epsilon(1.0, 20), abs=2e-6)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_gradient_is_that_of_one_process(size: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    results, _ = request.getfixturevalue({2: "two", 3: "three"}[size])
    alone = gradients_run(0, 1, tmp_path, "auto")
    assert len(alone) == 9
    for result in results:
        assert torch.allclose(result["gradients"], alone, atol=1e-5)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_noise_is_added_once(size: int, request: pytest.FixtureRequest) -> None:
    results, _ = request.getfixturevalue({2: "two", 3: "three"}[size])
    deviation = 1.5 * 0.7 * 1.01**0.5 / (5 * size)
    noise = results[0]["noise"]
    assert stats.kstest(noise.flatten().numpy() / deviation, "norm").pvalue > THRESHOLD
    assert not torch.equal(noise[0], noise[1])
    broken = noise * size**0.5 if size == 2 else results[0]["broken"]
    assert stats.kstest(broken.flatten().numpy() / deviation, "norm").pvalue < THRESHOLD


def test_a_budget_stops_all_ranks(two: Any) -> None:
    first, second = (result["budget"] for result in two[0])
    assert first == second
    assert 0 < first[0] == first[1] < 500
    assert "the next one is refused" in first[2]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(two: Any, three: Any, tmp_path: Path) -> None:
    begun = [result["resumed"] for result in two[0]]
    ended = [result["resumed"][0] for result in three[0]]
    # Passes of six steps: the run stopped after the second step of the second pass.
    interrupted = [*(epochs[1] for epochs in begun), *(epochs[0] for epochs in ended)]
    assert sorted(chain(*(epochs[0] for epochs in begun))) == list(range(60))
    assert sorted(chain(*interrupted)) == list(range(60))
    assert sorted(chain(*(epochs[1] for epochs in ended))) == list(range(60))
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=60), EpochShuffle(11), 4.0, "rpp")
    for result in three[0]:
        assert result["resumed"][1] == pytest.approx(accountant.epsilon(1.0, 18))


def resumed_stock_run(rank: int, size: int, folder: Path) -> None:
    options = {"devices": size, "max_epochs": 3, "ckpt_path": folder / "stock.ckpt"}
    fit(folder, Noting(), resumable(folder, "stock"), loader(), **options)


def test_a_batch_size_that_follows_the_number_of_ranks_is_not_resumed_with_another(two: Any) -> None:
    for result in RankProcesses(resumed_stock_run, 3, two[1]).results():
        assert "ValueError: The saved pass does not fit 60 records in batches of 15" in result


def killed_run(rank: int, size: int, folder: Path, victim: int) -> None:
    """A rank is killed when the fifth step is charged and not yet released."""
    release, calls = NoisySum.release, itertools.count(1)

    def release_or_die(self: NoisySum, ranks: Ranks | None = None) -> torch.Tensor:
        if next(calls) == 5 and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return release(self, ranks)

    NoisySum.release = release_or_die  # type: ignore[method-assign]
    checkpoint = ModelCheckpoint(folder, filename="last", every_n_train_steps=4, monitor=None)
    private = make_private(sampling=EpochShuffle(11), ledger=folder / "run.db")
    fit(folder, Noting(), private, loader(), checkpoint, devices=size, max_epochs=3, enable_checkpointing=True)


@pytest.mark.parametrize("victim", [1, *slow(0)])
def test_a_rank_killed_in_mid_step_ends_the_run_and_the_step_stays_charged(victim: int, tmp_path: Path) -> None:
    group = RankProcesses(killed_run, 2, tmp_path, victim)
    results = group.results()
    codes = [process.exitcode for process in group.processes]
    assert (codes[victim], codes[1 - victim]) == (-signal.SIGKILL, 1)
    assert results[victim] is None
    with PrivacyLedger.read_only(tmp_path / "run.db") as ledger:
        assert [attempt.num_steps for attempt in ledger.accounts()[0].attempts()] == [5]
    private = make_private(sampling=EpochShuffle(11), ledger=tmp_path / "run.db")
    with pytest.warns(UserWarning, match="last 1 steps before the interruption came after the checkpoint"):
        fit(tmp_path, Noting(), private, loader(), strategy="auto", max_epochs=3, ckpt_path=tmp_path / "last.ckpt")
    assert private.account.num_steps == 5 + 14
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=60), EpochShuffle(11), 4.0, "rpp")
    assert private.account.epsilon > accountant.epsilon(1.0, 18)


def disagreeing_run(rank: int, size: int, folder: Path) -> None:
    if rank == 1:
        draw = RankShare.generator
        RankShare.generator = lambda self, num_passes: draw(self, num_passes + 1)  # type: ignore[method-assign]
    fit(folder, Noting(), make_private(sampling=Poisson(0.5)), loader(), devices=size)


def unprotected_run(rank: int, size: int, folder: Path) -> None:
    trainer = make_trainer(folder, strategy="ddp_private", devices=size)
    trainer.fit(Noting(), loader())


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (disagreeing_run, "PrivacyViolationError: The ranks do not agree on the records of a step"),
        (unprotected_run, "MisconfigurationException: PrivateDDPStrategy leaves gradients on their ranks"),
    ],
)
def test_every_rank_refuses(run: Any, message: str, tmp_path: Path) -> None:
    for result in RankProcesses(run, 2, tmp_path).results():
        assert message in result


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_over_2000_steps_the_noise_is_that_of_one_process(size: int, tmp_path: Path) -> None:
    alone = Silent()
    private = make_private(noise_multiplier=1.5, max_grad_norm=0.7)
    fit(tmp_path, alone, private, loader(batch_size=5 * size), strategy="auto", max_steps=2000, max_epochs=-1)
    together = on_ranks(noise_run, size, tmp_path, 2000)[0]
    assert together.shape == (2000, 83)
    assert stats.ks_2samp(together.flatten(), torch.stack(alone.used).flatten()).pvalue > THRESHOLD
    assert stats.ks_2samp(together.flatten() * 1.05, torch.stack(alone.used).flatten()).pvalue < THRESHOLD


@pytest.mark.slow
def test_a_spawned_run_hands_back_its_account(tmp_path: Path) -> None:
    private, model = make_private(ledger=tmp_path / "run.db"), Noting()
    for epochs in (1, 2):
        fit(tmp_path, model, private, loader(), strategy="ddp_private_spawn", devices=2, max_epochs=epochs)
        assert private.state_dict()["journal"]["num_steps"] == 6 * (1 if epochs == 1 else 3)
    with PrivacyLedger.read_only(tmp_path / "run.db") as ledger:
        assert [account.num_charges for account in ledger.accounts()] == [18]
