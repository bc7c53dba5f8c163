"""Sharded training on several gloo processes: the same weights as one device, one account, every row noised once."""

import itertools
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from gloo_ranks import RankProcesses, on_ranks
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy import stats
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from lightning_pac import EpochShuffle, Poisson, PrivacyLedger, Sequential, SRPPAccountant, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd import callback
from lightning_pac.callbacks.srpp_sgd.loss_check import check_loss
from lightning_pac.callbacks.srpp_sgd.step.noisy_sum import NoisySum
from lightning_pac.randomness import SecureGenerator
from lightning_pac.strategies import Ranks, sharding as staging
from lightning_pac.strategies.sharding import Sharding, held_parameters, local_part

THRESHOLD = 1e-6  # false alarms of each test on unseeded noise
# All GPUs of a machine, under NCCL; a machine with one shows a world of one.
GPUS = pytest.param("gpu", marks=pytest.mark.gpu)
SLOW = [pytest.param(size, marks=pytest.mark.slow) for size in (2, 4)]


def world(ranks: Any) -> tuple[int, str]:
    """How many ranks a parameter of a test stands for, and on which devices."""
    return (torch.cuda.device_count(), "gpu") if ranks == "gpu" else (ranks, "cpu")


class Network(nn.Module):
    """Rows that do not divide by two, a parameter that is cut before it meets records, a frozen one and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(6, 9)
        self.places = nn.Parameter(torch.randn(1, 5, 9))
        self.inner = nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.LayerNorm(9))
        self.frozen = nn.Linear(9, 9).requires_grad_(False)
        self.outputs = nn.Linear(9, 3)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inputs(inputs)[:, None] + self.places[:, :4]
        hidden = self.inner(hidden.reshape(-1, 9)).reshape(hidden.shape)
        return self.outputs(self.frozen(hidden).mean(1)) * self.scale


class Sharded(Classifier):
    """The network, sharded where there is a mesh; Adam, so that the optimizer has a state in shards."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(network=Network(), **kwargs)
        self.used: list[torch.Tensor] = []

    def configure_model(self) -> None:
        if self._device_mesh is not None:
            for part in (self.network.inner, self.network):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.network(batch[0])

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradients = [held.grad for held in held_parameters(self).values() if held.grad is not None]
        self.used.append(torch.cat([whole(gradient).flatten() for gradient in gradients]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.learning_rate)


def whole(tensor: Any) -> torch.Tensor:
    tensor = tensor.detach()
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.cpu().clone()


def weights(model: pl.LightningModule) -> torch.Tensor:
    return torch.cat([whole(held).flatten() for held in held_parameters(model).values()])


def loader(**kwargs: Any) -> DataLoader[Any]:
    return DataLoader(make_data(60), **{"batch_size": 5, "shuffle": True, **kwargs})


def fit(folder: Path, model: Any, private: Any, *callbacks: Any, **options: Any) -> pl.Trainer:
    checkpoint = options.pop("ckpt_path", None)
    trainer = make_trainer(folder, private, *callbacks, **{"strategy": "fsdp_private", **options})
    trainer.fit(model, loader(), loader(shuffle=False), ckpt_path=checkpoint)
    return trainer


def with_test_noise() -> None:
    """One value for all coordinates, the same on every rank, in place of randomness; the grid stays."""

    def release_(self: Any, total: torch.Tensor, deviation: float) -> torch.Tensor:
        step = 2.0**-20
        return total.add_(0.3 * deviation).div_(step).round_().mul_(step)

    SecureGenerator.release_ = release_  # type: ignore[method-assign, assignment]


def stopped(folder: Path) -> Any:
    return make_private(sampling=Sequential(7), max_grad_norm=0.4, ledger=folder / "stopped.db")


def same_run(
    rank: int, size: int, folder: Path, strategy: str = "fsdp_private", accelerator: str = "cpu"
) -> dict[str, Any]:
    """Accumulated batches that do not divide, with the same noise wherever it is drawn; stopped within the pass."""
    with_test_noise()
    torch.manual_seed(0)
    model = Sharded()
    private = stopped(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Synthetic records could not show")
        checkpoint = ModelCheckpoint(folder, filename="stopped", every_n_train_steps=4, monitor=None)
        options = {"accumulate_grad_batches": 3, "max_steps": 4, "enable_checkpointing": True}
        devices = {"strategy": strategy, "accelerator": accelerator, "devices": size}
        fit(folder, model, private, checkpoint, max_epochs=2, **options, **devices)
    here = sum(local_part(held).numel() for held in held_parameters(model).values())
    return {"weights": weights(model), "used": torch.stack(model.used), "here": here}


def draws_run(rank: int, size: int, folder: Path, accelerator: str) -> tuple[torch.Tensor, float]:
    """Batches that are empty on some ranks or on all of them."""
    model, private = Sharded(), make_private(sampling=Poisson(0.03), ledger=folder / "draws.db")
    devices = {"accelerator": accelerator, "devices": size}
    fit(folder, model, private, max_steps=6, max_epochs=-1, accumulate_grad_batches=2, **devices)
    return weights(model), private.account.epsilon


def noise_run(rank: int, size: int, steps: int, accelerator: str) -> dict[str, torch.Tensor]:
    """Releases of a sum of zeros, whole; the last coordinate is what all ranks have in common."""
    from torch.distributed import all_gather_object, destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh

    from lightning_pac.callbacks.srpp_sgd.step import ClippingBlocks

    os.environ["RANK"] = str(rank)
    device = torch.device("cuda", rank) if accelerator == "gpu" else torch.device("cpu")
    if accelerator == "gpu":
        torch.cuda.set_device(device)
    init_process_group("nccl" if accelerator == "gpu" else "gloo")
    torch.manual_seed(0)
    network, ranks = Network(), Ranks(rank, size, device)
    fully_shard(network, mesh=init_device_mesh(device.type, (size,)))
    blocks = ClippingBlocks.of(network, 0.7)
    sharding = Sharding(network, ranks)
    here = {name: local_part(held) for name, held in sharding.held.items()}
    total = NoisySum(here, blocks, noise_multiplier=1.5)
    rows, common = [], []
    for _ in range(steps):
        released = total.release(sharding)
        rows.append(released[: total.num_here].cpu())
        common.append(released[total.num_here :].cpu())
    staging._STAGED = 5 * size  # pieces that end within parameters
    reduced = torch.cat(list(sharding.reduce(part.to(device) for part in parts_of_sums(rank)))).cpu()
    parts: list[Any] = [None] * size
    all_gather_object(parts, torch.stack(rows))
    destroy_process_group()
    return {
        "noise": torch.cat(parts, 1) / total.deviations[0],
        "common": torch.stack(common) / total.channel_deviation,
        "reduced": reduced,
    }


def parts_of_sums(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    trained = (parameter for parameter in Network().parameters() if parameter.requires_grad)
    return [torch.randn(parameter.shape, generator=generator) for parameter in trained]


def resumable(folder: Path) -> Any:
    return make_private(sampling=EpochShuffle(11), ledger=folder / "run.db")


def resumed_run(rank: int, size: int, folder: Path, name: str, accelerator: str) -> tuple[torch.Tensor, int]:
    model, private = Sharded(), resumable(folder)
    fit(folder, model, private, accelerator=accelerator, devices=size, max_epochs=2, ckpt_path=folder / name)
    return weights(model), private.account.num_steps


DRAWN = SecureGenerator.release_


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One device, with the same noise."""
    found = same_run(0, 1, tmp_path_factory.mktemp("alone"), "auto")
    SecureGenerator.release_ = DRAWN  # type: ignore[method-assign]
    return found


@pytest.fixture(scope="module", params=[2, SLOW[1], GPUS])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What several ranks return, and their folder."""
    folder = tmp_path_factory.mktemp("ranks")
    size, accelerator = world(request.param)
    return on_ranks(same_run, size, folder, "fsdp_private", accelerator), folder


def test_weights_are_those_of_one_device_with_the_same_noise(alone: Any, several: Any) -> None:
    assert sum(result["here"] for result in several[0]) == alone["here"]
    for result in several[0]:
        # Sums of float32 numbers in another order: 1e-6 of the clipping norm, over a batch of 7.
        torch.testing.assert_close(result["used"], alone["used"], rtol=0, atol=1e-6)
        torch.testing.assert_close(result["weights"], alone["weights"], rtol=0, atol=1e-5)
        assert torch.equal(result["weights"], several[0][0]["weights"])


def test_one_device_goes_on_with_a_checkpoint_of_shards(several: Any, tmp_path: Path) -> None:
    model, private = Sharded(), stopped(several[1])
    options = {
        "strategy": "auto",
        "max_epochs": 1,
        "accumulate_grad_batches": 3,
        "ckpt_path": several[1] / "stopped.ckpt",
    }
    trainer = fit(tmp_path, model, private, **options)
    assert private.account.num_steps == 9
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=60), Sequential(7), 4.0, "rpp")
    assert private.account.epsilon == pytest.approx(accountant.epsilon(1.0, 9))
    assert {int(state["step"]) for state in trainer.optimizers[0].state.values()} == {9}


@pytest.mark.parametrize("ranks", [*SLOW, GPUS])  # the other way round is above
def test_shards_go_on_with_a_checkpoint_of_one_device(ranks: Any, tmp_path: Path) -> None:
    size, accelerator = world(ranks)
    checkpoint = ModelCheckpoint(tmp_path, filename="alone", every_n_train_steps=4, monitor=None)
    options = {"strategy": "auto", "max_steps": 4, "max_epochs": 2, "enable_checkpointing": True}
    fit(tmp_path, Sharded(), resumable(tmp_path), checkpoint, **options)
    (first, steps), *others = on_ranks(resumed_run, size, tmp_path, "alone.ckpt", accelerator)
    assert steps == 12
    assert all(torch.equal(weights, first) for weights, _ in others)


@pytest.mark.parametrize("ranks", [*SLOW, GPUS])
def test_empty_shares_and_one_account(ranks: Any, tmp_path: Path) -> None:
    size, accelerator = world(ranks)
    (first, epsilon), *others = on_ranks(draws_run, size, tmp_path, accelerator)
    assert all(torch.equal(weights, first) and other == epsilon for weights, other in others)
    with PrivacyLedger.read_only(tmp_path / "draws.db") as ledger:
        assert [account.num_charges for account in ledger.accounts()] == [6]


@pytest.mark.parametrize(
    ("ranks", "steps"),
    [
        (2, 300),
        *(pytest.param(size, 2000, marks=pytest.mark.slow) for size in (2, 4)),
        pytest.param("gpu", 2000, marks=pytest.mark.gpu),
    ],
)
def test_every_row_is_noised_once_and_what_all_have_in_common_once(ranks: Any, steps: int) -> None:
    size, accelerator = world(ranks)
    results = on_ranks(noise_run, size, steps, accelerator)
    noise, common = results[0]["noise"], results[0]["common"]
    assert all(torch.equal(result["common"], common) for result in results)
    assert noise.shape[1] == sum(p.numel() for p in Network().parameters() if p.requires_grad)
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > THRESHOLD
    assert stats.kstest(common.flatten().numpy(), "norm").pvalue > THRESHOLD
    assert stats.kstest(noise.flatten().numpy() * 2**0.5, "norm").pvalue < THRESHOLD
    # Rows as torch divides them, complete to the bit of float64.
    sums = [torch.stack(parts).double().sum(0) for parts in zip(*map(parts_of_sums, range(size)), strict=True)]
    for rank, result in enumerate(results):
        own = [torch.zeros(0).double()]  # the last of four ranks has no row of any
        own += [parts[rank].flatten() for parts in (total.chunk(size) for total in sums) if rank < len(parts)]
        torch.testing.assert_close(result["reduced"], torch.cat(own), rtol=1e-15, atol=1e-15)
    # Columns are independent, also of those on other ranks: a correlation of n draws is nearly N(0, 1/n).
    correlations = torch.corrcoef(noise.T).triu(1)
    assert float(correlations.abs().max()) < 8 / steps**0.5


def killed_run(rank: int, size: int, folder: Path, victim: int) -> None:
    """A rank is killed when the fifth step is charged and not yet released."""
    release, calls = NoisySum.release, itertools.count(1)

    def release_or_die(self: NoisySum, ranks: Any = None) -> torch.Tensor:
        if next(calls) == 5 and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return release(self, ranks)

    NoisySum.release = release_or_die  # type: ignore[method-assign]
    checkpoint = ModelCheckpoint(folder, filename="last", every_n_train_steps=4, monitor=None)
    fit(folder, Sharded(), resumable(folder), checkpoint, devices=size, max_epochs=3, enable_checkpointing=True)


@pytest.mark.slow  # test_ddp_private kills a rank in the same place
@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_rank_ends_the_run_and_the_step_stays_charged(victim: int, tmp_path: Path) -> None:
    group = RankProcesses(killed_run, 2, tmp_path, victim)
    results = group.results()
    codes = [process.exitcode for process in group.processes]
    assert (codes[victim], codes[1 - victim]) == (-signal.SIGKILL, 1)
    assert results[victim] is None
    assert "RuntimeError: Another rank ended before this one" in results[1 - victim]
    with PrivacyLedger.read_only(tmp_path / "run.db") as ledger:
        assert [attempt.num_steps for attempt in ledger.accounts()[0].attempts()] == [5]
    private = resumable(tmp_path)
    with pytest.warns(UserWarning, match="last 1 steps before the interruption came after the checkpoint"):
        fit(tmp_path, Sharded(), private, strategy="auto", max_epochs=3, ckpt_path=tmp_path / "last.ckpt")
    assert private.account.num_steps == 5 + 14


class Whole(Sharded):
    def configure_model(self) -> None:
        return


class PartlySharded(Sharded):
    def configure_model(self) -> None:
        fully_shard(self.network.inner, mesh=self.device_mesh["data_parallel"])


class Replicated(Sharded):
    """Divided among some ranks and repeated on others, which are one here."""

    def configure_model(self) -> None:
        fully_shard(self.network, mesh=self.device_mesh)


class Parallel(Sharded):
    def configure_model(self) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        plan = {"network.outputs": ColwiseParallel()}
        parallelize_module(self, self.device_mesh["tensor_parallel"], plan)
        fully_shard(self.network, mesh=self.device_mesh["data_parallel"])


class Thawing(Sharded):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.network.frozen.requires_grad_(True)


class Penalised(Sharded):
    """Uses a shard beside the modules, which would be given a raw gradient."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        shard = self.network.inner[0].weight
        return super().training_step(batch, batch_idx) + 0.1 * getattr(shard, "to_local", lambda: shard)().sum()


class CoupledOnOneRank(Sharded):
    """A loss that is no mean in one step of the second rank."""

    start = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        is_coupled = self.trainer.global_rank == 1 and self.trainer.global_step == self.start
        return loss**2 if is_coupled else loss


class CoupledLaterOnOneRank(CoupledOnOneRank):
    start = 3


REFUSED = {
    Whole: "MisconfigurationException: configure_model of Whole shards nothing",
    PartlySharded: "MisconfigurationException: The parameter 'network.places' is in no module that fully_shard",
    Replicated: "MisconfigurationException: The parameter 'network.places' is divided as",
    Parallel: "MisconfigurationException: The parameter 'network.outputs.weight' is divided as",
    Penalised: "PrivacyViolationError: The parameter 'network.inner.0.weight' received a gradient that did not come",
    Thawing: "'network.frozen.weight' was unfrozen after training had started",
    CoupledOnOneRank: "MisconfigurationException: The loss of CoupledOnOneRank couples the records of a batch",
    CoupledLaterOnOneRank: "PrivacyViolationError: During the run, the loss couples the records of a batch",
}


def refused_runs(rank: int, size: int, folder: Path, kinds: list[type[Sharded]]) -> list[str]:
    found = []
    callback.check_loss = check_loss  # a check that was passed before is repeated here
    for number, kind in enumerate(kinds):
        try:
            fit(folder, kind(), make_private(ledger=folder / f"{number}.db"), devices=size)
            found.append("accepted")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    try:
        trainer = make_trainer(folder, strategy="fsdp_private", devices=size)
        trainer.fit(Sharded(), loader())
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    try:
        model, private = Sharded(), make_private(ledger=folder / "other.db")
        trainer = make_trainer(folder, private, strategy="fsdp_private", devices=size)
        trainer.fit(model, DataLoader(make_data(60 + rank), batch_size=5))
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("kinds", [[Whole, PartlySharded, Replicated, Parallel, Penalised], *slow([*REFUSED])])
def test_every_rank_refuses_what_is_not_supported_in_one_sentence(kinds: list[type[Sharded]], tmp_path: Path) -> None:
    expected = [
        *(REFUSED[kind] for kind in kinds),
        "PrivateFSDPStrategy leaves gradients on their ranks",
        "The ranks of one private run",
    ]
    for found in on_ranks(refused_runs, 2, tmp_path, kinds):
        assert len(found) == len(expected)
        for message, start in zip(found, expected, strict=True):
            assert start in message, found
            assert message.count(". ") == 0
