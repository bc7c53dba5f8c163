"""Figures 2 and 4 and Tables 1 and 2 of *One-Sided Bounded Noise*.

    python benchmarks/papers/one_sided/figures.py --output runs/one_sided

Writes one JSON file and one plot for each. The cache-miss distribution behind Figure 4(a) was measured with a tool that
is not public; a binomial one of the same variance over the same 38 states stands in for it, and says so in the JSON.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import brentq
from scipy.stats import binom

from lightning_pac.accountants import hybrid_rdp_epsilon
from lightning_pac.mechanisms.one_sided import (
    PositiveNoise,
    TruncatedLaplace,
    biased_laplace,
    discrete_biased_laplace,
    theorem_1_release,
    two_sided_information,
)

EPSILONS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
LABELS = {
    "laplace_advanced": "Laplace, advanced composition",
    "laplace_hybrid_rdp": "Laplace, hybrid RDP",
    "optimized_hybrid_rdp": "optimized, hybrid RDP",
    "optimized_exact": "optimized, exact",
}


def moment(p: np.ndarray) -> float:
    return float(p @ np.arange(p.size, dtype=float) ** 2)


def tables() -> dict[str, Any]:
    """Tables 1 and 2: a single release."""
    printed = {
        1e-4: {"laplace": (265.5, 83.0, 27.1, 9.8, 4.3), "optimal": (244.5, 68.9, 17.0, 4.1, 1.0)},
        1e-6: {"laplace": (648.1, 187.7, 56.3, 18.3, 6.9), "optimal": (608.1, 171.5, 37.7, 9.1, 1.1)},
    }
    rows = []
    for delta, columns in printed.items():
        for k, epsilon in enumerate((0.5, 1.0, 2.0, 4.0, 8.0)):
            rows.append(
                {
                    "delta": delta,
                    "epsilon": epsilon,
                    "optimal": PositiveNoise.for_dp(epsilon, delta).second_moment,
                    "theorem_1": moment(theorem_1_release(epsilon, delta)),
                    "optimal_printed": columns["optimal"][k],
                    "lemma_1_laplace": TruncatedLaplace.for_dp(epsilon, delta).second_moment,
                    "laplace_printed": columns["laplace"][k],
                }
            )
    return {"rows": rows}


def figure_2() -> dict[str, Any]:
    """Second moment and largest value of noise for T releases, by construction and accounting."""
    panels = []
    for compositions, delta in ((500, 1e-5), (1000, 1e-8)):
        rows = []
        for epsilon in EPSILONS:
            laplace = biased_laplace(epsilon, delta, compositions)
            accounted = _laplace_by_hybrid_rdp(epsilon, delta, compositions)
            row: dict[str, Any] = {
                "epsilon": epsilon,
                "laplace_advanced": [moment(laplace), laplace.size - 1],
                "laplace_hybrid_rdp": [moment(accounted), accounted.size - 1],
            }
            for accounting in ("hybrid_rdp", "exact"):
                noise = PositiveNoise.for_dp(epsilon, delta, compositions, accounting=accounting)
                row[f"optimized_{accounting}"] = [noise.second_moment, noise.max_value]
            rows.append(row)
        panels.append({"compositions": compositions, "delta": delta, "rows": rows})
    return {"panels": panels}


def figure_4() -> dict[str, Any]:
    """Maximal leakage (a) and PAC privacy (b, c) of cache misses."""
    states = np.arange(38)
    prior = binom.pmf(states, 37, 0.5)
    prior /= prior.sum()
    show, extra = np.tile(states + 1.0, (38, 1)), states[None, :] - states[:, None].astype(float)
    leakages = [1.0 + 0.5 * k for k in range(20)]
    channels = []
    for v in leakages:
        whole = PositiveNoise.for_maximal_leakage(states, prior, show, math.log(v))
        added = PositiveNoise.for_maximal_leakage(states, prior, extra, math.log(v))
        channels.append(
            {
                "v": v,
                "misses": whole.expected_cost,
                "additional_misses": added.expected_cost,
                "log2_guess_of_a_key": math.log2(added.guess_bound(2.0**-256)),
            }
        )
    budgets = np.geomspace(1.0, 200.0, 30)
    by_budget = {
        str(end): [PositiveNoise.for_pac(20.6, end, b).mutual_information for b in budgets] for end in (5.0, 10.0, 20.0)
    }
    ends = np.linspace(2.0, 40.0, 30)
    by_range = {
        str(b): [PositiveNoise.for_pac(20.6, e, b).mutual_information for e in ends] for b in (25.0, 50.0, 100.0)
    }
    return {
        "cache_misses": "binomial(37, 1/2) in place of the measured distribution",
        "maximal_leakage": channels,
        "log2_guess_without_noise": math.log2(38 * 2.0**-256),
        "budgets": budgets.tolist(),
        "information_by_budget": by_budget,
        "two_sided_gaussian": [two_sided_information(20.6, float(b)) for b in budgets],
        "ranges": ends.tolist(),
        "information_by_range": by_range,
    }


def _laplace_by_hybrid_rdp(epsilon: float, delta: float, compositions: int) -> np.ndarray:
    """Discrete biased Laplace noise of least moment whose hybrid-RDP epsilon meets the target."""
    best = None
    for share in (0.2, 0.4, 0.6, 0.8):
        tail = share * delta / compositions

        def excess(log_single: float, tail: float = tail) -> float:
            return (
                min(50.0, hybrid_rdp_epsilon(discrete_biased_laplace(math.exp(log_single), tail), delta, compositions))
                - epsilon
            )

        p = discrete_biased_laplace(
            math.exp(float(brentq(excess, math.log(1e-3), math.log(1.0), xtol=1e-3)) - 1e-3), tail
        )
        best = p if best is None or moment(p) < moment(best) else best
    assert best is not None
    return best


def plot_tables(data: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    for axes, delta in zip(figure.subplots(1, 2), (1e-4, 1e-6), strict=True):
        rows = [row for row in data["rows"] if row["delta"] == delta]
        epsilons = [row["epsilon"] for row in rows]
        for key, label, style in (
            ("optimal", "optimal", "o-"),
            ("optimal_printed", "optimal, as printed", "o:"),
            ("lemma_1_laplace", "Laplace (Lemma 1)", "s-"),
            ("laplace_printed", "Laplace, as printed", "s:"),
        ):
            axes.loglog(epsilons, [row[key] for row in rows], style, label=label)
        axes.set(xlabel="epsilon", ylabel="second moment", title=f"delta = 1e{math.log10(delta):.0f}")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)


def plot_figure_2(data: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(8.4, 6.4), layout="constrained")
    grid = figure.subplots(2, 2)
    for column, panel in enumerate(data["panels"]):
        for row, quantity in enumerate(("second moment", "range of the design")):
            axes = grid[row][column]
            for key in LABELS:
                values = [entry[key][row] for entry in panel["rows"]]
                # Both optimized designs have one range: dashes let the other show through.
                axes.semilogy(EPSILONS, values, "x--" if key == "optimized_exact" else "o-", label=LABELS[key])
            axes.set(xlabel="epsilon", ylabel=quantity)
            axes.set_title(f"T = {panel['compositions']}, delta = 1e{math.log10(panel['delta']):.0f}")
            axes.grid(alpha=0.3)
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=130)


def plot_figure_4(data: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(11.0, 3.6), layout="constrained")
    leakage, budget, range_axes = figure.subplots(1, 3)
    v = [row["v"] for row in data["maximal_leakage"]]
    for key in ("misses", "additional_misses"):
        leakage.plot(v, [row[key] for row in data["maximal_leakage"]], ".-", label=key.replace("_", " "))
    leakage.set(xlabel="v (leakage = ln v)", ylabel="least expected cost", title="maximal leakage")
    for end, values in data["information_by_budget"].items():
        budget.semilogx(data["budgets"], values, label=f"R = {float(end):g}")
    budget.semilogx(data["budgets"], data["two_sided_gaussian"], "k--", label="two-sided Gaussian")
    budget.set(xlabel="second-moment budget", ylabel="mutual information (nats)", title="PAC, by budget")
    for b, values in data["information_by_range"].items():
        range_axes.plot(data["ranges"], values, label=f"B = {float(b):g}")
    range_axes.set(xlabel="R", ylabel="mutual information (nats)", title="PAC, by range")
    for axes in (leakage, budget, range_axes):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)


EXPERIMENTS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any], Path], None]]] = {
    "tables": (tables, plot_tables),
    "figure_2": (figure_2, plot_figure_2),
    "figure_4": (figure_4, plot_figure_4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/one_sided"))
    parser.add_argument("--only", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        run, plot = EXPERIMENTS[name]
        data = run()
        (args.output / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
        plot(data, args.output / f"{name}.png")
        print(f"{name}: written to {args.output}")


if __name__ == "__main__":
    main()
