"""Table 4: the optimal membership attack against the bound, over many responses.

    python benchmarks/papers/responses/membership.py --dataset digits --output runs/responses

The queries are records of the pool themselves, in a new order for every pass, as in the paper. Members' votes are kept
in `votes.npy` and each budget's row in `rows/`, from which an interrupted command goes on.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from tasks import TASKS, Array, Task, load, pool_of, scores, train

from lightning_pac.accountants import membership_success_bound
from lightning_pac.audits import simulate_beliefs
from lightning_pac.scenarios import BalancedSubsets

EXPONENTS = (12, 16, 20, 24, 28, 32)
# Trials are attacked in so many parts, whose spread gives the standard error.
PARTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=sorted(TASKS), default="digits")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--records", type=int, help="at most so many records in the pool")
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--trials", type=int, default=100, help="the paper: 1,000")
    parser.add_argument("--responses", type=int, default=10_000, help="responses in a trial; the paper: 10^6")
    parser.add_argument("--exponents", type=int, nargs="+", default=EXPONENTS, help="budgets 2^-e of a response")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("runs/responses"))
    args = parser.parse_args()
    (args.output / "rows").mkdir(parents=True, exist_ok=True)
    task = load(args.dataset, args.data_root, args.records)
    space = pool_of(task, args.members)
    votes = votes_of(task, space, args)
    public = np.random.default_rng(0)
    passes = -(-args.responses // len(votes))
    order = np.concatenate([public.permutation(len(votes)) for _ in range(passes)])[: args.responses]
    rows = []
    for exponent in args.exponents:
        ended = args.output / "rows" / f"{exponent}.json"
        if not ended.exists():
            ended.write_text(json.dumps(one_budget(votes[order], 2.0**-exponent, f"2^-{exponent}", space, args)))
        rows.append(json.loads(ended.read_text()))
        last = rows[-1]["moments"][-1]
        print(f"2^-{exponent}: bound {100 * last['bound']:.2f} %, attack {100 * last['attack']:.2f} %", flush=True)
    result = {
        "dataset": args.dataset,
        "records": len(task.labels),
        "members": args.members,
        "trials": args.trials,
        "member_accuracy": float((votes == task.labels[:, None]).mean()),
        "unanimous_fraction": float((votes == votes[:, :1]).all(1).mean()),
        "rows": rows,
    }
    (args.output / "membership.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(rows, args.output / "membership.png")


def votes_of(task: Task, space: BalancedSubsets, args: argparse.Namespace) -> Array:
    """What the members say of the pool's own records, shape (n, m); trained once."""
    kept = args.output / "votes.npy"
    if not kept.exists():
        found = scores(train(task, space, args.accelerator), task.features).argmax(-1)
        unfinished = kept.with_suffix(".part.npy")
        np.save(unfinished, found.astype(np.int8))
        unfinished.rename(kept)
    return np.asarray(np.load(kept))


def one_budget(
    asked: Array, budget: float, name: str, space: BalancedSubsets, args: argparse.Namespace
) -> dict[str, Any]:
    """Attack and bounds at ten moments of the trials."""
    moments = [args.responses * step // 10 for step in range(1, 11)]
    audit = simulate_beliefs(asked, budget, args.trials, moments, rule="linear")
    parts = [
        dataclasses.replace(audit, beliefs=audit.beliefs[:, part], secrets=audit.secrets[part])
        for part in np.array_split(np.arange(args.trials), PARTS)
    ]
    found = {
        "attack": np.array([part.success(space) for part in parts]),
        "measured_information": np.array([part.measured_information for part in parts]),
    }
    bounds = audit.bound(space)
    rows = []
    for number, count in enumerate(moments):
        # The paper charges every response; unanimous ones cost nothing, which is the second bound.
        row = {"responses": count, "bound_of_all_responses": membership_success_bound(count * budget)}
        row |= {"bound": float(bounds[number]), "mutual_information": float(audit.mutual_information[number])}
        for what, values in found.items():
            row[what] = float(values[:, number].mean())
            row[f"{what}_standard_error"] = float(values[:, number].std(ddof=1) / PARTS**0.5)
        rows.append(row)
    return {"budget": name, "moments": rows}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Attack and bound against the number of responses, one color a budget."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for color, row in enumerate(rows):
        label = f"$b = 2^{{{row['budget'][2:]}}}$"
        asked = [moment["responses"] for moment in row["moments"]]
        for name, style in (("bound", "--"), ("attack", ".-")):
            values = [100 * moment[name] for moment in row["moments"]]
            axes.plot(asked, values, style, color=f"C{color}", label=label if name == "attack" else None)
    axes.set(xlabel="responses", ylabel="membership inference success (%)", ylim=(49, 101))
    axes.set_title("Optimal attack (solid) and bound (dashed)")
    axes.grid(alpha=0.3)
    figure.legend(title="budget per response", loc="outside right upper")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
