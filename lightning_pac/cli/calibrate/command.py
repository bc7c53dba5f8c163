"""Options of `lightning-pac calibrate`, and the rows that it prints."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import (
    Bound,
    add_command,
    add_import_option,
    count,
    import_modules,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from lightning_pac.accountants import Promise
    from lightning_pac.scenarios import Sampling, TwoWorldScenario

__all__ = ["add_parser", "compare", "run"]

_NOTIONS = ("rpp", "joint", "ave", "ms-joint", "ms-ave")


def add_parser(subparsers: Any) -> None:
    """Declare `calibrate`."""
    parser = add_command(
        subparsers,
        "calibrate",
        run,
        "how much noise a run needs for what it promises, for all samplings side by side",
        examples="""
        lightning-pac calibrate --num-records 50000 --num-differing 10 --batch-size 512 --epochs 40
        lightning-pac calibrate --dp 3 1e-5 --num-records 4000 --batch-size 400 --epochs 5
        lightning-pac calibrate --num-records 999 --share-differing 0.01 --batch-size 99 --epochs 5 --world-success-bound 0.6
        lightning-pac calibrate --num-records 1437 --num-differing 4 --batch-size 719 --epochs 25 --noise-multiplier 20
        lightning-pac calibrate --adjacency add_remove --num-differing 1 --rate 0.01 --batch-size 500 --steps 4000
        """,  # noqa: E501
        description="""
        The noise multiplier (deviation of the noise on the sum of clipped gradients, in clipping norms) at which a run
        keeps a promise, by default epsilon 8 at order 16; or, with --noise-multiplier, what a run comes to.
        """,
    )
    differing = parser.add_mutually_exclusive_group(required=True)
    differing.add_argument("--num-differing", type=count, metavar="D", help="records that may differ")
    differing.add_argument("--share-differing", type=float, metavar="S", help="share of the records that may differ")
    differing.add_argument(
        "--dp", nargs=2, type=float, metavar=("EPSILON", "DELTA"), help="differential privacy for each record"
    )
    parser.add_argument("--num-records", type=count, metavar="N", help="records in the dataset")
    parser.add_argument("--batch-size", type=count, required=True, metavar="B", help="records in a batch")
    parser.add_argument("--rate", type=float, metavar="Q", help="Poisson sampling rate (default: B / N)")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=count, metavar="E", help="passes over the data")
    length.add_argument("--steps", type=count, metavar="T", help="optimizer steps")
    parser.add_argument("--epsilon", type=float, help="promise epsilon, with --delta or --renyi-order")
    parser.add_argument("--delta", type=float, help="failure probability that goes with epsilon")
    parser.add_argument("--renyi-order", type=float, metavar="A", help="Rényi order that goes with epsilon")
    parser.add_argument("--world-success-bound", type=float, metavar="P", help="promise how often a guess may be right")
    parser.add_argument("--prior", type=float, default=0.5, help="probability of one world beforehand (0.5)")
    parser.add_argument("--noise-multiplier", type=float, metavar="SIGMA", help="say what this noise comes to instead")
    parser.add_argument(
        "--adjacency", choices=("replace", "add_remove", "zero_out"), default="replace", help="how a record may differ"
    )
    parser.add_argument(
        "--parameters", type=count, metavar="P", help="trainable parameters, to set the signal beside the noise"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw noise and signal over promise, batch size and epochs"
    )
    add_import_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table; in JSON, every cell with its figures or the reason of its refusal."""
    from lightning_pac.accountants import HOPELESS_SIGNAL, fitting_rate, signal_to_noise
    from lightning_pac.cards import at_most, upwards

    _read_preset(args)
    _read_promise(args)
    rows = compare(args, _NOTIONS if args.dp is None else ("rpp",))
    if args.plot is not None:
        from lightning_pac.cli.calibrate.plot import draw

        draw(args, compare)
    if args.json:
        print_json({"renyi_order": args.renyi_order, "adjacency": args.adjacency, "rows": rows})
        return 0
    given = args.noise_multiplier is not None
    shown = "epsilon" if given and args.delta is None else "epsilon_at_delta" if given else "noise_multiplier"
    notions = [name for name in _NOTIONS if any(row["notion"] == name and row[shown] is not None for row in rows)]
    table: list[list[object]] = []
    for name in dict.fromkeys(row["sampling"] for row in rows):
        cells = {row["notion"]: row for row in rows if row["sampling"] == name}
        worst = cells["rpp"]
        bound = worst["world_success_bound"]
        words = None if bound is None else at_most(bound)
        signal = [] if args.parameters is None else [worst["signal_of_run"]]
        figures = (*(cells[n][shown] for n in notions), worst["epsilon_at_delta"])
        proven = [None if value is None else Bound(value) for value in figures]
        table.append([worst["title"], *proven[:-1], words, proven[-1], *signal])
    title = f"{shown.replace('_', ' ').capitalize()} for {_aim(args)}, {rows[0]['steps']} steps"
    delta = rows[0]["delta"]
    columns = ["batches", *notions, "bound on guessing (rpp)", f"epsilon at delta {upwards(delta)} (rpp)"]
    print_table(title, columns + ([] if args.parameters is None else ["signal of the run"]), table)
    signals = {row["title"]: row["signal_of_run"] for row in rows if row["notion"] == "rpp"}
    drowned = [title for title, signal in signals.items() if signal is not None and signal < HOPELESS_SIGNAL]
    if drowned:
        print(
            f"Below {HOPELESS_SIGNAL:g} most runs end where they began ({'; '.join(drowned)}): more records, "
            "fewer parameters or a weaker promise raise it, and larger batches only where they are small."
        )
    noised = [row for row in rows if row["notion"] == "rpp" and row["noise_multiplier"]]
    if args.parameters is not None and noised:
        ratios = [signal_to_noise(args.batch_size, row["noise_multiplier"], args.parameters) for row in noised]
        rates: list[list[object]] = [
            [row["title"], float(f"{ratio:.3g}"), *(float(f"{rate:.2g}") for rate in (fitted, fitted / 4))]
            for row, ratio in zip(noised, ratios, strict=True)
            for fitted in [fitting_rate(ratio)]
        ]
        headings = ["batches", "ratio of clipped signal to noise", "rate of plain SGD", "with momentum 0.9"]
        caption = (
            "Constant rates, estimated from other data; Adam starts at 0.03, and a schedule that falls to zero at "
            "twice the rate. Averages of word embeddings want 10 (with momentum 3 below a ratio of 1), or Adam at 0.1; "
            "squared errors 0.1 (0.03 below a ratio of 1), or Adam at 0.01. The ratio, which each run prints, "
            "is of one step; the signal of the run adds up all steps."
        )
        print_table("Learning rates to start at", headings, rates, caption)
    for reason in dict.fromkeys(row["refused"] for row in rows if row["refused"] and row["notion"] in notions):
        print(f"Empty: {reason}")
    return 0


def compare(args: argparse.Namespace, notions: Sequence[str] = _NOTIONS) -> list[dict[str, Any]]:
    """One row for each sampling that applies and each notion.

    Args:
        args: The options.
        notions: Those that are wanted.

    Raises:
        ValueError: No sampling and notion at all can be accounted for.
    """
    from lightning_pac.scenarios import TwoWorldScenario

    import_modules(args)
    secret_length = args.adjacency == "add_remove"
    scenario = TwoWorldScenario(
        args.num_differing or 0,
        None if secret_length else args.num_records,
        args.adjacency,
        share_differing=args.share_differing,
    )
    samplings = _samplings(args)
    steps = args.steps if args.steps is not None else args.epochs * samplings[0].steps_per_epoch(args.num_records)
    promise = _read_promise(args)
    rows: list[dict[str, Any]] = []
    for sampling in samplings:
        cells = [_row(args, scenario, sampling, notion, steps, promise) for notion in notions]
        if not all(cell["refused"] for cell in cells) or not rows:
            rows += cells
    if all(row["refused"] for row in rows):
        raise ValueError(rows[0]["refused"])
    return rows


def _read_preset(args: argparse.Namespace) -> None:
    """Write `--dp` out: a promise, and one record that is there or not."""
    if args.dp is None:
        return
    if any(value is not None for value in (args.epsilon, args.delta, args.world_success_bound, args.noise_multiplier)):
        raise ValueError("--dp is the whole promise: leave --epsilon, --delta, bounds and the noise out, or --dp.")
    (args.epsilon, args.delta), args.num_differing, args.adjacency = args.dp, 1, "add_remove"


def _read_promise(args: argparse.Namespace) -> "Promise | None":
    """The exact promise; None for epsilon at a Rényi order, and where the noise is given."""
    from lightning_pac.accountants import one_promise

    stated = (args.epsilon, args.delta, args.world_success_bound, args.noise_multiplier)
    if all(value is None for value in stated):
        args.epsilon, args.renyi_order = 8.0, 16.0 if args.renyi_order is None else args.renyi_order
    if args.noise_multiplier is not None and args.epsilon is None and args.world_success_bound is None:
        return None  # delta and the prior say which figures are wanted
    return one_promise(args, args.noise_multiplier)


def _aim(args: argparse.Namespace) -> str:
    from lightning_pac.cards import upwards

    if args.noise_multiplier is not None:
        order = "" if args.delta is not None else f" at order {args.renyi_order or 16:g}"
        return f"noise multiplier {upwards(args.noise_multiplier)}{order}"
    if args.world_success_bound is not None:
        return f"a bound on guessing of {upwards(100 * args.world_success_bound)} %"
    return f"epsilon {upwards(args.epsilon)} at " + (
        f"order {args.renyi_order:g}" if args.delta is None else f"delta {upwards(args.delta)}"
    )


def _samplings(args: argparse.Namespace) -> "list[Sampling]":
    """Every registered scheme that a batch size and a rate make."""
    from lightning_pac.scenarios import registered_samplings

    rate = args.rate
    if rate is None:
        if args.num_records is None:
            raise ValueError("The sampling rate is unknown: state --num-records, or --rate where the number is secret.")
        rate = min(1.0, args.batch_size / args.num_records)
    # One order that is kept costs what shuffled epochs do.
    listed = [scheme for scheme in registered_samplings() if not getattr(scheme, "keeps_order", False)]
    made = [scheme.of_batches(args.batch_size, rate) for scheme in listed]
    return [sampling for sampling in made if sampling is not None]


def _row(
    args: argparse.Namespace,
    scenario: "TwoWorldScenario",
    sampling: "Sampling",
    notion: Any,
    steps: int,
    promise: "Promise | None",
) -> dict[str, Any]:
    from lightning_pac.accountants import SRPPAccountant, run_figures

    delta = 1e-5 if args.delta is None else args.delta
    row = {
        "sampling": type(sampling).__name__,
        "title": sampling.title or type(sampling).__name__,
        "notion": notion,
        "steps": steps,
        "noise_multiplier": None,
        "epsilon": None,
        "world_success_bound": None,
        "epsilon_at_delta": None,
        "delta": delta,
        "signal_of_run": None,
        "refused": None,
    }
    try:
        accountant = SRPPAccountant(scenario, sampling, args.renyi_order or 16.0, notion)
        noise = args.noise_multiplier or promise or accountant.noise_multiplier(args.epsilon, steps)
        row |= asdict(run_figures(accountant, steps, args.batch_size, noise, args.parameters, delta, args.prior))
    except ValueError as error:
        row["refused"] = str(error)
    return row
