"""Public data sets as tensors: training records, the first of them public, and test records that choose nothing."""

import csv
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import MNIST

__all__ = ["LOADERS", "PUBLIC", "Split", "load_adult"]

WORDS = 1024
# Training records that are public: settings are chosen by them, and they are not trained on.
PUBLIC = {
    "adult": 5_000, "bank": 5_000, "dry_bean": 2_000, "mnist": 5_000, "mnist_features": 5_000,
    "cifar10_features": 5_000, "cifar10": 5_000, "ag_news": 5_000,
}  # fmt: skip
Split = tuple[torch.Tensor, torch.Tensor]


def load_adult(root: Path) -> tuple[Split, Split]:
    """Income by census data, scaled by public ranges; its own test records."""
    numeric = {0: 100.0, 4: 16.0, 10: 1e5, 11: 5e3, 12: 100.0}
    rows = []
    for name in ("adult.data", "adult.test"):
        with (root / "adult" / name).open() as file:
            rows.append([row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15])
    encoded = _encode([*rows[0], *rows[1]], numeric, (1, 5, 6, 7, 8, 9, 13))
    labels = torch.tensor([int(row[14].startswith(">50K")) for row in [*rows[0], *rows[1]]])
    first = len(rows[0])
    return (encoded[:first], labels[:first]), (encoded[first:], labels[first:])


def load_bank(root: Path) -> tuple[Split, Split]:
    """Deposits by telephone, without the duration of the call, which tells the outcome; 8,000 test records."""
    with (root / "bank" / "bank-additional-full.csv").open() as file:
        _, *rows = csv.reader(file, delimiter=";")
    numeric = {0: 100.0, 11: 10.0, 12: 1000.0, 13: 5.0, 15: 3.0, 16: 100.0, 17: 50.0, 18: 5.0, 19: 5000.0}
    labels = torch.tensor([int(row[20] == "yes") for row in rows])
    return _divided(_encode(rows, numeric, (1, 2, 3, 4, 5, 6, 7, 8, 9, 14)), labels, 8_000)


def load_dry_bean(root: Path) -> tuple[Split, Split]:
    """Seven kinds of beans by sixteen measures of their outlines, scaled by the public ones; 3,000 test records."""
    text = (root / "dry_bean" / "Dry_Bean_Dataset.arff").read_text()
    rows = [line.split(",") for line in text.split("@DATA")[1].split() if line.count(",") == 16]
    kinds = {kind: number for number, kind in enumerate(sorted({row[16] for row in rows}))}
    measures = np.log(np.array([row[:16] for row in rows], dtype=np.float64))
    train, test = _divided(torch.from_numpy(measures), torch.tensor([kinds[row[16]] for row in rows]), 3_000)
    public = train[0][: PUBLIC["dry_bean"]]
    centre, width = public.mean(dim=0), public.std(dim=0)

    def scaled(part: Split) -> Split:
        return ((part[0] - centre) / width).clip(-3, 3).float() / 4, part[1]

    return scaled(train), scaled(test)


def load_mnist(root: Path) -> tuple[Split, Split]:
    """Digits, the first 15,000 of the training images; their own test images."""
    sets = [MNIST(root, train=train) for train in (True, False)]
    train, test = ((s.data.reshape(-1, 784).float() / 255 - 0.13, s.targets) for s in sets)
    return (train[0][:15_000], train[1][:15_000]), test


def load_mnist_features(root: Path) -> tuple[Split, Split]:
    """600 random cosine features of 25,480 of the digits, of which forty batches of 512 are private."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(784, 600, generator=generator) / 8
    phases = torch.rand(600, generator=generator) * 2 * torch.pi
    sets = [MNIST(root, train=train) for train in (True, False)]
    train, test = (
        (torch.cos((s.data.reshape(-1, 784).float() / 255 - 0.13) @ weights + phases) / 300**0.5, s.targets)
        for s in sets
    )
    return (train[0][:25_480], train[1][:25_480]), test


def load_cifar10(root: Path, records: int = 15_000) -> tuple[Split, Split]:
    """Photographs, the first of the training images, shape (n, 3, 32, 32); their own test images."""
    train, test = ((_photographs(root / f"cifar10_{name}.npz"), _labels(root, name)) for name in ("train", "test"))
    return (train[0][:records], train[1][:records]), test


def load_cifar10_features(root: Path) -> tuple[Split, Split]:
    """How far 128 patches of public photographs are matched in each quarter of an image, as vectors of norm 1.

    The patches (Coates and Ng 2012) and the features' means and deviations come from 5,000 images of CIFAR-100, which
    are public here. Training images, shape (n, 4, 1024), have four views: moved by two pixels or not, mirrored or not.
    """
    public = _photographs(root / "cifar100_public.npz")
    (images, labels), test = load_cifar10(root, 25_000)
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(27, (2, len(public)), generator=generator)
    cut = torch.stack([image[:, y : y + 6, x : x + 6] for image, y, x in zip(public, *places.tolist(), strict=True)])
    patches = cut.flatten(1)
    patches = (patches - patches.mean(1, keepdim=True)) / (patches.std(1, keepdim=True) + 0.05)
    # Whitened, so that the products tell edges and colours apart instead of brightness.
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    whitening = vectors / (values + 0.1).sqrt() @ vectors.T
    filters = (patches[:128] - patches.mean(0)) @ whitening
    filters = (filters / filters.norm(dim=1, keepdim=True)) @ whitening
    weights = (filters - filters.mean(1, keepdim=True)).view(128, 3, 6, 6)  # blind to the brightness of a patch
    spread = torch.nn.functional.conv2d(public[:1_000], weights, stride=2).std((0, 2, 3))
    weights /= spread[:, None, None, None]

    def matched(part: torch.Tensor) -> torch.Tensor:
        found = []
        for chunk in part.split(500):
            products = torch.nn.functional.conv2d(chunk, weights, stride=2)
            both = torch.cat([(products - 0.5).relu(), (-products - 0.5).relu()], dim=1)
            found.append(torch.nn.functional.adaptive_avg_pool2d(both, 2).flatten(1))
        return torch.cat(found)

    of_public = matched(public)
    centre, width = of_public.mean(0), of_public.std(0)

    def features(part: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(((matched(part) - centre) / width).clip(-3, 3))

    moved = images.roll((2, 2), (2, 3))
    views = torch.stack([features(view) for view in (images, moved, images.flip(3), moved.flip(3))], dim=1)
    return (views, labels), (features(test[0]), test[1])


def load_ag_news(root: Path) -> tuple[Split, Split]:
    """News by topic, as counts of hashed words of norm 1; its own test records."""

    def encode(name: str) -> Split:
        with (root / "ag_news" / name).open(newline="") as file:
            rows = [row for row in csv.reader(file) if row[0].isdigit()]
        found = np.zeros((len(rows), WORDS), dtype=np.float32)
        for i, row in enumerate(rows):
            for word in " ".join(row[1:]).lower().split():
                found[i, zlib.crc32(word.encode()) % WORDS] += 1.0
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        labels = torch.tensor([int(row[0]) for row in rows])
        return torch.from_numpy(found), labels - labels.min()

    return encode("ag_news_train_subset.csv"), encode("test.csv")


LOADERS = {
    "adult": load_adult,
    "bank": load_bank,
    "dry_bean": load_dry_bean,
    "mnist": load_mnist,
    "mnist_features": load_mnist_features,
    "cifar10_features": load_cifar10_features,
    "cifar10": load_cifar10,
    "ag_news": load_ag_news,
}


def _photographs(file: Path) -> torch.Tensor:
    """Images of three colours and 32 by 32 pixels, as numbers around 0."""
    with np.load(file) as arrays:
        images = arrays["x"][:25_000]
    return torch.from_numpy(images).float() / 255 - 0.5


def _labels(root: Path, name: str) -> torch.Tensor:
    with np.load(root / f"cifar10_{name}.npz") as arrays:
        return torch.from_numpy(arrays["y"][:25_000])


def _encode(rows: Sequence[Sequence[str]], numeric: dict[int, float], named: Sequence[int]) -> torch.Tensor:
    """Numbers by their scales, then a column for each value of the others, and one that is always 1."""
    names = [(place, value) for place in named for value in sorted({row[place] for row in rows})]
    column = {key: number for number, key in enumerate(names, len(numeric) + 1)}
    found = np.zeros((len(rows), 1 + len(numeric) + len(column)), dtype=np.float32)
    for i, row in enumerate(rows):
        found[i, 0] = 1.0
        found[i, 1 : 1 + len(numeric)] = [float(row[place]) / scale for place, scale in numeric.items()]
        found[i, [column[key] for key in enumerate(row) if key in column]] = 1.0
    return torch.from_numpy(found / np.float32((1 + len(numeric) + len(named)) ** 0.5))


def _divided(inputs: torch.Tensor, labels: torch.Tensor, test: int) -> tuple[Split, Split]:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return (inputs[order[test:]], labels[order[test:]]), (inputs[order[:test]], labels[order[:test]])
