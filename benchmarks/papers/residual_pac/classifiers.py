"""The base classifiers of Figure 1: networks whose outputs on test records are privatized.

Files are looked for under `data_root`: `cifar10_{train,test}.npz` (arrays x of bytes and y), `MNIST/raw` as torchvision
lays it out, and `ag_news/`. `digits` comes with scikit-learn.
"""

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Array = npt.NDArray[Any]


EPOCHS = {"cifar10": 8, "mnist": 3, "ag_news": 2, "digits": 20}


def logits(
    name: str, data_root: Path, epochs: int | None, num_train: int | None, num_records: int
) -> tuple[Array, Array]:
    """Outputs of a trained base classifier on test records, shape (n, classes), and their labels."""
    features, labels, test_features, test_labels, network = DATA[name](data_root)
    order = np.random.default_rng(0).permutation(len(labels))[:num_train]
    kept = np.random.default_rng(1).permutation(len(test_labels))[:num_records]
    torch.manual_seed(0)
    model = Classifier(network)
    loader = DataLoader(TensorDataset(features[order], labels[order]), batch_size=128, shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    pl.Trainer(max_epochs=epochs or EPOCHS[name], accelerator="cpu", enable_progress_bar=False, **quiet).fit(
        model, loader
    )
    with torch.inference_mode():
        outputs = torch.cat([model.eval().network(part) for part in test_features[kept].split(500)])
    return outputs.double().numpy(), test_labels[kept].numpy()


class Classifier(pl.LightningModule):
    """Cross-entropy and Adam."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: Any) -> Tensor:
        """Mean cross-entropy."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        """Adam at 0.001."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


Parts = tuple[Tensor, Tensor, Tensor, Tensor, nn.Module]


def _cifar10(data_root: Path) -> Parts:
    parts: list[Tensor] = []
    for part in ("train", "test"):
        with np.load(data_root / f"cifar10_{part}.npz") as data:
            parts += [torch.from_numpy(data["x"]).float() / 127.5 - 1, torch.from_numpy(data["y"]).long()]
    network = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    return parts[0], parts[1], parts[2], parts[3], network


def _mnist(data_root: Path) -> Parts:
    parts: list[Tensor] = []
    for part in ("train", "t10k"):
        images = np.fromfile(data_root / f"MNIST/raw/{part}-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 1, 28, 28)
        classes = np.fromfile(data_root / f"MNIST/raw/{part}-labels-idx1-ubyte", np.uint8)[8:]
        parts += [(torch.from_numpy(images).float() / 255 - 0.1307) / 0.3081, torch.from_numpy(classes).long()]
    network = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    return parts[0], parts[1], parts[2], parts[3], network


def _ag_news(data_root: Path) -> Parts:
    from sklearn.feature_extraction.text import HashingVectorizer

    with open(data_root / "ag_news" / "ag_news_train_subset.csv", newline="") as file:
        train = [(row["text"], int(row["label"])) for row in csv.DictReader(file)]
    with open(data_root / "ag_news" / "test.csv", newline="") as file:
        test = [(f"{row[1]} {row[2]}", int(row[0]) - 1) for row in csv.reader(file)]
    vectorizer = HashingVectorizer(n_features=2**12, stop_words="english")
    parts: list[Tensor] = []
    for rows in (train, test):
        dense = vectorizer.transform([text for text, _ in rows]).astype(np.float32).toarray()
        parts += [torch.from_numpy(dense), torch.tensor([label for _, label in rows])]
    network = nn.Sequential(nn.Linear(2**12, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 4))
    return parts[0], parts[1], parts[2], parts[3], network


def _digits(data_root: Path) -> Parts:
    from sklearn.datasets import load_digits

    data = load_digits()
    features, labels = torch.tensor(data.data / 16).float(), torch.tensor(data.target).long()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return features[order[:897]], labels[order[:897]], features[order[897:]], labels[order[897:]], network


DATA = {"cifar10": _cifar10, "mnist": _mnist, "ag_news": _ag_news, "digits": _digits}
