"""`lightning-pac tune`: the best of a secret number of private runs, for less than the price of two."""

import argparse
import pathlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, print_json, print_table
from lightning_pac.cli.lightning import add_recipe_option, private_cli_class, readable_errors, with_recipes
from lightning_pac.cli.named_callbacks import read_yaml

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningCLI

    from lightning_pac.accountants import PrivacyEvent
    from lightning_pac.callbacks import SRPPSGD, PrivateMetrics
    from lightning_pac.tuning import SelectionRun

__all__ = ["add_parser", "run"]

# Parts of a configuration that the Trainer and its callbacks are not made from.
_WITHOUT_PRICE = ("model", "data", "optimizer", "lr_scheduler")
_DESCRIPTION = """
Trains a secret number of times with settings drawn from a public space, and keeps the best run only; the ledger is
charged once, before anything is drawn. The configuration is that of `lightning-pac fit`: it has SRPPSGD with
noise_multiplier and sampling, PrivateMetrics with the score, and max_steps; their ledgers are replaced. All options of
LightningCLI may follow. After a crash the same command goes on.
"""


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = add_command(
        subparsers,
        "tune",
        run,
        "choose settings by private runs, of which only the best is shown",
        """
        lightning-pac tune --config my_own.yaml --space space.yaml --score val/accuracy --ledger study.db
        """,
        description=_DESCRIPTION,
        passes_unknown=True,
    )
    parser.add_argument("-h", "--help", action="help", help="show this message")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_recipe_option(parser)
    parser.add_argument("--space", required=True, help="YAML file of distributions, by the options that they set")
    parser.add_argument("--score", required=True, help="name under which the score is logged, and noised")
    parser.add_argument("--ledger", required=True, help="where the whole selection is charged")
    parser.add_argument("--folder", default="selection", help="private folder, which keeps the best run (selection)")
    parser.add_argument("--expected-runs", type=float, default=20.0, help="expected number of runs (20)")
    parser.add_argument("--eta", type=float, default=0.0, help="shape of that number: 0 logarithmic, 1 geometric (0)")
    parser.add_argument("--mode", choices=["max", "min"], default="max", help="whether the largest score is best (max)")
    parser.add_argument("--wall-time", type=float, default=None, help="seconds that it takes at least")
    parser.add_argument("--num-draws", type=float, default=2.0**27, help="most values of noise of one run (2^27)")


def run(args: argparse.Namespace) -> int:
    """Search, and show the best run; its weights are in `best.pt` of the folder."""
    from lightning_pac.accountants import NumberOfRuns
    from lightning_pac.tuning import PrivateSelection, SearchSpace

    path = pathlib.Path(args.space)
    stated = read_yaml(path, str(path))
    if not isinstance(stated, dict):
        raise ValueError(
            f"{path} is not a search space: give each option a distribution, such as "
            "`model.lr: {log_uniform: [0.001, 1]}`."
        )
    space = SearchSpace.from_dict(stated)
    words = with_recipes(args.arguments, args.recipe)
    runs = NumberOfRuns.expecting(args.expected_runs, args.eta)
    one_run, private = _price(words, {name: next(iter(kind.values())) for name, kind in stated.items()})
    selection = PrivateSelection(
        space,
        args.score,
        one_run,
        private.arguments.scenario,
        args.ledger,
        args.folder,
        runs,
        args.mode,
        private.arguments.renyi_order,
        args.wall_time,
        args.num_draws,
    )

    def make_trainer(run: "SelectionRun") -> Any:
        ours = ["--trainer.logger=false", f"--trainer.default_root_dir={run.folder}"]
        cli = _instantiate([*words, *_options(run.settings), *ours])
        private, scored, _ = _parts(cli)
        private.arguments = replace(private.arguments, ledger=run.ledger("fit"))
        scored.ledger = run.ledger("score")
        return cli.trainer, cli.model, cli.datamodule

    best = selection.run(make_trainer)
    if args.json:
        print_json(
            {"settings": best.settings, "score": best.score, "weights": str(pathlib.Path(args.folder, "best.pt"))}
        )
    else:
        rows = [*best.settings.items(), (args.score, best.score)]
        print_table("The best run", ["setting", "value"], rows, f"Its weights are in {args.folder}/best.pt.")
    return 0


def _instantiate(words: list[str]) -> "LightningCLI":
    with readable_errors():
        return private_cli_class()(
            args=words, run=False, save_config_callback=None, parser_kwargs={"exit_on_error": False}
        )


def _options(settings: Any) -> list[str]:
    return [f"--{name}={'null' if value is None else value}" for name, value in settings.items()]


def _parts(cli: "LightningCLI") -> "tuple[SRPPSGD, PrivateMetrics, int]":
    """The two callbacks that spend, and the number of steps.

    Raises:
        ValueError: If one of them is missing, or what a run releases cannot be read off.
    """
    from lightning_pac.callbacks import SRPPSGD, PrivateMetrics

    callbacks = cli.trainer.callbacks  # type: ignore[attr-defined]
    private = [callback for callback in callbacks if isinstance(callback, SRPPSGD)]
    scored = [callback for callback in callbacks if isinstance(callback, PrivateMetrics)]
    if len(private) != 1 or len(scored) != 1:
        raise ValueError(
            "The configuration has no SRPPSGD and PrivateMetrics, of which a private run needs one each: add the "
            "recipes srpp_sgd and private_metrics."
        )
    if private[0].arguments.noise_multiplier is None or private[0].arguments.sampling is None:
        raise ValueError(
            "SRPPSGD has no noise_multiplier or no sampling, from which the price of a run follows: give both."
        )
    if cli.trainer.max_steps < 1:
        raise ValueError("trainer.max_steps is not set, from which the price of a run follows: give it.")
    if cli.datamodule is None:
        raise ValueError("The configuration has no `data:`, which every run needs anew: give a LightningDataModule.")
    return private[0], scored[0], cli.trainer.max_steps


def _price(words: list[str], ends: "dict[str, list[Any]]") -> "tuple[dict[str, PrivacyEvent], SRPPSGD]":
    """What every run releases, and the callback that trains it, read off the ends of all settings.

    Args:
        words: The configuration.
        ends: Of each setting, the ends of its range, or all of its choices.

    Raises:
        ValueError: If it depends on a setting, so that runs would cost more than is paid, or less, by chance.
    """
    first = {name: values[0] for name, values in ends.items()}
    one_run, private = _released(words, first)
    for name, values in ends.items():
        if name.partition(".")[0] in _WITHOUT_PRICE:
            continue
        for value in values[1:]:
            other, with_other = _released(words, first | {name: value})
            if other != one_run or _terms(with_other) != _terms(private):
                raise ValueError(
                    f"--space: {name} decides what a run releases, which is paid for all runs alike (it is another at "
                    f"{value} than at {values[0]}): state it in the configuration."
                )
    return one_run, private


def _released(words: list[str], settings: "dict[str, Any]") -> "tuple[dict[str, PrivacyEvent], SRPPSGD]":
    private, scored, steps = _parts(_instantiate([*words, *_options(settings)]))
    return _one_run(private, scored, steps), private


def _terms(private: "SRPPSGD") -> tuple[Any, ...]:
    """What else the selection is charged under."""
    return private.arguments.scenario, private.arguments.renyi_order


def _one_run(private: "SRPPSGD", scored: "PrivateMetrics", steps: int) -> "dict[str, PrivacyEvent]":
    from lightning_pac.accountants import SRPPAccountant
    from lightning_pac.scenarios import Poisson

    arguments = private.arguments
    assert arguments.sampling is not None
    assert arguments.noise_multiplier is not None
    training = SRPPAccountant(arguments.scenario, arguments.sampling).events(arguments.noise_multiplier, steps)
    everything = SRPPAccountant(scored.scenario, Poisson(rate=1.0, batch_size=1, secret_draws=False))
    return {"fit": training[0], "score": everything.events(scored.noise_multiplier, 1)[0]}
