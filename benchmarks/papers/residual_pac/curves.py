"""Theorem 5, Corollary 4: what a nat of budget buys with log-det and with exact noise, and the margin of Algorithm 6.

    python benchmarks/papers/residual_pac/curves.py --output runs/residual_pac

Outputs on a line, where the information is an integral over one number. For each budget: the power of log-det noise,
what it tells, and the power of the Gaussian noise that tells exactly the budget; with the slopes of all three. The best
noise of any law has no more power than the last. The margin is that of Lemma 1, for a family of two decoders, whose
least loss that bounds all is the entropy of the secret.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

Array = npt.NDArray[np.float64]
NODES = np.linspace(-10.0, 10.0, 2_001)
DENSITY = np.exp(-(NODES**2) / 2) / math.sqrt(2 * math.pi)
LAWS: dict[str, tuple[list[float], list[float]]] = {
    "two modes": ([-1.0, 1.0], [0.5, 0.5]),
    "a rare value": ([-0.1, 0.1, 10.0], [0.495, 0.495, 0.01]),
    "pairs of pairs": ([-1.001, -0.999, 0.999, 1.001], [0.25] * 4),
}
CONFIDENCE = 0.05
ENTROPY = math.log(300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=60, help="budgets for each law")
    parser.add_argument("--output", type=Path, default=Path("runs/residual_pac"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    found = {name: curves(np.array(points), np.array(weights), args.points) for name, (points, weights) in LAWS.items()}
    sizes = {f"m = {size}": margin(size, ENTROPY, 2, CONFIDENCE) for size in (128, 10_000, 1_000_000)}
    needed = {f"margin {part:g}": size_for_margin(part, ENTROPY, 2, CONFIDENCE) for part in (1.0, 0.1, 0.01)}
    (args.output / "curves.json").write_text(json.dumps({"laws": found, "margin": sizes | needed}, indent=1))
    plot(found, args.output / "curves.png")


def information(points: Array, weights: Array, deviation: float) -> float:
    """Information of a number of finitely many values in it plus Gaussian noise."""
    # E over x and z of ln phi(z) - ln sum_j w_j phi(z + (x - x_j) / sigma); the differences have shape (n, n).
    shifts = (points[:, None] - points) / deviation
    squares = (NODES[:, None, None] + shifts) ** 2
    logs = np.logaddexp.reduce(np.log(weights) - squares / 2, axis=2) + NODES[:, None] ** 2 / 2
    return float(-(DENSITY @ logs @ weights) * (NODES[1] - NODES[0]))


def curves(points: Array, weights: Array, count: int) -> dict[str, Any]:
    """Powers and leakage of log-det noise and of exact Gaussian noise, and their slopes, by budget."""
    variance = float(weights @ (points - weights @ points) ** 2)
    entropy = float(-weights @ np.log(weights))
    budgets = np.linspace(0.02, 0.98, count) * entropy
    logdet = variance / np.expm1(2 * budgets)
    told = np.array([information(points, weights, math.sqrt(power)) for power in logdet])
    exact = np.array([exact_power(points, weights, budget) for budget in budgets])
    slopes = {
        "slope of log-det power": -np.gradient(logdet, budgets),
        "slope of exact power": -np.gradient(exact, budgets),
        "slope of what log-det tells": np.gradient(told, budgets),
    }
    steeper = slopes["slope of exact power"] >= slopes["slope of log-det power"]
    series = {"budgets": budgets, "logdet": logdet, "exact": exact, "told": told, **slopes}
    return {
        "entropy": entropy,
        "largest slope of what log-det tells": float(slopes["slope of what log-det tells"].max()),
        "share of budgets at which exact noise is steeper": float(steeper.mean()),
        **{name: [float(value) for value in values] for name, values in series.items()},
    }


def exact_power(points: Array, weights: Array, budget: float) -> float:
    """Power of the Gaussian noise that tells the budget."""
    reach = math.log(float(np.ptp(points)))
    log_deviation = brentq(lambda log: information(points, weights, math.exp(log)) - budget, reach - 12, reach + 8)
    return math.exp(2 * log_deviation)


def margin(size: int, largest_loss: float, num_decoders: int, failure: float) -> float:
    """Lemma 1 for finitely many decoders, the Rademacher complexity by Massart's lemma."""
    complexity = largest_loss * math.sqrt(2 * math.log(num_decoders) / size)
    return 4 * complexity + 2 * largest_loss * math.sqrt(2 * math.log(1 / failure) / size)


def size_for_margin(wanted: float, largest_loss: float, num_decoders: int, failure: float) -> float:
    """Draws that the margin asks for; it falls with the square root of their number."""
    return math.ceil((margin(1, largest_loss, num_decoders, failure) / wanted) ** 2)


def plot(found: dict[str, Any], path: Path) -> None:
    """Noise power, above its slope, above what log-det noise tells."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 7.5), layout="constrained")
    grid = figure.subplots(3, len(found), sharex="col")
    for axes, (name, curve) in zip(grid.T, found.items(), strict=True):
        budgets = curve["budgets"]
        axes[0].set_title(name)
        for row, prefix in ((0, ""), (1, "slope")):
            keys = ("logdet", "exact") if row == 0 else ("slope of log-det power", "slope of exact power")
            axes[row].semilogy(budgets, curve[keys[0]], label="log-det")
            axes[row].semilogy(budgets, curve[keys[1]], label="exact Gaussian")
            axes[row].set_ylabel(prefix + " of noise power" if prefix else "noise power")
        axes[2].plot(budgets, budgets, color="black", linewidth=0.8, label="budget")
        axes[2].plot(budgets, curve["told"], label="told by log-det noise")
        axes[2].set(xlabel="budget (nats)", ylabel="information (nats)")
    for axes in grid.ravel():
        axes.grid(alpha=0.3)
    grid[0, 0].legend(fontsize=8)
    grid[2, 0].legend(fontsize=8)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
