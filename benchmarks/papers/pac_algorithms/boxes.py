"""Data sets and black boxes of *PAC-Private Algorithms*: clusters, hyperplanes, principal components and forests.

Iris comes with scikit-learn. Files are looked for under `--data-root`: `rice/` and `dry_bean/` as UCI distributes them,
and `cifar10_{train,test}.npz` (arrays x and y). Features are scaled with statistics of the whole data set, as in the
paper; that says nothing about the secret half, and everything about the pool.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import preprocessing
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from sklearn.svm import LinearSVC
from sklearn.utils import shuffle

from lightning_pac.mechanisms import AlignBasis, FittedEstimator, FixedForest

Array = npt.NDArray[Any]

SEED = 0  # initial centres and the features of trees follow from it

SCALERS: dict[str, Callable[[], Any]] = {
    "standard": preprocessing.StandardScaler,
    "centered": lambda: preprocessing.StandardScaler(with_std=False),
    "power": lambda: preprocessing.PowerTransformer(standardize=False),
    "power-standard": lambda: preprocessing.PowerTransformer(standardize=True),
    "minmax": preprocessing.MinMaxScaler,
    "gaussian-quantile": lambda: preprocessing.QuantileTransformer(output_distribution="normal", random_state=0),
    "robust": preprocessing.RobustScaler,
    "l1": lambda: preprocessing.Normalizer(norm="l1"),
}


@dataclass(frozen=True)
class Task:
    """Training pool and test set."""

    features: Array
    labels: Array
    test_features: Array
    test_labels: Array

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

    @functools.cached_property
    def test_moment(self) -> Array:
        """Sum of the products of test features, shape (d, d)."""
        rows = self.test_features.astype(np.float64)
        return rows.T @ rows


def load(name: str, scaler: str, data_root: Path) -> Task:
    """One data set, scaled, shuffled and divided as in the authors' code."""
    if name == "iris":
        features, labels = load_iris(return_X_y=True)
        size = 100
    elif name == "cifar10":
        train, test = (np.load(data_root / f"cifar10_{part}.npz") for part in ("train", "test"))
        pool, held_out = (part["x"].reshape(len(part["x"]), -1).astype(np.float32) / 255 for part in (train, test))
        return Task(pool, train["y"], held_out, test["y"])
    else:
        folder, file = {"rice": ("rice", "*.arff"), "bean": ("dry_bean", "*.arff")}[name]
        text = next((data_root / folder).glob(file)).read_text(encoding="latin-1")
        rows = [line.rsplit(",", 1) for line in text.split("@DATA")[1].split()]
        features = np.array([row[0].split(",") for row in rows], dtype=np.float64)
        labels = np.unique([row[1] for row in rows], return_inverse=True)[1]
        size = int(0.7 * len(labels))
    features, labels = shuffle(SCALERS[scaler]().fit_transform(features), labels, random_state=0)
    return Task(features[:size], labels[:size], features[size + 1 :], labels[size + 1 :])


@dataclass(frozen=True)
class LabelledClusters:
    """K-Means with centres in the order of the labels of their records; optionally on classes of equal size."""

    num_classes: int
    balanced: bool = False

    def __call__(self, features: Array, labels: Array) -> Array:
        """Centres, shape (k, d)."""
        if self.balanced:
            features, labels = oversample(features, labels)
        fitted = KMeans(self.num_classes, n_init=10, random_state=SEED).fit(features)
        counts = np.zeros((self.num_classes, self.num_classes))
        np.add.at(counts, (fitted.labels_, labels), 1)
        ordered = np.empty_like(fitted.cluster_centers_)
        taken: set[int] = set()
        for cluster in range(self.num_classes):
            place = next(int(label) for label in np.argsort(-counts[cluster], kind="stable") if int(label) not in taken)
            taken.add(place)
            ordered[place] = fitted.cluster_centers_[cluster]
        return ordered


def oversample(features: Array, labels: Array) -> tuple[Array, Array]:
    """SMOTE: records between a record and one of its five nearest neighbours, until all classes are equally large."""
    rng = np.random.default_rng(SEED)
    sizes = np.bincount(labels)
    rows, classes = [features], [labels]
    for label, size in enumerate(sizes):
        inside = features[labels == label]
        missing = int(sizes.max() - size)
        if missing == 0:
            continue
        near = NearestNeighbors(n_neighbors=min(6, len(inside))).fit(inside).kneighbors(inside)[1][:, 1:]
        start = rng.integers(0, len(inside), missing)
        other = near[start, rng.integers(0, near.shape[1], missing)]
        rows.append(inside[start] + rng.random((missing, 1)) * (inside[other] - inside[start]))
        classes.append(np.full(missing, label))
    return np.concatenate(rows), np.concatenate(classes)


def hyperplanes(strength: float) -> FittedEstimator:
    """One-versus-rest linear support vector machine: weights and intercept of each class, shape (k, d + 1)."""
    return FittedEstimator(LinearSVC(dual=False, C=strength, random_state=SEED, max_iter=5_000), "coef_", "intercept_")


@dataclass(frozen=True)
class PrincipalComponents:
    """Mean and principal components, turned within their span to lie close to a public basis."""

    public: Array = field(repr=False)

    def __call__(self, features: Array) -> Array:
        """The mean, then the components, shape (1 + k, d)."""
        count = len(self.public)
        mean = features.mean(axis=0)
        if features.shape[1] < 500:
            components = PCA(count, random_state=SEED, svd_solver="full").fit(features).components_
        else:
            components = (
                PCA(count, random_state=SEED, svd_solver="randomized", iterated_power=7).fit(features).components_
            )
        return np.vstack([mean, AlignBasis(public=self.public)(components)])


def forest(task: Task, num_trees: int, depth: int, step: float | None, penalty: float, neighbors: float) -> FixedForest:
    """Trees on the features that the authors' seed draws."""
    orders = np.random.default_rng(SEED).permuted([list(range(task.features.shape[1]))] * num_trees, axis=1)
    return FixedForest(orders[:, :depth].tolist(), task.num_classes, step, neighbors, penalty)


def cluster_accuracy(centers: Array, task: Task) -> Array:
    """Share of the test set that is nearest to the centre of its class, shape (trials,)."""
    return np.array([_accuracy(rows @ task.test_features.T - (rows**2).sum(1)[:, None] / 2, task) for rows in centers])


def hyperplane_accuracy(planes: Array, task: Task) -> Array:
    """Share of the test set that the hyperplanes classify correctly, shape (trials,)."""
    if planes.shape[1] == 1:
        planes = np.concatenate([-planes, planes], axis=1)
    return np.array([_accuracy(rows[:, :-1] @ task.test_features.T + rows[:, -1:], task) for rows in planes])


def _accuracy(scores: Array, task: Task) -> float:
    return float((scores.argmax(axis=0) == task.test_labels).mean())


def restoration_error(released: Array, task: Task) -> Array:
    """Distance of the test set from its projection, relative to its length, shape (trials,)."""
    moment, total = task.test_moment, task.test_features.sum(axis=0, dtype=np.float64)
    count, length = len(task.test_features), np.trace(moment)
    errors = []
    for mean, components in ((matrix[0], matrix[1:]) for matrix in released):
        # Of centred rows R: |R - R C^T C|^2 = |R|^2 - 2 tr(C R^T R C^T) + tr(C R^T R C^T C C^T), with the noised C.
        seen, centre = components @ total, components @ mean
        inner = components @ moment @ components.T - np.outer(seen, centre) - np.outer(centre, seen)
        inner += count * np.outer(centre, centre)
        squares = length - 2 * mean @ total + count * mean @ mean
        squares += np.trace(inner @ (components @ components.T)) - 2 * np.trace(inner)
        errors.append(np.sqrt(max(squares, 0.0) / length))
    return np.array(errors)
