"""Appendix B.3: how far the noise depends on the table of subsets that was drawn, by the number m of subsets.

    python benchmarks/papers/pac_algorithms/choice_of_m.py --output runs/pac

K-Means and a decision tree of depth 3 on Iris, scaled as in the authors' notebook, at half a nat by the coordinate-wise
rule. For each of 100 tables of complementary halves: the sum of the noise's variances, which the paper names, and
their Euclidean norm, which the notebook computes. An interrupted command continues from its cache.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from boxes import Array, LabelledClusters, forest, load

from lightning_pac.mechanisms import calibrate_gaussian
from lightning_pac.scenarios import ComplementaryHalves

BUDGET = 0.5
SIZES = (2, 8, 32, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100, help="drawn for each m")
    parser.add_argument("--output", type=Path, default=Path("runs/pac"))
    args = parser.parse_args()
    cache = args.output / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    task = load("iris", "power", Path())
    boxes = {"K-Means": LabelledClusters(task.num_classes), "decision tree": forest(task, 1, 3, None, 0.0, 0.0).fit}
    found: dict[str, Any] = {}
    for name, box in boxes.items():
        outputs = []
        for seed in range(args.tables):
            path = cache / f"{name}-{seed}.npy"
            if not path.exists():
                np.save(path, table_of_outputs(box, task.features, task.labels, seed))
            outputs.append(np.load(path))
        # The first pairs of a table are a smaller one.
        found[name] = {f"m = {size}": spread([table[:size] for table in outputs]) for size in SIZES}
        print(name, json.dumps(found[name]), flush=True)
    (args.output / "choice_of_m.json").write_text(json.dumps(found, indent=1))
    plot(found, args.output / "choice_of_m.png")


def table_of_outputs(box: Any, features: Array, labels: Array, seed: int) -> Array:
    """Outputs on every half of a table, shape (m, d)."""
    space = ComplementaryHalves(len(labels), max(SIZES), seed=seed)
    halves = space.membership_table().T
    return np.stack([np.ravel(box(features[half], labels[half])) for half in halves])


def spread(tables: list[Array]) -> dict[str, float]:
    """Least, median and largest noise of the tables; no noise where both halves of a pair have one output."""
    made = [calibrate_gaussian(table, BUDGET, rule="coordinate").variances if np.ptp(table) else 0 for table in tables]
    sums = np.array([np.sum(variances) for variances in made])
    norms = np.array([np.linalg.norm(variances) for variances in made])
    return {
        "least": float(sums.min()),
        "median": float(np.median(sums)),
        "largest": float(sums.max()),
        "deviation over mean": float(sums.std() / sums.mean()),
        "least norm": float(norms.min()),
        "largest norm": float(norms.max()),
    }


def plot(found: dict[str, Any], path: Path) -> None:
    """Median and range of the noise against m."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, (name, sizes) in zip(figure.subplots(1, 2), found.items(), strict=True):
        least, median, largest = ([row[key] for row in sizes.values()] for key in ("least", "median", "largest"))
        axes.fill_between(SIZES, least, largest, alpha=0.25, label="all tables")
        axes.plot(SIZES, median, marker="o", label="median")
        axes.set(xscale="log", yscale="log", xlabel="m", ylabel="sum of noise variances", title=name)
        axes.set_xticks(SIZES, [str(size) for size in SIZES])
        axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
