"""The privacy card of a training run."""

import math
from importlib.metadata import version

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac import __version__
from lightning_pac.callbacks.shared import SharedAccount, checksum_of
from lightning_pac.callbacks.srpp_sgd.reporting.figures import figures_of, words_on_extension
from lightning_pac.callbacks.srpp_sgd.run import PrivateRun
from lightning_pac.cards import Guarantee, PrivacyCard, Roc, upwards
from lightning_pac.cards.card import UNCOVERED, records_of_person
from lightning_pac.data import PrivateDataLoader
from lightning_pac.data.public_rows import largest_mean
from lightning_pac.gradients import ROUNDING
from lightning_pac.scenarios import TwoWorldScenario

__all__ = ["make_card", "save_card"]

_CHANGED = (
    "A checkpoint was saved after the private run with weights or hyperparameters that it did not end with: if records "
    "were used to change them, as by more training or calibration, no promise covers that."
)
_ONE_RECORD = TwoWorldScenario.differential_privacy()


def make_card(run: PrivateRun, saved: pl.LightningModule | None = None) -> PrivacyCard:
    """The guarantees of the run wherever it ends, for people and for programs.

    Args:
        run: The run.
        saved: What a checkpoint saves with the card, which may have been changed since the run was over.
    """
    journal, noisy_sum, blocks = run.journal, run.noisy_sum, run.noisy_sum.blocks
    running = journal.in_force
    accountant = running.accountant
    nats, tail = running.arithmetic
    persons, views = run.loader.units.drawn if isinstance(run.loader, PrivateDataLoader) else (None, 1)
    guarantees = [Guarantee(figure.name, figure.value, figure.unit, figure.meaning) for figure in figures_of(journal)]
    if accountant.notion != "rpp":
        guarantees.append(
            Guarantee(
                "rpp_epsilon",
                journal.rpp_epsilon_in_force,
                "nats",
                "The same without slices and averages: the worst case.",
            )
        )
    conditions = [
        *accountant.conditions(),
        f"The noise comes from finite random bits in float64: {upwards(nats, 3)} of every epsilon and chance of "
        f"success above is for that, and {upwards(tail, 3)} of every delta; a Rényi divergence holds except on an "
        "event of that probability.",
        f"Rounding lets a record move the sum by up to {upwards(100 * ROUNDING, 3)} % more than its clipping norm; the "
        "noise is larger by as much, so every figure above includes it.",
        "Metrics that the model logs without noise, and choices made by them, are not covered.",
        "The weights that it began with are public, or the runs that trained them count as well.",
    ]
    if accountant.scenario.adjacency == "add_remove":
        units = "records" if persons is None else "persons"
        rate = accountant.sampling.inclusion_rate()
        conditions.append(
            f"The model trains on at most {largest_mean(run.batch_size) / rate:,.0f} {units}, those held out for a "
            "figure not included. That is no count of them, but follows from the stated rate and batch size: of more, "
            "batches would outgrow their public number of rows. A batch that does not fit ends the run: every delta "
            "above includes the chance of that, and a Rényi divergence holds except on it."
        )
    if persons is not None:
        conditions.append(
            f"The unit of privacy is a person, with {records_of_person(persons.name, persons.at_most)}. Two names "
            "count as two people, and whose a record is depends on that record alone."
        )
    if journal.shares_ledger:
        conditions.append(
            "The figures are of this run alone. `lightning-pac account total` says what it reveals together with the "
            "other runs and metrics of its ledger, and whether a plan or a budget bounds that."
        )
    conditions += run.not_shown
    fixed = journal.is_spent or math.isfinite(run.planned_steps)
    was_planned = journal.extended_at is not None or running.num_steps > journal.num_steps
    if not fixed:
        conditions.append("The number of steps was not fixed beforehand, and must not depend on what the run released.")
    elif (words := words_on_extension(journal)) is not None:
        conditions.append(words)
    if run.stopped_by_others:
        conditions.append(
            "The run was stopped early. The guarantee does not cover when, if private records or their loss decided."
        )
    conditions += run.watch.conditions()
    if saved is not None and run.final_weights not in (None, checksum_of(saved)):
        rank_zero_warn(f"{_CHANGED} A checkpoint says so on its card.")
        conditions.append(f"{UNCOVERED}{_CHANGED}")
    exact = not accountant.is_mean_square
    terms = accountant.to_dict()
    del terms["scenario"]["secret"]  # which the card has in words, of persons where they are protected
    return PrivacyCard(
        roc=Roc.of(running.true_positive_rate) if exact else None,
        title=f"A model trained with {'DP' if accountant.scenario == _ONE_RECORD else 'SRPP'}-SGD",
        secret=accountant.scenario.describe_secret("record" if persons is None else "person"),
        guarantees=tuple(guarantees),
        conditions=tuple(conditions),
        estimates=run.watch.estimates(),
        details={
            **terms,
            "unit_of_privacy": "record" if persons is None else "person",
            "views": views,
            "noise_multiplier": running.noise_multiplier,
            "max_grad_norm": dict(zip(blocks.names, blocks.norms, strict=True)),
            "clipping": blocks.rule.__name__,
            "block_noise": blocks.noise,
            "batch_size": run.batch_size,
            "num_steps": journal.num_steps,
            "planned_steps": running.num_steps if fixed or was_planned else None,
            **({} if journal.extended_at is None else {"extended_at": journal.extended_at}),
            "prior": running.prior,
            "stretches": list(running.stretches),
            "release_grid": min(noisy_sum.grids),
            "finite_precision_epsilon": nats,
            "rounding_allowance": ROUNDING,
            "missing_tail_delta": tail,
            "num_parameters": noisy_sum.num_parameters,
            "ledger": journal.account.name,
            "ledger_file": journal.account.path.name,
            "model": type(run._pl_module).__name__,
            "versions": {"lightning_pac": __version__, "torch": torch.__version__, "lightning": version("lightning")},
        },
    )


def save_card(card: PrivacyCard, trainer: pl.Trainer, log_dir: str, account: SharedAccount) -> None:
    """Write the card to the run's folder, beside the checkpoints and to the ledger."""
    if not trainer.is_global_zero:
        return
    account.attach_card(card)
    folders: list[str | None] = [log_dir]
    folders += [getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks]
    for folder in dict.fromkeys(str(folder) for folder in folders if folder):
        card.save(folder)
