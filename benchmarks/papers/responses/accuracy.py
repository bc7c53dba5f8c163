"""Tables 3 and 6: accuracy of private responses against the budget, one-hot votes and confidence scores.

    python benchmarks/papers/responses/accuracy.py --dataset digits --output runs/responses

Every trial draws a secret and a permutation of the test records, asks all of them, and lets the belief follow. Beside
the accuracy of a whole trial stand, after each twentieth of it, the accuracy so far, the nats spent and the belief in
the secret. The largest deviation from the paper: its models (XGBoost with a search, Wide-ResNet-28-10, BERT-Small) are
small here. Networks after each epoch and the probabilities of trained models are kept in `cache/`, from which an
interrupted command goes on.
"""

import argparse
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tasks import TASKS, Array, load, pool_of, scores, train, train_on_all

from lightning_pac.mechanisms import AdaptiveComposition

EXPONENTS = (4, 8, 12, 16, 20, 24, 28, 32)
MOMENTS = 20


@dataclass
class Trials:
    """Trials at one budget, shape (trials, moments): what had happened when so many queries were asked.

    Attributes:
        asked: Number of queries at each moment, shape (moments,).
        right: Share of the answers so far that are correct.
        spent: Nats spent.
        belief: The attacker's belief in the true secret.
    """

    asked: Array
    right: Array
    spent: Array
    belief: Array

    def summary(self) -> dict[str, Any]:
        """Means over trials; the last moment is a whole trial."""
        result: dict[str, Any] = {"asked": self.asked.tolist()}
        for name, values in (("accuracy", self.right), ("spent", self.spent), ("belief", self.belief)):
            means, errors = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
            result |= {name: float(means[-1]), f"{name}_standard_error": float(errors[-1])}
            result |= {f"{name}_so_far": means.tolist(), f"{name}_so_far_standard_error": errors.tolist()}
        return result


def private_trials(outputs: Array, labels: Array, budget: float, trials: int, queries: int | None, seed: int) -> Trials:
    """Ask test records in a new order in each trial; `outputs` are votes (n, m) or scores (n, m, d)."""
    public = np.random.default_rng(seed)
    num_secrets, count = outputs.shape[1], min(queries or len(labels), len(labels))
    asked = np.unique(np.linspace(0, count, MOMENTS + 1).astype(int))
    found = np.empty((3, trials, len(asked) - 1))
    for trial in range(trials):
        composition = AdaptiveComposition(np.full(num_secrets, 1 / num_secrets), trial % num_secrets, rule="linear")
        order, right = public.permutation(len(labels)), 0
        for moment, (start, stop) in enumerate(itertools.pairwise(asked)):
            part = order[start:stop]
            right += int((composition.release_batch(outputs[part], budget).labels == labels[part]).sum())
            belief = composition.belief[trial % num_secrets]
            found[:, trial, moment] = right / stop, composition.spent, belief
    return Trials(asked[1:], *found)


def probabilities_of(name: str, args: argparse.Namespace) -> tuple[dict[str, Any], Array, Array]:
    """Public facts, class probabilities (n, m, d) and test labels of a data set; trained once."""
    cache = args.output / "cache" / f"{name}-{args.members}-{args.records}-{args.epochs}.npz"
    if not cache.exists():
        task = load(name, args.data_root, args.records, args.epochs)
        folder = cache.with_suffix("")
        members = train(task, pool_of(task, args.members), args.accelerator, args.chunk, folder)
        members = scores(members, task.test_features)
        whole = scores(train_on_all(task, args.accelerator), task.test_features)[:, 0].argmax(-1)
        cache.parent.mkdir(parents=True, exist_ok=True)
        unfinished = cache.with_suffix(".part.npz")
        np.savez(unfinished, members=members, whole=whole, labels=task.test_labels, records=len(task.labels))
        unfinished.rename(cache)
    with np.load(cache) as kept:
        probabilities, whole, labels, records = (kept[key] for key in ("members", "whole", "labels", "records"))
    votes = probabilities.argmax(-1)
    facts = {
        "dataset": name,
        "records": int(records),
        "test_records": len(labels),
        "members": args.members,
        "non_private": float((whole == labels).mean()),
        "no_noise": float((votes == labels[:, None]).mean()),
        "unanimous_fraction": float((votes == votes[:, :1]).all(1).mean()),
    }
    return facts, probabilities, labels


def table(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The two rows of one data set."""
    row, probabilities, labels = probabilities_of(name, args)
    for kind, outputs, trials, queries in (
        ("one_hot", probabilities.argmax(-1), args.trials, args.queries),
        ("confidence", probabilities, args.score_trials, args.score_queries),
    ):
        row[kind] = {
            f"2^-{exponent}": private_trials(outputs, labels, 2.0**-exponent, trials, queries, seed=exponent).summary()
            for exponent in EXPONENTS
        }
    return row


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against the budget, one panel a data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(rows), 3.6), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        for kind, label in (("one_hot", "one-hot votes"), ("confidence", "confidence scores")):
            axes.plot(EXPONENTS, [100 * row[kind][f"2^-{e}"]["accuracy"] for e in EXPONENTS], marker="o", label=label)
        axes.axhline(100 * row["no_noise"], color="gray", linestyle="--", label="no noise")
        axes.set(
            title=f"{row['dataset']} ({row['members']} models)", xlabel="budget per response (nats)", ylim=(0, 101)
        )
        axes.set_xticks(EXPONENTS, [f"$2^{{-{e}}}$" for e in EXPONENTS])
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left", fontsize="small")
    figure.savefig(path, dpi=150)


def plot_queries(rows: list[dict[str, Any]], path: Path) -> None:
    """Votes while they are asked: accuracy so far, nats spent and the belief in the secret, one column a data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(rows), 7.6), layout="constrained")
    grid = figure.subplots(3, len(rows), squeeze=False, sharex="col")
    for column, row in zip(grid.T, rows, strict=True):
        for exponent in (4, 8, 12, 16, 32):
            found = row["one_hot"][f"2^-{exponent}"]
            label = f"$2^{{-{exponent}}}$"
            column[0].plot(found["asked"], [100 * value for value in found["accuracy_so_far"]], label=label)
            column[1].semilogy(found["asked"], found["spent_so_far"], label=label)
            column[2].plot(found["asked"], found["belief_so_far"], label=label)
        column[0].axhline(100 * row["no_noise"], color="gray", linestyle="--")
        column[1].axhline(np.log(row["members"]), color="gray", linestyle="--")
        column[0].set_title(f"{row['dataset']} ({row['members']} models)")
        column[2].set_xlabel("queries asked")
        column[2].set_ylim(-0.02, 1.02)
    for axes, name in zip(grid[:, 0], ("accuracy so far (%)", "nats spent", "belief in the secret"), strict=True):
        axes.set_ylabel(name)
    grid[0, 0].legend(title="nats a response", fontsize="small")
    for axes in grid.flat:
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", choices=sorted(TASKS), default=["digits"])
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--records", type=int, help="at most so many records in the pool")
    parser.add_argument("--epochs", type=int, help="passes over the pool; the task's own if not given")
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--trials", type=int, default=50, help="trials with votes (the paper: 1,000)")
    parser.add_argument("--queries", type=int, help="test records asked in one of them; all if not given")
    parser.add_argument("--score-trials", type=int, default=10, help="trials with confidence scores")
    parser.add_argument("--score-queries", type=int, help="test records asked in one of them; all if not given")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--chunk", type=int, help="members trained at once")
    parser.add_argument("--output", type=Path, default=Path("runs/responses"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.dataset:
        rows.append(table(name, args))
        print(json.dumps(rows[-1], indent=2))
        (args.output / "accuracy.json").write_text(json.dumps(rows, indent=2) + "\n")
    plot(rows, args.output / "accuracy.png")
    plot_queries(rows, args.output / "accuracy_by_queries.png")


if __name__ == "__main__":
    main()
