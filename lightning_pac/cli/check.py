"""`lightning-pac check`: what a fit would guarantee, and what is refused, without training a step."""

import argparse
import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, print_json, print_table
from lightning_pac.cli.lightning import (
    add_preset_options,
    add_recipe_option,
    private_cli_class,
    readable_errors,
    with_presets,
)
from lightning_pac.exceptions import PrivacyError

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from lightning_pac.callbacks import SRPPSGD

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare `check`."""
    parser = add_command(
        subparsers,
        "check",
        run,
        "a dry run of fit: what would be guaranteed, what is refused",
        description="""
        Builds model, data and Trainer as `fit` would, goes through every check of the private callback up to the first
        batch, and stops there. Nothing is trained, logged or charged: a copy stands for every ledger that is opened.
        """,
        examples="""
        lightning-pac check --config my_own.yaml --recipe srpp_sgd --trainer.callbacks.scenario.num_differing=10
        lightning-pac check --config my_own.yaml --dp 3 1e-5 --rate 0.1 --batch-size 400
        lightning-pac check --config my_own.yaml --config callbacks/srpp_sgd.yaml --json
        """,
        passes_unknown=True,
    )
    add_recipe_option(parser)
    add_preset_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("-h", "--help", action="help", help="show this message; the other options are those of fit")


def run(args: argparse.Namespace) -> int:
    """Print the guarantee; exit code 1 where there is none."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    try:
        found = _dry_run(with_presets(args))
    except (ValueError, TypeError, MisconfigurationException, PrivacyError) as error:
        if not args.json or args.debug:
            raise
        print_json({"refused": str(error)})
        return 1
    if args.json:
        print_json({"refused": None, **found})
        return 0
    values = {name: value for name, value in found.items() if value is not None and not isinstance(value, list | dict)}
    values |= {f"noise_multiplier of {name}": noise for name, noise in found["noise_of_metrics"].items()}
    if values.get("epsilon_at_delta") is not None and "order" not in values.get("promise", ""):
        del values["epsilon"], values["renyi_order"]  # which was not asked for
    labels = {"epsilon": "Rényi epsilon", "renyi_order": "of order", "world_success_bound": "a guess is right at most"}
    if "unit" in values:
        labels |= {"unit": "unit of privacy", "records_that_may_differ": "persons that may differ"}
    rows = [[labels.get(name, name.replace("_", " ")), _shown(name, value)] for name, value in values.items()]
    print_table("This fit would be private", ["", "value"], rows)
    print(f"It holds under {len(found['conditions'])} conditions, which --json and the card of the run list.")
    for sentence in found["warnings"]:
        print(f"Warning: {sentence}")
    return 0


def _shown(name: str, value: object) -> str:
    """A figure with four digits, rounded up where it is proven or is noise."""
    from lightning_pac.cards import at_most, upwards

    if not isinstance(value, float):
        return str(value)
    if name == "world_success_bound":
        return at_most(value)
    return f"{value:.4g}" if name == "left_in_ledger" else upwards(value, 4)


class _ReachedTraining(Exception):
    """Ends the dry run where training would begin."""


def _dry_run(words: list[str]) -> dict[str, Any]:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger
    from typing_extensions import override

    from lightning_pac.callbacks import SRPPSGD
    from lightning_pac.ledger import copies_of_ledgers

    found: dict[str, Any] = {}

    class StopBeforeTraining(pl.Callback):
        @override
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            private = [callback for callback in trainer.callbacks if isinstance(callback, SRPPSGD)]  # type: ignore[attr-defined]
            if not private:
                raise ValueError(
                    "No callback of this package protects the gradients of this fit, so nothing is guaranteed: give "
                    "--recipe srpp_sgd."
                )
            found.update(_guarantee(private[0], trainer))
            raise _ReachedTraining

    class CheckCLI(private_cli_class()):  # type: ignore[misc]
        @override
        def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
            quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
            logger = CSVLogger(folder)
            return super().instantiate_trainer(logger=logger, default_root_dir=folder, **quiet, **kwargs)  # type: ignore[no-any-return]

        def fit(self, **kwargs: Any) -> None:
            if kwargs.get("ckpt_path"):
                raise ValueError("A dry run starts afresh and resumes nothing: leave ckpt_path out.")
            self.trainer.callbacks.append(StopBeforeTraining())
            self.trainer.fit(**kwargs)

    with (
        tempfile.TemporaryDirectory() as folder,
        copies_of_ledgers(Path(folder)) as copies,
        _quiet() as caught,
        readable_errors(),
        contextlib.suppress(_ReachedTraining),
    ):
        try:
            CheckCLI(args=["fit", *words], save_config_callback=None, parser_kwargs={"exit_on_error": False})
        except Exception as error:
            error.args = tuple(_by_ledgers(str(part), copies) for part in error.args)
            raise
        finally:
            told = [_by_ledgers(" ".join(str(warning.message).split()), copies) for warning in caught]
    found["warnings"] = list(dict.fromkeys(told))
    left, epsilon = found["left_in_ledger"], found["epsilon"]
    if left is not None and epsilon is not None and epsilon > left:
        found["warnings"].append(
            f"The ledger has {left:g} left and the whole run costs {epsilon:g}, so it would stop before its end: "
            "promise no more than is left."
        )
    return found


def _by_ledgers(sentence: str, copies: Mapping[Path, Path]) -> str:
    """The sentence with the ledgers' own paths."""
    for ledger, copy in copies.items():
        sentence = sentence.replace(str(copy), str(ledger))
    return sentence


def _guarantee(callback: "SRPPSGD", trainer: "pl.Trainer") -> dict[str, Any]:
    from lightning_pac.callbacks import PrivateMetrics
    from lightning_pac.cards.card import records_of_person
    from lightning_pac.ledger import LedgerHandle, PrivacyLedger

    account, unit = callback.account, callback.arguments.unit
    assert account is not None
    accountant, noise = account.accountant, account.noise_multiplier
    left, ledger = None, callback.arguments.ledger
    if ledger is not None:
        with PrivacyLedger.read_only(LedgerHandle(ledger).path) as copy:
            left = copy.remaining(accountant.currency)
    steps = trainer.estimated_stepping_batches
    finite = steps != float("inf")
    exact = finite and not accountant.is_mean_square
    nats, tail = account.arithmetic_of(int(steps)) if finite else (0.0, 0.0)
    return {
        "secret": accountant.scenario.describe_secret("record" if unit is None else "person"),
        "unit": None if unit is None else f"a person, with {records_of_person(unit.name, unit.at_most)}",
        "records_that_may_differ": accountant.scenario.total_differing,
        "adjacency": accountant.scenario.adjacency,
        "notion": accountant.notion,
        "sampling": str(accountant.sampling),
        "promise": _promise(callback),
        "noise_multiplier": noise,
        "steps": int(steps) if finite else None,
        "world_success_bound": (
            min(1.0, accountant.world_success_bound(noise, int(steps), account.prior) + nats + tail) if finite else None
        ),
        "epsilon_at_delta": (
            accountant.epsilon_at_delta(noise, int(steps), account.delta - tail)[0] + nats if exact else None
        ),
        "delta": account.delta if exact else None,
        "epsilon": accountant.epsilon(noise, int(steps)) + nats if finite else None,
        "renyi_order": accountant.renyi_order,
        "left_in_ledger": left if left != float("inf") else None,
        "noise_of_metrics": {
            name: metrics.noise_multiplier
            for metrics in trainer.callbacks  # type: ignore[attr-defined]
            if isinstance(metrics, PrivateMetrics)
            for name in metrics.names
        },
        "conditions": list(accountant.conditions()),
    }


def _promise(callback: "SRPPSGD") -> str | None:
    """The promise that the run was asked to keep, None where its noise was given."""
    arguments = callback.arguments
    if arguments.world_success_bound is not None:
        return f"world_success_bound {arguments.world_success_bound:g} at prior {arguments.prior:g}"
    if arguments.epsilon is None:
        return None
    terms = f"order {arguments.renyi_order:g}" if arguments.delta is None else f"delta {arguments.delta:g}"
    return f"epsilon {arguments.epsilon:g} at {terms}"


@contextlib.contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of this package, and silence what the Trainer says about a run that will not happen."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.filterwarnings("always", category=UserWarning, module="lightning_pac")
            yield caught
    finally:
        logger.setLevel(level)
