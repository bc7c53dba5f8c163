"""Figures 3 to 11 and 14: utility of privatized algorithms against mutual information.

    python benchmarks/papers/pac_algorithms/figures.py kmeans svm pca forest --data-root data --output runs/pac

Every algorithm is run on m complementary halves (Appendix B) and its release is simulated many times for each budget,
with the paper's coordinate-wise rule, the log-det rule, the best isotropic noise, and the paper's isotropic noise (the
largest coordinate-wise variance everywhere). An interrupted command continues from its cache.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from boxes import (
    Array,
    LabelledClusters,
    PrincipalComponents,
    Task,
    cluster_accuracy,
    forest,
    hyperplane_accuracy,
    hyperplanes,
    load,
    restoration_error,
)
from sklearn.decomposition import PCA

from lightning_pac.mechanisms import FixedForest, calibrate_gaussian
from lightning_pac.mechanisms.privatization.box_runs import Box, run_box
from lightning_pac.scenarios import ComplementaryHalves

BUDGETS = [4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125]
RULES = ("coordinate", "logdet", "isotropic", "paper's isotropic")

# Curves that the authors keep in their repository, for the same budgets.
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())

# Per data set: scaler, and what varies. The scalers are those of the authors' code and of its list of parameters.
KMEANS = {
    "iris": ("iris", "power", False),
    "rice": ("rice", "standard", False),
    "bean": ("bean", "minmax", False),
    "iris-balanced": ("iris", "power", True),
    "rice-balanced": ("rice", "standard", True),
    "bean-balanced": ("bean", "gaussian-quantile", True),
}
SVM = {
    "iris-C=1": ("iris", "gaussian-quantile", 1.0),
    "iris-C=1e-06": ("iris", "robust", 1e-6),
    "rice-C=1": ("rice", "minmax", 1.0),
    "rice-C=1e-06": ("rice", "power-standard", 1e-6),
    "bean-C=1": ("bean", "robust", 1.0),
    "bean-C=0.001": ("bean", "gaussian-quantile", 0.001),
}
PCAS = {
    "rice-1": ("rice", "minmax", 1),
    "rice-6": ("rice", "minmax", 6),
    "bean-1": ("bean", "minmax", 1),
    "bean-8": ("bean", "minmax", 8),
    "cifar10-1": ("cifar10", "", 1),
    "cifar10-3": ("cifar10", "", 3),
}
# Trees, depth, step p, penalty w2, neighbours w1.
FORESTS = {
    "iris": ("iris", "power", (1, 3, None, 0.0, 0.0)),
    "rice": ("rice", "minmax", (3, 3, None, 0.0, 0.0)),
    "bean": ("bean", "minmax", (3, 3, 0.01, 0.0, 0.0)),
    "iris-regularized": ("iris", "robust", (1, 3, 0.01, 0.2, 0.2)),
    "rice-regularized": ("rice", "standard", (3, 3, 0.01, 0.35, 0.49)),
    "bean-regularized": ("bean", "centered", (3, 5, 0.05, 0.25, 0.35)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="+", choices=["kmeans", "svm", "pca", "forest"])
    parser.add_argument("--only", nargs="*", help="names of panels, for instance iris rice-6")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--subsets", type=int, help="number m of halves (Iris 1024, CIFAR-10 16, else 128)")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--output", type=Path, default=Path("runs/pac"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for algorithm in args.algorithms:
        panels: dict[str, Any] = {}
        for name, (dataset, scaler, setting) in SETTINGS[algorithm].items():
            if args.only and name not in args.only:
                continue
            if dataset != "iris" and not has_data(dataset, args.data_root):
                print(f"{algorithm} {name}: no data under {args.data_root}, left out")
                continue
            task = load(dataset, scaler, args.data_root)
            panels[name] = panel(algorithm, name, task, setting, args)
            print(f"{algorithm} {name}: {json.dumps(panels[name]['utility'])}", flush=True)
        (args.output / f"{algorithm}.json").write_text(json.dumps({"budgets": BUDGETS, "panels": panels}, indent=1))
        plot(algorithm, panels, args.output / f"{algorithm}.png")


def has_data(dataset: str, root: Path) -> bool:
    return (root / {"rice": "rice", "bean": "dry_bean", "cifar10": "cifar10_train.npz"}[dataset]).exists()


def panel(algorithm: str, name: str, task: Task, setting: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Utility of one algorithm on one data set: without noise and for each rule and budget."""
    box, measure = BOXES[algorithm](task, setting)
    default = 1024 if len(task.labels) == 100 else 16 if task.features.shape[1] > 500 else 128
    space = ComplementaryHalves(len(task.labels), args.subsets or default)
    data = (task.features,) if algorithm == "pca" else (task.features, task.labels)
    outputs = run_box(box, space, data, args.workers, args.output / "cache", f"{algorithm}-{name}".replace("=", ""))
    shape = outputs[0].shape
    matrix = np.stack([output.ravel() for output in outputs])
    rng = np.random.default_rng(0)
    trials = args.trials if matrix.shape[1] < 500 else min(args.trials, 100)
    chosen = matrix[rng.integers(0, len(matrix), trials)]

    def utility(released: Array) -> float:
        return round(float(measure(released.reshape(len(released), *shape), task).mean()), 4)

    curves: dict[str, list[float]] = {rule: [] for rule in RULES}
    for budget in BUDGETS:
        for rule in RULES:
            curves[rule].append(utility(chosen + noise(matrix, budget, rule, trials, rng)))
    result = {"subsets": len(matrix), "dimension": matrix.shape[1], "half": utility(chosen), "utility": curves}
    result["all records"] = utility(np.asarray(box(*data), dtype=np.float64).reshape(1, -1))
    if isinstance(box_owner := getattr(box, "__self__", None), FixedForest):
        curves["exact leaves"] = [exact_leaves(box_owner, matrix, chosen, budget, utility, rng) for budget in BUDGETS]
    return result


def noise(matrix: Array, budget: float, rule: str, trials: int, rng: np.random.Generator) -> Array:
    """Draws of the noise of a rule, for a simulation: from a seed."""
    shares = np.unique(matrix, axis=0, return_counts=True)[1] / len(matrix)
    if budget >= -(shares * np.log(shares)).sum():
        # Thresholds on a grid take few values: naming them exactly is within the budget.
        return np.zeros((trials, matrix.shape[1]))
    if rule == "paper's isotropic":
        largest = calibrate_gaussian(matrix, budget, rule="coordinate").variances.max()
        return rng.normal(scale=np.sqrt(largest), size=(trials, matrix.shape[1]))
    made = calibrate_gaussian(matrix, budget, rule=rule)
    return made.directions.expand(rng.standard_normal((trials, len(made.variances))) * np.sqrt(made.variances))


def exact_leaves(
    made: FixedForest, matrix: Array, chosen: Array, budget: float, utility: Callable[[Array], float], rng: Any
) -> float:
    """The authors' release: noised thresholds, and the leaves of the secret half without noise. It is not private."""
    width = made.size // len(made.feature_orders)
    thresholds = np.arange(made.size) % width < made.num_thresholds
    released = chosen.copy()
    released[:, thresholds] += noise(matrix[:, thresholds], budget, "coordinate", len(chosen), rng)
    return utility(released)


def kmeans_box(task: Task, balanced: bool) -> tuple[Box, Callable[[Array, Task], Array]]:
    return LabelledClusters(task.num_classes, balanced), cluster_accuracy


def svm_box(task: Task, strength: float) -> tuple[Box, Callable[[Array, Task], Array]]:
    return hyperplanes(strength), hyperplane_accuracy


def pca_box(task: Task, count: int) -> tuple[Box, Callable[[Array, Task], Array]]:
    # The test set is public in these experiments.
    public = PCA(count, random_state=0).fit(task.test_features).components_
    return PrincipalComponents(public), restoration_error


def forest_box(task: Task, setting: tuple[Any, ...]) -> tuple[Box, Callable[[Array, Task], Array]]:
    made = forest(task, *setting)

    def accuracy(vectors: Array, task: Task) -> Array:
        return np.array([(made.predict(vector, task.test_features) == task.test_labels).mean() for vector in vectors])

    return made.fit, accuracy


SETTINGS: dict[str, dict[str, tuple[str, str, Any]]] = {
    "kmeans": KMEANS,
    "svm": SVM,
    "pca": PCAS,
    "forest": FORESTS,
}
BOXES: dict[str, Callable[[Task, Any], tuple[Box, Callable[[Array, Task], Array]]]] = {
    "kmeans": kmeans_box,
    "svm": svm_box,
    "pca": pca_box,
    "forest": forest_box,
}


def plot(algorithm: str, panels: dict[str, Any], path: Path) -> None:
    """One panel for each data set and setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1 * -(-len(panels) // 3)), layout="constrained")
    grid = figure.subplots(-(-len(panels) // 3), 3, squeeze=False)
    for axes, (name, found) in zip(grid.ravel(), panels.items(), strict=False):
        for color, (rule, values) in enumerate(found["utility"].items()):
            axes.plot(BUDGETS, values, color=f"C{color}", label=rule, linestyle=":" if "paper" in rule else "-")
        for rule, values in PUBLISHED.get(algorithm, {}).get(name, {}).items():
            if rule in found["utility"]:
                color = f"C{list(found['utility']).index(rule)}"
                axes.plot(BUDGETS, values, "x", markersize=5, color=color, label=f"{rule}, the authors'")
        axes.axhline(found["half"], color="grey", linewidth=0.8, linestyle="--", label="a half without noise")
        axes.set_xscale("log", base=2)
        if algorithm == "pca":
            axes.set_ylim(0, min(1.5, 2 * max(found["utility"]["coordinate"])))
        axes.set(title=name, xlabel="mutual information (nats)")
        axes.grid(alpha=0.3)
    for axes in grid.ravel()[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("restoration error" if algorithm == "pca" else "test accuracy")
    labels = {
        label: handle for axes in grid.ravel() for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
