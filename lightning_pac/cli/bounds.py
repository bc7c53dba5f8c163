"""`lightning-pac bounds`: what a budget per response promises after many responses."""

import argparse
from pathlib import Path
from typing import Any

from lightning_pac.cli.common import LARGEST, SMALLEST, add_command, count, print_json, print_table

__all__ = ["add_parser", "run"]

_BUDGETS = ["2^-4", "2^-8", "2^-12", "2^-16", "2^-20", "2^-24", "2^-28", "2^-32"]
_RESPONSES = [10**power for power in range(7)]


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = add_command(
        subparsers,
        "bounds",
        run,
        "how far membership inference can succeed after a number of private responses",
        """
        lightning-pac bounds
        lightning-pac bounds --budget 2^-32 --responses 1000000 210000
        lightning-pac bounds --budget 2^-32 --success-bound 0.55 0.6
        lightning-pac bounds --budget 2^-20 2^-32 --prior 0.01 --plot bounds.png
        """,
        """
        The largest success probability of any membership attack that sees T responses, each with a mutual information
        of at most b nats, and how many responses there are until the bound is that of (epsilon, delta)-DP.
        """,
    )
    parser.add_argument(
        "--budget", nargs="+", default=_BUDGETS, metavar="B", help="nats per response, as 1e-9 or 2^-32"
    )
    parser.add_argument(
        "--responses", nargs="+", type=count, default=_RESPONSES, metavar="T", help="numbers of responses"
    )
    parser.add_argument("--prior", type=float, default=0.5, help="success of the best guess without responses (0.5)")
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 8.0], help="DP levels to compare with (1 8)")
    parser.add_argument("--delta", type=float, default=1e-5, help="delta of that comparison (1e-5)")
    parser.add_argument(
        "--success-bound", nargs="+", type=float, default=[], metavar="P", help="bounds on guessing to stay within"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the bounds into an image file")


def run(args: argparse.Namespace) -> int:
    """Print the table; `--json` holds the numbers unrounded."""
    from lightning_pac.accountants import dp_epsilon_for_success, membership_success_bound, responses_until
    from lightning_pac.cards import upwards

    budgets = [parse_budget(text) for text in args.budget]
    rows = []
    for text, budget in zip(args.budget, budgets, strict=True):
        bounds = {count: membership_success_bound(count * budget, args.prior) for count in args.responses}
        # The comparison with DP is made at prior 1/2, where DP's own bound on the success is stated.
        row = {
            "budget": text,
            "budget_nats": budget,
            "membership_success_bound": bounds,
            "responses_within": {
                upwards(bound): _responses_within(bound, budget, args.prior) for bound in args.success_bound
            },
            "responses_until": {upwards(level): responses_until(level, budget, args.delta) for level in args.epsilon},
        }
        if args.prior == 0.5:
            row["dp_epsilon"] = {count: dp_epsilon_for_success(bound, args.delta) for count, bound in bounds.items()}
        rows.append(row)
    if args.json:
        print_json({"prior": args.prior, "delta": args.delta, "rows": rows})
    else:
        _print(args, rows)
    if args.plot is not None:
        _plot(args, budgets)
    return 0


def _responses_within(bound: float, budget: float, prior: float) -> int:
    """The most responses after which no attack succeeds more often than `bound`."""
    from lightning_pac.accountants import membership_success_bound

    if not prior < bound < 1:
        raise ValueError(
            f"--success-bound is {bound:g}, but must lie above the prior {prior:g}, which needs no response, and below "
            "1."
        )
    low, high = 0, 1
    while membership_success_bound(high * budget, prior) <= bound:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        kept = membership_success_bound(middle * budget, prior) <= bound
        low, high = (middle, high) if kept else (low, middle)
    return low


def parse_budget(text: str) -> float:
    """Read a positive number of nats, as `1e-9` or `2^-32`.

    Raises:
        ValueError: If the text is not such a number.

    Example:
        >>> parse_budget("2^-3"), parse_budget("0.5")
        (0.125, 0.5)
    """
    base, power, exponent = text.partition("^")
    try:
        value = float(base) ** float(exponent) if power else float(base)
    except (ValueError, OverflowError, ZeroDivisionError):
        value = float("nan")
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(
            f"Budget {text!r} is not a positive number of nats: write it as 1e-9 or 2^-32, from {SMALLEST:g} to "
            f"{LARGEST:g}."
        )
    return value


def _print(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    from lightning_pac.cards import at_most, downwards, upwards

    columns = ["responses", *args.budget]
    table: list[list[object]] = [
        [f"{count:,}", *(at_most(row["membership_success_bound"][count]) for row in rows)] for count in args.responses
    ]
    for bound in args.success_bound:
        counts = [row["responses_within"][upwards(bound)] for row in rows]
        table.append([f"responses within {upwards(100 * bound)} %", *(f"{count:,}" for count in counts)])
    for level in args.epsilon:
        counts = [row["responses_until"][upwards(level)] for row in rows]
        table.append([f"responses until epsilon {upwards(level)}", *(f"{count:,}" for count in counts)])
    print_table(
        f"Success of any membership attack, prior {downwards(args.prior)}, by mutual information per response (nats)",
        columns,
        table,
        f"The last rows compare with (epsilon, {upwards(args.delta)})-differential privacy at prior 0.5.",
    )


def _plot(args: argparse.Namespace, budgets: list[float]) -> None:
    from matplotlib.figure import Figure

    from lightning_pac.accountants import membership_success_bound

    top = max(max(args.responses), 10)
    counts = [top ** (step / 120) for step in range(121)]
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for text, budget in zip(args.budget, budgets, strict=True):
        base, power, exponent = text.partition("^")
        label = f"${base}^{{{exponent}}}$ nats" if power else f"{text} nats"
        bounds = [100 * membership_success_bound(count * budget, args.prior) for count in counts]
        axes.semilogx(counts, bounds, label=label)
    axes.set(xlabel="responses", ylabel="largest attack success (%)", ylim=(100 * args.prior - 1, 101))
    axes.set_title("Membership inference after private responses")
    axes.grid(alpha=0.3)
    figure.legend(title="budget per response", loc="outside right upper")
    figure.savefig(args.plot, dpi=150)
