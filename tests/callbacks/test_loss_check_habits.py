"""What people write in a training_step beside the loss: logs, lookups, memories of batches, terms in some steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

from lightning_pac.callbacks.srpp_sgd.loss_check.check import LossCheck, check_loss

Step = Callable[["Model", Tensor, Tensor, int], Tensor]


class Model(pl.LightningModule):
    def __init__(self, step: Step) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.step = nn.Linear(6, 3), step
        self.accuracy = torchmetrics.MeanMetric()
        self.scale: Any = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(self, *batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)


def losses(model: Model, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model.layer(inputs), labels, reduction="none")


def centred(model: Model, inputs: Tensor, labels: Tensor) -> Tensor:
    return losses(model, inputs - inputs.mean(0), labels).mean()


def asked(step: Step, batch_size: int = 8, trainer: pl.Trainer | None = None) -> LossCheck:
    model, size = Model(step), 2 * batch_size
    if trainer is not None:
        model.trainer = trainer
    data = TensorDataset(torch.rand(size, 6), torch.randint(3, (size,)))
    return check_loss(model, DataLoader(data, batch_size=batch_size))


def sometimes(is_coupled: Callable[[Tensor, int], bool]) -> Step:
    def step(model: Model, inputs: Tensor, labels: Tensor, number: int) -> Tensor:
        return centred(model, inputs, labels) if is_coupled(inputs, number) else losses(model, inputs, labels).mean()

    return step


@pytest.mark.parametrize("kind", [int, lambda label: [label], np.int64])
def test_an_accuracy_of_training_is_checked_where_labels_are_numbers_of_python(kind: Callable[[int], Any]) -> None:
    """Its sums are compared with zero, those of a copy that is tried with huge ones, which no integer can hold."""

    def step(model: Model, inputs: Tensor, labels: Any, _: int) -> Tensor:
        labels = labels[0] if isinstance(labels, list) else labels
        model.metric(model.layer(inputs), labels)
        model.log("train/accuracy", model.metric)
        return losses(model, inputs, labels).mean()

    model = Model(step)
    model.metric = torchmetrics.Accuracy("multiclass", num_classes=3)
    records = [(torch.rand(6), kind(number % 3)) for number in range(16)]
    found = check_loss(model, DataLoader(records, batch_size=8))  # type: ignore[arg-type]
    assert (found.problem, found.unchecked) == (None, None)


@pytest.mark.parametrize(("size", "step"), [(150, 64)])
def test_what_couples_large_batches_of_the_loader_is_found(size: int, step: int) -> None:
    found = asked(sometimes(lambda inputs, number: len(inputs) == size), size)
    assert found.problem == f"couples the records of a batch of {size}, which it does not in one of {step}"
    assert asked(sometimes(lambda inputs, number: False), size).problem is None


@pytest.mark.parametrize("every", [4, 7, 60])
def test_what_couples_every_so_many_batches_is_found(every: int) -> None:
    assert asked(sometimes(lambda inputs, number: number % every == every - 1)).problem is not None


def of_the_mean(function: Callable[[Tensor], Any]) -> Step:
    return lambda model, inputs, labels, _: function(losses(model, inputs, labels).mean())


def shown(loss: Tensor) -> Tensor:
    assert float(torch.exp(loss.detach())) >= 0 or not loss.detach().relu().isnan()
    return loss


@pytest.mark.parametrize(
    ("function", "is_coupled"),
    [
        (lambda loss: F.relu(loss - 0.1), True),
        (lambda loss: max(loss, torch.tensor(0.1)), True),
        (lambda loss: F.hardtanh(loss, 0.0, 5.0), True),
        (lambda loss: torch.stack([loss - 0.1, torch.zeros(())]).amax(), True),
        (lambda loss: 3 * loss + torch.ones(()), False),
        (shown, False),
    ],
)
def test_a_mean_that_is_bent_is_found(function: Any, is_coupled: bool) -> None:
    found = asked(of_the_mean(function))
    assert (found.problem is not None, found.unchecked) == (is_coupled, None)


def weighs(*weights: float, alone: bool = False, only_shown: bool = False) -> Step:
    """A cross entropy of nine classes, of which no record has the last; or a plain mean, beside which it is shown."""

    def step(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
        outputs = torch.cat([model.layer(inputs)] * 3, 1)
        used = outputs.detach() if only_shown else outputs
        pairs = [(used[k : k + 1], labels[k : k + 1]) for k in range(len(labels))] if alone else [(used, labels)]
        own = torch.tensor([1.0] * (9 - len(weights)) + list(weights))
        weighted = torch.stack([F.cross_entropy(*pair, weight=own) for pair in pairs]).mean()
        return F.cross_entropy(outputs, labels) if only_shown else weighted

    return step


@pytest.mark.parametrize(
    ("step", "is_coupled"),
    [
        (weighs(50.0), True),
        (weighs(0.0, 1.0), True),
        (weighs(1.0), False),
        (weighs(50.0, alone=True), False),
        (weighs(50.0, only_shown=True), False),
    ],
)
def test_a_weight_of_a_class_that_no_record_shows_is_found(step: Step, is_coupled: bool) -> None:
    found = asked(step)
    assert (found.problem is not None, found.unchecked) == (is_coupled, None)


def test_weights_of_tasks_are_no_bend() -> None:
    class Weighted(Model):
        def __init__(self) -> None:
            super().__init__(lambda *_: torch.zeros(()))
            self.weights = nn.Parameter(torch.zeros(2))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            tasks = torch.stack([losses(self, *batch).mean(), self.layer(batch[0]).square().mean()])
            return (torch.exp(-self.weights) * tasks + self.weights).sum()

    data = TensorDataset(torch.rand(16, 6), torch.randint(3, (16,)))
    found = check_loss(Weighted(), DataLoader(data, batch_size=8))
    assert (found.problem, found.unchecked) == (None, None)


OF_CLASSES = np.array([1.0, 2.0, 0.5], dtype=np.float32)


def looked_up(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
    return (losses(model, inputs, labels) * torch.as_tensor(OF_CLASSES[labels.numpy()])).mean()


def named(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
    weights = [{"a": 1.0, "b": 2.0, "c": 0.5}["abc"[label]] for label in labels.tolist()]
    return (losses(model, inputs, labels) * torch.tensor(weights)).mean()


@pytest.mark.parametrize("step", [looked_up, named])
def test_numbers_of_records_may_be_read_in_arrays(step: Step) -> None:
    found = asked(step)
    assert (found.problem, found.unchecked) == (None, None)


@pytest.mark.parametrize(
    "read",
    [lambda values: values.numpy().mean(), lambda values: max(values.tolist()), lambda values: min(values.tolist())],
)
def test_a_number_of_the_batch_that_an_array_gives_is_found(read: Any) -> None:
    def step(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
        found = losses(model, inputs, labels)
        return found.mean() * (0.5 if not 1e-6 < read(found.detach()) < 30 else 1.0)

    assert (asked(step).problem or "").startswith("depends on a number that is read off the batch")


@pytest.mark.parametrize("write", [torch._foreach_add_, torch._foreach_copy_])
def test_a_number_that_was_written_into_a_list_of_tensors_is_found(write: Any) -> None:
    def step(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
        found, kept = losses(model, inputs, labels), [torch.zeros(()), torch.zeros(())]
        write(kept, [found.detach().max(), found.detach().min()])
        return found.mean() * (0.5 if kept[0].item() > 30 else 1.0)

    assert (asked(step).problem or "").startswith("depends on a number that is read off the batch")


def classes_apart(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    return losses[labels == 1].mean() + losses[labels == 0].mean()


def asked_of_numbers(loss: Callable[[Tensor, Tensor], Tensor]) -> LossCheck:
    """With classes that are the numbers 0.0 and 1.0, as the loss of two classes takes them."""

    def step(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
        return loss(model.layer(inputs)[:, 0], labels)

    data = TensorDataset(torch.rand(40, 6), (torch.arange(40) % 3 == 0).float())
    return check_loss(Model(step), DataLoader(data, batch_size=8))


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, labels: F.binary_cross_entropy_with_logits(
            outputs, labels, pos_weight=(labels == 0).sum() / (labels == 1).sum()
        ),
        lambda outputs, labels: F.binary_cross_entropy_with_logits(
            outputs, labels, weight=torch.where(labels == 1, 1 / (labels == 1).sum(), 1 / (labels == 0).sum())
        ),
        classes_apart,
    ],
)
def test_losses_of_two_classes_that_are_numbers_are_found(loss: Any) -> None:
    """One record moved a sum by 3.6 norms, where 1 is paid for: no drawn number was 0 or 1, so all ended in NaN."""
    assert (asked_of_numbers(loss).problem or "").startswith("couples the records")


def test_a_loss_of_one_class_alone_passes() -> None:
    found = asked_of_numbers(lambda outputs, labels: (outputs.square() * (labels == 1)).mean())
    assert (found.problem, found.unchecked) == (None, None)


def adversarial(scaled: Callable[[Tensor], Tensor]) -> Step:
    def step(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
        moved = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(losses(model, moved, labels).mean(), moved)
        return losses(model, (inputs + scaled(slope)).detach(), labels).mean()

    return step


@pytest.mark.parametrize(
    ("scaled", "is_coupled"),
    [(lambda slope: 0.1 * slope.sign(), False), (F.normalize, False), (lambda slope: slope / slope.norm(), True)],
)
def test_adversaries_of_single_records_pass(scaled: Any, is_coupled: bool) -> None:
    found = asked(adversarial(scaled))
    assert (found.problem is not None, found.unchecked) == (is_coupled, None)


@pytest.mark.parametrize("mark", [-999.0, 999.0, 9.0])
@pytest.mark.parametrize("in_records", [False, True])
def test_a_mean_of_what_does_not_hold_a_mark_is_found(mark: float, in_records: bool) -> None:
    class Regression(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            inputs, targets = batch
            counts, errors = targets != mark, (self.layer(inputs) - targets).square()
            if in_records:
                return ((errors * counts).sum(1) / counts.sum(1).clamp(min=1)).mean()
            return errors[counts].mean()

    targets = torch.randn(32, 3)
    targets[torch.rand(32, 3, generator=torch.Generator().manual_seed(0)) < 0.3] = mark
    found = check_loss(Regression(lambda *_: targets), DataLoader(TensorDataset(torch.rand(32, 6), targets), 8))
    assert (found.problem is None, found.unchecked) == (in_records, None)


class Keeping:
    """Centres by what batches with some numbers had in the mean, in batches with others."""

    def __init__(self, every: int, kept: int, used: int) -> None:
        self.every, self.kept, self.used = every, kept, used

    def __call__(self, model: Model, inputs: Tensor, labels: Tensor, number: int) -> Tensor:
        place = number % self.every
        if place == self.kept:
            model.scale = inputs.mean().detach()
        return losses(model, inputs * (model.scale if place == self.used else 1.0), labels).mean()


@pytest.mark.parametrize(("every", "kept", "used"), [(2, 0, 1), (3, 0, 2), (1000, 0, 1)])
def test_a_memory_that_other_batches_read_is_found(every: int, kept: int, used: int) -> None:
    assert (asked(Keeping(every, kept, used)).problem or "").startswith("depends on the records of earlier batches")


def logs(model: Model) -> None:
    model.logger.log_metrics({"a": 1.0}, 0)  # type: ignore[union-attr]
    model.logger.experiment.add_image("b", torch.zeros(3, 2, 2))  # type: ignore[union-attr]


def gathers(model: Model) -> None:
    assert torch.equal(torch.as_tensor(model.all_gather(torch.ones(2))), torch.ones(2))
    model.trainer.strategy.barrier()


@pytest.mark.parametrize("habit", [logs, gathers, lambda model: model.print("a")])
@pytest.mark.parametrize("loss", [centred, lambda *values: losses(*values).mean()])
def test_what_is_told_of_a_step_does_not_hide_its_loss(habit: Any, loss: Any, tmp_path: Path) -> None:
    def step(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
        habit(model)
        return loss(model, inputs, labels)  # type: ignore[no-any-return]

    options: dict[str, Any] = {"accelerator": "cpu", "enable_model_summary": False, "default_root_dir": tmp_path}
    found = asked(step, trainer=pl.Trainer(logger=CSVLogger(tmp_path), **options))
    assert (found.problem is not None, found.unchecked) == (loss is centred, None)
    assert not list(tmp_path.rglob("*.csv"))


def against_all_ranks(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
    scores = model.layer(inputs)
    others = torch.as_tensor(model.all_gather(scores.detach()))
    assert others.shape == (2, *scores.shape)
    return (losses(model, inputs, labels) + (scores @ others.flatten(0, 1).T).logsumexp(1)).mean()


def centred_over_ranks(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
    return losses(model, inputs - model.trainer.strategy.reduce(inputs.mean(0)), labels).mean()  # type: ignore[arg-type]


def over_all_records(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
    number = model.trainer.strategy.reduce(torch.tensor(len(inputs)), reduce_op="sum")
    return 2 * losses(model, inputs, labels).sum() / number


def beside_a_partner(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
    """The same row of another rank, as in MixUp over ranks."""
    partners = torch.as_tensor(model.all_gather(inputs))[(model.global_rank + 1) % 2]
    return losses(model, 0.5 * inputs + 0.5 * partners, labels).mean()


def beside_its_label(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
    partners = torch.as_tensor(model.all_gather(labels))[(model.global_rank + 1) % 2]
    return (losses(model, inputs, labels) + losses(model, inputs, partners)).mean()


@pytest.mark.parametrize(
    ("step", "coupled"),
    [
        (beside_a_partner, True),
        (beside_its_label, True),
        (against_all_ranks, True),
        (centred_over_ranks, True),
        (over_all_records, False),
    ],
)
def test_what_ranks_gather_couples_their_records(step: Step, coupled: bool) -> None:
    """The copy had no other ranks, so a contrastive loss over all of them was warned of and trained."""
    found = asked(step, trainer=pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False))
    assert (found.problem is not None, found.unchecked) == (coupled, None)


def test_a_choice_by_a_logged_metric_is_found(tmp_path: Path) -> None:
    def step(model: Model, inputs: Tensor, labels: Tensor, _: int) -> Tensor:
        scale = 2.0 if model.trainer.callback_metrics.get("mean", 0.0) > 0.1 else 1.0
        found = losses(model, inputs, labels)
        model.accuracy.update(found.detach())
        model.log("mean", model.accuracy)
        return scale * found.mean()

    off = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    trainer = pl.Trainer(accelerator="cpu", default_root_dir=tmp_path, **dict.fromkeys(off, False))
    assert asked(step, trainer=trainer).problem is not None


@pytest.mark.parametrize(("num_classes", "is_found"), [(10, True), (200, False)])
def test_means_of_classes_that_a_hook_takes_are_found(num_classes: int, is_found: bool) -> None:
    class Prototypes(Model):
        prototypes = torch.zeros(num_classes, 3)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            inputs, labels = batch
            found = self.layer(inputs).detach()
            self.prototypes = torch.stack([found[labels == label].mean(0) for label in range(num_classes)])

        def on_train_batch_end(self, *_: Any) -> None:
            self.earlier = self.prototypes

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            earlier = getattr(self, "earlier", torch.zeros(num_classes, 3))
            return F.cross_entropy(-torch.cdist(self.layer(batch[0]), earlier), batch[1])

    labels = torch.randint(num_classes, (64,), generator=torch.Generator().manual_seed(0))
    labels[:2] = torch.tensor([0, num_classes - 1])
    found = check_loss(Prototypes(lambda *_: labels), DataLoader(TensorDataset(torch.rand(64, 6), labels), 8))
    if is_found:
        assert (found.problem or "").startswith("depends on the records of earlier batches")
    else:  # there are more classes than records to ask with
        assert found.unchecked == "its gradient is not finite after a batch of synthetic records"


def test_what_a_hook_keeps_is_found_where_it_ends_in_an_error_in_float64() -> None:
    anchors = torch.rand(4, 6)  # stay in float32

    class Anchored(Model):
        shift = torch.zeros(6)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.scale = self.layer(anchors).norm().item()
            self.shift = batch[0].mean(0)

    def step(model: Any, inputs: Tensor, labels: Tensor, number: int) -> Tensor:
        return losses(model, inputs - model.shift, labels).mean()

    data = TensorDataset(torch.rand(16, 6), torch.randint(3, (16,)))
    found = check_loss(Anchored(step), DataLoader(data, batch_size=8))
    assert (found.problem or "").startswith("depends on the records of earlier batches")


class Peak:
    """Divides by the largest number so far, from one on, which no uniform record passes."""

    def __init__(self, keeps: bool) -> None:
        self.peak, self.keeps = 1.0, keeps

    def __call__(self, inputs: Tensor) -> Tensor:
        peak = max(self.peak, float(inputs.abs().max())) if self.keeps else 3.0
        self.peak = peak
        return inputs / peak


class Hooked(Model):
    def __init__(self, keeps: bool) -> None:
        super().__init__(lambda model, inputs, labels, _: losses(model, inputs, labels).mean())
        self.normalize = Peak(keeps)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self.normalize(batch[0]), batch[1]


class Collated:
    def __init__(self, keeps: bool) -> None:
        self.normalize = Peak(keeps)

    def __call__(self, rows: list[Any]) -> Any:
        inputs, labels = default_collate(rows)
        return self.normalize(inputs), labels


class Range(Model):
    def __init__(self, keeps: bool) -> None:
        super().__init__(lambda model, inputs, labels, _: losses(model, model.ranged(inputs), labels).mean())
        self.low, self.high, self.keeps = torch.zeros(6), torch.ones(6), keeps

    def ranged(self, inputs: Tensor) -> Tensor:
        if self.keeps:
            self.low = torch.minimum(self.low, inputs.amin(0).to(self.low))
            self.high = torch.maximum(self.high, inputs.amax(0).to(self.high))
        return (inputs - self.low) / (self.high - self.low)


@pytest.mark.parametrize("keeps", [True, False])
def test_the_largest_number_so_far_is_found(keeps: bool) -> None:
    """One record moved every later step."""
    data = TensorDataset(torch.rand(16, 6), torch.randint(3, (16,)))
    found = [check_loss(model(keeps), DataLoader(data, batch_size=8)) for model in (Hooked, Range)]
    plain = Model(lambda model, inputs, labels, _: losses(model, inputs, labels).mean())
    found.append(check_loss(plain, DataLoader(data, batch_size=8, collate_fn=Collated(keeps))))
    assert [one.problem is not None for one in found] == [keeps] * 3


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("is_coupled", [False, True])
def test_layers_that_keep_what_a_weight_was_computed_from_are_copied(is_coupled: bool) -> None:
    """As the weight norm of old does, and a step that keeps its output: the copy failed, so that nothing was asked."""
    model = Model(sometimes(lambda inputs, number: is_coupled))
    model.layer = torch.nn.utils.weight_norm(model.layer)
    model.last = [model.layer(torch.rand(2, 6))]
    found = check_loss(model, DataLoader(TensorDataset(torch.rand(16, 6), torch.randint(3, (16,))), batch_size=8))
    assert (found.problem is not None, found.unchecked) == (is_coupled, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("centred", [False, True])
def test_a_frozen_part_of_another_precision_is_run(dtype: torch.dtype, centred: bool) -> None:
    """The copy has one, so that steps with a backbone in bfloat16 were warned of and not checked (3.9 C)."""

    def step(model: Model, inputs: Tensor, labels: Tensor, number: int) -> Tensor:
        features = model.get_submodule("backbone")(inputs.to(dtype)).float()
        return losses(model, features - features.mean(0) if centred else features, labels).mean()

    model, data = Model(step), TensorDataset(torch.rand(16, 6), torch.randint(3, (16,)))
    model.add_module("backbone", nn.Linear(6, 6).to(dtype).requires_grad_(False))
    found = check_loss(model, DataLoader(data, batch_size=8))
    assert found.unchecked is None
    assert (found.problem is not None) == centred


@pytest.mark.parametrize("dtype", [torch.long, torch.bool])
@pytest.mark.parametrize(("per_record", "is_coupled"), [(True, False), (False, True)])
def test_a_record_without_a_token_spoils_itself_alone(per_record: bool, is_coupled: bool, dtype: torch.dtype) -> None:
    """A mean over no token is no number, and was refused as if it coupled records; a mean over all tokens does."""

    def step(model: Model, inputs: Tensor, mask: Tensor, number: int) -> Tensor:
        weights = mask[..., None].float()
        lengths = weights.sum(1) if per_record else weights.sum() / len(mask)
        features = (inputs[..., None] * weights).sum(1) / lengths
        return model.layer(features.expand(-1, 6)).square().mean()

    mask = (torch.arange(5) < torch.randint(1, 6, (16, 1))).to(dtype)
    mask[3] = 0
    found = check_loss(Model(step), DataLoader(TensorDataset(torch.rand(16, 5), mask), batch_size=8))
    assert (found.problem is not None) == is_coupled
