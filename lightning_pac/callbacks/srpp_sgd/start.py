"""The start of a private fit: what is read, checked and calibrated."""

import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from lightning_pac.accountants import SRPPAccountant, share_terms
from lightning_pac.callbacks.shared import (
    SharedAccount,
    TrainerCallback,
    check_path,
    hide_evaluated_lengths,
    order_in,
)
from lightning_pac.callbacks.srpp_sgd.arguments import RunArguments
from lightning_pac.callbacks.srpp_sgd.journal import RunJournal, open_account
from lightning_pac.callbacks.srpp_sgd.noise_design import correlate_noise
from lightning_pac.callbacks.srpp_sgd.refused_together import refuse_fit
from lightning_pac.callbacks.srpp_sgd.reporting import (
    tell_of_own_statistics,
    warn_of_earlier_run,
    warn_of_few_persons,
    warn_of_shared_contents,
)
from lightning_pac.callbacks.srpp_sgd.step import ClippingBlocks
from lightning_pac.callbacks.srpp_sgd.step_sampling import declared_sampling
from lightning_pac.data import (
    Persons,
    PrivateDataLoader,
    ResumableDataLoader,
    check_records_alone,
    count_records,
    describe_loader,
)
from lightning_pac.data.public_rows import largest_mean
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import LedgerAccount, LedgerArgument, LedgerHandle, PrivacyLedger
from lightning_pac.randomness import finite_precision, missing_tail
from lightning_pac.scenarios import Sampling, TwoWorldScenario
from lightning_pac.strategies import Ranks
from lightning_pac.strategies.agreement import model_declaration
from lightning_pac.strategies.sharding import held_parameters

__all__ = ["agreed_terms", "begin_attempt", "choose_noise", "draws_per_step", "open_journal", "read_loader"]

# Of a run whose promise needs none: at which order its ledger counts.
_RENYI_ORDER = 16.0


def read_loader(trainer: pl.Trainer, unit: Persons | None = None) -> DataLoader[Any]:
    """The one DataLoader that the Trainer trains on.

    Args:
        trainer: The Trainer.
        unit: The persons that are protected; None for records.

    Raises:
        MisconfigurationException: If there are several, or something else.
        ValueError: If nothing bounds its draws, or a record holds others.
    """
    loader = trainer.train_dataloader
    if not isinstance(loader, DataLoader):
        raise MisconfigurationException(
            f"The train data come from {type(loader).__name__}, but the account is for one torch DataLoader over a "
            "map-style dataset: pass exactly one, by itself."
        )
    describe_loader(loader)
    check_records_alone(loader.dataset, of_persons=unit is not None)
    return loader


def agreed_terms(
    callback: pl.Callback,
    arguments: RunArguments,
    trainer: pl.Trainer,
    pl_module: pl.LightningModule,
    resumed: Mapping[str, Any] | None,
) -> tuple[DataLoader[Any], SRPPAccountant, list[str]]:
    """The loader, the terms of the account and words for the card, once all ranks have checked everything and agree.

    Raises:
        MisconfigurationException: If a checkpoint has no account, ranks differ, or the Trainer, the model or the
            optimizer would break the account.
    """
    ranks = Ranks.of(trainer)
    order = ranks.from_first(lambda: _order_of(arguments, resumed))
    loader, terms, told = ranks.together(lambda: _read_terms(callback, arguments, trainer, pl_module, order, resumed))
    steps = trainer.estimated_stepping_batches
    accountant = ranks.from_first(lambda: correlate_noise(arguments, terms, trainer, steps, resumed))
    ranks.agree(lambda: _run_declaration(trainer, pl_module, accountant, resumed))
    if accountant.scenario.adjacency == "add_remove":
        hide_evaluated_lengths(trainer)
    return loader, accountant, told


def _order_of(arguments: RunArguments, resumed: Mapping[str, Any] | None) -> float:
    """The Rényi order that the ledger counts at: that of the promise, of the run that is resumed, or the ledger's."""
    order = arguments.renyi_order
    if order is None and resumed is not None:  # an order that was not stated was 16, or is in the arguments of old
        return resumed.get("renyi_order", resumed["arguments"].get("renyi_order")) or _RENYI_ORDER
    if order is None and arguments.ledger is not None:
        order = order_in(arguments.ledger)
    return order or _RENYI_ORDER


def _read_terms(
    callback: pl.Callback,
    arguments: RunArguments,
    trainer: pl.Trainer,
    pl_module: pl.LightningModule,
    order: float,
    resumed: Mapping[str, Any] | None,
) -> tuple[DataLoader[Any], SRPPAccountant, list[str]]:
    if trainer.ckpt_path is not None and resumed is None:
        raise MisconfigurationException(
            f"The checkpoint {trainer.ckpt_path} holds no account of SRPPSGD, so what it cost is unknown: resume "
            "from one that was saved with this callback and all of its state, or load the weights alone if they "
            "were not trained on these data."
        )
    loader = read_loader(trainer, arguments.unit)
    told = tell_of_own_statistics(trainer, pl_module, loader, arguments.scenario.adjacency)  # beside what is refused
    refuse_fit(trainer, pl_module, callback, loader)
    return loader, _make_accountant(arguments, trainer, loader, order), told


def _make_accountant(
    arguments: RunArguments, trainer: pl.Trainer, loader: DataLoader[Any], order: float
) -> SRPPAccountant:
    """The terms of the account: the scenario bound to the data, and the sampling as it takes place."""
    scenario = arguments.scenario
    if scenario.adjacency != "add_remove":  # where the number of records is the secret, it is not even counted
        scenario = scenario.resolve(count_records(loader))
    sampling = declared_sampling(trainer, loader, needs_hidden_order=arguments.notion.startswith("ms-"))
    if scenario.adjacency == "add_remove":
        _check_stated_size(
            scenario, sampling, count_records(loader), "records" if arguments.unit is None else "persons"
        )
    if arguments.unit is not None:
        warn_of_few_persons(arguments.unit, scenario, sampling, loader)
    else:
        warn_of_shared_contents(loader.dataset, scenario.total_differing)
    return SRPPAccountant(scenario, sampling, order, arguments.notion)


def _check_stated_size(scenario: TwoWorldScenario, sampling: Sampling, num_records: int, units: str) -> None:
    """Hold the stated batch size against the data, and say nothing of how many they are.

    The guarantee is for worlds of which neither passes what this allows: whether a run is refused here is no
    difference between two of those.
    """
    rate, stated = sampling.inclusion_rate(), sampling.expected_batch_size()
    if rate * (num_records - scenario.total_differing) > largest_mean(stated):
        raise MisconfigurationException(
            f"The data have more than the {largest_mean(stated) / rate:,.0f} {units} for which a rate of {rate:g} "
            f"gives batches of about {stated:g}, so batches may not fit into the rows set aside for them: "
            f"state a batch_size of rate times the most {units} that either world may have, which is not read off the "
            "data."
        )


def draws_per_step(
    blocks: ClippingBlocks, scenario: TwoWorldScenario, num_microbatches: int, resumed: Mapping[str, Any] | None
) -> int:
    """Noise values of a step, from finite random bits, which the account pays for.

    A batch that may not fit into its public number of rows counts as one of them (`most_records`). A run that was
    begun before the account paid for them goes on as it was calibrated, and its budget pays for all of its steps.
    """
    if resumed is not None:
        return int(resumed.get("draws_per_step", 0))
    return sum(blocks.sizes) + blocks.counts_clipped + (num_microbatches if scenario.adjacency == "add_remove" else 0)


def _run_declaration(
    trainer: pl.Trainer, pl_module: pl.LightningModule, accountant: SRPPAccountant, resumed: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Everything the processes of a run must have in common once it is set up, by its name in an error."""
    optimizer = trainer.optimizers[0]
    names = {id(parameter): name for name, parameter in held_parameters(pl_module).items()}
    groups = {
        f"{option} of group {number} of the optimizer": (
            [names[id(parameter)] for parameter in value] if option == "params" else str(value)
        )
        for number, group in enumerate(optimizer.param_groups)
        for option, value in group.items()
    }
    return {
        **{f"the account's {name}": value for name, value in accountant.to_dict().items()},
        "the number of planned steps": trainer.estimated_stepping_batches,
        "the number of batches in a pass": trainer.num_training_batches,
        "the step at which training begins": trainer.global_step,
        "the account in the checkpoint": str(resumed),
        **model_declaration(pl_module, trainable=True),
        "the optimizer": type(optimizer).__qualname__,
        **groups,
        "the list of schedulers": [type(config.scheduler).__qualname__ for config in trainer.lr_scheduler_configs],
    }


def choose_noise(
    arguments: RunArguments,
    accountant: SRPPAccountant,
    planned_steps: float,
    draws: int,
    resumed: Mapping[str, Any] | None,
) -> float:
    """The noise multiplier: that of the run that is resumed, the one given, or the least that keeps the promise.

    Raises:
        MisconfigurationException: If a promise is to be divided among steps without end.
        ValueError: If noise from finite random bits breaks the promise by itself.
    """
    if resumed is not None:
        return float(resumed["noise_multiplier"])
    if arguments.noise_multiplier is not None:
        return arguments.noise_multiplier
    if not math.isfinite(planned_steps):
        raise MisconfigurationException(
            "A promise is divided among the steps of a run, but this run has no end: set max_epochs or "
            "max_steps in the Trainer, or give noise_multiplier."
        )
    num_draws = draws * planned_steps
    num_coarse = num_draws * accountant.precision(int(planned_steps))
    if arguments.promise is not None:
        nats, tail = finite_precision(num_coarse), missing_tail(num_draws)
        return accountant.noise_for(arguments.promise.less(nats, tail), int(planned_steps))
    assert arguments.epsilon is not None
    nats = finite_precision(num_coarse, accountant.renyi_order)
    if not nats < arguments.epsilon:
        raise ValueError(
            f"epsilon is {arguments.epsilon:g}, but noise from finite random bits alone takes {nats:.2g} of it in this "
            "run: promise more than that."
        )
    return accountant.noise_multiplier(arguments.epsilon - nats, int(planned_steps))


def _find_ledger(given: LedgerArgument | None, log_dir: str, resumed: Mapping[str, Any] | None) -> LedgerHandle:
    """The ledger given, that of the run that is resumed, or a new one beside the logs.

    Raises:
        LedgerMismatchError: If the ledger of the run that is resumed is gone.
    """
    if given is not None:
        return LedgerHandle(given)
    if resumed is None:
        path = Path(log_dir) / "privacy_ledger.db"
        # A folder without versions may hold the ledgers of earlier runs, which are none of this run's business.
        return LedgerHandle(path.with_stem(f"{path.stem}-{secrets.token_hex(4)}") if path.exists() else path)
    path = Path(resumed["journal"]["path"])
    if not path.is_file():
        raise LedgerMismatchError(
            f"The run was journalled in {path}, which is gone, so what it cost is unknown: give ledger= the file where "
            "it is now."
        )
    return LedgerHandle(path)


def open_journal(
    arguments: RunArguments,
    accountant: SRPPAccountant,
    noise_multiplier: float,
    planned_steps: float,
    draws: int,
    log_dir: str,
    resumed: Mapping[str, Any] | None,
    ranks: Ranks,
    first_step: int,
) -> RunJournal:
    """The run's journal in the ledger, declared with everything its costs rest on; rank zero opens it.

    Raises:
        LedgerMismatchError: If the run that is resumed was made under other terms, or its ledger is gone.
    """
    terms = accountant.to_dict()
    worlds = accountant.scenario.coupling()
    if arguments.unit is not None:  # worlds that differ in persons are others than worlds that differ in records
        worlds["unit"] = f"person by {arguments.unit.name}"
    declaration = {
        "coupling": {"scenario": worlds, "renyi_order": terms.pop("renyi_order")},
        **terms,
        "noise_multiplier": noise_multiplier,
        "max_grad_norm": arguments.max_grad_norm,
        "block_noise": arguments.block_noise,
        **({"draws_per_step": draws} if draws else {}),
    }
    # Another promise is held by the running account, and no sum of costs.
    budget = arguments.epsilon if arguments.promise is None else None
    pointer = resumed["journal"] if resumed is not None else None
    name = pointer["account"] if pointer is not None else None
    check_path(arguments.ledger, ranks)
    unit = () if accountant.is_mean_square else accountant.events_of_units(noise_multiplier, 1)
    share = None if arguments.ledger is None else LedgerHandle(arguments.ledger).share

    def open_it(ledger: PrivacyLedger) -> LedgerAccount:
        declared = {**declaration, **share_terms(ledger, unit, share)}
        return open_account(ledger, declared, accountant.currency, budget, name)

    account = SharedAccount(ranks, lambda: _find_ledger(arguments.ledger, log_dir, resumed), open_it, unit)
    try:
        planned = int(planned_steps) if math.isfinite(planned_steps) else 0
        promised = arguments.promised(accountant.epsilon_name)
        return RunJournal(
            accountant,
            noise_multiplier,
            account,
            pointer,
            planned,
            arguments.promise,
            promised,
            draws,
            shares_ledger=arguments.ledger is not None,
            first_step=first_step,
        )
    except BaseException:
        account.close()
        raise


def begin_attempt(
    trainer: pl.Trainer, loader: DataLoader[Any], journal: RunJournal, resumed: Mapping[str, Any] | None
) -> None:
    """Put the loader and the journal where the run goes on: within a pass only if no step is replayed.

    Raises:
        BudgetExceededError: If not even one step can be paid for.
    """
    continues_pass = False
    resumes_epoch = isinstance(loader, PrivateDataLoader) and trainer.fit_loop.restarting
    if isinstance(loader, ResumableDataLoader):
        saved = resumed["loader"] if resumed is not None else None
        if saved is not None and resumes_epoch and not loader.within_pass:
            # Lightning restores loaders, but not if `estimated_stepping_batches` was read in configure_optimizers.
            loader.load_state_dict(saved)
        continues_pass = loader.within_pass and not journal.replayed and journal.num_steps > 0
    if isinstance(loader, PrivateDataLoader) and resumes_epoch:
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        # The last step of an epoch may have fewer microbatches, after which nothing is left out.
        within_epoch = int(progress.processed % trainer.num_training_batches)
        loader.skip_microbatches(within_epoch % trainer.accumulate_grad_batches)
    journal.begin_stretch(trainer.global_step, continues_pass)
    warn_of_earlier_run(trainer.lightning_module, journal)
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    ours = [callback for callback in callbacks if isinstance(callback, TrainerCallback)]
    ranks = Ranks.of(trainer)
    journal.check_planned(math.fsum(callback.planned_cost(journal.account.path, ranks) for callback in ours))
    if (why := journal.why_no_step()) is not None:
        raise BudgetExceededError(
            f"{journal.num_steps} steps were taken, and the next one is refused. {why} Otherwise, keep the model as it "
            "is, or start a new run with a new callback, whose cost adds."
        )
