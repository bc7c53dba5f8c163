"""Table 4: the optimal membership attack against the bound, over many responses.

    python benchmarks/papers/responses/membership.py --dataset digits --output runs/responses

The queries are records of the pool themselves, in a new order for every pass, as in the paper. The paper's 10^6
responses in each of 1,000 trials take hours here: the default stops at 10^4 and adds larger budgets instead.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from tasks import TASKS, load, pool_of, scores, train

from lightning_pac.accountants import membership_success_bound
from lightning_pac.audits import membership_attack, simulate_beliefs

EXPONENTS = (6, 8, 12, 16, 20, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=sorted(TASKS), default="digits")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--records", type=int, help="at most so many records in the pool")
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--trials", type=int, default=100, help="the paper: 1,000")
    parser.add_argument("--responses", type=int, default=10_000, help="responses in a trial; the paper: 10^6")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("runs/responses"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)

    task = load(args.dataset, args.data_root, args.records)
    space = pool_of(task, args.members)
    votes = scores(train(task, space, args.accelerator), task.features).argmax(-1)
    public = np.random.default_rng(0)
    passes = -(-args.responses // len(votes))
    order = np.concatenate([public.permutation(len(votes)) for _ in range(passes)])[: args.responses]
    moments = [args.responses * step // 10 for step in range(1, 11)]
    rows: list[dict[str, Any]] = []
    for exponent in EXPONENTS:
        budget = 2.0**-exponent
        audit = simulate_beliefs(votes[order], budget, args.trials, moments, rule="linear")
        attacks = [membership_attack(beliefs, audit.secrets, space) for beliefs in audit.beliefs]
        rows.append(
            {
                "budget": f"2^-{exponent}",
                "responses": moments,
                # The paper charges every response; unanimous ones cost nothing, which is the second bound.
                "bound_of_all_responses": [membership_success_bound(count * budget) for count in moments],
                "bound": audit.bound(space).tolist(),
                "attack": [attack.success for attack in attacks],
                "attack_upper": [attack.interval[1] for attack in attacks],
                "mutual_information": audit.mutual_information.tolist(),
                "measured_information": audit.measured_information.tolist(),
            }
        )
        print(f"2^-{exponent}: bound {100 * rows[-1]['bound'][-1]:.2f} %, attack {100 * rows[-1]['attack'][-1]:.2f} %")
    result = {
        "dataset": args.dataset,
        "records": len(task.labels),
        "members": args.members,
        "trials": args.trials,
        "unanimous_fraction": float((votes == votes[:, :1]).all(1).mean()),
        "rows": rows,
    }
    (args.output / "membership.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(rows, args.output / "membership.png")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Attack and bound against the number of responses, one color a budget."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for color, row in enumerate(rows):
        label = f"$b = 2^{{{row['budget'][2:]}}}$"
        axes.plot(row["responses"], [100 * p for p in row["bound"]], color=f"C{color}", linestyle="--")
        axes.plot(row["responses"], [100 * p for p in row["attack"]], color=f"C{color}", marker=".", label=label)
    axes.set(xlabel="responses", ylabel="membership inference success (%)", ylim=(49, 101))
    axes.set_title("Optimal attack (solid) and bound (dashed)")
    axes.grid(alpha=0.3)
    figure.legend(title="budget per response", loc="outside right upper")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
