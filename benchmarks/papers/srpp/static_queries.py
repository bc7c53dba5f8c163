"""Figures 3(a-h) and 4 of the SRPP paper: static queries under Ave and Joint, error and attribute attack.

    python benchmarks/papers/srpp/static_queries.py --data-root DATA --output runs/srpp-static

Writes `static_queries.json` and one figure a table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import track
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from tables import SecretTable, load

from lightning_pac.audits import gaussian_map_attack
from lightning_pac.mechanisms import SlicedWassersteinMechanism, baselines
from lightning_pac.scenarios import AttributeScenario, SliceProfile

Array = npt.NDArray[np.float64]

BUDGETS = [0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
RENYI_ORDER = 4.0
VARIANTS = {
    "ave": {"notion": "ave"},
    "joint": {"notion": "joint"},
    "joint (paper)": {"notion": "joint", "joint": "max"},
    "joint, optimized": {"notion": "joint", "covariance": "optimized"},
}


def summary(table: SecretTable, rows: npt.NDArray[np.bool_]) -> Array:
    chosen = table.statistics[rows]
    return np.concatenate([chosen.mean(axis=0), chosen.std(axis=0), table.rates[rows].mean(axis=0)])


def logistic(table: SecretTable, rows: npt.NDArray[np.bool_]) -> Array:
    model = LogisticRegression(max_iter=2000).fit(table.features[rows], table.target[rows])
    return np.concatenate([model.coef_[0], model.intercept_])


def support_vectors(table: SecretTable, rows: npt.NDArray[np.bool_]) -> Array:
    model = LinearSVC(C=0.1, max_iter=20_000, random_state=0).fit(table.features[rows], table.target[rows])
    return np.concatenate([model.coef_[0], model.intercept_])


def forest(table: SecretTable, rows: npt.NDArray[np.bool_]) -> Array:
    model = RandomForestClassifier(50, max_depth=6, random_state=0).fit(table.features[rows], table.target[rows])
    importances: Array = model.feature_importances_
    return importances


QUERIES: dict[str, Callable[[SecretTable, npt.NDArray[np.bool_]], Array]] = {
    "logistic regression": logistic,
    "random forest": forest,
    "SVM": support_vectors,
    "summary statistics": summary,
}


def run(table: SecretTable, query: str, trials: int, seed: int) -> dict[str, Any]:
    """Error and attack success of every variant and budget for one table and one query."""
    rng = np.random.default_rng(seed)
    values, counts = np.unique(table.secret, return_counts=True)
    answers = {int(value): QUERIES[query](table, table.secret == value) for value in values}
    prior = {int(value): float(count / counts.sum()) for value, count in zip(values, counts, strict=True)}
    # The secret determines the aggregate, so each conditional law is a point.
    scenario = AttributeScenario.from_shifts(answers, prior=prior)
    profile = SliceProfile.random(len(next(iter(answers.values()))), 200, seed=seed)
    curves = {}
    for name, options in VARIANTS.items():
        points = []
        for epsilon in BUDGETS:
            mechanism = SlicedWassersteinMechanism(
                scenario, None, profile, epsilon=epsilon, renyi_order=RENYI_ORDER, **options
            )
            secrets = rng.choice(list(prior), p=list(prior.values()), size=trials)
            clean = np.array([answers[secret] for secret in secrets])
            noised = mechanism.release(clean)
            attack = gaussian_map_attack(noised, secrets, answers, prior, mechanism.covariance)
            points.append(
                {
                    "epsilon": epsilon,
                    "mse": float(np.square(noised - clean).mean()),
                    "accuracy": attack.accuracy,
                    "interval": attack.interval,
                    "unsliced_epsilon": mechanism.unsliced_epsilon,
                }
            )
        curves[name] = points
    unsliced = baselines(scenario, None, epsilon=1.0, renyi_order=RENYI_ORDER)
    return {
        "table": table.name,
        "query": query,
        "baseline_accuracy": max(prior.values()),
        "curves": curves,
        "unsliced_baselines_at_epsilon_1": {name: entry.scale for name, entry in unsliced.items()},
    }


def plot(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(results), figsize=(3.6 * len(results), 6), sharex=True, squeeze=False)
    for column, result in enumerate(results):
        for name, points in result["curves"].items():
            budgets = [point["epsilon"] for point in points]
            axes[0, column].loglog(budgets, [point["mse"] for point in points], marker=".", label=name)
            axes[1, column].semilogx(budgets, [point["accuracy"] for point in points], marker=".", label=name)
        axes[1, column].axhline(result["baseline_accuracy"], color="grey", linestyle=":", label="prior alone")
        axes[0, column].set_title(f"{result['table']}\n{result['query']}", fontsize=9)
        axes[1, column].set_xlabel("sliced Rényi budget")
    axes[0, 0].set_ylabel("mean squared error")
    axes[1, 0].set_ylabel("attack accuracy")
    axes[1, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with adult/, heart_cleveland/, student/")
    parser.add_argument("--output", type=Path, default=Path("runs/srpp-static"))
    parser.add_argument("--trials", type=int, default=20_000, help="noised answers for each point")
    parser.add_argument("--seed", type=int, default=0, help="of the slices and of the attacked secrets")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    tables = load(arguments.data_root)
    work = [(table, query) for table in tables for query in QUERIES]
    results = [run(table, query, arguments.trials, arguments.seed) for table, query in track(work, "Static queries")]
    (arguments.output / "static_queries.json").write_text(json.dumps(results, indent=1))
    for table in tables:
        plot([result for result in results if result["table"] == table.name], arguments.output / f"{table.name}.png")


if __name__ == "__main__":
    main()
