"""`lightning-pac plan`: what a project may release for one promise, and the ledger that its runs draw on."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, count, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.accountants import ProjectOption, ProjectPlan

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = add_command(
        subparsers,
        "plan",
        run,
        "what a whole project may release for one promise, and the ledger with the shares",
        """
        lightning-pac plan --num-records 50000 --epsilon 3 --delta 1e-5 --batch-size 512 2048 --epochs 20 --parameters 1e5
        lightning-pac plan --num-records 50000 --epsilon 3 --delta 1e-5 --batch-size 2048 --epochs 20 --values metrics=20
        lightning-pac plan --num-records 4000 --adjacency add_remove --epsilon 3 --delta 1e-5 --batch-size 400 --epochs 5 --values auc=1 --ledger study.db --yaml private.yaml
        lightning-pac plan --num-records 4000 --world-success-bound 0.6 --values tables=12 --answers labels=1e6
        """,  # noqa: E501
        description="""
        Everything that is released about two worlds keeps one promise together: a model, noised values of metrics and
        tables; each has a share of it. Answers of a responder have a bound of their own. Several batch sizes and epochs
        are compared. With --ledger, the shares of the option with the most signal are written into a ledger, which the
        runs then draw on; nothing is spent by it.
        """,
    )
    parser.add_argument("--num-records", type=count, required=True, metavar="N", help="records in the dataset")
    parser.add_argument("--num-differing", type=count, default=1, metavar="D", help="records that may differ (1)")
    parser.add_argument(
        "--adjacency", choices=("replace", "add_remove", "zero_out"), default="replace", help="how a record may differ"
    )
    parser.add_argument("--epsilon", type=float, help="promise epsilon, with --delta")
    parser.add_argument("--delta", type=float, help="failure probability that goes with epsilon")
    parser.add_argument("--world-success-bound", type=float, metavar="P", help="promise how often a guess may be right")
    parser.add_argument("--prior", type=float, default=0.5, help="probability of one world beforehand (0.5)")
    parser.add_argument("--batch-size", type=count, nargs="+", metavar="B", help="records in a batch of the model")
    parser.add_argument("--epochs", type=count, nargs="+", metavar="E", help="passes of the model over the data")
    parser.add_argument("--parameters", type=count, metavar="P", help="trainable parameters of the model")
    parser.add_argument(
        "--weight", type=float, default=9.0, metavar="W", help="parts for the model, where others get 1 (9)"
    )
    parser.add_argument("--runs", type=float, metavar="K", help="expected runs, of which the best is released")
    parser.add_argument(
        "--values", action="append", default=[], metavar="NAME=N", help="so many noised values; may be repeated"
    )
    parser.add_argument(
        "--answers", action="append", default=[], metavar="NAME=N", help="so many answers; may be repeated"
    )
    parser.add_argument(
        "--membership-success-bound", type=float, default=0.6, metavar="P", help="how far all answers may get (0.6)"
    )
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="write the shares into a ledger")
    parser.add_argument("--yaml", type=Path, metavar="FILE", help="write the callbacks of the model as a configuration")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw noise, signal and shares into an image file")


def run(args: argparse.Namespace) -> int:
    """Print the options and the shares of the best one; in JSON, all of them."""
    from lightning_pac.accountants import plan
    from lightning_pac.cli.planned_configuration import configuration
    from lightning_pac.scenarios import TwoWorldScenario

    releases = _releases(args)
    project = plan(
        args.num_records,
        releases,
        args.epsilon,
        args.delta,
        args.world_success_bound,
        args.prior,
        TwoWorldScenario(args.num_differing, adjacency=args.adjacency),
    )
    if args.yaml is not None:
        text = configuration(project, args.ledger)
        if args.yaml.exists() or args.yaml.resolve() in {args.ledger.resolve(), args.plot and args.plot.resolve()}:
            raise ValueError(f"--yaml {args.yaml} exists, or is named twice, and is not written over: name another.")
        args.yaml.write_text(text, encoding="utf-8")  # before anything is declared, in case that it cannot be written
    try:
        if args.plot is not None:
            project.plot(args.plot)
        if args.ledger is not None:
            project.declare(args.ledger)
    except BaseException:
        if args.yaml is not None:
            args.yaml.unlink()
        raise
    if args.json:
        print_json({"ledger": None if args.ledger is None else str(args.ledger), **project.to_dict()})
        return 0
    if project.best.runs:
        _print_options(project)
    _print_shares(project, args)
    return 0


def _releases(args: argparse.Namespace) -> dict[str, Any]:
    from lightning_pac.accountants import NumberOfRuns, PlannedAnswers, PlannedTraining, PlannedValues

    releases: dict[str, Any] = {}
    if (args.batch_size is None) != (args.epochs is None):
        raise ValueError("A model needs --batch-size and --epochs: give both, or neither where no model is released.")
    if args.batch_size is not None:
        runs = None if args.runs is None else NumberOfRuns.expecting(args.runs)
        releases["model"] = PlannedTraining(args.batch_size, args.epochs, args.parameters, args.weight, runs)
    elif args.runs is not None:
        raise ValueError("--runs says of how many models the best is released: give --batch-size and --epochs of them.")
    for option, given in (("--values", args.values), ("--answers", args.answers)):
        for text in given:
            name, number = _named_count(option, text)
            if name in releases:
                raise ValueError(f"{option} {text} has the name of another release: name each of them once.")
            releases[name] = (
                PlannedValues(number) if option == "--values" else PlannedAnswers(number, args.membership_success_bound)
            )
    if not releases:
        raise ValueError("There is nothing to release: give --batch-size and --epochs, --values or --answers.")
    return releases


def _named_count(option: str, text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    try:
        if not (name and equals):
            raise argparse.ArgumentTypeError("no name")
        return name, count(number)
    except argparse.ArgumentTypeError:
        raise ValueError(f"{option} {text!r} is not a name with a number: write it as metrics=20.") from None


def _print_options(project: "ProjectPlan") -> None:
    from lightning_pac.accountants import HOPELESS_SIGNAL

    rows = [
        (
            run.batch_size,
            run.epochs,
            run.num_steps,
            f"{run.figures.noise_multiplier:.5g}",
            run.figures.signal_of_run,
            "best" if option is project.best and len(project.options) > 1 else "",
        )
        for option in project.options
        for run in option.runs.values()
    ]
    columns = ("batch size", "epochs", "steps", "noise multiplier", "signal of the run", "")
    told = (
        f"Signal is the gradients of all steps beside their noise: few runs below {HOPELESS_SIGNAL:g} learn anything."
    )
    if all(row[4] is None for row in rows):
        told = "--parameters, how many are trained, gives the signal."
    print_table("What is affordable", columns, rows, told)


def _print_shares(project: "ProjectPlan", args: argparse.Namespace) -> None:
    from lightning_pac.accountants import share_unit
    from lightning_pac.accountants.planning import round_down

    best = project.best
    rows: list[tuple[object, ...]] = []
    if best.shares is not None:
        for name, share in best.shares.by_name.items():
            unit = share_unit(share).removesuffix("s" if best.shares.size(name) == 1 else "")
            size = f"{best.shares.size(name):.5g} {unit}"
            if name in best.noise_of_values:
                number = dict(_named_count("--values", text) for text in args.values)[name]
                size = f"{number:,} value{'s' * (number > 1)}"
            rows.append((name, size, _how(name, best, args)))
    for name, answers in project.answers.items():
        nats = f"{round_down(answers.mutual_information):.5g} nats"
        rows.append((name, nats, f"PACResponder(budget_per_response={round_down(answers.budget_per_response):.5g})"))
    ledger = "FILE" if args.ledger is None else str(args.ledger)
    worlds = f"scenario=TwoWorldScenario(num_differing={args.num_differing}, adjacency={args.adjacency!r})"
    handle = f"ledger=LedgerHandle({ledger!r}, share=...)"
    told = []
    if best.shares is not None and _is_dp(args):
        worlds = "scenario=TwoWorldScenario.differential_privacy()"
        told.append(f"Give each {handle}, with the name of its share, and PrivateMetrics {worlds}, too.")
    elif best.shares is not None:
        told.append(f"Give each of these callbacks {worlds} and {handle}, with the name of its share.")
    if project.answers:
        told.append(f"PACResponder has no share and takes ledger={ledger!r}.")
    print_table("Shares", ("share", "size", "draw on it by"), rows, " ".join(told))


def _is_dp(args: argparse.Namespace) -> bool:
    return (args.num_differing, args.adjacency) == (1, "add_remove")


def _how(name: str, best: "ProjectOption", args: argparse.Namespace) -> str:
    """The callback that draws on a share, with its noise."""
    if name in best.noise_of_values:
        return f"PrivateMetrics(noise_multiplier={best.noise_of_values[name]:.5g})"
    run = best.runs[name]
    stated = "" if run.sampling.batch_size is None else f", batch_size={run.batch_size}"
    rate = f"{run.batch_size} / {args.num_records}"
    kind = "DPSGD" if _is_dp(args) else "SRPPSGD"
    fit = f"{kind}(sampling=Poisson({rate}{stated}), noise_multiplier={run.figures.noise_multiplier:.5g})"
    score = best.noise_of_values.get(f"{name} (score)")
    if score is None:
        return f"{fit}, max_steps={run.num_steps}"
    return f"PrivateSelection of {fit}, max_steps={run.num_steps}, PrivateMetrics(noise_multiplier={score:.5g})"
