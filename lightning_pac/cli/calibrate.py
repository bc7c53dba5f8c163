"""`lightning-pac calibrate`: what every way of drawing batches, and every notion, costs in noise."""

import argparse
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, count, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.scenarios import Sampling, TwoWorldScenario

__all__ = ["add_parser", "compare", "run"]

_NOTIONS = ("rpp", "joint", "ave", "ms-joint", "ms-ave")
_WORDS = {
    "Poisson": "Poisson, secret draws",
    "EpochShuffle": "shuffled epochs",
    "FixedSize": "fixed size, drawn afresh",
    "WithReplacement": "with replacement",
    "Sequential": "public order",
}


def add_parser(subparsers: Any) -> None:
    """Declare `calibrate`."""
    parser = add_command(
        subparsers,
        "calibrate",
        run,
        "how much noise a run needs, for all samplings and notions side by side",
        examples="""
        lightning-pac calibrate --num-records 50000 --num-differing 10 --batch-size 512 --epochs 40
        lightning-pac calibrate --num-records 1437 --num-differing 4 --batch-size 719 --epochs 25 --noise-multiplier 20
        lightning-pac calibrate --adjacency add_remove --num-differing 1 --rate 0.01 --batch-size 500 --steps 4000
        """,
        description="""
        The noise multiplier (deviation of the noise on the sum of clipped gradients, in clipping norms) that keeps a
        run within epsilon; or, with --noise-multiplier, the epsilon of a run.
        """,
    )
    parser.add_argument("--num-differing", type=count, required=True, metavar="D", help="records that may differ")
    parser.add_argument("--num-records", type=count, metavar="N", help="records in the dataset")
    parser.add_argument("--batch-size", type=count, required=True, metavar="B", help="records in a batch")
    parser.add_argument("--rate", type=float, metavar="Q", help="Poisson sampling rate (default: B / N)")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=count, metavar="E", help="passes over the data")
    length.add_argument("--steps", type=count, metavar="T", help="optimizer steps")
    aim = parser.add_mutually_exclusive_group()
    aim.add_argument("--epsilon", type=float, default=8.0, help="the budget (8)")
    aim.add_argument("--noise-multiplier", type=float, metavar="SIGMA", help="print epsilon for this noise instead")
    parser.add_argument("--renyi-order", type=float, default=16.0, metavar="A", help="order of epsilon (16)")
    parser.add_argument(
        "--adjacency", choices=("replace", "add_remove", "zero_out"), default="replace", help="how a record may differ"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table; in JSON, every cell with its bound on guessing or the reason of its refusal."""
    rows = compare(args)
    if args.json:
        print_json({"renyi_order": args.renyi_order, "adjacency": args.adjacency, "rows": rows})
        return 0
    shown, aim = "noise_multiplier", f"epsilon {args.epsilon:g}"
    if args.noise_multiplier is not None:
        shown, aim = "epsilon", f"noise multiplier {args.noise_multiplier:g}"
    table: list[list[object]] = []
    for name in dict.fromkeys(row["sampling"] for row in rows):
        cells = {row["notion"]: row for row in rows if row["sampling"] == name}
        bound = cells["rpp"]["world_success_bound"]
        words = None if bound is None else f"{100 * bound:.1f} %"
        table.append([_WORDS[name], *(cells[notion][shown] for notion in _NOTIONS), words])
    title = f"{shown.replace('_', ' ').capitalize()} for {aim} at order {args.renyi_order:g}, {rows[0]['steps']} steps"
    print_table(title, ["batches", *_NOTIONS, "bound on guessing (rpp)"], table)
    for reason in dict.fromkeys(row["refused"] for row in rows if row["refused"]):
        print(f"Empty: {reason}")
    return 0


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each sampling and notion.

    Raises:
        ValueError: No sampling and notion at all can be accounted for.
    """
    from lightning_pac.scenarios import TwoWorldScenario

    secret_length = args.adjacency == "add_remove"
    scenario = TwoWorldScenario(args.num_differing, None if secret_length else args.num_records, args.adjacency)
    samplings = _samplings(args)
    steps = args.steps if args.steps is not None else args.epochs * samplings[0].steps_per_epoch(args.num_records)
    rows = [_row(args, scenario, sampling, notion, steps) for sampling in samplings for notion in _NOTIONS]
    if all(row["refused"] for row in rows):
        raise ValueError(rows[0]["refused"])
    return rows


def _samplings(args: argparse.Namespace) -> "list[Sampling]":
    from lightning_pac.scenarios import EpochShuffle, FixedSize, Poisson, Sequential, WithReplacement

    rate = args.rate
    if rate is None:
        if args.num_records is None:
            raise ValueError("The sampling rate is unknown: state --num-records, or --rate where the number is secret.")
        rate = min(1.0, args.batch_size / args.num_records)
    size = args.batch_size
    return [Poisson(rate, size), EpochShuffle(size), FixedSize(size), WithReplacement(size), Sequential(size)]


def _row(
    args: argparse.Namespace, scenario: "TwoWorldScenario", sampling: "Sampling", notion: Any, steps: int
) -> dict[str, Any]:
    from lightning_pac.accountants import SRPPAccountant

    row = {
        "sampling": type(sampling).__name__,
        "notion": notion,
        "steps": steps,
        "noise_multiplier": None,
        "epsilon": None,
        "world_success_bound": None,
        "refused": None,
    }
    try:
        accountant = SRPPAccountant(scenario, sampling, args.renyi_order, notion)
        noise = args.noise_multiplier
        if noise is None:
            noise = accountant.noise_multiplier(args.epsilon, steps)
        row |= {
            "noise_multiplier": noise,
            "epsilon": accountant.epsilon(noise, steps),
            "world_success_bound": accountant.world_success_bound(noise, steps),
        }
    except ValueError as error:
        row["refused"] = str(error)
    return row
