"""Every configuration that would break the guarantee ends in one sentence that says what to do."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateFinder,
    ModelPruning,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from tiny_fits import RECORDS, Classifier, make_data, make_loader, make_private, make_trainer
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_pac import SRPPSGD, EpochShuffle, FixedSize, Poisson, TwoWorldScenario
from lightning_pac.callbacks.shared import model_problems
from lightning_pac.exceptions import BudgetExceededError, PrivacyViolationError

REPLACE = TwoWorldScenario(num_differing=2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon is 0.0, but must be positive and finite"),
        ({"epsilon": "8"}, TypeError, "epsilon is '8', but must be a real number"),
        ({"epsilon": math.inf}, ValueError, "epsilon is inf, but must be positive"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier is -1.0, but must be positive"),
        ({"epsilon": 1.0, "max_grad_norm": 0.0}, ValueError, "max_grad_norm is 0.0, but must be positive"),
        ({"epsilon": 1.0, "renyi_order": 1.0}, ValueError, "renyi_order is 1.0, but must be finite and above 1"),
        ({"epsilon": 1.0, "renyi_order": math.nan}, ValueError, "renyi_order is nan"),
        ({"noise_multiplier": 1.0, "max_grad_norm": 1e-161}, ValueError, "is 1e-161, but must lie between 1e-15"),
        ({"noise_multiplier": 1.0, "max_grad_norm": {"a": 1e300}}, ValueError, "max_grad_norm a is 1e.300, but"),
        (
            {"epsilon": 1.0, "noise_multiplier": 1.0},
            ValueError,
            "epsilon and noise_multiplier each decide.*exactly one",
        ),
        ({"epsilon": 3.0}, ValueError, "epsilon=3 says nothing by itself: .*delta=1e-5.*renyi_order=16"),
        ({"epsilon": 3.0, "delta": 1e-5, "renyi_order": 16}, ValueError, "with renyi_order=16 another: leave one"),
        ({"epsilon": 3.0, "world_success_bound": 0.6}, ValueError, "one promise and epsilon with delta another"),
        ({"epsilon": 3.0, "delta": 0.0}, ValueError, "delta is 0.0, but must lie strictly between 0 and 1"),
        ({"epsilon": 3.0, "delta": 1}, ValueError, "delta is 1.0, but must lie strictly between 0 and 1"),
        ({"epsilon": 3.0, "delta": float("1e-400")}, ValueError, "delta is 0.0, but must lie strictly between"),
        ({"epsilon": 3.0, "delta": "1e-5"}, TypeError, "delta is '1e-5', but must be a real number"),
        ({"delta": 1e-5}, ValueError, "belongs to an epsilon"),
        ({"noise_multiplier": 1.0, "delta": 1e-5}, ValueError, "belongs to an epsilon"),
        ({"world_success_bound": 0.5}, ValueError, "world_success_bound is 0.5, but must lie above 0.5"),
        ({"world_success_bound": 0.4}, ValueError, "world_success_bound is 0.4, but must lie above 0.5"),
        ({"world_success_bound": 1.0}, ValueError, "world_success_bound is 1.0, but must lie above 0.5.*below 1"),
        ({"world_success_bound": 0.8, "prior": 0.9}, ValueError, "must lie above 0.9, which a blind guess reaches"),
        ({"noise_multiplier": 1.0, "prior": 0.3}, ValueError, "belongs to a bound on guessing"),
        ({"epsilon": 3.0, "delta": 1e-5, "notion": "ms-ave"}, ValueError, r"promises no \(epsilon, delta\)"),
        ({"world_success_bound": 0.6, "notion": "ms-joint"}, ValueError, "promises no bound on guessing"),
        ({}, ValueError, "epsilon is None.*pass exactly one"),
        ({"epsilon": 1.0, "notion": "average"}, ValueError, "notion is 'average', but must be ave, joint"),
        ({"noise_multiplier": 1.0, "sampling": 0.01}, TypeError, "sampling is 0.01, but must be a Sampling or None"),
        ({"noise_multiplier": 1.0, "scenario": 10}, TypeError, "scenario is 10, but must be a TwoWorldScenario"),
        (
            {"noise_multiplier": 1.0, "sampling": Poisson(0.1, secret_draws=False)},
            ValueError,
            "leave secret_draws=False out",
        ),
        (
            {"noise_multiplier": 1.0, "scenario": TwoWorldScenario.differential_privacy(), "sampling": EpochShuffle(8)},
            ValueError,
            "add_remove holds under our Poisson sampling only.*zero_out",
        ),
        (
            {"noise_multiplier": 1.0, "scenario": TwoWorldScenario.differential_privacy()},
            ValueError,
            "sampling is None, but add_remove holds under our Poisson",
        ),
        (
            {"noise_multiplier": 1.0, "scenario": TwoWorldScenario.differential_privacy(), "sampling": Poisson(0.1)},
            ValueError,
            "so state the batch size",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    scenario = arguments.pop("scenario", REPLACE)
    with pytest.raises(error, match=message):
        SRPPSGD(scenario, **arguments)


class BatchNormClassifier(Classifier):
    def __init__(self) -> None:
        super().__init__(network=nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


class InstanceNormClassifier(Classifier):
    def __init__(self) -> None:
        network = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten())
        super().__init__(network=nn.Sequential(network, nn.Linear(6, 3)))


class InfiniteClassifier(Classifier):
    def __init__(self) -> None:
        super().__init__()
        torch.nn.init.constant_(self.network[0].bias, math.inf)  # type: ignore[index, union-attr, arg-type, operator]


class FrozenClassifier(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return None


class ClippingClassifier(Classifier):
    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.1)


class TwoOptimizers(Classifier):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.1)]


class ManualClassifier(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class LBFGSClassifier(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class StrangeParameters(Classifier):
    def configure_optimizers(self) -> Any:
        self.outside = [nn.Parameter(torch.zeros(2))]
        return torch.optim.SGD([*self.parameters(), *self.outside], 0.1)


class WeightedClassifier(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1], weight=torch.tensor([1.0, 5.0, 1.0]))


class ContrastiveClassifier(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        outputs = nn.functional.normalize(self.network(batch[0]), dim=1)
        return nn.functional.cross_entropy(outputs @ outputs.T / 0.1, torch.arange(len(outputs)))


class SummingClassifier(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1], reduction="sum")


class AveragingClassifier(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.average += batch[0].mean(0)
        return super().training_step(batch, batch_idx)


class MixUp(nn.Module):
    pass


class MixUpClassifier(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.mixup = MixUp()


class FetchingClassifier(Classifier):
    def training_step(self, dataloader_iter: Any) -> torch.Tensor:  # type: ignore[override]
        return super().training_step(next(dataloader_iter)[0], 0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (BatchNormClassifier, r"'network.1' \(BatchNorm1d\) normalizes over the batch.*fix_batch_norm"),
        (InstanceNormClassifier, "keeps running statistics of private inputs.*track_running_stats=False"),
        (InfiniteClassifier, "'network.0.bias' holds numbers that are not finite before the first step"),
        (FrozenClassifier, "FrozenClassifier has no trainable parameters.*unfreeze what is to be trained"),
        (ClippingClassifier, "configure_gradient_clipping would change the noised gradient: remove it"),
        (ManualClassifier, "set automatic_optimization = True"),
        (LBFGSClassifier, "LBFGS evaluates the gradient several times a step.*use SGD, Adam"),
        (StrangeParameters, "holds parameters that are not part of StrangeParameters"),
        (WeightedClassifier, "couples the records of a batch.*return the mean of losses"),
        (ContrastiveClassifier, "couples the records of a batch"),
        (SummingClassifier, "is not the mean over the records of a batch"),
        (AveragingClassifier, "The state 'average' of AveragingClassifier takes up private records without noise"),
        (MixUpClassifier, "holds MixUp, which mixes records of a batch"),
        (FetchingClassifier, "fetches any number of batches in a step"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_models_that_break_the_account_are_refused(model: Any, message: str, tmp_path: Path) -> None:
    fitted = model()
    before = {name: value.clone() for name, value in fitted.state_dict().items()}
    with pytest.raises(MisconfigurationException, match=message):
        make_trainer(tmp_path, make_private()).fit(fitted, make_loader())
    assert all(torch.equal(value, before[name]) for name, value in fitted.state_dict().items())
    assert all(not parameter._backward_hooks for parameter in fitted.parameters())


def test_several_optimizers_are_refused(tmp_path: Path) -> None:
    # Lightning itself refuses several optimizers under automatic optimization, before training starts.
    with pytest.raises((MisconfigurationException, RuntimeError), match=r"multiple optimizers|2 optimizers"):
        make_trainer(tmp_path, make_private()).fit(TwoOptimizers(), make_loader())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_clip_val": 0.5}, "gradient_clip_val=0.5 would rescale the noised gradient"),
        ({"precision": "16-true"}, "precision='16-true' is not supported: use one of 32-true"),
        (
            {"strategy": "ddp", "devices": 2},
            "DDPStrategy would average or shard raw gradients.*use strategy='ddp_private'",
        ),
    ],
)
def test_trainer_options_that_break_the_account_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path, make_private(), **options)
    callback = trainer.callbacks[0]  # type: ignore[attr-defined]
    model = Classifier()
    # A strategy is refused before it shards the model.
    begin = (
        partial(callback.setup, trainer, model, "fit")
        if "strategy" in options
        else partial(trainer.fit, model, make_loader())
    )
    with pytest.raises(MisconfigurationException, match=message) as refused:
        begin()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("strategy", ["FSDPStrategy", "DeepSpeedStrategy"])
def test_sharding_strategies_are_refused(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, make_private())
    monkeypatch.setattr(type(trainer), "strategy", type(strategy, (), {"precision_plugin": trainer.precision_plugin})())
    with pytest.raises(MisconfigurationException, match=f"{strategy} would average or shard raw gradients"):
        trainer.callbacks[0].setup(trainer, Classifier(), "fit")  # type: ignore[attr-defined]


def test_float16_with_loss_scaling_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, make_private())
    monkeypatch.setattr(type(trainer), "precision", "16-mixed")
    with pytest.raises(MisconfigurationException, match="skips steps by what it finds in the data: use 'bf16-mixed'"):
        trainer.fit(Classifier(), make_loader())


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (LearningRateFinder(), "LearningRateFinder removes all callbacks and trains on raw gradients"),
        (BatchSizeFinder(), "BatchSizeFinder removes all callbacks and trains on raw gradients"),
        (SpikeDetection(), "SpikeDetection skips batches by their losses"),
        (ModelPruning("l1_unstructured"), "ModelPruning puts other parameters in the place of those that are trained"),
        (
            GradientAccumulationScheduler({1: 2}),
            "GradientAccumulationScheduler changes the number of records in a step",
        ),
        (make_private(), "the Trainer has two of it"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("ours_first", [True, False])
def test_callbacks_that_break_the_account_are_refused(
    callback: pl.Callback, message: str, ours_first: bool, tmp_path: Path
) -> None:
    callbacks = [make_private(), callback] if ours_first else [callback, make_private()]
    if isinstance(callback, SRPPSGD):
        trainer = make_trainer(tmp_path, make_private())
        trainer.callbacks.append(callback)  # type: ignore[attr-defined]
    else:
        trainer = make_trainer(tmp_path, *callbacks)
    model = Classifier()
    before = [parameter.clone() for parameter in model.parameters()]
    model.batch_size, model.train_dataloader = 10, make_loader  # type: ignore[method-assign, assignment]
    with pytest.raises(MisconfigurationException, match=message):
        trainer.fit(model)
    assert all(map(torch.equal, before, model.parameters()))


def test_the_tuner_cannot_search_on_raw_gradients(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private())
    with pytest.raises(MisconfigurationException, match="LearningRateFinder removes all callbacks"):
        pl.tuner.Tuner(trainer).lr_find(Classifier(), make_loader())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(make_data())


class StratifiedSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(RECORDS))

    def __len__(self) -> int:
        return RECORDS


@pytest.mark.parametrize("sampling", [None, FixedSize(8)])
@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Stream(), batch_size=4), "Stream"),
        (make_loader(shuffle=False, sampler=DistributedSampler(make_data(), 2, 0)), "DistributedSampler"),
        (make_loader(shuffle=False, sampler=WeightedRandomSampler([1.0] * RECORDS, RECORDS)), "WeightedRandomSampler"),
        (make_loader(shuffle=False, sampler=StratifiedSampler()), "StratifiedSampler"),
    ],
)
def test_loaders_that_nothing_bounds_are_refused(loader: Any, message: str, sampling: Any, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private(sampling=sampling), max_steps=2)
    with pytest.raises((ValueError, TypeError), match=message):
        trainer.fit(Classifier(), loader)


def test_several_loaders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="one torch DataLoader"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), [make_loader(), make_loader()])


def test_more_differing_records_than_records_are_refused(tmp_path: Path) -> None:
    private = make_private(scenario=TwoWorldScenario(num_differing=RECORDS + 1))
    with pytest.raises(ValueError, match="num_differing is 61, but there are only 60 records"):
        make_trainer(tmp_path, private).fit(Classifier(), make_loader())


def test_another_number_of_records_than_declared_is_refused(tmp_path: Path) -> None:
    private = make_private(scenario=TwoWorldScenario(num_differing=2, num_records=50))
    with pytest.raises(ValueError, match="declares 50 records, but the dataset has 60"):
        make_trainer(tmp_path, private).fit(Classifier(), make_loader())


def test_a_run_without_end_needs_a_noise_multiplier(tmp_path: Path) -> None:
    private = make_private(epsilon=4.0)
    with pytest.raises(MisconfigurationException, match="this run has no end: set max_epochs or max_steps"):
        make_trainer(tmp_path, private, max_epochs=-1).fit(Classifier(), make_loader())


@pytest.mark.parametrize("notion", ["ms-ave", "ms-joint"])
def test_averages_over_a_public_order_are_refused(notion: str, tmp_path: Path) -> None:
    pl.seed_everything(0, verbose=False)
    for loader in (make_loader(), make_loader(shuffle=False)):
        with pytest.raises(MisconfigurationException, match=r"this one is public.*EpochShuffle"):
            make_trainer(tmp_path, make_private(notion=notion)).fit(Classifier(), loader)
    trainer = make_trainer(tmp_path, make_private(notion=notion, sampling=EpochShuffle(10)))
    trainer.fit(Classifier(), make_loader())
    assert trainer.global_step == 6


class Unfreezing(pl.Callback):
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.network[0].requires_grad_(True)  # type: ignore[index, operator, union-attr]


def test_parameters_unfrozen_later_are_refused(tmp_path: Path) -> None:
    model = Classifier()
    model.network[0].requires_grad_(False)  # type: ignore[index]
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(MisconfigurationException, match=r"'network.0.weight' was unfrozen after training had started"):
        make_trainer(tmp_path, make_private(), Unfreezing()).fit(model, make_loader())
    assert all(map(torch.equal, before, model.parameters()))


class Freezing(pl.Callback):
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        pl_module.network[0].requires_grad_(False)  # type: ignore[index, operator, union-attr]


def test_parameters_frozen_later_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"'network.0.weight' was frozen after training had started"):
        make_trainer(tmp_path, make_private(), Freezing()).fit(Classifier(), make_loader())


class Skipping(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == 1 else loss


def test_skipping_a_batch_with_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match="training_step returned no loss for a batch with records"):
        make_trainer(tmp_path, make_private()).fit(Skipping(), make_loader())


class Twice(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        closure()
        return super().step(closure)


class TwiceClassifier(Classifier):
    def configure_optimizers(self) -> Any:
        return Twice(self.parameters(), 0.1)


def test_an_optimizer_that_evaluates_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match="evaluates the gradient twice in one step"):
        make_trainer(tmp_path, make_private()).fit(TwiceClassifier(), make_loader())


def test_a_budget_that_pays_for_no_step_is_refused(tmp_path: Path) -> None:
    from lightning_pac import PrivacyLedger

    with PrivacyLedger(tmp_path / "small.db", budget={"rpp": 0.1}) as ledger:
        private = make_private(noise_multiplier=1.0, ledger=ledger)
        with pytest.raises(BudgetExceededError, match="the next one is refused"):
            make_trainer(tmp_path, private).fit(Classifier(), make_loader())
        assert ledger.spent("rpp") == 0


def test_accumulating_draws_that_overlap_is_refused(tmp_path: Path) -> None:
    from lightning_pac.data import FixedSizeBatchSampler

    loader = DataLoader(make_data(), batch_sampler=FixedSizeBatchSampler(RECORDS, 5))
    with pytest.raises(MisconfigurationException, match=r"may be drawn by several .*sampling=FixedSize\("):
        make_trainer(tmp_path, make_private(), accumulate_grad_batches=2).fit(Classifier(), loader)


class Flattening(Classifier):
    """Rows are windows of a record once training has begun; on records of one window the model is sound."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        inputs, labels = batch
        if len(inputs) == 10:
            inputs, labels = inputs.repeat_interleave(3, 0), labels.repeat_interleave(3)
        return inputs, labels


@pytest.mark.parametrize("sampling", [None, FixedSize(10)])
def test_rows_that_are_no_records_are_refused_in_every_step(sampling: Any, tmp_path: Path) -> None:
    model = Flattening()
    before = [parameter.clone() for parameter in model.parameters()]
    private = make_private(sampling=sampling)
    with pytest.raises(PrivacyViolationError, match="saw more or fewer rows than the batch has records"):
        make_trainer(tmp_path, private).fit(model, make_loader())
    assert all(map(torch.equal, before, model.parameters()))
    assert private.account is not None
    assert private.account.num_steps == 0


def windows_as_rows(records: Any) -> Any:
    """Every window is a row: with 16 windows a record, the clipped sum moved by up to 16 norms."""
    inputs, labels = default_collate(records)
    return inputs.flatten(0, 1), labels.repeat_interleave(16)


class Windows(Classifier):
    """The same inside the model, where windows are followed to their records."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(windows_as_rows(list(zip(*batch, strict=True))), batch_idx)


@pytest.mark.checks_each_fit
def test_records_of_several_rows_are_refused_at_the_start(tmp_path: Path) -> None:
    inputs, labels = make_data().tensors
    windows = torch.utils.data.TensorDataset(inputs[:, None].expand(-1, 16, -1), labels)
    loader = DataLoader(windows, batch_size=10, collate_fn=windows_as_rows)
    with pytest.raises(MisconfigurationException, match=r"reaches the layers in 128 rows for 8 records.*flatten that"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), loader)
    make_trainer(tmp_path, make_private()).fit(Windows(), DataLoader(windows, batch_size=10))


class Thawing(Classifier):
    def __init__(self) -> None:
        super().__init__(network=nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)))
        self.network[0].eval().requires_grad_(False)  # type: ignore[index]


class Thaws(pl.Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.train()


def test_batch_norm_that_is_put_into_training_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PrivacyViolationError, match=r"'network.0' was put into training mode.*normalizes over the batch"
    ):
        make_trainer(tmp_path, make_private(), Thaws()).fit(Thawing(), make_loader())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.scale


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_gradients_see_nothing(kind: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    model = Classifier(network=nn.Sequential(Scaled(), nn.Linear(6, 3)))
    getattr(model.network[0].scale, kind)(lambda value: seen.append(value))  # type: ignore[index, union-attr]
    with pytest.raises(MisconfigurationException, match=r"'network.0.scale' has a hook on its gradient"):
        make_trainer(tmp_path, make_private()).fit(model, make_loader())
    assert not seen


class Watching(pl.Callback):
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        next(pl_module.parameters()).register_hook(lambda gradient: None)  # type: ignore[no-untyped-call]


def test_hooks_that_come_later_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="has a hook on its gradient"):
        make_trainer(tmp_path, make_private(), Watching()).fit(Classifier(), make_loader())


class Hiding(Classifier):
    """A list is no part of the module, so that nothing clips what it holds."""

    used = True

    def on_train_epoch_start(self) -> None:
        self.hidden = [nn.Parameter(torch.zeros(3))]
        self.trainer.optimizers[0].add_param_group({"params": self.hidden})

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        bias = self.hidden[0] if hasattr(self, "hidden") and self.used else 0.0
        return nn.functional.cross_entropy(self.network(batch[0]) + bias, batch[1])

    def on_after_backward(self) -> None:
        if hasattr(self, "hidden") and not self.used:
            self.hidden[0].grad = torch.ones(3)


@pytest.mark.parametrize(
    ("used", "message"),
    [
        (True, r"A tensor of shape \(3,\) received a gradient, which is raw, and is not a parameter of Hiding"),
        (False, "The optimizer was given a parameter after training had started"),
    ],
)
def test_parameters_that_the_optimizer_is_given_later_are_refused(used: bool, message: str, tmp_path: Path) -> None:
    model = Hiding()
    model.used = used
    with pytest.raises((PrivacyViolationError, MisconfigurationException), match=message):
        make_trainer(tmp_path, make_private()).fit(model, make_loader())
    assert not any(tensor.any() for tensor in getattr(model, "hidden", []))


class Leaving(Classifier):
    """Adds batches up on its own, as Lightning's documentation shows."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        if batch_idx % 2 == 1:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


def test_steps_that_are_left_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match="An optimizer step was left out"):
        make_trainer(tmp_path, make_private(sampling=Poisson(0.5))).fit(Leaving(), make_loader())


class OwnBackward(Classifier):
    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        (loss / loss.detach()).backward()  # type: ignore[no-untyped-call]


def test_another_backward_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"OwnBackward.backward decides itself what is differentiated"):
        make_trainer(tmp_path, make_private()).fit(OwnBackward(), make_loader())


def test_ending_on_what_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="detect_anomaly=True ends the run where"):
        make_trainer(tmp_path, make_private(), detect_anomaly=True).fit(Classifier(), make_loader())


class Seeding(Classifier):
    def on_train_epoch_start(self) -> None:
        pl.seed_everything(0, verbose=False)


def test_seeding_during_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match="A generator was seeded during the private run"):
        make_trainer(tmp_path, make_private()).fit(Seeding(), make_loader())


def test_a_loader_with_other_records_is_refused(tmp_path: Path) -> None:
    class Shrinking(Classifier):
        def train_dataloader(self) -> Any:
            return make_loader(RECORDS if self.current_epoch == 0 else RECORDS - 10)

    trainer = make_trainer(tmp_path, make_private(), max_epochs=2, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(MisconfigurationException, match="equal sampling over as many records"):
        trainer.fit(Shrinking())


class Epochs(Dataset[Any]):
    """Rows of its own at first."""

    def __init__(self) -> None:
        self.inputs, self.labels = make_data().tensors
        self.length, self.stride = RECORDS, 1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index // self.stride], self.labels[index // self.stride]


class Changes(pl.Callback):
    def __init__(self, change: Any) -> None:
        self.change = change

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == 1:
            self.change(trainer.train_dataloader)


CHANGES: dict[str, tuple[Any, Any, str]] = {
    "a sampler": (
        make_data,
        lambda loader: setattr(loader.batch_sampler, "sampler", WeightedRandomSampler([1.0] * RECORDS, RECORDS)),
        "draws by weights",
    ),
    "replacement": (make_data, lambda loader: setattr(loader.sampler, "replacement", True), "draws otherwise"),
    "the indices of a Subset": (
        lambda: Subset(make_data(80), range(RECORDS)),
        lambda loader: setattr(loader.dataset, "indices", range(20, 20 + RECORDS)),
        "draws from other records",
    ),
    "indices that repeat": (
        lambda: Subset(make_data(), range(RECORDS)),
        lambda loader: setattr(loader.dataset, "indices", [0] * RECORDS),
        "several indices|holds records twice",
    ),
    "what the dataset chooses": (
        Epochs,
        lambda loader: setattr(loader.dataset, "stride", 2),
        "several indices|holds records twice|several of one",  # in the first batch or not
    ),
    "its length": (Epochs, lambda loader: setattr(loader.dataset, "length", 50), "as many records"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_loader_or_dataset_that_changes_during_the_run_is_refused(what: str, tmp_path: Path) -> None:
    make, change, message = CHANGES[what]
    loader = DataLoader(make(), batch_size=10, shuffle=True)
    trainer = make_trainer(tmp_path, make_private(), Changes(change), max_epochs=2)
    with pytest.raises((ValueError, MisconfigurationException, PrivacyViolationError), match=message):
        trainer.fit(Classifier(), loader)
    assert trainer.global_step == RECORDS // 10


def shuffled(rows: list[Any]) -> Any:
    return default_collate([rows[place] for place in torch.randperm(len(rows)).tolist()])


@pytest.mark.checks_each_fit  # of which a collate function is no part of the key
def test_a_collate_function_that_shuffles_is_refused(tmp_path: Path) -> None:
    loader = make_loader(collate_fn=shuffled)
    with pytest.raises(MisconfigurationException, match="rows in an order that the collate function, or a hook, draws"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), loader)


class MixUpCallback(pl.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        batch[0].add_(batch[0].flip(0))


def test_callbacks_that_mix_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="MixUpCallback mixes records of a batch"):
        make_trainer(tmp_path, make_private(), MixUpCallback()).fit(Classifier(), make_loader())


def spectral(kind: Any, evaluated: bool) -> Classifier:
    layer = kind(nn.Linear(6, 8))
    if evaluated:
        (layer.parametrizations.weight[0] if hasattr(layer, "parametrizations") else layer).eval()
    return Classifier(network=nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 3)))


@pytest.mark.parametrize("kind", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_power_iterations_are_refused_by_their_cause(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"'network.0' is divided by its spectral norm, for which"):
        make_trainer(tmp_path, make_private()).fit(spectral(kind, evaluated=False), make_loader())
    make_trainer(tmp_path, make_private()).fit(spectral(kind, evaluated=True), make_loader())


def hooked() -> nn.Module:
    layer = nn.Linear(6, 3)
    layer.register_full_backward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: nn.LazyLinear(3), "'network.weight' has no shape yet"),
        (lambda: torch.jit.trace(nn.Linear(6, 3), torch.zeros(2, 6)), "'network' is compiled by torch.jit"),
        (hooked, "'network' has a backward hook"),
    ],
)
def test_networks_whose_gradients_are_not_to_be_had_are_refused_by_their_cause(network: Any, message: str) -> None:
    (problem,) = model_problems(Classifier(network=network()))
    assert message in problem


def test_sparse_gradients_are_refused(tmp_path: Path) -> None:
    class Sparse(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.SparseAdam(self.parameters())

    with pytest.raises(MisconfigurationException, match="SparseAdam takes sparse gradients only"):
        make_trainer(tmp_path, make_private()).fit(Sparse(), make_loader())


class Growing(pl.Callback):
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.extra = nn.Linear(6, 3)


class Blending(pl.Callback):
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, _: int) -> None:
        batch[0].copy_((batch[0] + batch[0].flip(0)) / 2)


def blend(trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, _: int) -> None:
    batch[0].sub_(batch[0].clamp(max=0).mean(0))


@pytest.mark.parametrize("make", [Blending, lambda: LambdaCallback(on_train_batch_start=blend)])
def test_callbacks_that_mix_records_where_a_batch_starts_are_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"couples (the )?records"):
        make_trainer(tmp_path, make_private(), make()).fit(Classifier(), make_loader())


def test_nested_tensors_are_refused(tmp_path: Path) -> None:
    def nest(records: Any) -> Any:
        return torch.nested.nested_tensor([record[0] for record in records]), torch.zeros(len(records))

    with pytest.raises(TypeError, match="A batch holds a nested tensor"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), make_loader(collate_fn=nest))


def test_parameters_that_come_later_are_refused_by_their_cause(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"'extra.weight' was unfrozen after training had started"):
        make_trainer(tmp_path, make_private(), Growing()).fit(Classifier(), make_loader())
