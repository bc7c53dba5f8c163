"""A public dataset with private labels, for an ordinary fit."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler, default_collate
from typing_extensions import override

from lightning_pac._validation import Count, Natural, OpenProbability, validated
from lightning_pac.cards import PrivacyCard
from lightning_pac.data.with_index import batch_inputs, check_records
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules.distillation.private_labels import FilterName, PrivateLabels, label_privately
from lightning_pac.modules.distillation.saved_responder import SavedResponder

Mix = Literal["none", "mixup", "cutmix", "both"]


# The command line finds subclasses of a plain Dataset only, not of Dataset[Any].
@validated
class DistilledDataModule(pl.LightningDataModule):
    """Label a public dataset through a responder, and give a student those labels that can be trusted.

    The student is an ordinary module in an ordinary fit. It learns from private answers only, so it may be published:
    the mutual information of the answers bounds whatever is done with it. Its checkpoint carries the privacy card,
    under this class's name, and so does the folder of its logs.

    A label is bought once: the ledger knows every record that was answered, so epochs, workers and restarts pay
    nothing. Under several ranks the first one asks; give a `SavedResponder` there, which only that rank opens.

    Batches are `(inputs, labels)`; with MixUp or CutMix the labels are probabilities of shape (batch, num_classes).

    Args:
        responder: An open responder, or the files to open one from (closed again after labelling).
        public_dataset: A map-style dataset of inputs, or of tuples that begin with the input; the rest is ignored.
        alpha: Level of the filter.
        filter: `"bayes"` keeps labels whose posterior is at least 1 - alpha. `"test"` bounds the probability that a
            wrong label is kept by alpha, `"paper"` is the paper's rule, which exceeds it with more than two classes.
        balance: Draw the kept classes equally often.
        mix: MixUp, CutMix or one of both at random for each batch (needs torchvision and `num_classes`).
        num_classes: Number of classes, for `mix`.
        transform: Applied to each input in training, after it was labelled: the place for random augmentation.
        batch_size: Records in a training batch.
        num_workers: Of the loaders.
        val_dataset: A labelled dataset to validate on, if any.

    Raises:
        ValueError: If alpha, the filter, `mix` or `num_classes` is out of range.

    Example:
        `Trainer().fit(student, DistilledDataModule(responder, public_dataset, alpha=0.01))`

    References:
        PAC-private responses, section 5. The Bayes filter is ours.
    """

    def __init__(
        self,
        responder: PACResponder | SavedResponder,
        public_dataset: Annotated[Dataset, "any map-style dataset"],  # type: ignore[type-arg]
        alpha: OpenProbability = 0.01,
        filter: FilterName = "bayes",
        balance: bool = True,
        mix: Mix = "none",
        num_classes: Count | None = None,
        transform: Callable[[Any], Any] | None = None,
        batch_size: Count = 64,
        num_workers: Natural = 0,
        val_dataset: Annotated[Dataset | None, "any map-style dataset"] = None,  # type: ignore[type-arg]
    ) -> None:
        super().__init__()
        check_records(public_dataset, "public_dataset")
        if val_dataset is not None:
            check_records(val_dataset, "val_dataset")
        if mix != "none" and (num_classes is None or num_classes < 2):
            raise ValueError(f"mix={mix!r} gives probabilities of num_classes: name that number, got {num_classes}.")
        self.responder = responder
        self.public_dataset = public_dataset
        self.alpha = alpha
        self.filter: FilterName = filter
        self.balance = balance
        self.mix: Mix = mix
        self.num_classes = num_classes
        self.transform = transform
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.val_dataset = val_dataset
        if val_dataset is None:
            # Lightning warns where there is a hook for a loader and the student has no validation_step.
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]
        self.labels: PrivateLabels | None = None

    @property
    def privacy_card(self) -> PrivacyCard:
        """The guarantees that the student inherits.

        Raises:
            RuntimeError: Before the labels were bought.
        """
        return self._bought().card

    @override
    def prepare_data(self) -> None:
        if self.labels is not None:
            return
        if isinstance(self.responder, SavedResponder):
            with self.responder.open() as responder:
                self.labels = label_privately(responder, self.public_dataset, self.alpha, self.filter)
        else:
            self.labels = label_privately(self.responder, self.public_dataset, self.alpha, self.filter)
        found = self.labels
        rank_zero_info(
            f"{found.num_answers} private labels, {found.num_unanimous} of them unanimous and free; "
            f"{len(found.index)} passed the filter."
        )

    @override
    def setup(self, stage: str) -> None:
        if self.trainer is not None and self.trainer.world_size > 1:
            self.labels = self.trainer.strategy.broadcast(self.labels)
        if stage == "fit" and self.trainer is not None and self.trainer.loggers:
            log_dir = self.trainer.log_dir  # asked of all ranks at once, or it hangs
            if log_dir is not None and self.trainer.is_global_zero:
                self._bought().card.save(log_dir, "student_privacy_card")

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        bought = self._bought()
        dataset = _Labelled(self.public_dataset, bought, self.transform)
        sampler = None
        if self.balance:
            # 1 / (records of its class): every kept class is then drawn with the same probability.
            weights = 1 / np.bincount(bought.labels)[bought.labels]
            sampler = WeightedRandomSampler(weights.tolist(), len(dataset))
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=sampler is None,
            sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=_Mixing(self.mix, self.num_classes) if self.num_classes and self.mix != "none" else None,
        )

    @override
    def val_dataloader(self) -> Any:
        assert self.val_dataset is not None
        return DataLoader(self.val_dataset, batch_size=self.batch_size, num_workers=self.num_workers)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self.labels is None else {"privacy_card": self.labels.card.to_dict()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("privacy_card", {}).get("details", {}).get("table")
        if self.labels is not None and saved is not None and saved != self.labels.card.details["table"]:
            raise ValueError(
                f"The checkpoint's labels are of the table {saved[:12]}, not of this responder's: resume with the "
                "responder of the first run."
            )

    def _bought(self) -> PrivateLabels:
        if self.labels is None:
            raise RuntimeError("The labels are not bought yet: fit a student, or call prepare_data() first.")
        return self.labels


class _Labelled(Dataset[Any]):
    """The kept records with their private labels."""

    def __init__(self, dataset: Any, labels: PrivateLabels, transform: Callable[[Any], Any] | None) -> None:
        self.dataset, self.labels, self.transform = dataset, labels, transform

    def __getitem__(self, position: int) -> tuple[Any, int]:
        inputs = batch_inputs(self.dataset[int(self.labels.index[position])])
        label = int(self.labels.labels[position])
        return (inputs if self.transform is None else self.transform(inputs)), label

    def __len__(self) -> int:
        return len(self.labels.index)


class _Mixing:
    """Collates a batch and mixes it by torchvision."""

    def __init__(self, mix: Mix, num_classes: int) -> None:
        from torchvision.transforms import v2

        mixup, cutmix = v2.MixUp(num_classes=num_classes), v2.CutMix(num_classes=num_classes)
        self.transform = {"mixup": mixup, "cutmix": cutmix, "both": v2.RandomChoice([mixup, cutmix])}[mix]

    def __call__(self, samples: list[Any]) -> Any:
        inputs, labels = default_collate(samples)
        return self.transform(torch.as_tensor(inputs), labels)
