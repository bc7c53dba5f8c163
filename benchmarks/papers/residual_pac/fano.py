"""Tables 1 to 4: the information that the printed accuracies tell at least, beside the printed budgets.

    python benchmarks/papers/residual_pac/fano.py --output runs/residual_pac/fano

The secret is the record, and the record has one label: an output whose largest entry names the label with accuracy a
tells at least `H(L) - h(a) - (1 - a) ln(k - 1)` about it (Fano 1961), whatever the noise. The numbers of records of
each class in the test sets are public.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import entr

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
CLASS_SIZES = {
    "cifar10": [1000] * 10,
    "cifar100": [100] * 100,
    "mnist": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    "ag_news": [1900] * 4,
}
METHODS = {"sr_pac": "SR-PAC", "auto": "Auto-PAC", "efficient": "Efficient-PAC"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/residual_pac/fano"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    tables = [table(name, sizes) for name, sizes in CLASS_SIZES.items()]
    (args.output / "fano.json").write_text(json.dumps({"tables": tables}, indent=1) + "\n")
    plot(tables, args.output / "fano.png")
    for found in tables:
        print(f"{found['dataset']}: {found['broken']} of {len(found['budgets'])} budgets of SR-PAC are exceeded")


def table(name: str, sizes: list[int]) -> dict[str, Any]:
    """Information told at least, by method and budget, and how many budgets of SR-PAC are below it."""
    printed = PUBLISHED[name]
    told = {
        method: [told_at_least(percent / 100, sizes) for percent in accuracies]
        for method, accuracies in printed["accuracy"].items()
    }
    broken = sum(least > budget for least, budget in zip(told["sr_pac"], printed["budgets"], strict=True))
    return {"dataset": name, "budgets": printed["budgets"], "told": told, "broken": broken}


def told_at_least(accuracy: float, sizes: list[int]) -> float:
    """Fano's bound on the mutual information of a label and a guess of that accuracy, in nats."""
    labels = entr(np.array(sizes) / sum(sizes)).sum()
    wrong = 1 - accuracy
    return max(0.0, float(labels - entr(accuracy) - entr(wrong) - wrong * math.log(len(sizes) - 1)))


def plot(tables: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 3.4), layout="constrained")
    for axes, found in zip(figure.subplots(1, len(tables)), tables, strict=True):
        for color, (method, label) in enumerate(METHODS.items()):
            if method in found["told"]:
                axes.loglog(found["budgets"], found["told"][method], "o-", color=f"C{color}", label=label, markersize=4)
        axes.loglog(found["budgets"], found["budgets"], "k--", label="the budget")
        axes.set_xscale("log", base=2)
        axes.set(title=found["dataset"], xlabel="budget (nats)")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("told at least (nats)")
    figure.axes[1].legend(fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
