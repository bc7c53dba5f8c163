"""`lightning-pac noise`: design noise that only ever adds."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import Bound, add_command, count, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.mechanisms.one_sided import DPNoise, PACNoise

__all__ = ["add_parser", "run"]

_PROVEN = ("epsilon", "delta", "mutual_information", "leakage")


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = add_command(
        subparsers,
        "noise",
        run,
        "design one-sided noise for times, counts and sizes that can be padded but not shortened",
        """
        lightning-pac noise dp --epsilon 1 --delta 1e-6 --compositions 500 --max-value 2000 --plot noise.png
        lightning-pac noise dp --second-moment 1e5 --delta 1e-5 --compositions 500
        lightning-pac noise pac --output-variance 20.6 --max-value 10 --second-moment 25
        lightning-pac noise leakage --states 7 --leakage 1.2528
        """,
        """
        The noise of least second moment for differential privacy (dp), the cheapest channel of bounded maximal leakage
        between equally likely states (leakage), or the noise that leaves the least mutual information (pac).
        """,
    )
    parser.add_argument("notion", choices=["dp", "leakage", "pac"], help="privacy notion")
    parser.add_argument("--epsilon", type=float, help="dp: epsilon of all releases together")
    parser.add_argument("--delta", type=float, default=1e-6, help="dp: delta of all releases together (1e-6)")
    parser.add_argument("--compositions", type=count, default=1, help="dp: number of releases (1)")
    parser.add_argument("--sensitivity", type=count, default=1, help="dp: largest difference of neighbours (1)")
    parser.add_argument(
        "--accounting", choices=["exact", "hybrid_rdp"], default="exact", help="dp: how releases compose (exact)"
    )
    parser.add_argument("--max-value", type=float, help="dp, pac: largest noise")
    parser.add_argument("--second-moment", type=float, help="dp: budget, in place of epsilon; pac: budget")
    parser.add_argument("--output-variance", type=float, help="pac: largest variance of the output")
    parser.add_argument("--states", type=count, help="leakage: number of equally likely states")
    parser.add_argument("--leakage", type=float, help="leakage: budget in nats")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the noise into an image file")


def run(args: argparse.Namespace) -> int:
    """Print the design; `--json` holds the probabilities too."""
    design, values, masses = {"dp": _dp, "leakage": _leakage, "pac": _pac}[args.notion](args)
    if args.json:
        print_json(design)
    else:
        shown = {key: value for key, value in design.items() if not isinstance(value, list)}
        rows = [[key, Bound(value) if key in _PROVEN else value] for key, value in shown.items()]
        print_table("One-sided noise", ["figure", "value"], rows)
    if args.plot is not None:
        _plot(args.plot, values, masses, args.notion)
    return 0


def _dp(args: argparse.Namespace) -> tuple[dict[str, Any], Any, Any]:
    import numpy as np

    from lightning_pac.mechanisms.one_sided import PositiveNoise

    if args.max_value is not None and args.max_value != int(args.max_value):
        raise ValueError(f"max_value must be a whole number for noise on integers, got {args.max_value:g}.")
    noise: DPNoise = PositiveNoise.for_dp(
        args.epsilon,
        args.delta,
        args.compositions,
        None if args.max_value is None else int(args.max_value),
        second_moment=args.second_moment,
        sensitivity=args.sensitivity,
        accounting=args.accounting,
    )
    design = {**vars(noise.guarantee), **_moments(noise), "probabilities": noise.probabilities.tolist()}
    return design, np.arange(noise.max_value + 1), noise.probabilities


def _pac(args: argparse.Namespace) -> tuple[dict[str, Any], Any, Any]:
    import numpy as np

    from lightning_pac.mechanisms.one_sided import PositiveNoise, two_sided_information

    for name in ("output_variance", "max_value", "second_moment"):
        if getattr(args, name) is None:
            raise ValueError(f"noise pac needs --{name.replace('_', '-')}.")
    noise = PositiveNoise.for_pac(args.output_variance, args.max_value, args.second_moment)
    design = {
        "mutual_information": noise.mutual_information,
        "two_sided_gaussian_information": two_sided_information(args.output_variance, args.second_moment),
        "location": noise.location,
        "scale": noise.scale,
        **_moments(noise),
    }
    values = np.linspace(0.0, noise.max_value, 401)
    return design, values, np.exp(noise.log_prob(values))


def _leakage(args: argparse.Namespace) -> tuple[dict[str, Any], Any, Any]:
    import numpy as np

    from lightning_pac.mechanisms.one_sided import PositiveNoise

    if args.states is None or args.leakage is None:
        raise ValueError("noise leakage needs --states and --leakage.")
    columns = np.arange(float(args.states))
    cost = columns[None, :] - columns[:, None]
    prior = np.full(args.states, 1.0 / args.states)
    channel = PositiveNoise.for_maximal_leakage(np.arange(args.states), prior, cost, args.leakage)
    design = {
        "leakage": channel.leakage,
        "expected_cost": channel.expected_cost,
        "transition": channel.transition.tolist(),
    }
    return design, np.arange(args.states), channel.transition.mean(axis=0)


def _moments(noise: "DPNoise | PACNoise") -> dict[str, Any]:
    return {"max_value": noise.max_value, "mean": noise.mean, "second_moment": noise.second_moment}


def _plot(path: Path, values: Any, masses: Any, notion: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    if len(values) > 120:
        axes.plot(values, masses)
    else:
        axes.bar(values, masses)
    axes.set(
        xlabel="state shown" if notion == "leakage" else "noise", ylabel="density" if notion == "pac" else "probability"
    )
    axes.set_title("What is shown of equally likely states" if notion == "leakage" else "One-sided noise")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
