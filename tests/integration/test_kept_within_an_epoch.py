"""What a step leaves for later ones, and an epoch's end wipes out, and what a step does once it has seen enough."""

from collections import deque
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_loader, make_private, make_trainer
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

from lightning_pac.exceptions import PrivacyViolationError

pytestmark = [pytest.mark.checks_each_fit, pytest.mark.filterwarnings("ignore:.*num_workers")]

REFUSED = (MisconfigurationException, PrivacyViolationError)


class Centred(Classifier):
    """Takes the mean of the batch before off each."""

    before: Tensor | float = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        shifted = batch[0] - self.before
        self.before = batch[0].mean(0)
        return F.cross_entropy(self.network(shifted), batch[1])

    def forget(self) -> None:
        self.before = 0.0


class ForgetsFirst(Centred):
    def on_train_epoch_start(self) -> None:
        self.forget()


class ForgetsLast(Centred):
    def on_train_epoch_end(self) -> None:
        self.forget()


class ForgetsInValidation(Centred):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.forget()


class ForgetsInEachStep(Centred):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.forget()


class Weighted(Classifier):
    """By how often a class came in the epoch so far."""

    def on_train_epoch_start(self) -> None:
        self.counts = torch.ones(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        weights = (1 / self.counts)[batch[1]]
        self.counts = self.counts + torch.bincount(batch[1], minlength=3)
        return (weights * F.cross_entropy(self.network(batch[0]), batch[1], reduction="none")).mean()


class Counts(Classifier):
    """In a buffer that a checkpoint in the middle of an epoch holds."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(3), persistent)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.counts += torch.bincount(batch[1], minlength=3)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.counts.zero_()


class Agrees(Classifier):
    """With what it said of the batch before, as it does while its weights stay (self-distillation)."""

    before: tuple[Tensor, Tensor] | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.before is not None:
            inputs, said = self.before
            loss = loss + F.kl_div(self.network(inputs).log_softmax(1), said, reduction="batchmean")
        self.before = batch[0], self.network(batch[0]).detach().softmax(1)
        return loss


class SkipsSpikes(Classifier):
    """Once it knows the losses of ten batches."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: deque[float] = deque(maxlen=10)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        is_spike = len(self.losses) == 10 and loss.item() > 3 * sum(self.losses) / 10
        self.losses.append(loss.item())
        return 0 * loss if is_spike else loss


class Leaves(pl.Callback):
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.centre = 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.centre = batch[0].mean(0)


class Taking(Classifier):
    centre: Tensor | float = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.network(batch[0] - self.centre), batch[1])


class Blends:
    """Batches with the one before, where both are of one size."""

    def __init__(self) -> None:
        self.before = torch.zeros(0)

    def __call__(self, records: list[Any]) -> Any:
        inputs, labels = default_collate(records)
        before, self.before = self.before, inputs
        return (0.8 * inputs + 0.2 * before if len(before) == len(inputs) else inputs), labels


@pytest.mark.parametrize(
    "kind",
    [
        *(ForgetsFirst, ForgetsInEachStep, Weighted, Counts, Agrees, Classifier),
        *slow(ForgetsLast, ForgetsInValidation, SkipsSpikes, Taking),
    ],
)
def test_what_a_step_leaves_for_later_ones_is_found(kind: Any, tmp_path: Path) -> None:
    callbacks = [Leaves()] if kind is Taking else []
    options = {"collate_fn": Blends()} if kind is Classifier else {}
    several = 2 if kind is ForgetsInEachStep else 1
    trainer = make_trainer(tmp_path, make_private(), *callbacks, max_epochs=3, accumulate_grad_batches=several)
    with pytest.raises(REFUSED, match=r"records of earlier batches|'counts' of Counts|number that is read off"):
        trainer.fit(kind(), make_loader(**options))


class HardAfter(Classifier):
    """Trains on the larger half of the losses, once a number of the validation is high."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses = F.cross_entropy(self.network(batch[0]), batch[1], reduction="none")
        is_late = self.trainer.callback_metrics.get("validated", 0.0) > 3
        return losses.topk(len(losses) // 2).values.mean() if is_late else losses.mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("validated", batch[0].mean())


def test_what_a_validation_turns_on_is_found(tmp_path: Path) -> None:
    public = make_data(20).tensors
    loader = DataLoader(TensorDataset(public[0] + 5, public[1]), batch_size=10)
    with pytest.raises(PrivacyViolationError, match="couples the records"):
        make_trainer(tmp_path, make_private(), max_epochs=3).fit(HardAfter(), make_loader(), loader)


def test_what_is_counted_for_an_epoch_passes(tmp_path: Path) -> None:
    make_trainer(tmp_path, make_private(), max_epochs=2).fit(Counts(persistent=False), make_loader())
    # Each step forgets, and there is one for each batch.
    make_trainer(tmp_path, make_private(), max_epochs=2).fit(ForgetsInEachStep(), make_loader())
