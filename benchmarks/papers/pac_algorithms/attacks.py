"""Figures 12, 13 and 15: convergence of the variance estimates, LiRA, and the priors of harder games, all on Iris.

python benchmarks/papers/pac_algorithms/attacks.py --output runs/pac
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from boxes import Array, LabelledClusters, Task, hyperplanes, load
from figures import BUDGETS

from lightning_pac.accountants import independent_bits_prior, membership_success_bound
from lightning_pac.audits import (
    cluster_confidence,
    empirical_likelihood_attack,
    informed_membership_prior,
    margin_confidence,
    recovery_attack,
)
from lightning_pac.mechanisms import StreamingCoordinateNoise, calibrate_gaussian
from lightning_pac.mechanisms.privatization.box_runs import run_box
from lightning_pac.scenarios import BalancedSubsets, ComplementaryHalves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--output", type=Path, default=Path("runs/pac"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    boxes = {
        "k-means": (load("iris", "power", Path()), LabelledClusters(3), cluster_confidence),
        "SVM, C = 1": (load("iris", "gaussian-quantile", Path()), hyperplanes(1.0), margin_confidence),
        "SVM, C = 1e-6": (load("iris", "robust", Path()), hyperplanes(1e-6), margin_confidence),
    }
    space = ComplementaryHalves(100, 1024)
    result: dict[str, Any] = {"budgets": BUDGETS, "attacks": {}, "convergence": {}}
    for number, (name, (task, box, confidence)) in enumerate(boxes.items()):
        data = (task.features, task.labels)
        outputs = np.stack(run_box(box, space, data, args.workers, args.output / "cache", f"attack-{number}"))
        result["attacks"][name] = attack(outputs, space, task, confidence, args.trials)
        result["convergence"][name] = convergence(outputs.reshape(len(outputs), -1))
        print(name, json.dumps(result["attacks"][name]), f"converged after {result['convergence'][name]['runs']}")
    result["rare event"] = rare_event()
    result["bounds"] = [membership_success_bound(budget) for budget in BUDGETS]
    result["priors"] = priors()
    print(json.dumps({"rare event": result["rare event"], "priors": result["priors"]}))
    (args.output / "attacks.json").write_text(json.dumps(result, indent=1))
    plot(result, args.output / "attacks.png")


def attack(outputs: Array, space: ComplementaryHalves, task: Task, confidence: Any, trials: int) -> dict[str, Any]:
    """Success of LiRA without noise and at every budget, and the upper end of its interval."""
    rng = np.random.default_rng(0)
    secrets = rng.integers(0, len(outputs), trials)
    members = space.membership_table().T[secrets]
    matrix = outputs.reshape(len(outputs), -1)
    found = {"no noise": empirical_likelihood_attack(confidence(outputs, task.features)[secrets], members).success}
    curve = []
    for budget in BUDGETS:
        noise = calibrate_gaussian(matrix, budget, rule="coordinate")
        draws = rng.standard_normal((trials, matrix.shape[1])) * np.sqrt(noise.variances)
        released = (matrix[secrets] + draws).reshape(trials, *outputs.shape[1:])
        curve.append(empirical_likelihood_attack(confidence(released, task.features), members).success)
    return {**found, "privatized": [round(value, 4) for value in curve]}


def convergence(matrix: Array) -> dict[str, Any]:
    """The paper's rule on independent halves: change of the first variance between checks, and when it stops."""
    stream = StreamingCoordinateNoise(tolerance=1e-6, check_every=10)
    variances = []
    runs = None
    for count, row in enumerate(matrix[::2], start=1):
        if stream.update(row) and runs is None:
            runs = count
        if count % 10 == 0:
            variances.append(float(stream.variances[0]))
    return {"runs": runs, "changes": np.abs(np.diff(variances)).tolist()}


def rare_event() -> dict[str, float]:
    """How often the paper's rule stops at variance 0 for an output that is 1 on one subset in 200, else 0."""
    rng = np.random.default_rng(0)
    stopped = 0
    for _ in range(500):
        stream = StreamingCoordinateNoise(tolerance=1e-6, check_every=10)
        while not stream.update([float(rng.random() < 1 / 200)]):
            pass
        stopped += bool(stream.variances[0] == 0)
    return {"true variance": 1 / 200 * 199 / 200, "stopped at variance 0": stopped / 500}


def priors() -> dict[str, Any]:
    """The game "at least k of n" with its two priors, and what some known memberships tell about another."""
    space = BalancedSubsets(1000, 128)
    blind = np.full((1, 128), 1 / 128)
    games = {
        f"{k} of 12": [
            round(independent_bits_prior(k, 12), 5),
            round(recovery_attack(blind, [0], space, range(12), k).prior, 5),
        ]
        for k in (8, 9, 10, 11, 12)
    }
    known = [0, 2, 4, 6, 8, 10, 12, 14, 16]
    informed = {
        str(m): [round(informed_membership_prior(BalancedSubsets(1000, m), count, 500, rng=0), 3) for count in known]
        for m in (16, 128, 1024)
    }
    return {"independent bits, finite table": games, "known": known, "informed": informed}


def plot(result: dict[str, Any], path: Path) -> None:
    """LiRA against the bound, convergence, and informed attackers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(BUDGETS, [100 * bound for bound in result["bounds"]], color="black", label="bound (table 1)")
    for color, (name, found) in enumerate(result["attacks"].items()):
        left.plot(BUDGETS, [100 * value for value in found["privatized"]], color=f"C{color}", label=name)
        left.axhline(100 * found["no noise"], color=f"C{color}", linestyle=":", linewidth=1)
        changes = result["convergence"][name]["changes"]
        middle.plot(10 * np.arange(2, len(changes) + 2), np.maximum(changes, 1e-9), color=f"C{color}", linewidth=0.8)
    left.set_xscale("log", base=2)
    left.set(xlabel="mutual information (nats)", ylabel="LiRA success (%)", ylim=(48, 75))
    left.set_title("Attack (dotted: no noise)")
    left.legend()
    middle.set(yscale="log", xlabel="runs", title="Change of the first variance")
    middle.axhline(1e-6, color="black", linewidth=0.8)
    for m, values in result["priors"]["informed"].items():
        right.plot(result["priors"]["known"], [100 * value for value in values], marker=".", label=f"m = {m}")
    right.set(xlabel="known memberships", ylabel="success on another record (%)")
    right.set_title("Before any release, public table")
    right.legend()
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
