"""What a private fit really does, seen from outside: gradients, batches, accounts, stops, metrics."""

import json
import logging
import math
import re
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from scipy import stats
from slow_cases import slow
from tiny_fits import RECORDS, Classifier, Validated, make_data, make_loader, make_private, make_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import (
    DPSGD,
    SRPPSGD,
    EpochShuffle,
    FixedSize,
    Poisson,
    PrivacyLedger,
    PrivateMetrics,
    SRPPAccountant,
    TwoWorldScenario,
    WithReplacement,
)
from lightning_pac.accountants import privacy_curve
from lightning_pac.cards import PrivacyCard
from lightning_pac.data import PoissonBatchSampler, private_loader
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients import ROUNDING
from lightning_pac.randomness import release_grid

THRESHOLD = 1e-6  # false alarms of each test on unseeded noise


class Gradients(pl.Callback):
    """Listed behind or before ours, it notes what it can see of the gradients."""

    def __init__(self) -> None:
        self.after_backward: list[bool] = []
        self.used: list[torch.Tensor] = []

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.after_backward.append(any(parameter.grad is not None for parameter in pl_module.parameters()))

    def on_before_optimizer_step(self, trainer: Any, pl_module: pl.LightningModule, optimizer: Any) -> None:
        self.used.append(torch.cat([p.grad.flatten().clone() for p in pl_module.parameters() if p.grad is not None]))


class Silent(Classifier):
    """Every record's gradient is zero, so that a released gradient is noise alone."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) * 0.0


@pytest.mark.parametrize(
    ("accumulate", "precision", "sampling"),
    [
        (1, "bf16-mixed", None),
        (4, "32-true", Poisson(rate=0.1)),
        *slow((4, "32-true", None), (1, "32-true", Poisson(rate=0.1))),
    ],
)
def test_the_noise_in_the_gradient_has_the_stated_deviation(
    accumulate: int, precision: str, sampling: Any, tmp_path: Path
) -> None:
    seen = Gradients()
    private = make_private(noise_multiplier=1.5, max_grad_norm=0.7, sampling=sampling)
    options = {"accumulate_grad_batches": accumulate, "precision": precision, "max_steps": 40, "max_epochs": -1}
    make_trainer(tmp_path, private, seen, **options).fit(Silent(), make_loader(batch_size=5))
    batch_size = 6.0 if sampling else 5.0 * accumulate
    assert len(seen.used) == 40
    deviation = 1.5 * 0.7 * math.sqrt(1 + 0.1**2) * (1 + ROUNDING)
    noise = torch.cat(seen.used) * batch_size / deviation
    assert stats.kstest(noise.numpy(), "norm").pvalue > THRESHOLD
    assert stats.kstest(noise.numpy() * 1.5, "norm").pvalue < THRESHOLD, "the test would not notice other noise"
    for first, second in zip(seen.used, seen.used[1:], strict=False):
        assert not torch.equal(first, second)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_released_sum_is_a_multiple_of_the_public_grid(accumulate: int, tmp_path: Path) -> None:
    seen = Gradients()
    private = make_private(noise_multiplier=1.5, max_grad_norm=0.7)
    trainer = make_trainer(tmp_path, private, seen, accumulate_grad_batches=accumulate)
    trainer.fit(Classifier(), make_loader(batch_size=4))  # 4 and 16: dividing by them is exact
    released = torch.cat(seen.used).double() * 4 * accumulate
    assert torch.all(torch.remainder(released, release_grid(1.5 * 0.7 * math.sqrt(1.01) * (1 + ROUNDING))) == 0)


def clipped_mean(model: Classifier, batch: Any, batch_size: float, max_grad_norm: float) -> torch.Tensor:
    """The sum of clipped gradients by a loop over the records."""
    total = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    for row in range(len(batch[0])):
        loss = Classifier.training_step(model, (batch[0][row : row + 1], batch[1][row : row + 1]), 0)
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        total += gradient * min(1.0, max_grad_norm / float(gradient.norm()))
    return total / batch_size


@pytest.mark.parametrize("accumulate", [1, 4])
def test_without_noise_the_gradient_is_the_clipped_mean(accumulate: int, tmp_path: Path) -> None:
    model, seen = Classifier(learning_rate=0.0), Gradients()
    private = make_private(noise_multiplier=1e-7, max_grad_norm=0.4)
    trainer = make_trainer(tmp_path, seen, private, accumulate_grad_batches=accumulate)
    # 60 records in batches of 8: the last batch holds 4, and with accumulation the last step has no full window.
    trainer.fit(model, make_loader(batch_size=8, shuffle=False))
    step = 8 * accumulate
    expected = [clipped_mean(model, make_data()[start : start + step], step, 0.4) for start in range(0, RECORDS, step)]
    assert len(seen.used) == len(expected) == trainer.global_step
    for used, wanted in zip(seen.used, expected, strict=True):
        assert torch.allclose(used, wanted, atol=1e-5)
    assert not any(seen.after_backward), "a raw gradient was visible after backward"


def test_a_callback_listed_first_still_comes_second(tmp_path: Path) -> None:
    seen, private = Gradients(), make_private()
    trainer = make_trainer(tmp_path, seen, private)
    trainer.fit(Classifier(), make_loader())
    assert trainer.callbacks[0] is private  # type: ignore[attr-defined]
    assert not any(seen.after_backward)


def test_more_noise_moves_the_parameters_further(tmp_path: Path) -> None:
    def distance(noise_multiplier: float) -> float:
        model = Classifier()
        before = torch.cat([parameter.detach().clone().flatten() for parameter in model.parameters()])
        trainer = make_trainer(tmp_path, make_private(noise_multiplier=noise_multiplier))
        trainer.fit(model, make_loader())
        return float((torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - before).norm())

    assert distance(1000.0) > 50 * distance(1.0)


class Sizes(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.sizes.append(len(batch[0]))
        return super().training_step(batch, batch_idx)


class FromModule(Sizes):
    def train_dataloader(self) -> Any:
        return make_loader()


class FromDataModule(pl.LightningDataModule):
    def train_dataloader(self) -> Any:
        return make_loader()


class Scheduled(Sizes):
    """Reads the number of steps while the optimizer is configured, which loads the data early."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1)]


@pytest.mark.parametrize("source", ["argument", "module", "datamodule", "scheduled"])
def test_poisson_sampling_takes_place_wherever_the_loader_comes_from(source: str, tmp_path: Path) -> None:
    model = {"module": FromModule, "scheduled": Scheduled}.get(source, Sizes)()
    data = {"module": None, "datamodule": FromDataModule()}.get(source, make_loader())
    trainer = make_trainer(tmp_path, make_private(sampling=Poisson(rate=0.1)), max_epochs=4)
    trainer.fit(model, data)
    assert len(model.sizes) == trainer.global_step == 40
    assert len(set(model.sizes)) > 2, "40 Poisson batches of mean size 6 all had one of two sizes"
    assert "process_dataloader" not in vars(trainer.strategy)


@pytest.mark.parametrize(
    ("loader", "amplified"),
    [
        (DataLoader(make_data(), batch_sampler=PoissonBatchSampler(RECORDS, 0.1)), True),
        (private_loader(make_data(), Poisson(rate=0.1)), True),
        (
            DataLoader(make_data(), batch_sampler=UniformWithReplacementSampler(num_samples=RECORDS, sample_rate=0.5)),
            False,
        ),
        (make_loader(), False),
    ],
)
def test_only_our_own_secret_draws_are_amplified(loader: Any, amplified: bool, tmp_path: Path) -> None:
    private, model = make_private(), Sizes()
    make_trainer(tmp_path, private).fit(model, loader)
    accountant = private.account.accountant
    assert accountant.is_amplified == amplified
    assert private.account.num_steps == len(model.sizes)
    if not amplified:
        price = replace(accountant, notion="joint").epsilon(1.0, private.account.num_steps)
        assert price <= private.account.epsilon == pytest.approx(price + 1e-6, abs=1e-7), "finite bits cost a little"


def test_an_empty_batch_still_takes_a_noised_step(tmp_path: Path) -> None:
    seen, private = Gradients(), make_private(sampling=Poisson(rate=1 / 50))
    model = Sizes()
    # 50 batches of 8 records at rate 1/50: each is empty with probability 0.85, none at all is with 1e-41.
    trainer = make_trainer(tmp_path, private, seen)
    trainer.fit(model, make_loader(records=8))
    assert trainer.global_step == len(seen.used) == 50
    assert private.account.num_steps == 50
    deviation = math.sqrt(1.01) / (8 / 50)
    quiet = torch.stack(seen.used).norm(dim=1).median() / math.sqrt(seen.used[0].numel())
    assert float(quiet) == pytest.approx(deviation, rel=0.25)  # each norm is within 25 % but once in 3e4; 50 of them


def test_a_placeholder_for_an_empty_batch_adds_nothing(tmp_path: Path) -> None:
    seen, private = Gradients(), make_private(sampling=Poisson(rate=1e-4), noise_multiplier=1e-7)
    make_trainer(tmp_path, private, seen, max_steps=20, max_epochs=-1).fit(Classifier(), make_loader(records=4))
    # All but a few batches are empty (each record is drawn with probability 2e-3 in the whole run).
    assert sum(float(used.norm()) < 0.1 for used in seen.used) >= 15


@pytest.mark.parametrize(
    ("arguments", "options", "batch_size", "sampling"),
    [
        ({}, {}, 10, EpochShuffle(10)),
        ({}, {"accumulate_grad_batches": 3}, 30, EpochShuffle(30)),
        ({}, {"limit_train_batches": 4}, 10, EpochShuffle(10, steps_per_pass=4)),
        ({"sampling": FixedSize(20)}, {"accumulate_grad_batches": 2}, 20, FixedSize(20)),
        ({"sampling": WithReplacement(20)}, {}, 20, WithReplacement(20)),
        ({"sampling": Poisson(0.2)}, {"accumulate_grad_batches": 4}, 12, Poisson(0.2)),
    ],
)
def test_the_account_is_for_steps_and_not_for_microbatches(
    arguments: dict[str, Any], options: dict[str, Any], batch_size: float, sampling: Any, tmp_path: Path
) -> None:
    private, seen = make_private(**arguments), Gradients()
    trainer = make_trainer(tmp_path, private, seen, max_epochs=2, **options)
    trainer.fit(Silent(), make_loader())
    account = private.account
    assert account.accountant.sampling == sampling
    assert account.num_steps == trainer.global_step == len(seen.used)
    scenario = TwoWorldScenario(num_differing=2, num_records=RECORDS)
    expected = SRPPAccountant(scenario, sampling, 4.0, "rpp").epsilon(1.0, trainer.global_step)
    assert account.epsilon == pytest.approx(expected)
    deviation = float(torch.cat(seen.used).std()) * batch_size
    assert deviation == pytest.approx(math.sqrt(1.01), rel=0.2)  # 300 draws or more: 5 deviations


@pytest.mark.parametrize(
    ("adjacency", "precision"),
    [("replace", "32-true"), ("zero_out", "64-true"), ("add_remove", "32-true"), ("add_remove", "bf16-mixed")],
)
def test_every_adjacency_and_precision_trains(adjacency: Any, precision: Any, tmp_path: Path) -> None:
    scenario = TwoWorldScenario(num_differing=2, adjacency=adjacency)
    private = make_private(scenario=scenario, epsilon=4.0, sampling=Poisson(rate=0.25, batch_size=15))

    class Typed(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step((batch[0].to(self.network[0].weight.dtype), batch[1]), batch_idx)  # type: ignore[index]

    trainer = make_trainer(tmp_path, private, precision=precision, max_epochs=3)
    trainer.fit(Typed(), make_loader())
    assert trainer.global_step == 12
    assert private.account.epsilon == pytest.approx(4.0, rel=1e-5)
    assert private.account.epsilon <= 4.0 * (1 + 1e-9)


class Tampering(pl.Callback):
    def __init__(self, tamper: Any) -> None:
        self.tamper = tamper

    def on_before_optimizer_step(self, trainer: Any, pl_module: pl.LightningModule, optimizer: Any) -> None:
        for parameter in pl_module.parameters():
            self.tamper(parameter)


class TamperingModule(Classifier):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.network[0].weight.grad.mul_(2.0)  # type: ignore[index, union-attr, operator]


class TamperingOptimizer(Classifier):
    def configure_optimizers(self) -> Any:
        class Centralizing(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                with torch.enable_grad():
                    closure()
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.grad.sub_(parameter.grad.mean())
                return super().step()

        return Centralizing(self.parameters(), 0.1)


@pytest.mark.parametrize(
    ("model", "callbacks"),
    [
        (Classifier, [Tampering(lambda parameter: parameter.grad.mul_(0.1))]),
        (Classifier, [Tampering(lambda parameter: setattr(parameter, "grad", torch.zeros_like(parameter)))]),
        (TamperingModule, []),
        (TamperingOptimizer, []),
    ],
)
def test_a_gradient_that_is_not_the_released_one_ends_the_run(model: Any, callbacks: Any, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, *callbacks, make_private())
    with pytest.raises(PrivacyViolationError, match="before the optimizer used it"):
        trainer.fit(model(), make_loader())
    assert trainer.global_step <= 1


def test_the_run_stops_before_a_step_that_would_pass_the_budget(tmp_path: Path) -> None:
    scenario = TwoWorldScenario(num_differing=2, num_records=RECORDS)
    accountant = SRPPAccountant(scenario, FixedSize(10), 4.0, "rpp")
    budget = accountant.epsilon(2.0, 7) * 1.0001
    with PrivacyLedger(tmp_path / "shared.db", budget={"rpp": budget}) as ledger:
        private = make_private(noise_multiplier=2.0, sampling=FixedSize(10), ledger=ledger)
        trainer = make_trainer(tmp_path, private, max_epochs=5)
        trainer.fit(Classifier(), make_loader())
        assert trainer.global_step == private.account.num_steps == 7
        assert ledger.spent("rpp") == pytest.approx(accountant.epsilon(2.0, 7))


@pytest.mark.parametrize("option", [{"min_epochs": 4}, {"min_steps": 20}])
def test_a_least_number_of_steps_does_not_override_the_budget(option: dict[str, int], tmp_path: Path) -> None:
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=RECORDS), FixedSize(10), 4.0, "rpp")
    with PrivacyLedger(tmp_path / "shared.db", budget={"rpp": accountant.epsilon(2.0, 7) * 1.0001}) as ledger:
        private = make_private(noise_multiplier=2.0, sampling=FixedSize(10), ledger=ledger)
        trainer = make_trainer(tmp_path, private, max_epochs=5, **option)
        trainer.fit(Classifier(), make_loader())
        assert trainer.global_step == ledger.account(ledger.accounts()[0].name, "rpp").attempts()[0].num_steps == 7


def test_passes_cut_short_are_charged_as_passes_and_stop_in_time(tmp_path: Path) -> None:
    class Short(Classifier):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 2 else None

    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=RECORDS), EpochShuffle(10), 4.0, "rpp")
    with PrivacyLedger(tmp_path / "shared.db", budget={"rpp": accountant.epsilon(1.0, [2, 2, 2]) * 1.0001}) as ledger:
        private = make_private(ledger=ledger)
        trainer = make_trainer(tmp_path, private, max_epochs=9)
        trainer.fit(Short(), make_loader())
        assert trainer.global_step == 6
        assert private.account.stretches[:3] == (2, 2, 2)
        assert ledger.spent("rpp") == pytest.approx(accountant.epsilon(1.0, [2, 2, 2]))


def test_runs_on_one_dataset_share_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    for _ in range(2):
        make_trainer(tmp_path, make_private(ledger=path)).fit(Classifier(), make_loader())
    with PrivacyLedger.read_only(path) as ledger:
        first, second = ledger.accounts()
        assert first.spent == second.spent > 0
        assert ledger.spent("rpp") == pytest.approx(2 * first.spent)


class Logging(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", super().training_step(batch, batch_idx))


@pytest.mark.parametrize("notion", ["rpp", "ave", "joint", "ms-ave", "ms-joint"])
def test_metrics_cards_and_the_summary_agree(notion: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    private = make_private(epsilon=3.0, notion=notion, sampling=EpochShuffle(10))
    trainer = make_trainer(
        tmp_path,
        private,
        max_epochs=2,
        logger=CSVLogger(tmp_path),
        enable_checkpointing=True,
        log_every_n_steps=1,
    )
    with caplog.at_level(logging.INFO):
        trainer.fit(Logging(), make_loader(), make_loader(shuffle=False))
    metric = {"rpp": "rpp", "ave": "srpp_ave", "joint": "srpp_joint", "ms-ave": "ms_srpp_ave"}
    name = f"privacy/{metric.get(notion, 'ms_srpp_joint')}_epsilon"
    logged = trainer.callback_metrics
    assert float(logged[name]) == pytest.approx(3.0)
    assert trainer.progress_bar_metrics["eps"] == pytest.approx(3.0)
    assert float(logged["privacy/rpp_epsilon"]) >= 3.0 * 0.9999
    assert 0.5 < float(logged["privacy/world_success_bound"]) < 1
    assert float(logged["privacy/noise_multiplier"]) == pytest.approx(private.account.noise_multiplier)
    assert float(logged["privacy/clipped_fraction_deviation"]) > 0
    assert torch.isfinite(logged["privacy/clipped_fraction"])
    cards = list(tmp_path.rglob("privacy_card.json"))
    assert len(cards) == 2, "one beside the logs, one beside the checkpoint"
    values = {entry["name"]: entry["value"] for entry in json.loads(cards[0].read_text())["guarantees"]}
    assert values[name.removeprefix("privacy/")] == pytest.approx(3.0)
    checkpoint = torch.load(next(tmp_path.rglob("*.ckpt")), weights_only=True)
    assert checkpoint["privacy_card"]["details"]["num_steps"] == 12
    assert "SRPPSGD: noise multiplier" in caplog.text
    assert "ratio of clipped signal to noise at most" in caplog.text
    told = f"SRPPSGD: 12 noised steps. The Rényi divergence of order 4 is at most 3 ({name[8:]}). Anyone who sees"
    assert told in caplog.text


@pytest.mark.parametrize(
    ("optimizer", "options", "times"),
    [
        (torch.optim.SGD, {}, 18.0),
        (torch.optim.SGD, {}, 24.0),
        (torch.optim.SGD, {"momentum": 0.9}, 1.8),
        (torch.optim.SGD, {"momentum": 0.9}, 2.4),
        (torch.optim.Adam, {}, 24.0),
    ],
)
def test_a_learning_rate_far_above_the_signal_is_warned_of(
    optimizer: type, options: dict[str, float], times: float, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    private, model = make_private(noise_multiplier=0.5, max_grad_norm=0.5), Classifier()
    # A step's ratio of clipped signal to noise: 10 records over 0.5 times the root of the parameters.
    ratio = 10 / (0.5 * math.sqrt(sum(parameter.numel() for parameter in model.parameters())))
    model.configure_optimizers = lambda: optimizer(model.parameters(), lr=times * ratio / 0.5, **options)  # type: ignore
    make_trainer(tmp_path, private, max_steps=2).fit(model, make_loader())
    told = [str(warning.message) for warning in recwarn if "large beside this noise" in str(warning.message)]
    assert len(told) == (optimizer is torch.optim.SGD and times in (24.0, 2.4))
    starts = [float(re.search(r"start at (\S+) to", words)[1]) for words in told]
    assert starts == [pytest.approx(ratio / 0.5 * (0.1 if options else 1.0), rel=0.05)] * len(told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lr": 0.001}, True),
        ({"lr": 0.001, "frozen": True}, False),
        ({"lr": 0.03}, False),
        ({"lr": 0.03, "schedule": torch.optim.lr_scheduler.OneCycleLR}, False),  # which begins at a 25th of it
        ({"lr": 0.03, "schedule": torch.optim.lr_scheduler.LambdaLR}, False),  # and this at zero
    ],
)
def test_adam_at_a_rate_that_moves_nothing_is_warned_of(
    options: dict[str, Any], told: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    private, model = make_private(noise_multiplier=0.5), Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=options["lr"])
    if schedule := options.get("schedule"):
        is_cycle = schedule is torch.optim.lr_scheduler.OneCycleLR
        schedule(optimizer, *([0.03, 20] if is_cycle else [lambda step: step / 20]))
    next(model.parameters()).requires_grad_(not options.get("frozen", False))
    model.configure_optimizers = lambda: optimizer  # type: ignore[method-assign]
    make_trainer(tmp_path, private, max_epochs=-1, max_steps=20).fit(model, make_loader())
    found = [str(warning.message) for warning in recwarn if "Adam moves a weight" in str(warning.message)]
    assert bool(found) == told
    assert not told or "by about 0.02 at most in these 20 steps" in found[0]


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_an_exact_value_of_an_evaluation_by_itself_is_named(
    stage: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    class Measured(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", nn.functional.cross_entropy(self.network(batch[0]), batch[1]))
            self.log("val_other", 1.0)

        test_step = validation_step

    trainer, model = make_trainer(tmp_path, make_private(), max_steps=1), Measured()
    trainer.fit(model, make_loader())
    getattr(trainer, stage)(model, make_loader(shuffle=False), verbose=False)
    (found,) = [str(warning.message) for warning in recwarn if "what else evaluations log" in str(warning.message)]
    assert found.startswith("val_loss, and what else")


@pytest.mark.parametrize(
    "change", ["none", "evaluated", "trained on", "another model", "kept beside", "calibrated", "beside a function"]
)
def test_a_checkpoint_of_changed_weights_says_so(change: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Weights of more training without noise, or of another model, were saved under the run's promise."""

    class Keeping(Validated):
        kept = 0.5

        def __init__(self, temperature: float = 1.0, activation: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters()

        def get_extra_state(self) -> dict[str, Any]:
            return {"kept": self.kept, "anew": torch.ones(3)}

        def set_extra_state(self, state: dict[str, Any]) -> None:
            self.kept = state["kept"]

    trainer, model = make_trainer(tmp_path, make_private(ledger=tmp_path / "study.db"), max_steps=1), Keeping()
    if change == "beside a function":  # with which Lightning leaves out all hyperparameters
        model.hparams.activation = lambda x: x
    trainer.fit(model, make_loader())
    if change == "evaluated":
        trainer.validate(model, make_loader(shuffle=False), verbose=False)
    elif change in ("trained on", "beside a function"):
        make_trainer(tmp_path, max_steps=1).fit(model, make_loader())
    elif change == "kept beside":
        model.kept = float(make_data().tensors[0].mean())
    elif change == "calibrated":
        model.hparams.temperature = float(make_data().tensors[0].std())
    elif change == "another model":
        trainer.validate(Keeping(), make_loader(shuffle=False), verbose=False)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    card = torch.load(tmp_path / "saved.ckpt", weights_only=True)["privacy_card"]
    found = [condition for condition in card["conditions"] if "did not end with" in condition]
    assert [condition.startswith("Not covered: ") for condition in found] == [True] * (
        change not in ("none", "evaluated")
    )
    assert any("did not end with" in str(warning.message) for warning in recwarn) == bool(found)


def test_a_step_may_wait_for_what_a_thread_did_since_the_last(tmp_path: Path) -> None:
    """A future's copy is never done, and the check before training waited for it forever."""
    started: list[Future[None]] = []

    class Prefetching(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if wait(started, timeout=20).not_done:
                pytest.fail("the thread is not heard")  # no Exception, which the check would take for the step's own
            started.clear()
            started.append(threads.submit(time.sleep, 0.05))
            return super().training_step(batch, batch_idx)

    trainer = make_trainer(tmp_path, make_private(), max_steps=2)
    with ThreadPoolExecutor(1) as threads:
        trainer.fit(Prefetching(), make_loader())
    assert trainer.global_step == 2


def test_the_rate_of_an_embedding_table_is_not_warned_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Averages of embeddings learn at rates where other networks do not."""
    table = nn.EmbeddingBag(50, 8)
    model = Classifier(100.0, nn.Sequential(table, nn.Linear(8, 3)))
    records = TensorDataset(torch.randint(0, 50, (60, 5)), make_data().tensors[1])
    make_trainer(tmp_path, make_private(), max_steps=2).fit(model, DataLoader(records, batch_size=10, shuffle=True))
    assert not [warning for warning in recwarn if "large beside" in str(warning.message)]


@pytest.mark.parametrize(
    ("promise", "metric", "limit", "adjacency"),
    [
        ({"epsilon": 2.0, "delta": 1e-5}, "epsilon_at_delta", 2.0, "zero_out"),
        ({"world_success_bound": 0.6}, "world_success_bound", 0.6, "replace"),
        ({"world_success_bound": 0.8, "prior": 0.3}, "world_success_bound", 0.8, "zero_out"),
    ],
)
def test_a_promise_is_kept_to_the_last_step_and_spoken_of_first(
    promise: dict[str, float], metric: str, limit: float, adjacency: Any, tmp_path: Path, caplog: Any
) -> None:
    scenario = TwoWorldScenario(share_differing=0.05, adjacency=adjacency)
    private = SRPPSGD(scenario, sampling=Poisson(1 / 6), **promise)
    trainer = make_trainer(tmp_path, private, max_epochs=2, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    with caplog.at_level(logging.INFO):
        trainer.fit(Classifier(), make_loader())
    account = private.account
    assert account.num_steps == trainer.global_step == 12
    assert account.accountant.scenario.num_differing == 3, "0.05 of 60 records"
    logged = trainer.callback_metrics
    assert limit * 0.9999 <= float(logged[f"privacy/{metric}"]) <= limit * (1 + 1e-6), "logged in float32"
    short = "guess" if metric == "world_success_bound" else "eps"
    assert trainer.progress_bar_metrics == {short: pytest.approx(limit, rel=1e-4)}
    card = PrivacyCard.from_json(next(tmp_path.rglob("privacy_card.json")).read_text())
    assert (card.guarantees[0].name, card.guarantees[0].value <= limit) == (metric, True)
    assert card.details["finite_precision_epsilon"] > 0
    assert not account.next_keeps_promise()
    second = "Anyone who sees this model" if metric == "world_success_bound" else "Epsilon is at most 2 at delta 1e-05"
    assert f"SRPPSGD: 12 noised steps. {second}" in caplog.text
    ahead = (
        "epsilon is at most 2 at delta 1e-05, and anyone" if metric == "epsilon_at_delta" else "anyone who sees this"
    )
    assert f" After 12 steps, {ahead}" in caplog.text


class ShowingLoss(Classifier):
    """Shows its loss, as most models do."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, prog_bar=True)
        return loss


def test_the_promise_fits_into_a_progress_bar_of_80_columns(tmp_path: Path, capsys: Any) -> None:
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=CSVLogger(tmp_path),
        default_root_dir=tmp_path,
        callbacks=[SRPPSGD(TwoWorldScenario(2), world_success_bound=0.6), TQDMProgressBar()],
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(ShowingLoss(), make_loader())
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).replace("\r", "\n").splitlines()
    shown = [line.replace(" " * 10, "") for line in lines if "guess=" in line]
    assert shown
    # Without the bar itself, which takes what is left.
    assert max(len(re.sub(r"\|[^|]*\|", "||", line)) for line in shown) <= 80, shown[-1]


def test_dpsgd_is_srpp_sgd_for_one_record(tmp_path: Path, caplog: Any) -> None:
    sampling = Poisson(1 / 6, batch_size=10)
    private = DPSGD(epsilon=3, delta=1e-5, sampling=sampling)
    with caplog.at_level(logging.INFO):
        make_trainer(tmp_path, private, max_epochs=2).fit(Classifier(), make_loader())
    assert "DPSGD: 12 noised steps. Epsilon is at most 3 at delta 1e-05. Anyone who sees" in caplog.text
    assert "rpp_epsilon" not in caplog.text, "a second, larger epsilon that nobody asked for"
    card = PrivacyCard.from_json(next(tmp_path.rglob("privacy_card.json")).read_text())
    assert card.title == "A model trained with DP-SGD"
    accountant = SRPPAccountant(TwoWorldScenario.differential_privacy(), sampling)
    assert private.account.accountant == accountant
    noise = accountant.noise_multiplier(3.0, 12, delta=1e-5)
    assert noise <= private.account.noise_multiplier <= noise * (1 + 1e-4)


def test_dpsgd_with_the_noise_of_a_plan_says_its_epsilon_first(tmp_path: Path, caplog: Any) -> None:
    sampling = Poisson(1 / 6, batch_size=10)
    private = DPSGD(sampling=sampling, noise_multiplier=4.0)
    with caplog.at_level(logging.INFO):
        make_trainer(tmp_path, private, max_epochs=2).fit(Classifier(), make_loader())
    accountant = SRPPAccountant(TwoWorldScenario.differential_privacy(), sampling)
    least = privacy_curve(accountant.events(4.0, 12)).epsilon(1e-5)
    said = re.search(r"After 12 steps, epsilon is at most ([\d.]+) at delta 1e-05, and anyone", caplog.text)
    assert said is not None
    assert least <= float(said[1]) <= least * 1.001


@pytest.mark.parametrize("promise", [{"epsilon": 3.0}, {"delta": 1e-5}])
def test_dpsgd_takes_epsilon_and_delta_or_noise(promise: Any) -> None:
    with pytest.raises(ValueError, match="one goes with the other"):
        DPSGD(sampling=Poisson(0.1, batch_size=10), **promise)
    with pytest.raises(ValueError, match="each decide the noise"):
        DPSGD(3.0, 1e-5, Poisson(0.1, batch_size=10), noise_multiplier=1.0)


def test_values_that_leave_without_noise_are_named_in_one_warning(tmp_path: Path) -> None:
    class Plateau(Logging):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 0.05)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}

    callbacks = [EarlyStopping("val_loss"), ModelCheckpoint(tmp_path, monitor="train_loss")]
    trainer = make_trainer(tmp_path, make_private(), *callbacks, enable_checkpointing=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Plateau(), make_loader(), make_loader(shuffle=False))
    messages = [str(warning.message) for warning in caught if "leave this run without noise" in str(warning.message)]
    assert len(messages) == 1
    for name in (
        "train_loss,",
        "val_loss (EarlyStopping)",
        "train_loss (ModelCheckpoint)",
        "val_loss (ReduceLROnPlateau)",
    ):
        assert name in messages[0]


def test_values_that_are_logged_where_no_synthetic_record_came_are_named_once_they_are(tmp_path: Path) -> None:
    class Late(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            if batch_idx == 4:
                self.log("late_loss", loss)
            return loss

    class OfACallback(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("its_loss", outputs["loss"])

    callback, model = OfACallback(), Late()
    trainer = make_trainer(tmp_path, make_private(), callback, max_epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, make_loader())
    told = [str(warning.message) for warning in caught if "leave this run without noise" in str(warning.message)]
    assert [message.split(": ")[1].split(".")[0] for message in told] == ["its_loss", "late_loss"]
    assert "log" not in vars(model)
    assert callback.log == model.log  # type: ignore[attr-defined]  # which Lightning gave it


def test_the_first_value_of_a_validation_without_noise_is_named(tmp_path: Path) -> None:
    """Two trials logged an exact accuracy of private records, and nothing was said of it."""

    class Noted(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.training_step(batch, batch_idx))
            self.log("val_other", 1.0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, make_private(), max_epochs=2).fit(Noted(), make_loader(), make_loader(shuffle=False))
    told = [str(warning.message) for warning in caught if "noise it by PrivateMetrics" in str(warning.message)]
    assert [message.partition(",")[0] for message in told] == ["val_loss"]


def test_whom_records_are_about_is_asked_at_the_start(tmp_path: Path) -> None:
    class Visits(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch[:2], batch_idx)

    data: list[Any] = [(torch.randn(6), row % 3, f"patient {row // 3}") for row in range(900)]
    private = make_private(scenario=TwoWorldScenario(1))
    with pytest.warns(UserWarning, match="a text at 2 that about 2 others share.*unit=Persons"):
        make_trainer(tmp_path, private).fit(Visits(), DataLoader(data, batch_size=300, shuffle=True))  # type: ignore[arg-type]


def test_norms_of_released_gradients_are_not_named(tmp_path: Path) -> None:
    class Norms(Classifier):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.log_dict(grad_norm(self, norm_type=2))
            self.log("loss_of_a_batch", self.trainer.callback_metrics.get("loss", 0.0))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, make_private()).fit(Norms(), make_loader())
    told = [str(warning.message) for warning in caught if "leave this run without noise" in str(warning.message)]
    assert [message.split(": ")[1].split(".")[0] for message in told] == ["loss_of_a_batch"]


def test_monitors_of_noised_metrics_are_not_named(tmp_path: Path) -> None:
    class Noted(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torchmetrics.MeanMetric()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.mean.update(batch[0][:, 0])
            self.log("val/mean", self.mean)

    ledger = tmp_path / "study.db"
    private = make_private(ledger=ledger)
    metrics = PrivateMetrics(["val/mean"], private.arguments.scenario, epsilon=1.0, renyi_order=4, ledger=ledger)
    stop = EarlyStopping("val/mean", min_delta=1e6, patience=1)
    trainer = make_trainer(tmp_path, private, metrics, stop, max_epochs=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without noise")
        warnings.filterwarnings("error", message=".*ended this run early")  # what was paid for may decide it
        trainer.fit(Noted(), make_loader(), make_loader(shuffle=False))
    assert stop.stopped_epoch == 1


def test_a_hopeless_run_is_announced(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"end where they began\. .* times as many records .* trainable parameters"):
        make_trainer(tmp_path, make_private(noise_multiplier=500.0)).fit(Classifier(), make_loader())


def test_the_card_says_in_words_how_many_records_decide_the_secret(tmp_path: Path) -> None:
    private = make_private()
    trainer = make_trainer(tmp_path, private)
    trainer.fit(Classifier(), make_loader())
    card = PrivacyCard.from_json(next(tmp_path.rglob("privacy_card.json")).read_text())
    scenario = private.account.accountant.scenario
    assert f"at most {scenario.total_differing} of {scenario.num_records} records decide" in card.secret
    exact = private.account.accountant.world_success_bound(card.details["noise_multiplier"], trainer.global_step)
    assert exact <= card.guarantees[0].value == pytest.approx(exact, abs=2e-6), "finite bits cost a little"


def test_a_loss_that_cannot_be_checked_is_announced(tmp_path: Path) -> None:
    class NeedsTrainer(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            assert self.trainer.accelerator
            return super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match="could not show that the loss of NeedsTrainer is a mean over records"):
        make_trainer(tmp_path, make_private()).fit(NeedsTrainer(), make_loader())


class Exploding(Classifier):
    """Gives one record a gradient that is not finite."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        logits = self.network(batch[0])
        losses = nn.functional.cross_entropy(logits, batch[1], reduction="none")
        return (losses * torch.where(batch[0][:, 0] > 1.5, torch.inf, 1.0)).mean()


def test_a_gradient_that_is_not_finite_counts_as_zero(tmp_path: Path) -> None:
    model = Exploding()
    assert (make_data().tensors[0][:, 0] > 1.5).any()
    trainer = make_trainer(tmp_path, make_private(), max_epochs=2)
    trainer.fit(model, make_loader())
    assert trainer.global_step == 12
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_parameters_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="The parameters are no longer finite, so training has diverged"):
        make_trainer(tmp_path, make_private()).fit(Classifier(learning_rate=1e38), make_loader())


def test_an_optimizer_state_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    class Overflowing(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            trainer.optimizers[0].state[next(pl_module.parameters())]["average"] = torch.tensor([1.0, math.inf])

    with pytest.raises(RuntimeError, match="The optimizer state is no longer finite"):
        make_trainer(tmp_path, make_private(), Overflowing(), max_epochs=2).fit(Classifier(), make_loader())


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = Classifier()
    model.network[0].bias.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    frozen = model.network[0].bias.detach().clone()  # type: ignore[index, union-attr, operator]
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    make_trainer(tmp_path, make_private()).fit(model, make_loader())
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == wanted
    assert torch.equal(model.network[0].bias, frozen)  # type: ignore[index, union-attr]
    loss = model.training_step(make_data()[:4], 0)
    loss.backward()
    assert model.network[0].weight.grad is not None  # type: ignore[index, union-attr]
    assert not any("grad_sample" in vars(parameter) for parameter in model.parameters())


def test_under_add_remove_nothing_tells_the_number_of_records(tmp_path: Path) -> None:
    scenario = TwoWorldScenario(num_differing=1, adjacency="add_remove")
    private = make_private(scenario=scenario, epsilon=4.0, sampling=Poisson(rate=0.125, batch_size=50))
    trainer = make_trainer(tmp_path, private)
    trainer.fit(Classifier(), make_loader(records=397))
    assert trainer.num_training_batches == 8
    for card in tmp_path.rglob("privacy_card.*"):
        assert not re.search(r"\b397\b", card.read_text())
    with PrivacyLedger.read_only(tmp_path / "privacy_ledger.db") as ledger:
        assert "397" not in json.dumps(ledger.accounts()[0].declaration)


def test_a_replaced_loader_must_draw_like_the_first(tmp_path: Path) -> None:
    class Changing(Classifier):
        def train_dataloader(self) -> Any:
            return make_loader(batch_size=10 if self.current_epoch == 0 else 12)

    from lightning.fabric.utilities.exceptions import MisconfigurationException

    trainer = make_trainer(tmp_path, make_private(), max_epochs=2, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(MisconfigurationException, match="changed or replaced and draws otherwise"):
        trainer.fit(Changing())
    trainer = make_trainer(
        tmp_path, make_private(sampling=Poisson(0.2)), max_epochs=2, reload_dataloaders_every_n_epochs=1
    )
    trainer.fit(Changing())
    assert trainer.global_step == 10


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_and_the_collate_function_are_kept(num_workers: int, tmp_path: Path) -> None:
    collated: list[int] = []

    def collate(records: Any) -> Any:
        collated.append(len(records))
        return torch.utils.data.default_collate(records)

    trainer = make_trainer(tmp_path, make_private(sampling=Poisson(0.25)), max_epochs=2)
    trainer.fit(Sizes(), make_loader(num_workers=num_workers, collate_fn=collate))
    loader = trainer.train_dataloader
    assert isinstance(loader, DataLoader)
    assert loader.num_workers == num_workers
    assert loader.collate_fn is collate
    assert trainer.global_step == 8
