"""Messages of a private run: one line at the start, warnings about what it does not cover, a summary at the end."""

import math
from collections.abc import Sequence

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_pac.accountants import HOPELESS_SIGNAL, LARGE_RATE, EpsilonDelta, fitting_rate, signal_of_run
from lightning_pac.callbacks.shared import is_stopped_by_noised_metric, on_record, words_on_other_ledgers
from lightning_pac.callbacks.srpp_sgd.reporting.figures import average_of, figures_of, verdict, words_on_extension
from lightning_pac.callbacks.srpp_sgd.run import PrivateRun
from lightning_pac.cards import upwards
from lightning_pac.data import PrivateDataLoader
from lightning_pac.scenarios import TwoWorldScenario

__all__ = [
    "announce_end",
    "announce_interruption",
    "announce_start",
    "announce_stop",
    "warn_of_early_end",
    "warn_of_raw_validation",
    "warn_of_raw_values",
]

_ADAMS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
# Learning rate times steps, below which Adam told digits right 8 to 40 points less often than at a rate of 0.03.
_FARTHEST, _FITTING = 0.3, 0.03


def announce_start(run: PrivateRun, name: str, optimizer: torch.optim.Optimizer) -> None:
    """Say what is guaranteed at the end and how loud the noise is; warn of replayed steps and of a drowned signal."""
    running = run.journal.running
    accountant, noise = running.accountant, running.noise_multiplier
    ratio = run.noisy_sum.signal_to_noise(run.batch_size)
    guarantee = ""
    if math.isfinite(run.planned_steps):
        plan = run.journal.in_force
        steps, words = plan.num_steps, verdict(plan.exact_success_bound(), running.prior, average_of(accountant))
        kept = running.promise
        first = ""
        if isinstance(kept, EpsilonDelta):
            first = f"epsilon is at most {upwards(kept.epsilon)} at delta {upwards(kept.delta)}, and "
        elif kept is None and accountant.scenario == TwoWorldScenario.differential_privacy():
            first = f"epsilon is at most {upwards(plan.exact_epsilon_at_delta())} at delta {upwards(plan.delta)}, and "
        guarantee = f" After {steps} steps, {first}{words[:1].lower()}{words[1:]}{_guessed(run)}."
    left, bands = 1.0, ""
    if accountant.correlation is not None:
        left = accountant.correlation.noise_left(int(run.planned_steps))
        bands = f", of which {accountant.correlation.num_bands} bands leave {100 * left:.0f} % in sums of steps"
    notion = "" if accountant.notion == "rpp" else f" for the notion {accountant.notion!r}"
    rank_zero_info(
        f"{name}: noise multiplier {noise:.4g}{bands}{notion}, ratio of clipped signal to noise at most {ratio:.3g}."
        f"{guarantee}"
    )
    if run.journal.replayed:
        rank_zero_warn(
            f"The last {run.journal.replayed} steps before the interruption came after the checkpoint. They are "
            "repeated and paid for twice, so a run that keeps a promise stops that many useful steps earlier: save "
            "checkpoints more often."
        )
    longer = words_on_extension(run.journal) if math.isfinite(run.planned_steps) else None
    if longer is not None:
        rank_zero_warn(longer)
    # A run without end may learn at any noise.
    parameters = run.noisy_sum.num_parameters
    signal = (
        signal_of_run(ratio / left, run.planned_steps, parameters) if math.isfinite(run.planned_steps) else math.inf
    )
    if signal < HOPELESS_SIGNAL:
        factor = HOPELESS_SIGNAL / signal
        sampling = "" if accountant.is_amplified else "sampling=Poisson(...) with the notion 'rpp', "
        rank_zero_warn(
            f"This run will probably learn nothing: its signal over all steps is {signal:.2g}, and most runs below "
            f"{HOPELESS_SIGNAL:g} end where they began. It needs {factor:.1f} times as many records at the same rate, "
            f"a noise multiplier below {noise / factor:.3g}, or fewer than {max(1, int(parameters / factor**4))} "
            f"trainable parameters: try {sampling}a weaker promise, or train the last layers only."
        )
    elif isinstance(optimizer, torch.optim.SGD) and not _is_mostly_a_table(run):
        _warn_of_large_rates(optimizer, ratio / left, run.noisy_sum.blocks.total_norm)
    elif isinstance(optimizer, _ADAMS) and all(part.requires_grad for part in run._pl_module.parameters()):
        _warn_of_small_rates(optimizer, run.planned_steps)


def _is_mostly_a_table(run: PrivateRun) -> bool:
    """Whether most parameters are rows of an embedding: a record uses few, and noise in the others does no harm."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    tables = {id(layer.weight): layer.weight for layer in run._pl_module.modules() if isinstance(layer, kinds)}
    trained = sum(weight.numel() for weight in tables.values() if weight.requires_grad)
    return 2 * trained > run.noisy_sum.num_parameters


def _warn_of_large_rates(optimizer: torch.optim.SGD, ratio: float, max_grad_norm: float) -> None:
    for group in optimizer.param_groups:
        rate, momentum = float(group["lr"]), float(group["momentum"])
        fitting = fitting_rate(ratio, momentum, max_grad_norm) if 0 <= momentum < 1 else math.inf
        if group["dampening"] == 0 and rate > LARGE_RATE * fitting:
            beside = f" with momentum {momentum:g}" if momentum else ""
            rank_zero_warn(
                f"SGD's learning rate of {rate:.2g}{beside} is large beside this noise, and models usually learn "
                f"less with it: start at {fitting:.2g} to {5 * fitting:.2g}."
            )
            return


def _warn_of_small_rates(optimizer: torch.optim.Optimizer, steps: float) -> None:
    # A schedule that begins low keeps its largest rate beside the present one.
    rate = max(float(group.get(key, 0.0)) for group in optimizer.param_groups for key in ("lr", "initial_lr", "max_lr"))
    if 0 < rate < _FITTING and rate * steps < _FARTHEST:
        rank_zero_warn(
            f"Adam moves a weight by about {rate * steps:.1g} at most in these {steps:g} steps, at a learning rate of "
            f"{rate:.2g}, and models usually learn little then unless they begin at pretrained weights: start at "
            f"{_FITTING}."
        )


def announce_stop(run: PrivateRun, name: str, trainer: pl.Trainer) -> None:
    """Say that the run ends before its planned steps."""
    if trainer.global_step < run.planned_steps:
        steps, again = run.journal.num_steps, run.journal.replayed
        repeated = f", {again} of them taken again after an interruption" if again else ""
        rank_zero_info(
            f"{name}: stopping after {steps} steps{repeated}, as the next would break the promise or a budget."
        )


def warn_of_raw_values(names: Sequence[str]) -> None:
    """Name the values that leave the run without noise."""
    if names:
        rank_zero_warn(
            "These values leave this run without noise, and are private unless they are made of noised values alone: "
            f"{', '.join(names)}. The guarantee covers neither them nor what is chosen by them, such as the best "
            "checkpoint, nor what is logged of private records in validation: keep their logs private, monitor public "
            "data, or noise them by PrivateMetrics."
        )


def warn_of_raw_validation(name: str) -> None:
    """Name the first value of an evaluation that has no noise."""
    rank_zero_warn(
        f"{name}, and what else evaluations log, has no noise, and the guarantee does not cover it: keep it private, "
        "unless the evaluated records are public, or noise it by PrivateMetrics."
    )


def warn_of_early_end(trainer: pl.Trainer) -> None:
    """Say that something else ended a run, and when the guarantee does not cover that."""
    if is_stopped_by_noised_metric(trainer):
        return  # which was paid for
    rank_zero_warn(
        "trainer.should_stop ended this run early, and the guarantee does not cover when it stopped if private records "
        "or their loss decided that: stop by a number of steps, the time or metrics of public data."
    )


def announce_end(run: PrivateRun, name: str) -> None:
    """Sum up what the run has cost and where that is on record."""
    others = words_on_other_ledgers(run.journal.account.path, is_named=run.journal.shares_ledger)
    rank_zero_info(f"{name}: {run.journal.num_steps} noised steps. {_on_record(run)}{others}")


def announce_interruption(run: PrivateRun, name: str, trainer: pl.Trainer) -> None:
    """Say what an interrupted run has cost, and how to go on with it."""
    steps = f"{run.journal.num_steps}"
    if math.isfinite(run.planned_steps):
        steps += f" of {int(run.planned_steps)}"
    saved = [path for path in map(_saved_by, trainer.checkpoint_callbacks) if path]
    go_on = (
        f"Resume with ckpt_path={saved[-1]!r}: steps that were taken since are charged again."
        if saved
        else "No checkpoint was saved, so it can go on in this process only, by another fit with this callback; add "
        "OnExceptionCheckpoint(dirpath) to the callbacks to have one next time."
    )
    rank_zero_info(f"{name}: interrupted after {steps} steps, which stay charged. {_on_record(run)} {go_on}")


def _saved_by(callback: pl.callbacks.Checkpoint) -> str:
    if isinstance(callback, pl.callbacks.OnExceptionCheckpoint):
        return callback.ckpt_path  # it is about to save there
    return getattr(callback, "last_model_path", "") or getattr(callback, "best_model_path", "")


def _guessed(run: PrivateRun) -> str:
    """What is guessed, where it is whether one record or person is in the data."""
    persons = run.loader.units.drawn[0] if isinstance(run.loader, PrivateDataLoader) else None
    unit = "record" if persons is None else "person"
    secret = run.journal.running.accountant.scenario.describe_secret(unit)
    return f" whether any one {unit} is in the data" if secret == f"Whether any one {unit} is in the data." else ""


def _on_record(run: PrivateRun) -> str:
    # A Rényi divergence only where it was promised: beside epsilon 3 it may be 45, which reads as a broken promise.
    told = (run.journal.promised, "world_success_bound", "epsilon_at_delta")
    words = [
        figure.words + _guessed(run) * (figure.name == "world_success_bound")
        for figure in figures_of(run.journal)
        if figure.name in told
    ]
    figures = ". ".join(sentence[:1].upper() + sentence[1:] for sentence in words)
    planned = run.journal.in_force.num_steps
    if planned > run.journal.num_steps:
        figures += f", as for all {planned} planned steps, since what the run showed may have ended it"
    account = run.journal.account
    if run.journal.shares_ledger:
        return f"{figures}, by this run alone. {on_record(account.path, account.name)}"
    return f"{figures}. On record in {account.path} as {account.name!r}."
