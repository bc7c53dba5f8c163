"""Random forests whose structure is public, so that all of them are vectors of one length."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import xlogy

from lightning_pac._validation import Count, MatrixLike, Positive, Probability, Seed, VectorLike, validated
from lightning_pac.information import Array

__all__ = ["FixedForest"]


@validated
@dataclasses.dataclass(frozen=True)
class FixedForest:
    r"""Complete decision trees that split on a public order of features.

    `forest.fit(features, labels)` is a vector, and as a box it is what `privatize` needs: `privatize(forest.fit, ...)`.
    `forest.predict(vector, features)` classifies with any such vector, a noised one included. For each tree the vector
    holds the thresholds in breadth-first order and then, for each leaf, the shares of the classes in it.

    The leaves are part of the vector because they too are computed from the records. A release of noised thresholds
    with exact labels in the leaves is not private, whatever the noise on the thresholds.

    A node takes the threshold v of least

    $$(1 - w_2) \big((1 - w_1) H_v + w_1 \tfrac12 (H_{v-p} + H_{v+p})\big) + w_2 v,$$

    H being the entropy of the classes after the split, weighted by the sizes of the sides; the smaller threshold wins a
    tie. A split whose neighbours are good too is stable, and a threshold of 0 is taken where nothing is gained.

    Args:
        feature_orders: For each tree, the feature of each level.
        num_classes: Number K of classes, labelled 0 to K - 1.
        step: p, the grid of thresholds on [0, 1]; None tries the values that occur.
        neighbor_weight: w_1, from 0 to 1.
        threshold_penalty: w_2, from 0 to 1.
        leaf_weight: Records of uniform class that are added to each leaf, so that small leaves are stable.

    Raises:
        ValueError: If the trees differ in depth, or a parameter is out of its range.

    Source: *PAC-Private Algorithms*, section 5.4; the leaves and their weight are ours.

    Example:
        >>> forest = FixedForest(feature_orders=[[0]], num_classes=2, step=0.25)
        >>> vector = forest.fit(np.array([[0.1], [0.2], [0.8], [0.9]]), np.array([0, 0, 1, 1]))
        >>> vector.tolist(), forest.predict(vector, np.array([[0.0], [1.0]])).tolist()
        ([0.25, 0.75, 0.25, 0.25, 0.75], [0, 1])
    """

    feature_orders: Sequence[Sequence[int]]
    num_classes: int
    step: float | None = 0.01
    neighbor_weight: Probability = 0.0
    threshold_penalty: Probability = 0.0
    leaf_weight: Positive = 2.0

    def __post_init__(self) -> None:
        orders = tuple(tuple(int(feature) for feature in order) for order in self.feature_orders)
        object.__setattr__(self, "feature_orders", orders)
        if not orders or len({len(order) for order in orders}) != 1 or not orders[0]:
            raise ValueError(f"feature_orders must give every tree the same depth, at least 1, got {orders}.")
        if self.num_classes < 2:
            raise ValueError(f"num_classes is {self.num_classes}, but must be at least 2.")
        if self.step is not None and not 0 < self.step <= 0.5:
            raise ValueError(f"step is {self.step}, but the grid of thresholds needs 0 < step <= 0.5.")

    @classmethod
    def random(
        cls, num_features: Count, num_trees: Count, depth: Count, num_classes: int, seed: Seed = 0
    ) -> "FixedForest":
        """Trees on features drawn from a public seed; `dataclasses.replace` sets what else there is.

        Args:
            num_features: Features of a record.
            num_trees: Trees.
            depth: Depth of each.
            num_classes: Classes.
            seed: Public.
        """
        rng = np.random.default_rng(seed)
        orders = [rng.permutation(num_features)[:depth].tolist() for _ in range(num_trees)]
        return cls(orders, num_classes)

    @property
    def depth(self) -> int:
        """Levels of splits."""
        return len(self.feature_orders[0])

    @property
    def num_thresholds(self) -> int:
        """Thresholds of one tree."""
        return int(2**self.depth - 1)

    @property
    def size(self) -> int:
        """Length of the vector."""
        return int(len(self.feature_orders) * (self.num_thresholds + 2**self.depth * self.num_classes))

    def fit(self, features: npt.ArrayLike, labels: npt.ArrayLike) -> Array:
        """Thresholds and leaves of all trees, shape (size,).

        Args:
            features: Shape (n, d), scaled to [0, 1] by public bounds.
            labels: Shape (n,), 0 to K - 1.

        Raises:
            ValueError: If the labels are outside 0 ... K - 1.
        """
        rows, classes = np.asarray(features, dtype=np.float64), np.asarray(labels)
        if rows.ndim != 2 or classes.ndim != 1:
            name, shape = ("features", rows.shape) if rows.ndim != 2 else ("labels", classes.shape)
            raise ValueError(f"{name} has shape {shape}, but must be (n, d) for features and (n,) for labels.")
        if len(rows) != len(classes):
            raise ValueError(f"labels are {len(classes)} for {len(rows)} records: give one for each.")
        numbers = classes.astype(np.int64)
        if not ((numbers >= 0) & (numbers < self.num_classes) & (numbers == classes)).all():
            raise ValueError(f"labels must lie in 0 ... {self.num_classes - 1}: number the classes from a public list.")
        return np.concatenate([self._fit_tree(order, rows, numbers) for order in self.feature_orders])

    def predict(self, vector: VectorLike, features: MatrixLike) -> npt.NDArray[np.int64]:
        """Classes by the majority of the trees, the smallest of equal ones, shape (n,).

        Args:
            vector: What `fit` returned, with noise.
            features: Records, shape (n, num_features).
        """
        rows = np.asarray(features, dtype=np.float64)
        votes = np.zeros((len(rows), self.num_classes), dtype=np.int64)
        if np.size(vector) != self.size:
            raise ValueError(f"vector has {np.size(vector)} numbers, but must have {self.size}, those of fit.")
        trees = np.asarray(vector, dtype=np.float64).reshape(len(self.feature_orders), -1)
        for order, tree in zip(self.feature_orders, trees, strict=True):
            thresholds, leaves = np.split(tree, [self.num_thresholds])
            labels = leaves.reshape(-1, self.num_classes).argmax(axis=1)
            # In breadth-first order level l has the nodes 2^l - 1 + place; places 2p and 2p + 1 are below place p.
            place = np.zeros(len(rows), dtype=np.int64)
            for level, feature in enumerate(order):
                right = rows[:, feature] >= thresholds[2**level - 1 + place]
                place = 2 * place + right
            votes[np.arange(len(rows)), labels[place]] += 1
        return np.asarray(votes.argmax(axis=1), dtype=np.int64)

    def _fit_tree(self, order: Sequence[int], features: Array, labels: npt.NDArray[np.int64]) -> Array:
        thresholds = np.zeros(self.num_thresholds)
        place = np.zeros(len(labels), dtype=np.int64)
        for level, feature in enumerate(order):
            values = features[:, feature]
            for node in range(2**level):
                inside = place == node
                thresholds[2**level - 1 + node] = self._threshold(values[inside], labels[inside])
            place = 2 * place + (values >= thresholds[2**level - 1 + place])
        counts = np.zeros((2**self.depth, self.num_classes))
        np.add.at(counts, (place, labels), 1.0)
        # A few records of uniform class keep a nearly empty leaf from jumping with one record.
        shares = counts + self.leaf_weight / self.num_classes
        return np.concatenate([thresholds, (shares / shares.sum(axis=1, keepdims=True)).ravel()])

    def _threshold(self, values: Array, labels: npt.NDArray[np.int64]) -> float:
        if len(values) == 0:
            return 0.0
        candidates = np.unique(values) if self.step is None else _grid(self.step)
        # Class counts below every candidate, from one sort and a running sum.
        ranks = np.argsort(values, kind="stable")
        one_hot = np.eye(self.num_classes)[labels[ranks]]
        below = np.concatenate([np.zeros((1, self.num_classes)), np.cumsum(one_hot, axis=0)])
        left = below[np.searchsorted(values[ranks], candidates, side="left")]
        disorder = (_weighted_entropy(left) + _weighted_entropy(below[-1] - left)) / len(values)
        # A threshold is stable if those beside it are good as well.
        # At either end the one neighbour stands for both.
        padded = np.pad(disorder, 1, mode="reflect") if len(disorder) > 1 else np.repeat(disorder, 3)
        around = (padded[:-2] + padded[2:]) / 2
        blended = (1 - self.neighbor_weight) * disorder + self.neighbor_weight * around
        score = (1 - self.threshold_penalty) * blended + self.threshold_penalty * np.abs(candidates)
        # Sums in another order differ in the last bit, which must not decide between equal thresholds.
        return float(candidates[np.flatnonzero(score <= score.min() + 1e-12)[0]])


def _grid(step: float) -> Array:
    return np.asarray(np.arange(round(1 / step) + 1) * step, dtype=np.float64)


def _weighted_entropy(counts: Array) -> Array:
    """`n H` of class counts, shape (..., K)."""
    total = counts.sum(axis=-1)
    # n H = n ln n - sum_k n_k ln n_k; xlogy is 0 for an empty class.
    return np.asarray(xlogy(total, total) - xlogy(counts, counts).sum(axis=-1))
