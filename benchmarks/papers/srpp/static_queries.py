"""Figures 3(a-h) and 4 of the SRPP paper: static queries under Ave and Joint, five errors and the attribute attack.

    python benchmarks/papers/srpp/static_queries.py --data-root DATA --output runs/srpp-static

Beside them the general Wasserstein mechanism and the distribution-aware one with generalized Cauchy noise, which keep
the whole answer, not its projections, within the budget. Writes `static_queries.json` and a picture for each table; an
interrupted command continues from what it wrote.
"""

from __future__ import annotations

import argparse
import json
import warnings
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

BUDGETS = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0]
RENYI_ORDER = 4.0
# Of the Cauchy noise: the least even one of finite variance, so that its squared error can be compared.
CAUCHY_EXPONENT = 4.0
VARIANTS = {
    "ave": {"notion": "ave"},
    "joint": {"notion": "joint"},
    "joint (paper)": {"notion": "joint", "joint": "max"},
    "joint, optimized": {"notion": "joint", "covariance": "optimized"},
}
OF_THE_PAPER = ("ave", "joint (paper)")
UNSLICED = {"GWM": "general_wasserstein", "DAGWM": "distribution_aware_cauchy"}


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
    """Errors and attack success of every variant and budget for one table and one query."""
    rng = np.random.default_rng(seed)
    values, counts = np.unique(table.secret, return_counts=True)
    answers = {int(value): QUERIES[query](table, table.secret == value) for value in values}
    prior = {int(value): float(count / counts.sum()) for value, count in zip(values, counts, strict=True)}
    # The secret determines the aggregate, so each conditional law is a point.
    scenario = AttributeScenario.from_shifts(answers, prior=prior)
    dimension = len(next(iter(answers.values())))
    profile = SliceProfile.random(dimension, 200, seed=seed)
    secrets = rng.choice(list(prior), p=list(prior.values()), size=trials)
    clean = np.array([answers[secret] for secret in secrets])
    curves: dict[str, dict[str, Any]] = {name: {} for name in (*VARIANTS, *UNSLICED)}
    for epsilon in BUDGETS:
        for name, options in VARIANTS.items():
            if name == "joint, optimized" and query != "logistic regression":
                continue  # two seconds each: shown on one query
            mechanism = SlicedWassersteinMechanism(
                scenario, None, profile, epsilon=epsilon, renyi_order=RENYI_ORDER, **options
            )
            noised = mechanism.release(clean)
            attack = gaussian_map_attack(noised, secrets, answers, prior, mechanism.covariance)
            curves[name][f"{epsilon:g}"] = figures(clean, noised, attack.accuracy, every=name in OF_THE_PAPER)
        unsliced = baselines(scenario, None, epsilon, RENYI_ORDER, CAUCHY_EXPONENT)
        for name, key in UNSLICED.items():
            scale = unsliced[key].scale
            # Student's t with k - 1 degrees of freedom is sqrt(k - 1) times this Cauchy noise.
            draws = rng.standard_normal if key == "general_wasserstein" else standard_cauchy(rng)
            noised = clean + scale * draws(clean.shape)
            accuracy = (attack_on(noised, answers, prior, scale, key) == secrets).mean()
            curves[name][f"{epsilon:g}"] = figures(clean, noised, float(accuracy), every=False)
    return {"table": table.name, "query": query, "baseline_accuracy": max(prior.values()), "curves": curves}


def standard_cauchy(rng: np.random.Generator) -> Callable[[tuple[int, ...]], Array]:
    """Draws of density in proportion to `(1 + x^2)^(-k/2)`: Student's t with k - 1 degrees of freedom, rescaled."""
    freedom = CAUCHY_EXPONENT - 1
    return lambda shape: rng.standard_t(freedom, shape) / np.sqrt(freedom)


def attack_on(
    noised: Array, answers: dict[int, Array], prior: dict[int, float], scale: float, key: str
) -> npt.NDArray[np.int64]:
    """The most probable secret by the density of the noise that was added."""
    scores = []
    for value, mean in answers.items():
        squares = np.square((noised - mean) / scale)
        density = -squares / 2 if key == "general_wasserstein" else -CAUCHY_EXPONENT / 2 * np.log1p(squares)
        scores.append(density.sum(axis=1) + np.log(prior[value]))
    guesses: npt.NDArray[np.int64] = np.array(list(answers))[np.argmax(scores, axis=0)]
    return guesses


def figures(clean: Array, noised: Array, accuracy: float, every: bool) -> dict[str, float]:
    """Accuracy of the attack and the paper's five errors, or the first of them, with standard errors."""
    noise = noised - clean
    root = np.sqrt(len(noise))
    squares = np.square(noise).mean(axis=1)
    mse, deviation = float(squares.mean()), float(squares.std() / root)
    found = {
        "accuracy": accuracy,
        "accuracy_standard_error": float(np.sqrt(accuracy * (1 - accuracy)) / root),
        "mse": mse,
        "mse_standard_error": deviation,
    }
    if every:
        lengths, sizes = np.linalg.norm(noise, axis=1), np.abs(noise).mean(axis=1)
        # Of all answers together; both are functions of the squared error, and so is how far they spread.
        frobenius = float(np.sqrt(mse / np.square(clean).mean()))
        found |= {
            "mae": float(sizes.mean()),
            "mae_standard_error": float(sizes.std() / root),
            "distance": float(lengths.mean()),
            "distance_standard_error": float(lengths.std() / root),
            "frobenius": frobenius,
            "frobenius_standard_error": frobenius * deviation / mse / 2,
            "snr_db": -20 * float(np.log10(frobenius)),
            "snr_db_standard_error": 10 / float(np.log(10)) * deviation / mse,
        }
    return found


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """A column for each query: the attack's accuracy above the errors, the squared one of every mechanism."""
    from matplotlib.figure import Figure

    rows = {
        "accuracy": "attack accuracy",
        "mse": "mean squared error",
        "mae": "mean absolute error",
        "distance": "distance",
        "frobenius": "relative Frobenius error",
        "snr_db": "signal to noise (dB)",
    }
    figure = Figure(figsize=(3.1 * len(results), 2.1 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(results), sharex=True)
    for column, result in enumerate(results):
        for axes, key in zip(grid[:, column], rows, strict=True):
            for color, (name, points) in enumerate(result["curves"].items()):
                if points and key in next(iter(points.values())):
                    style = "-" if name in OF_THE_PAPER else "--"
                    values = [point[key] for point in points.values()]
                    axes.plot(BUDGETS, values, style, marker=".", color=f"C{color}", label=name)
            axes.set_xscale("log")
            if key not in ("accuracy", "snr_db"):
                axes.set_yscale("log")
            axes.grid(alpha=0.3)
        grid[0, column].axhline(result["baseline_accuracy"], color="grey", linestyle=":", label="prior alone")
        grid[0, column].set_title(result["query"], fontsize=10)
        grid[-1, column].set_xlabel("Rényi budget (nats)")
    for axes, label in zip(grid[:, 0], rows.values(), strict=True):
        axes.set_ylabel(label, fontsize=9)
    figure.suptitle(results[0]["table"])
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with adult/, heart_cleveland/, student/")
    parser.add_argument("--output", type=Path, default=Path("runs/srpp-static"))
    parser.add_argument("--trials", type=int, default=5_000, help="noised answers for each point")
    parser.add_argument("--seed", type=int, default=0, help="of the slices and of the attacked secrets")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    # At the smallest budgets the noise is to drown the answer.
    warnings.simplefilter("ignore")
    tables = load(arguments.data_root)
    work = [(table, query) for table in tables for query in QUERIES]
    results = []
    for table, query in track(work, "Static queries"):
        path = arguments.output / f"{table.name}-{query.replace(' ', '-')}.part.json"
        if not path.exists():
            path.write_text(json.dumps(run(table, query, arguments.trials, arguments.seed)))
        results.append(json.loads(path.read_text()))
    (arguments.output / "static_queries.json").write_text(json.dumps(results, indent=1))
    for table in tables:
        plot([result for result in results if result["table"] == table.name], arguments.output / f"{table.name}.png")


if __name__ == "__main__":
    main()
