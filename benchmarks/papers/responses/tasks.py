"""The data sets of the PAC-private responses experiments and one model per subset of each.

Files are looked for under `--data-root`: `adult/` and `bank/` as UCI distributes them, `ag_news/`, `MNIST/raw` as
torchvision lays it out, and `cifar10_{train,test}.npz` (arrays x and y). Without any data, `digits` always works.
"""

import csv
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from random_features import Ridge, random_features
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_pac.data import WithIndex
from lightning_pac.modules import LearnerEnsemble, SubsetEnsemble
from lightning_pac.scenarios import BalancedSubsets, SecretSpace, SubsetTable

Array = npt.NDArray[Any]

# Of the mean square of a feature, which is one: strong enough that members agree on 58 % of the records.
RIDGE_STRENGTH = 0.1


@dataclass(frozen=True)
class Task:
    """A pool, a test set, and how one model is trained.

    Attributes:
        features: Records of the pool.
        labels: Their classes, integers from 0.
        test_features: Records to ask about.
        test_labels: Their classes.
        network: Makes a torch network; None for learners.
        learner: Makes a learner with fit, predict and predict_proba; None for networks.
        epochs: Passes over the pool (networks).
        batch_size: Records in a shared batch (networks).
        learning_rate: Of Adam, or of SGD with momentum if the task augments (networks).
        augment: Random crops and flips of images (networks).
        anneal: The learning rate follows a cosine to zero over the epochs (networks).
    """

    features: Array
    labels: Array
    test_features: Array
    test_labels: Array
    network: Callable[[], nn.Module] | None = None
    learner: Callable[[], Any] | None = None
    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 3e-3
    augment: bool = False
    anneal: bool = False

    @property
    def num_classes(self) -> int:
        """Number of classes in the pool."""
        return int(self.labels.max()) + 1


def load(name: str, data_root: Path, num_records: int | None = None, epochs: int | None = None) -> Task:
    """One of the tasks, with at most `num_records` records in the pool."""
    task = TASKS[name](data_root)
    task = task if epochs is None else Task(**{**vars(task), "epochs": epochs})
    if num_records is None or num_records >= len(task.labels):
        return task
    kept = np.random.default_rng(0).permutation(len(task.labels))[:num_records]
    return Task(**{**vars(task), "features": task.features[kept], "labels": task.labels[kept]})


def train(
    task: Task, pool: SecretSpace, accelerator: str = "cpu", chunk_size: int | None = None, folder: Path | None = None
) -> Any:
    """All models of a pool: a `SubsetEnsemble` or a `LearnerEnsemble`.

    With a folder, networks are kept there after each epoch, and an interrupted fit goes on.
    """
    if task.learner is not None:
        return LearnerEnsemble(task.learner, pool).fit(task.features, task.labels)
    assert task.network is not None
    torch.manual_seed(0)
    inputs = torch.from_numpy(task.features)
    records: Dataset[Any] = TensorDataset(inputs, torch.from_numpy(task.labels))
    if task.augment:
        records = Augmented(inputs, torch.from_numpy(task.labels))
    optimizer = functools.partial(torch.optim.Adam, lr=task.learning_rate)
    if task.augment:
        optimizer = functools.partial(torch.optim.SGD, lr=task.learning_rate, momentum=0.9, weight_decay=5e-4)
    schedule = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=task.epochs) if task.anneal else None
    ensemble = SubsetEnsemble(task.network, pool, optimizer=optimizer, lr_scheduler=schedule, chunk_size=chunk_size)
    loader = DataLoader(WithIndex(records), min(task.batch_size, len(task.labels)), shuffle=True, drop_last=True)
    kept = [] if folder is None else [ModelCheckpoint(folder, "last", enable_version_counter=False)]
    last = folder / "last.ckpt" if folder is not None and (folder / "last.ckpt").exists() else None
    quiet = {"logger": False, "enable_checkpointing": bool(kept), "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=task.epochs, accelerator=accelerator, devices=1, callbacks=kept, **quiet)
    trainer.fit(ensemble, loader, ckpt_path=last, weights_only=False)
    return ensemble.eval()


def train_on_all(task: Task, accelerator: str = "cpu") -> Any:
    """The model that is not private: one subset that holds every record."""
    return train(task, SubsetTable(np.ones((len(task.labels), 1))), accelerator)


def pool_of(task: Task, num_subsets: int) -> BalancedSubsets:
    """The public table of the experiments."""
    return BalancedSubsets(len(task.labels), num_subsets, seed=0)


@torch.no_grad()
def scores(ensemble: Any, features: Array, batch_size: int = 500) -> Array:
    """Class probabilities of all members; shape (n, m, d)."""
    if isinstance(ensemble, LearnerEnsemble):
        columns = [ensemble.member(index).predict_proba(features) for index in ensemble.members]
        return np.stack(columns, axis=1)
    parts = torch.from_numpy(features).split(batch_size)
    blocks = [ensemble(part.to(ensemble.device)).softmax(-1).cpu() for part in parts]
    return torch.cat(blocks).double().numpy()


def normalized_images(path: Path) -> Array:
    """Images of an npz file (array x of bytes), normalized by the statistics of ImageNet, which are public."""
    mean = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
    deviation = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
    with np.load(path) as data:
        return (data["x"] / np.float32(255) - mean) / deviation


class Augmented(Dataset[Any]):
    """Images with a random crop of 4 padded pixels and a random flip."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = nn.functional.pad(images, (4, 4, 4, 4), mode="reflect"), labels

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row, column, flip = torch.randint(9, (3,)).tolist()
        image = self.images[index, :, row : row + 32, column : column + 32]
        return (image.flip(-1) if flip % 2 else image), self.labels[index]

    def __len__(self) -> int:
        return len(self.labels)


def _digits(data_root: Path) -> Task:
    from sklearn.datasets import load_digits

    data = load_digits()
    features, labels = (data.data / 16).astype(np.float32), data.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    pool, test = order[:1437], order[1437:]
    return Task(features[pool], labels[pool], features[test], labels[test], network=lambda: _perceptron(64, 64, 10))


def _mnist(data_root: Path) -> Task:
    arrays = []
    for part in ("train", "t10k"):
        images = np.fromfile(data_root / f"MNIST/raw/{part}-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 784)
        labels = np.fromfile(data_root / f"MNIST/raw/{part}-labels-idx1-ubyte", np.uint8)[8:]
        arrays += [(images / np.float32(255)), labels.astype(np.int64)]
    return Task(*arrays, network=lambda: _perceptron(784, 100, 10), epochs=5, batch_size=256, learning_rate=2e-3)


def _adult(data_root: Path) -> Task:
    rows = []
    for name in ("adult.data", "adult.test"):
        with open(data_root / "adult" / name, newline="") as file:
            rows += [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
    return _table([row[:-1] for row in rows], [row[-1].startswith(">") for row in rows])


def _bank(data_root: Path) -> Task:
    with open(data_root / "bank" / "bank-additional-full.csv", newline="") as file:
        rows = list(csv.reader(file, delimiter=";"))[1:]
    return _table([row[:-1] for row in rows], [row[-1] == "yes" for row in rows])


def _ag_news(data_root: Path) -> Task:
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression

    with open(data_root / "ag_news" / "ag_news_train_subset.csv", newline="") as file:
        train_rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file)]
    with open(data_root / "ag_news" / "test.csv", newline="") as file:
        test_rows = [(f"{row[1]} {row[2]}", int(row[0]) - 1) for row in csv.reader(file)]
    # Hashing learns nothing from the records, so that it may be done once for all members.
    vectorizer = HashingVectorizer(n_features=2**14, stop_words="english")
    features, test = (vectorizer.transform([text for text, _ in rows]) for rows in (train_rows, test_rows))
    labels, test_labels = (np.array([label for _, label in rows]) for rows in (train_rows, test_rows))
    return Task(features, labels, test, test_labels, learner=lambda: LogisticRegression(C=10.0, max_iter=100, tol=1e-3))


def _cifar10(data_root: Path) -> Task:
    arrays = []
    for part in ("train", "test"):
        path = data_root / f"cifar10_{part}.npz"
        with np.load(path) as data:
            arrays += [normalized_images(path), data["y"]]
    return Task(
        *arrays, network=_residual_network, epochs=60, batch_size=256, learning_rate=0.1, augment=True, anneal=True
    )


def _cifar10_small(data_root: Path) -> Task:
    # What one core trains 128 times within an hour or two.
    small = {"network": _small_residual_network, "epochs": 5, "batch_size": 128, "learning_rate": 1e-2}
    return Task(**{**vars(_cifar10(data_root)), **small, "augment": False})


def _cifar10_ridge(data_root: Path) -> Task:
    task = _cifar10(data_root)
    features, test = random_features(task.features), random_features(task.test_features)
    return Task(features, task.labels, test, task.test_labels, learner=lambda: Ridge(RIDGE_STRENGTH))


TASKS: dict[str, Callable[[Path], Task]] = {
    "digits": _digits,
    "mnist": _mnist,
    "census": _adult,
    "bank": _bank,
    "ag_news": _ag_news,
    "cifar10": _cifar10,
    "cifar10-small": _cifar10_small,
    "cifar10-ridge": _cifar10_ridge,
}


def _table(rows: list[list[str]], positive: list[bool]) -> Task:
    """Numbers as they are, words as codes; 80 % pool, 20 % test."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import GridSearchCV

    columns, categorical = [], []
    for column in zip(*rows, strict=True):
        try:
            columns.append(np.array(column, dtype=np.float64))
            categorical.append(False)
        except ValueError:
            columns.append(np.unique(column, return_inverse=True)[1].astype(np.float64))
            categorical.append(True)
    features, labels = np.stack(columns, axis=1), np.array(positive, dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    pool, test = np.split(order, [round(0.8 * len(labels))])

    def learner() -> Any:
        # Each member is tuned on its own subset alone, as in the paper (with XGBoost).
        boosting = HistGradientBoostingClassifier(
            categorical_features=categorical, early_stopping=False, random_state=0
        )
        return GridSearchCV(boosting, {"learning_rate": [0.05, 0.1, 0.2], "max_leaf_nodes": [8, 31]}, cv=3)

    return Task(features[pool], labels[pool], features[test], labels[test], learner=learner)


def _perceptron(num_inputs: int, num_hidden: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_inputs, num_hidden), nn.ReLU(), nn.Linear(num_hidden, num_classes))


def _residual_network() -> nn.Module:
    """A small residual network with GroupNorm, because BatchNorm mixes records and trains the members one by one."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        *(_Block(inputs, outputs, stride) for inputs, outputs, stride in [(32, 32, 1), (32, 64, 2), (64, 128, 2)]),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def _small_residual_network() -> nn.Module:
    """Two residual blocks of 16 and 32 channels over patches of six pixels, four apart: 22,122 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 6, 4, padding=1, bias=False),
        *(_Block(inputs, outputs, stride) for inputs, outputs, stride in [(16, 16, 1), (16, 32, 2)]),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(8, inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.GroupNorm(8, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Residual sum."""
        result: Tensor = self.body(images) + self.shortcut(images)
        return result
