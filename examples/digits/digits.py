"""Handwritten digits in two worlds, and a linear model, written as for any other Lightning project."""

import dataclasses

import lightning.pytorch as pl
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.scenarios import TwoWorldScenario

NUM_TEST = 360


class DigitsData(pl.LightningDataModule):
    """The 1,797 digits of scikit-learn, of which 1,437 are trained on.

    The secret is how many of them show `secret_digit`: in the second world, `num_differing` more of the labels do. One
    of the two worlds is realized, and only that one is served.

    Args:
        secret_digit: The digit whose prevalence is the secret.
        num_differing: Labels in which the worlds differ.
        batch_size: Records in a batch of a shuffled epoch.
        seed: Of the split and of the labels that differ; none of them is secret.
        world: The world to realize; drawn at random by default.
        copies: Images to train on that are made of each of the 1,437, with noise on every pixel.
    """

    def __init__(
        self,
        secret_digit: int = 3,
        num_differing: int = 3,
        batch_size: int = 719,
        seed: int = 0,
        world: int | None = None,
        copies: int = 1,
    ) -> None:
        super().__init__()
        images, labels = load_digits(return_X_y=True)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(labels))
        images, labels = images[order], labels[order]
        train_images, train_labels = images[NUM_TEST:], labels[NUM_TEST:]
        if copies > 1:
            train_images = np.tile(train_images, (copies, 1))
            train_images += rng.normal(scale=2.0, size=train_images.shape)  # a pixel is at most 16
            train_labels = np.tile(train_labels, copies)
        count = int(np.count_nonzero(train_labels == secret_digit))
        worlds = TwoWorldScenario.from_prevalence(
            train_labels,
            secret_digit,
            p0=count / len(train_labels),
            p1=(count + num_differing) / len(train_labels),
            rng=seed,
            world=world,
        )
        counts = f"{count:,} or {count + num_differing:,} of {len(train_labels):,}"
        secret = f"whether {counts} images are labelled as the digit {secret_digit}"
        self.worlds = dataclasses.replace(worlds, secret=secret)
        self.batch_size = batch_size
        self.train_set = TensorDataset(torch.tensor(_standardized(train_images)), torch.tensor(self.worlds.labels))
        self.test_set = TensorDataset(torch.tensor(_standardized(images[:NUM_TEST])), torch.tensor(labels[:NUM_TEST]))

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.test_set, batch_size=NUM_TEST)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self.val_dataloader()


class LinearDigits(pl.LightningModule):
    """Multinomial logistic regression on 8 x 8 images.

    Args:
        learning_rate: Of stochastic gradient descent with momentum 0.9.
    """

    def __init__(self, learning_rate: float = 0.25) -> None:
        super().__init__()
        self.network = nn.Linear(64, 10)
        self.learning_rate = learning_rate

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_accuracy", self._accuracy(batch), prog_bar=True)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("test_accuracy", self._accuracy(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)

    def _accuracy(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return (self(images).argmax(dim=1) == labels).float().mean()


def _standardized(images: np.ndarray) -> np.ndarray:
    """Every image by itself: centred and scaled to norm 4, so that no record's scale depends on another's."""
    centred = images - images.mean(axis=1, keepdims=True)
    return (4 * centred / np.linalg.norm(centred, axis=1, keepdims=True)).astype(np.float32)
