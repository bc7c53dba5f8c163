"""Metrics beside a private one whose values, states or settings carry records into its rows."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Metric

from lightning_pac import PrivateMetrics, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows import ShownMetrics
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_metrics import noting

DECIDED = "with rows that one record decides beside its own"


class Hits(pl.LightningModule):
    """Counts hits privately, and may have another metric beside."""

    def __init__(self, other: Metric | None = None) -> None:
        super().__init__()
        self.accuracy, self.other = torchmetrics.Accuracy("binary"), other
        self.weight = torch.nn.Parameter(torch.ones(1))

    def show(self, scores: Tensor, labels: Tensor) -> None:
        self.accuracy.update(scores, labels)
        self.log("accuracy", self.accuracy, add_dataloader_idx=False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.weight * batch[0]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def loader(records: int = 24) -> DataLoader[Any]:
    values = torch.randn(records, generator=torch.Generator().manual_seed(records))
    return DataLoader(TensorDataset(values, (values > 0).long()), 8)


def trainer_in(folder: Path, **options: Any) -> pl.Trainer:
    metrics = PrivateMetrics(
        ["accuracy"], TwoWorldScenario(num_differing=1), epsilon=1e6, renyi_order=16, ledger=folder / "metrics.db"
    )
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "default_root_dir": folder}
    return pl.Trainer(accelerator="cpu", callbacks=[metrics], **quiet, **options)


class OfAnotherLoader(Hits):
    """Has a threshold from what a metric holds of the first loader."""

    def __init__(self, other: Metric, threshold: Callable[[Any], Any]) -> None:
        super().__init__(other)
        self.threshold = threshold

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        scores, labels = batch[0].sigmoid(), batch[1]
        if dataloader_idx == 1:
            assert self.other is not None
            self.show((scores > self.threshold(self.other.compute())).long(), labels)
        elif isinstance(self.other, torchmetrics.aggregation.BaseAggregator):
            self.other.update(scores)
        else:
            self.other.update(scores, labels)


def youden(value: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    false, true, thresholds = value
    return thresholds[(true - false).argmax()]


HELD: dict[str, Callable[[], tuple[Any, Callable[[Any], Any]]]] = {
    "a mean": lambda: (torchmetrics.MeanMetric(), lambda mean: mean),
    "the least": lambda: (torchmetrics.MinMetric(), lambda least: least),
    "a curve": lambda: (torchmetrics.ROC("binary", thresholds=50), youden),
    "a bank": lambda: (torchmetrics.CatMetric(), torch.median),
    "a threshold": lambda: (
        torchmetrics.RecallAtFixedPrecision("binary", min_precision=0.5, thresholds=30),
        lambda both: both[1],
    ),
}


@pytest.mark.parametrize("held", HELD)
def test_what_a_metric_holds_of_another_loader_decides_no_rows(tmp_path: Path, held: str) -> None:
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path).validate(OfAnotherLoader(*HELD[held]()), [loader(), loader(32)], verbose=False)


class OverTheMean(Hits):
    """Rows above a mean: that of the batch, of the evaluation so far, or of the evaluation before."""

    def __init__(self, of: str) -> None:
        super().__init__(torchmetrics.MeanMetric())
        self.of, self.threshold = of, torch.tensor(0.0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert self.other is not None
        of_batch = self.other(batch[0])
        threshold = {"batch": of_batch, "evaluation": self.other.compute(), "before": self.threshold}[self.of]
        self.show((batch[0] > threshold).long(), batch[1])

    def on_validation_epoch_end(self) -> None:
        assert self.other is not None
        self.threshold = self.other.compute()
        self.other.reset()


@pytest.mark.parametrize("of", ["batch", "evaluation", "before"])
def test_the_mean_that_a_metric_gives_is_no_threshold(tmp_path: Path, of: str) -> None:
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path).validate(OverTheMean(of), loader(), verbose=False)


class Tuned(Hits):
    """Sets the threshold of the private metric itself, in some hook, to what serves the records best."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[Tensor] = []
        self.labels: list[Tensor] = []

    def on_validation_epoch_start(self) -> None:
        self.scores, self.labels = [], []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.scores.append(batch[0].sigmoid())
        self.labels.append(batch[1])
        self.show(self.scores[-1], self.labels[-1])

    def tune(self) -> None:
        if self.scores:
            scores, labels = torch.cat(self.scores), torch.cat(self.labels)
            best = max(scores, key=lambda threshold: float(((scores > threshold) == labels).float().mean()))
            self.accuracy.threshold = float(best)


@pytest.mark.parametrize("hook", ["on_validation_epoch_end", "on_validation_end", "on_train_epoch_start"])
def test_records_set_no_threshold_of_the_metric_itself(tmp_path: Path, hook: str) -> None:
    model = type("TunedThere", (Tuned,), {hook: Tuned.tune})()
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path, max_epochs=2).fit(model, loader(), loader())


class Prototypes(Hits):
    """Subtracts a mean of the first loader, without which the second cannot be evaluated."""

    def __init__(self, at_its_end: bool) -> None:
        super().__init__()
        self.at_its_end = at_its_end

    def on_validation_epoch_start(self) -> None:
        self.bank: list[Tensor] = []
        self.mean = torch.zeros(())

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if dataloader_idx == 0:
            self.bank.append(batch[0])
            if self.at_its_end and batch_idx == self.trainer.num_val_batches[0] - 1:
                self.mean = torch.cat(self.bank).mean()
            return
        mean = self.mean if self.at_its_end else torch.cat(self.bank).mean()
        self.show((batch[0] > mean).long(), batch[1])


@pytest.mark.parametrize("at_its_end", [False, True])
def test_what_the_second_loader_needs_of_the_first_is_found(tmp_path: Path, at_its_end: bool) -> None:
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path).validate(Prototypes(at_its_end), [loader(), loader(32)], verbose=False)


class Network(torchmetrics.MaxMetric):
    """One with a network, which would take long."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(2**11, 2**10)


class Picky(torchmetrics.MaxMetric):
    """Takes but the loader's batches."""

    def update(self, value: Any) -> None:
        if len(value) != 8:
            raise ValueError("not 8")
        super().update(value)


class Beside(Hits):
    """Shows another metric without noise, and the best private value so far, which is released."""

    def __init__(self, other: Metric) -> None:
        super().__init__(other)
        self.best = torchmetrics.MaxMetric()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert self.other is not None
        self.other(batch[0])
        self.log("other", self.other)
        self.show((batch[0] > 0.1).long(), batch[1])

    def on_validation_epoch_end(self) -> None:
        self.best.update(self.accuracy.compute())
        self.log("best", self.best.compute())


@pytest.mark.parametrize("make", [torchmetrics.MeanMetric, torchmetrics.MaxMetric, Network, Picky])
def test_a_metric_that_decides_no_rows_stands_beside_and_keeps_its_own_records(tmp_path: Path, make: Any) -> None:
    data, model = loader(), Beside(make())
    assert model.other is not None
    model.other.update(torch.full((8,), 9.0))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*synthetic records")
        shown = trainer_in(tmp_path).validate(model, data, verbose=False)[0]
    assert isinstance(data.dataset, TensorDataset)
    values, labels = data.dataset.tensors
    expected = make()
    expected.update(torch.full((8,), 9.0))
    for part in values.split(8):
        expected.update(part)
    assert shown["other"] == pytest.approx(float(expected.compute()), rel=1e-5)
    hits = ((values > 0.1).long() == labels).double().mean()  # of 24, beside noise of about a thousandth
    assert shown["best"] == shown["accuracy"] == pytest.approx(float(hits), abs=0.1)


@pytest.mark.parametrize(("make", "works"), [(torchmetrics.MaxMetric, True), (Network, False), (Picky, False)])
def test_a_metric_of_a_copy_works_unless_that_takes_long_or_fails(make: Any, works: bool) -> None:
    model = Hits(make())
    assert model.other is not None
    with noting(model, ShownMetrics(["accuracy"], logged={"accuracy": "accuracy"})) as noted:
        for value in (model.other(torch.arange(4.0)), model.other.compute()):
            assert value == (3 if works else 0) or (not works and not value.isfinite())
        model.accuracy.update(torch.ones(4), torch.ones(4).long())
        assert [len(metric.updates) for metric in noted] == [1, 1]
    assert model.accuracy.tp.sum() == 0  # what a private metric holds is not shown


class AtTheLastBatch(Hits):
    """Has a threshold that a hook makes when the first loader has come to its end."""

    mean = torch.tensor(0.0)

    def __init__(self) -> None:
        super().__init__(torchmetrics.MeanMetric())

    def on_validation_epoch_start(self) -> None:
        self.other.reset()  # type: ignore[union-attr]

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if dataloader_idx == 0:
            self.other.update(batch[0])  # type: ignore[union-attr, arg-type]
        else:
            self.show((batch[0] > self.mean).long(), batch[1])

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        loaders: Any = self.trainer.val_dataloaders
        if dataloader_idx == 0 and batch_idx == len(loaders[0]) - 1:
            self.mean = self.other.compute()  # type: ignore[union-attr]


def test_a_threshold_that_a_hook_makes_at_the_end_of_a_loader_is_found(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path).validate(AtTheLastBatch(), [loader(16), loader(24)], verbose=False)


class Gallery(AtTheLastBatch):
    """Reads another loader at the beginning."""

    def on_validation_epoch_start(self) -> None:
        loaders: Any = self.trainer.val_dataloaders
        self.mean = torch.cat([values for values, _ in loaders[0]]).mean()

    def on_validation_batch_end(self, *_: Any) -> None:
        pass


def test_a_hook_that_reads_a_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="reads evaluated or trained records by itself"):
        trainer_in(tmp_path).validate(Gallery(), [loader(16), loader(24)], verbose=False)


class Looking(Gallery):
    """Looks first at what copies do not have."""

    def on_validation_epoch_start(self) -> None:
        assert self.trainer.validate_loop
        super().on_validation_epoch_start()


def test_a_hook_that_ends_in_an_error_on_synthetic_records_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="could not show .*an error in on_validation_epoch_start"):
        trainer_in(tmp_path).validate(Looking(), [loader(16), loader(24)], verbose=False)


def test_a_metric_that_has_a_loss_with_its_graph_may_be_beside(tmp_path: Path) -> None:
    class OfLosses(Hits):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            self.other(loss)  # type: ignore[misc]
            self.log("train/loss", self.other)  # type: ignore[arg-type]
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.show(batch[0].sigmoid(), batch[1])

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not show")
        trainer = trainer_in(tmp_path, max_epochs=2)
        trainer.fit(OfLosses(torchmetrics.MeanMetric()), loader(16), loader(24))
    assert float(trainer.callback_metrics["accuracy"]) == pytest.approx(1.0, abs=0.01)


class AsItTrains(Hits):
    """Centres a batch where it is in training mode, which the hook of evaluations leaves on."""

    def on_validation_model_eval(self) -> None:
        pass

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = batch[0] - batch[0].mean() if self.training else batch[0]
        self.show((scores > 0).long(), batch[1])


def test_a_model_that_evaluates_in_training_mode_is_asked_in_it(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path).validate(AsItTrains(), loader(), verbose=False)
    trainer_in(tmp_path).validate(AsItTrains().eval(), loader(), verbose=False)


class WithGradients(Hits):
    """Forces: the gradient of each record's energy, or of one that depends on all."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes = mixes

    def on_validation_model_eval(self) -> None:
        super().on_validation_model_eval()
        torch.set_grad_enabled(True)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        places = batch[0].clone().requires_grad_()
        energy = (self.weight * places).square()
        (forces,) = torch.autograd.grad(energy.sum().square() if self.mixes else energy.sum(), places)
        self.show((forces > 1).long(), batch[1])


@pytest.mark.parametrize("mixes", [False, True])
def test_gradients_of_an_evaluation_are_those_of_each_record(tmp_path: Path, mixes: bool) -> None:
    trainer = trainer_in(tmp_path, inference_mode=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not show")
        if not mixes:
            trainer.validate(WithGradients(mixes), loader(), verbose=False)
            return
        with pytest.raises(MisconfigurationException, match=DECIDED):
            trainer.validate(WithGradients(mixes), loader(), verbose=False)


class ByTheLambda(Hits):
    """Has its step from a function of the constructor, which leads to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.validation_step = lambda batch, batch_idx: self.show((batch[0] > batch[0].mean()).long(), batch[1])


class ByAHook(Hits):
    """Has a hook that writes to a list, which is copied after the layer, and a table of functions."""

    def __init__(self) -> None:
        super().__init__()
        kept: list[Tensor] = []
        self.layer = torch.nn.Identity()
        self.layer.register_forward_hook(lambda layer, inputs, output: kept.append(output))
        self.kept, self.table = kept, {"hits": lambda scores, labels: self.show(scores, labels)}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.layer(batch[0])
        self.table["hits"]((batch[0] > self.kept.pop().mean()).long(), batch[1])


@pytest.mark.parametrize("model", [ByTheLambda, ByAHook])
def test_functions_that_lead_to_the_model_lead_to_its_copy(tmp_path: Path, model: Any) -> None:
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path).validate(model(), loader(), verbose=False)


class KeptUpdate(Hits):
    """Updates its metric by a method that it has kept, past what stands between it and the metric."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = self.accuracy.update

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.kept(batch[0].sigmoid(), batch[1])
        self.log("accuracy", self.accuracy)


def test_an_update_past_the_private_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="by a method that was kept from before"):
        trainer_in(tmp_path).validate(KeptUpdate(), loader(), verbose=False)


class BySecondLoader(Hits):
    """Centres the batches of the second loader, before they come to the step."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        values, labels = batch
        return (values - values.mean() if dataloader_idx else values), labels

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.show((batch[0] > 0).long(), batch[1])


def test_a_transfer_hook_is_given_the_number_of_the_loader(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path).validate(BySecondLoader(), [loader(16), loader(24)], verbose=False)


class ByTheStage(Hits):
    """Does what the Trainer's state says, and reads a threshold of its datamodule."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert self.trainer.state.stage == "validate"
        datamodule: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        self.show((batch[0] > datamodule.threshold).long(), batch[1])


class WithThreshold(pl.LightningDataModule):
    threshold = 0.0

    def val_dataloader(self) -> Any:
        return loader()


def test_a_copy_knows_its_stage_and_the_datamodule_of_an_evaluation_alone(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not show")
        trainer_in(tmp_path).validate(ByTheStage(), datamodule=WithThreshold(), verbose=False)


class AtTheEnd(Hits):
    """Updates with scores scaled by all of them, after a look at what copies lack."""

    def on_validation_epoch_start(self) -> None:
        self.seen: list[Tensor] = []
        self.labels: list[Tensor] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch[0])
        self.labels.append(batch[1])

    def on_validation_epoch_end(self) -> None:
        assert self.trainer.val_dataloaders.dataset.tensors
        seen = torch.cat(self.seen)
        self.show((seen > seen.mean()).long(), torch.cat(self.labels))


class OnlyHere(Hits):
    """Logs nothing where it is asked."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if type(self.trainer) is pl.Trainer:
            self.show((batch[0] > batch[0].mean()).long(), batch[1])


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (AtTheEnd, r"'accuracy' was not logged for synthetic records \(an error in on_validation_epoch_end\)"),
        (OnlyHere, "'accuracy' was not logged for synthetic records"),
    ],
)
def test_a_metric_that_no_copy_logs_is_told(tmp_path: Path, model: Any, told: str) -> None:
    with pytest.warns(UserWarning, match=told):
        trainer_in(tmp_path).validate(model(), loader(), verbose=False)


class ForTests(Hits):
    """Is tested as it is validated, under a name that begins as those of validations."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.kept(batch[0].sigmoid(), batch[1])
        self.log("val/accuracy", self.accuracy)

    def kept(self, scores: Tensor, labels: Tensor) -> None:
        self.accuracy.threshold = float(scores.mean())  # type: ignore[assignment]
        self.accuracy.update(scores, labels)


def test_a_name_of_validations_is_private_in_tests_as_well(tmp_path: Path) -> None:
    metrics = PrivateMetrics(
        ["val/accuracy"], TwoWorldScenario(num_differing=1), epsilon=1e6, renyi_order=16, ledger=tmp_path / "m.db"
    )
    trainer = pl.Trainer(accelerator="cpu", callbacks=[metrics], logger=False, enable_progress_bar=False)
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer.test(ForTests(), loader(), verbose=False)


class CentredByTheFirst(Hits):
    """Takes off what six batches had in common, once it has seen them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.centre = 0, torch.zeros(1)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = batch[0]
        if self.seen < 6:
            self.seen, self.centre = self.seen + 1, self.centre + scores.mean() / 6
        else:
            scores = scores - 20 * self.centre
        self.show(scores.sigmoid(), batch[1])


class GalleryOfTheFirst(Hits):
    """Names the records of later batches after the nearest of the first three."""

    def on_validation_epoch_start(self) -> None:
        self.gallery: list[tuple[Tensor, Tensor]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx < 3:
            self.gallery.append(batch)
            return
        known, labels = (torch.cat(each) for each in zip(*self.gallery, strict=True))
        self.show(labels[(batch[0][:, None] - known).abs().argmin(1)], batch[1])


class KeepsAll(Hits):
    """Scores for a figure at the end."""

    def on_validation_epoch_start(self) -> None:
        self.scores: list[Tensor] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.scores.append(batch[0])
        self.show(batch[0].sigmoid(), batch[1])


@pytest.mark.parametrize("kind", [CentredByTheFirst, GalleryOfTheFirst])
def test_what_the_first_batches_leave_for_later_ones_is_found(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(MisconfigurationException, match=DECIDED):
        trainer_in(tmp_path).validate(kind(), loader(80), verbose=False)


def test_scores_may_be_kept_for_a_figure(tmp_path: Path) -> None:
    trainer_in(tmp_path).validate(KeepsAll(), loader(80), verbose=False)
