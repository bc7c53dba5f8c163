"""Private metrics that use what training keeps of its records: one of these moves them by more than anyone pays for."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, LearningRateMonitor, Timer, WeightAveraging
from lightning.pytorch.loggers import CSVLogger
from slow_cases import slow
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, PrivateMetrics, TwoWorldScenario

ONE = TwoWorldScenario(num_differing=1)
REFUSED = "Accuracy shows other values, for synthetic records, after training on others though no weight has moved"


class Habit:
    """What a model does beside its steps; this one does nothing."""

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        """In `training_step`."""

    def end_epoch(self, model: "Model") -> None:
        """In `on_train_epoch_end`."""

    def end(self, model: "Model") -> None:
        """In `on_train_end`."""

    def begin_evaluation(self, model: "Model") -> None:
        """When an epoch of an evaluation begins."""

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features)


class ClassCounts(Habit):
    counts = torch.zeros(3)

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        self.counts = self.counts + batch[1].bincount(minlength=3)

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features) - 10 * (self.counts.clamp(min=1) / self.counts.sum().clamp(min=1)).log()


class LabelsByCounts(ClassCounts):
    """Hands on labels, which a small step of the scores does not change."""

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return F.one_hot(super().scores(model, features).argmax(1), 3).float()


class Thresholds(Habit):
    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.bias = torch.zeros(3)

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        self.outputs.append(outputs.detach())

    def end_epoch(self, model: "Model") -> None:
        self.bias = torch.cat(self.outputs).mean(0)
        self.outputs.clear()

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features) - self.bias


class Prototypes(Thresholds):
    """Makes them when an evaluation begins, of what was kept since the last."""

    def end_epoch(self, model: "Model") -> None:
        pass

    def begin_evaluation(self, model: "Model") -> None:
        self.bias = torch.cat(self.outputs).mean(0) if self.outputs else torch.zeros(3)
        self.outputs.clear()


class AtTheEnd(Thresholds):
    """Makes them after the last step, for the test."""

    def end_epoch(self, model: "Model") -> None:
        pass

    def end(self, model: "Model") -> None:
        super().end_epoch(model)


class OfTheMetric(Habit):
    """Sets a metric, of which the rows stay."""

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        model.accuracy.ignore_index = int(batch[1].mode().values)


class OfAnotherMetric(Habit):
    """Takes the value of a metric of the training."""

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features) - model.loss_so_far.compute()


class Nearest(Habit):
    kept: Any = None

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        self.kept = batch

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        if self.kept is None:
            return model.network(features)
        near = torch.cdist(model.network(features), model.network(self.kept[0])).argmin(1)
        return F.one_hot(self.kept[1][near], 3).float()


class EveryThird(Thresholds):
    """Moves the scores by the records of some steps only, whose numbers leave this remainder."""

    period, remainder = 3, 1

    def is_due(self, model: "Model") -> bool:
        return model.global_step % self.period == self.remainder and model.training

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        if self.is_due(model):
            super().see(model, batch, outputs)

    def end_epoch(self, model: "Model") -> None:
        if self.outputs:
            super().end_epoch(model)


class EveryTwelfth(EveryThird):
    period, remainder = 12, 11


class FifthOfTen(EveryThird):
    period, remainder = 10, 5


class Queue(Thresholds):
    """Is emptied once it holds eighty."""

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        super().see(model, batch, outputs)
        if sum(map(len, self.outputs)) >= 80:
            super().end_epoch(model)

    def end_epoch(self, model: "Model") -> None:
        pass


class InLateEpochs(Thresholds):
    """Uses from the sixth epoch on what it keeps in each."""

    def end_epoch(self, model: "Model") -> None:
        self.bias = torch.cat(self.outputs).mean(0)

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features) - self.bias * (model.current_epoch >= 5)


class OfOneStep(Thresholds):
    """Moves them by the records of one step, which is beyond the first, that are taken anew."""

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        if model.global_step == 38:
            self.bias = outputs.detach().mean(0)

    def end_epoch(self, model: "Model") -> None:
        pass


class TenthOfItsOwnCount(EveryThird):
    """Counts by itself, and in no step that a check is made in is it at a multiple of ten."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def is_due(self, model: "Model") -> bool:
        self.count += model.training
        return self.count % 10 == 0 and model.training


class OfTheLast(EveryThird):
    """Moves them by the records of the last batch of an epoch."""

    def is_due(self, model: "Model") -> bool:
        return model.trainer.is_last_batch


class OfAnotherMetricNowAndThen(OfAnotherMetric):
    def __init__(self) -> None:
        self.seen = torchmetrics.MeanMetric()

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        if model.global_step % 3 == 2:
            self.seen.update(outputs.detach())

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features) * self.seen.compute()


class SeenLabels(Habit):
    """Favours labels that training has seen, which are soon all there are."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        self.seen.update(batch[1].tolist())

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features) + 5 * torch.tensor([label in self.seen for label in range(3)])


class OfItsTime(Habit):
    """Reads a table that ends with the run."""

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        [0.1, 0.2][model.current_epoch]


class StepsAndTime(Habit):
    """Counts steps, and lets them decide."""

    steps = 0

    def see(self, model: "Model", batch: Any, outputs: Tensor) -> None:
        self.steps += 1

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features) / (1 + self.steps + model.current_epoch)


class Unused(Thresholds):
    """Keeps what is shown elsewhere, without noise."""

    def scores(self, model: "Model", features: Tensor) -> Tensor:
        return model.network(features)


class Model(pl.LightningModule):
    def __init__(self, habit: Habit) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(4).eval().requires_grad_(False)
        self.network = nn.Sequential(self.norm, nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
        self.loss_so_far = torchmetrics.MeanMetric()
        self.train_accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.habit = habit

    def on_train_epoch_start(self) -> None:
        self.norm.eval()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs = self.network(batch[0])
        losses = F.cross_entropy(outputs, batch[1], reduction="none")
        self.loss_so_far.update(losses.detach())
        self.train_accuracy(outputs, batch[1])
        self.log("train/accuracy", self.train_accuracy, on_epoch=True, on_step=False)
        self.habit.see(self, batch, outputs)
        return losses.mean()

    def on_train_epoch_end(self) -> None:
        self.habit.end_epoch(self)

    def on_train_end(self) -> None:
        self.habit.end(self)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.accuracy(self.habit.scores(self, batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy, add_dataloader_idx=False)

    def on_validation_epoch_start(self) -> None:
        self.habit.begin_evaluation(self)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.habit.scores(self, batch[0]), batch[1])
        self.log("test/accuracy", self.accuracy)

    def on_test_epoch_start(self) -> None:
        self.habit.begin_evaluation(self)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def data(size: int) -> TensorDataset:
    features = torch.randn(size, 4, generator=torch.Generator().manual_seed(size))
    return TensorDataset(features, features[:, :3].argmax(1))


def trained(
    folder: Path,
    model: pl.LightningModule,
    callbacks: tuple[pl.Callback, ...] = (),
    private: bool = True,
    loaders: Any = None,
    records: TensorDataset | None = None,
    **options: Any,
) -> pl.Trainer:
    ledger = folder / "study.db"
    training = SRPPSGD(ONE, noise_multiplier=3.0, ledger=ledger)
    names = ["val/accuracy", "test/accuracy"]
    metrics = PrivateMetrics(names, ONE, epsilon=1e6, renyi_order=16, ledger=ledger)
    options = {"logger": False, "enable_checkpointing": False, "max_epochs": 2} | options
    trainer = pl.Trainer(
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*([training] if private else []), metrics, *callbacks],
        default_root_dir=folder,
        **options,
    )
    loaders = DataLoader(data(30), 10) if loaders is None else loaders
    trainer.fit(model, DataLoader(records or data(40), 20, collate_fn=Collate()), loaders)
    return trainer


class Collate:
    """Another one than that of the evaluation."""

    def __call__(self, records: list[Any]) -> list[Tensor]:
        features, labels = zip(*records, strict=True)
        return [torch.stack(features), torch.stack(labels)]


@pytest.mark.parametrize(
    "habit",
    [
        *(Thresholds, TenthOfItsOwnCount, Queue, SeenLabels),
        *slow(ClassCounts, LabelsByCounts, Prototypes, Nearest, OfTheMetric, EveryThird, FifthOfTen, OfTheLast),
        *slow(OfAnotherMetric, EveryTwelfth, OfAnotherMetricNowAndThen),
    ],
)
def test_what_training_keeps_of_its_records_reaches_no_private_metric(tmp_path: Path, habit: type[Habit]) -> None:
    with pytest.raises(MisconfigurationException, match=REFUSED):
        trained(tmp_path, Model(habit()))


def test_what_is_kept_of_the_middle_of_an_epoch_is_found(tmp_path: Path) -> None:
    class Halfway(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if batch_idx == self.trainer.num_training_batches // 2:
                self.habit.bias = batch[0][:, :3].mean(0)  # type: ignore[attr-defined]
            return F.cross_entropy(self.network(batch[0]), batch[1])

        def on_train_epoch_end(self) -> None:
            pass

    with pytest.raises(MisconfigurationException, match=REFUSED):
        trained(tmp_path, Halfway(Thresholds()), records=data(200))


def test_what_is_used_in_late_epochs_is_found_in_the_first(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=REFUSED):
        trained(tmp_path, Model(InLateEpochs()), max_epochs=7)


def test_what_is_kept_of_a_step_that_was_not_repeated_is_told(tmp_path: Path) -> None:
    told = r"but the weights \('habit' changed in a way that steps on synthetic records do not explain\)"
    with pytest.warns(UserWarning, match=told) as caught:
        trained(tmp_path, Model(OfOneStep()), records=data(100), max_epochs=9)
    assert sum("do not explain" in str(one.message) for one in caught) == 1


class Shadow(pl.Callback):
    """Averages weights, and lets the average stand in for them in validation."""

    def __init__(self) -> None:
        self.average: dict[str, Tensor] = {}
        self.weights: dict[str, Tensor] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        for name, weight in pl_module.named_parameters():
            self.average[name] = self.average.get(name, weight.detach()).lerp(weight.detach(), 0.1)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.weights = {name: weight.detach().clone() for name, weight in pl_module.named_parameters()}
        self.load(pl_module, self.average)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.load(pl_module, self.weights)

    @torch.no_grad()
    def load(self, pl_module: Any, weights: dict[str, Tensor]) -> None:
        for name, weight in pl_module.named_parameters():
            weight.copy_(weights.get(name, weight))


class Sharpening(Model):
    """Sets what its evaluation needs when the training starts, and changes it later, by the number of the epoch."""

    def on_train_start(self) -> None:
        self.temperature = 2.0

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.seen_epochs = self.current_epoch
        if self.current_epoch >= 2:
            self.temperature = 0.5

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.accuracy(self.network(batch[0]) / self.temperature, batch[1])
        self.log("val/accuracy", self.accuracy)


@pytest.mark.parametrize(("model", "callback"), [(Model, Shadow), *slow((Sharpening, pl.Callback))])
def test_what_follows_weights_or_the_time_is_not_told(tmp_path: Path, model: Any, callback: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivateMetrics: synthetic")
        trained(tmp_path, model(Habit()), (callback(),), max_epochs=4, num_sanity_val_steps=0)


def test_what_is_kept_within_an_epoch_or_for_one_of_several_loaders_is_found(tmp_path: Path) -> None:
    class OfTheSecond(Model):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            habit = self.habit if dataloader_idx else Habit()
            self.accuracy(habit.scores(self, batch[0]), batch[1])

        def on_validation_epoch_end(self) -> None:
            self.log("val/accuracy", self.accuracy)

    loaders = [DataLoader(data(30), 10), DataLoader(data(20), 10)]
    with pytest.raises(MisconfigurationException, match=REFUSED):
        trained(tmp_path, OfTheSecond(ClassCounts()), loaders=loaders, val_check_interval=1)


def test_what_is_kept_at_the_end_of_a_run_is_found_before_a_test(tmp_path: Path) -> None:
    trainer = trained(tmp_path, Model(AtTheEnd()))
    with pytest.raises(MisconfigurationException, match=REFUSED):
        trainer.test(trainer.lightning_module, DataLoader(data(30), 10), verbose=False)


def test_an_attack_on_the_inputs_of_an_evaluation_is_no_training(tmp_path: Path) -> None:
    class Attacked(Model):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            with torch.enable_grad():
                inputs = batch[0].clone().requires_grad_()
                loss = F.cross_entropy(self.network(inputs), batch[1], reduction="sum")
                (towards,) = torch.autograd.grad(loss, inputs)
            self.accuracy(self.network(batch[0] + 0.1 * towards.sign()), batch[1])
            self.log("val/accuracy", self.accuracy)

    options = {"val_check_interval": 1, "accumulate_grad_batches": 2, "inference_mode": False}
    trainer = trained(tmp_path, Attacked(Habit()), **options)
    assert trainer.global_step == 2
    assert float(trainer.callback_metrics["val/accuracy"]) <= 1.01


class Cutting(pl.LightningModule):
    """Cuts the texts of an evaluation to the longest that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.longest = nn.Embedding(50, 3, padding_idx=0), 1
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.longest = max(self.longest, int((batch[0] != 0).sum(1).max()))
        return F.cross_entropy(self.words(batch[0]).sum(1), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.words(batch[0][:, : self.longest]).sum(1), batch[1])
        self.log("val/accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def test_the_length_of_the_longest_record_of_training_reaches_no_private_metric(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(1, 50, (40, 16), generator=generator) * (torch.arange(16) < torch.arange(40)[:, None])
    texts = TensorDataset(words, torch.randint(0, 3, (40,), generator=generator))
    with pytest.raises(MisconfigurationException, match=REFUSED):
        trained(tmp_path, Cutting(), loaders=DataLoader(texts, 10), records=texts)


class OnlineProbe(pl.Callback):
    """Trains a second model on raw records, and shows its accuracy, as self-supervised projects do."""

    def __init__(self) -> None:
        self.probe = nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.probe.parameters(), 0.5)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            features = pl_module.network(batch[0])
        loss = F.cross_entropy(self.probe(features), batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        batch[0][:, :3] = self.probe(pl_module.network(batch[0]))


class Writing(pl.Callback):
    """Runs in training only, and keeps what it sees in the model."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.habit.bias = batch[0][:, :3].mean(0)


@pytest.mark.parametrize(("callback", "habit"), [(OnlineProbe, Habit), *slow((Writing, Thresholds))])
def test_what_callbacks_keep_is_found(tmp_path: Path, callback: Any, habit: type[Habit]) -> None:
    class Keeping(Model):
        def on_train_epoch_end(self) -> None:
            pass

    with pytest.raises(MisconfigurationException, match=REFUSED):
        trained(tmp_path, Keeping(habit()), (callback(),))


class Averaging(WeightAveraging):
    """One of the user's own, whose weights stand in for the model's in validation."""


@pytest.mark.parametrize("habit", [Habit, *slow(Unused, StepsAndTime, OfItsTime)])
def test_models_that_evaluate_their_weights_pass(tmp_path: Path, habit: type[Habit]) -> None:
    honest = (
        EMAWeightAveraging(decay=0.5),
        LearningRateMonitor(),
        Timer(),
        EarlyStopping("train/accuracy", check_on_train_epoch_end=True, patience=9),
    )
    callbacks = honest if habit is Habit else (Averaging(),)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivateMetrics: synthetic")
        trainer = trained(tmp_path, Model(habit()), callbacks, max_epochs=2, logger=CSVLogger(tmp_path))
        trainer.test(trainer.lightning_module, DataLoader(data(30), 10), verbose=False)


def test_what_is_asked_leaves_a_model_as_it_was(tmp_path: Path) -> None:
    class Looking(pl.Callback):
        kept: Any = None
        seen = 0

        def state(self, model: Model) -> Any:
            modes = [layer.training for layer in model.modules()]
            values = [value.tolist() for value in model.state_dict().values()]
            return modes, values, len(model.habit.outputs)  # type: ignore[attr-defined]

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.kept = self.state(pl_module)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            assert self.state(pl_module) == self.kept
            self.seen += 1

    class Kept(Unused):
        def end_epoch(self, model: Model) -> None:
            pass

    model, looking = Model(Kept()), Looking()
    trained(tmp_path, model, (looking,), max_epochs=2)
    assert looking.seen == 2
    assert not model.norm.running_mean.any()  # type: ignore[union-attr, operator]
    assert torch.is_grad_enabled()


def test_training_without_privacy_promises_nothing_on_its_records(tmp_path: Path) -> None:
    model = Model(ClassCounts())
    trained(tmp_path, model, private=False)  # on public data, say
    assert model.habit.counts.sum() == 80  # type: ignore[attr-defined]


def test_training_that_cannot_be_asked_is_told(tmp_path: Path) -> None:
    class OfFullBatches(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if len(batch[0]) != 20:
                raise ZeroDivisionError
            return super().training_step(batch, batch_idx)

    told = r"take nothing of the records trained on but the weights \(ZeroDivisionError\)"
    with pytest.warns(UserWarning, match=told) as caught:
        trained(tmp_path, OfFullBatches(Habit()))
    assert sum("but the weights" in str(one.message) for one in caught) == 1


class AtTheEndOfAValidation(Model):
    """Hands on the number of a batch, in a hook that Lightning runs without that of the loader, and logs at the end."""

    last = 0

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.accuracy.update(self.network(batch[0]), batch[1])

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        self.last = batch_idx

    def on_validation_epoch_end(self) -> None:
        self.log("val/accuracy", self.accuracy)


class WithoutALoader(pl.Callback):
    last = 0

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        self.last = batch_idx


def test_a_metric_that_is_logged_at_the_end_of_a_validation_is_not_called_raw(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        for told in ("These values.*val/accuracy", "PrivateMetrics: synthetic", ".*on synthetic records"):
            warnings.filterwarnings("error", message=told)
        trained(tmp_path, AtTheEndOfAValidation(Habit()), (WithoutALoader(),))


def test_raw_values_under_the_name_of_a_private_metric_are_refused(tmp_path: Path) -> None:
    class Raw(AtTheEndOfAValidation):
        def on_validation_epoch_end(self) -> None:
            self.log("val/accuracy", self.train_accuracy.compute())

    with pytest.raises(MisconfigurationException, match="'val/accuracy' is logged as Tensor"):
        trained(tmp_path, Raw(Habit()))
