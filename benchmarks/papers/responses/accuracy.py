"""Tables 3 and 6: accuracy of private responses against the budget, one-hot votes and confidence scores.

    python benchmarks/papers/responses/accuracy.py --dataset digits --output runs/responses

Every trial draws a secret and a permutation of the test records, asks all of them, and lets the belief follow. The
largest deviation from the paper: its models (XGBoost with a search, Wide-ResNet-28-10, BERT-Small) are small ones here.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from tasks import TASKS, Array, load, pool_of, scores, train, train_on_all

from lightning_pac.mechanisms import AdaptiveComposition

EXPONENTS = (4, 8, 12, 16, 20, 24, 28, 32)


def private_accuracy(outputs: Array, labels: Array, budget: float, trials: int, queries: int, seed: int) -> list[float]:
    """Accuracy of each trial; `outputs` are votes (n, m) or scores (n, m, d)."""
    public = np.random.default_rng(seed)
    num_secrets = outputs.shape[1]
    results = []
    for trial in range(trials):
        composition = AdaptiveComposition(np.full(num_secrets, 1 / num_secrets), trial % num_secrets, rule="linear")
        order = public.permutation(len(labels))[:queries]
        answers = composition.release_batch(outputs[order], budget).labels
        results.append(float((answers == labels[order]).mean()))
    return results


def table(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The two rows of one data set."""
    task = load(name, args.data_root, args.records, args.epochs)
    probabilities = scores(train(task, pool_of(task, args.members), args.accelerator, args.chunk), task.test_features)
    votes = probabilities.argmax(-1)
    whole = scores(train_on_all(task, args.accelerator), task.test_features)[:, 0].argmax(-1)
    row: dict[str, Any] = {
        "dataset": name,
        "records": len(task.labels),
        "members": args.members,
        "non_private": float((whole == task.test_labels).mean()),
        "no_noise": float((votes == task.test_labels[:, None]).mean()),
        "unanimous_fraction": float((votes == votes[:, :1]).all(1).mean()),
        "one_hot": {},
        "one_hot_standard_error": {},
        "confidence": {},
        "confidence_standard_error": {},
    }
    for kind, outputs, trials in (("one_hot", votes, args.trials), ("confidence", probabilities, args.score_trials)):
        for exponent in EXPONENTS:
            queries = args.queries if kind == "one_hot" else args.score_queries
            found = private_accuracy(outputs, task.test_labels, 2.0**-exponent, trials, queries, seed=exponent)
            row[kind][f"2^-{exponent}"] = float(np.mean(found))
            row[f"{kind}_standard_error"][f"2^-{exponent}"] = float(np.std(found, ddof=1) / np.sqrt(len(found)))
    return row


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against the budget, one panel a data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(rows), 3.6), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        for kind, label in (("one_hot", "one-hot votes"), ("confidence", "confidence scores")):
            axes.plot(EXPONENTS, [100 * row[kind][f"2^-{e}"] for e in EXPONENTS], marker="o", label=label)
        axes.axhline(100 * row["no_noise"], color="gray", linestyle="--", label="no noise")
        axes.set(
            title=f"{row['dataset']} ({row['members']} models)", xlabel="budget per response (nats)", ylim=(0, 101)
        )
        axes.set_xticks(EXPONENTS, [f"$2^{{-{e}}}$" for e in EXPONENTS])
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left", fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", choices=sorted(TASKS), default=["digits"])
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--records", type=int, help="at most so many records in the pool")
    parser.add_argument("--epochs", type=int, help="passes over the pool; the task's own if not given")
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--trials", type=int, default=50, help="trials with votes (the paper: 1,000)")
    parser.add_argument("--queries", type=int, default=2000, help="test records asked in one of them, at most")
    parser.add_argument("--score-trials", type=int, default=10, help="trials with confidence scores")
    parser.add_argument("--score-queries", type=int, default=360, help="queries in one of them")
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


if __name__ == "__main__":
    main()
