"""The account of private metrics, and whether a run leaves enough for it."""

import bisect
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac.accountants import Allowance, LedgerPlan, Promise, SRPPAccountant
from lightning_pac.callbacks.metrics.logged_names import LoggedNames, names_in
from lightning_pac.callbacks.metrics.noised_metric import LARGEST_VALUE
from lightning_pac.callbacks.srpp_sgd import SRPPSGD
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.ledger import LedgerAccount, LedgerHandle, PrivacyLedger
from lightning_pac.randomness import finite_precision, missing_tail
from lightning_pac.scenarios import Poisson, TwoWorldScenario

__all__ = [
    "accountant_of_value",
    "check_affordable",
    "check_budget",
    "declare_ledger",
    "noise_of_value",
    "open_account",
]


def open_account(
    ledger: PrivacyLedger, name: str, declaration: Mapping[str, Any], budget: float | None
) -> LedgerAccount:
    """The account of values of these terms; values of others, such as another epsilon, have accounts of their own.

    Args:
        ledger: The ledger.
        name: Of the account; further ones are numbered.
        declaration: The terms.
        budget: Of all values of these metrics, at whatever terms; None for that of the first.

    Raises:
        LedgerMismatchError: If the ledger is about other worlds, or the metrics have another budget.
    """
    known = {account.name: account.declaration for account in ledger.accounts()}
    name = next((one for one in known if _metrics_of(one) == _metrics_of(name)), name)
    terms = json.loads(json.dumps({**declaration, "coupling": None}))  # which the ledger compares
    names = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
    own = next(one for one in names if one not in known or {**known[one], "coupling": None} == terms)
    if own != name:  # the first has the budget of all
        ledger.account(name, "rpp", budget=budget)
        budget = None
    return ledger.account(own, "rpp", declaration, budget)


def accountant_of_value(scenario: TwoWorldScenario, order: float | None) -> SRPPAccountant:
    """One value is one step of a sampler that draws every record."""
    everything = Poisson(rate=1.0, batch_size=1, secret_draws=False)
    return SRPPAccountant(scenario, everything, order or 16.0, "rpp")


def noise_of_value(
    accountant: SRPPAccountant, promise: Promise | None, epsilon: float | None, noise_multiplier: float | None
) -> float:
    """The noise multiplier of one value: as it was given, or the least that keeps what is promised.

    Args:
        accountant: Of a value.
        promise: An exact one, None for others.
        epsilon: In nats; at the accountant's order where `promise` is None.
        noise_multiplier: In place of both.

    Raises:
        ValueError: If finite random bits alone cost more than epsilon.
    """
    if noise_multiplier is not None:
        return noise_multiplier
    if promise is not None:
        return accountant.noise_for(promise.less(finite_precision(LARGEST_VALUE), missing_tail(LARGEST_VALUE)), 1)
    assert epsilon is not None
    nats = finite_precision(LARGEST_VALUE, accountant.renyi_order)
    if not epsilon > nats:
        raise ValueError(f"epsilon is {epsilon}, but must be above the {nats:.2g} that finite random bits take.")
    return accountant.noise_multiplier(epsilon - nats, 1)


def declare_ledger(handle: LedgerHandle, callbacks: Sequence[pl.Callback]) -> None:
    """Declare the ledger of metrics as the run beside them does, since a sanity check opens it before the run."""
    for run in callbacks:
        if isinstance(run, SRPPSGD) and run.arguments.ledger is not None:
            handle.declare_as(run.arguments.ledger)


def check_affordable(
    trainer: pl.Trainer,
    handle: LedgerHandle,
    account: LedgerAccount | None,
    allowance: Allowance | None,
    logged: LoggedNames,
    cost: float,
    fitting: Callable[[float], str],
) -> None:
    """Refuse a new run, or an evaluation, for which too little is left: it would end without a figure.

    Where a run plans more evaluations than are paid for, it is told how many.

    Args:
        trainer: That begins to train, or evaluates.
        handle: The ledger of the metrics, open.
        account: Theirs.
        allowance: Of that account.
        logged: The names of the metrics, and what the check before training logged.
        cost: Of a value, in nats.
        fitting: Says with which argument a value costs no more than so many nats.

    Raises:
        BudgetExceededError: If so much is not left, beside what the run plans to spend from the same ledger.
    """
    assert account is not None
    assert allowance is not None
    callbacks: list[pl.Callback] = trainer.callbacks if trainer.training else []  # type: ignore[attr-defined]
    runs = [callback for callback in callbacks if isinstance(callback, SRPPSGD)]
    planned, beside = 0.0, []
    for run in runs:
        if run.account is None or run.account.num_steps:  # one that goes on was let in
            return
        shared = run.arguments.ledger
        same = shared is not None and LedgerHandle(shared).path.resolve() == handle.path.resolve()
        if same and run.account.accountant.notion == "rpp":
            planned += run.account.of_plan().epsilon
            beside.append(run.account)
    number = logged.num_values(trainer.testing)
    if not number or (trainer.training and not runs):
        return
    total = account.num_charges + number
    allowance.check(total, total * LARGEST_VALUE)
    evaluations = _planned_evaluations(trainer)
    if not evaluations and names_in(logged.declared, testing=False):
        rank_zero_warn(
            "PrivateMetrics: this run ends before its first validation, so that nothing measures its model: set "
            "check_val_every_n_epoch (or max_epochs, max_steps) to fit, or call trainer.validate after it."
        )
    # Before anything was logged, it is not known which loaders will log the metrics: where all do, each has a value.
    loaders = 1 if logged.releases else max(1, len(trainer.num_val_batches))
    of_ledger = handle.ledger.remaining("rpp") - planned
    of_account = min(account.remaining, _left_beside_others(handle, account))
    left = min(of_ledger, of_account)
    if number * cost > left * (1 + 1e-9):
        order = account.declaration["coupling"]["renyi_order"]
        of_noise = (cost - finite_precision(LARGEST_VALUE, order)) / order  # which is linear in the order

        def cost_at(order: float) -> float:
            of_runs = math.fsum(run.planned_cost(order) for run in beside)
            return of_runs + float(number * (of_noise * order + finite_precision(LARGEST_VALUE, order)))

        if of_ledger > of_account:
            cure = "or a larger budget, or leave it out"
        else:
            larger = allowance.larger_promise(planned + number * cost, cost_at) or "or leave PrivateMetrics out"
            cure = f"plan fewer steps or more noise, {larger}" if beside else larger
        fits = fitting(left / number)
        if evaluations > 1:
            fits += f", for all {evaluations} of this run {fitting(left / number / loaders / evaluations)}"
        raise BudgetExceededError(
            f"One evaluation of the metrics costs {number * cost:.6g} nats, but {handle.path} has {max(0.0, left):.6g} "
            f"left for it{' beside this run' * bool(beside)}: give PrivateMetrics a smaller promise "
            f"({fits}), {cure}."
        )

    number *= loaders

    def pays_for(evaluations: int) -> bool:
        values = account.num_charges + number * evaluations
        try:
            allowance.check(values, values * LARGEST_VALUE)
        except BudgetExceededError:
            return False
        return number * evaluations * cost <= left * (1 + 1e-9)

    if evaluations > 1 and not pays_for(evaluations):
        paid = bisect.bisect_left(range(1, evaluations), True, key=lambda count: not pays_for(count))
        told = (
            f"{handle.path} pays for {paid} of the {evaluations} evaluations that this run plans"
            f"{f' if each of its {loaders} loaders logs all metrics' * (loaders > 1)}"
        )
        if LedgerPlan.of(handle.ledger) is not None:  # which is not raised: nothing would measure the last model
            raise BudgetExceededError(
                f"PrivateMetrics: {told}, and nothing would be left for the last model: evaluate less often, by "
                "check_val_every_n_epoch or val_check_interval."
            )
        share = left / number / evaluations
        rank_zero_warn(
            f"PrivateMetrics: {told}, and later ones show an older value: evaluate less often, or promise less for each"
            f"{f' ({fitting(share)} for all)' if share < cost else ''}."
        )


def _planned_evaluations(trainer: pl.Trainer) -> int:
    """Validations of a fit that ends; one where that is not known, as where they come by the clock, and of others.

    The fit of a selection evaluates nothing: that comes after it, once.
    """
    every, interval = trainer.check_val_every_n_epoch, trainer.val_check_batch
    batches = trainer.num_training_batches
    if not (trainer.training and trainer.enable_validation and batches and interval):
        return 1
    ends = [] if trainer.max_epochs in (None, -1) else [trainer.max_epochs * batches]
    if trainer.max_steps != -1:
        steps = math.ceil(batches / trainer.accumulate_grad_batches) if math.isfinite(batches) else math.inf
        epochs, rest = divmod(trainer.max_steps, steps)
        ends.append((epochs * batches if epochs else 0) + rest * trainer.accumulate_grad_batches)
    end = min(ends, default=math.inf)
    if not math.isfinite(end) or not math.isfinite(interval):
        return 1
    if every is None:
        return int(end // interval)
    epochs, rest = divmod(end, batches)
    last = rest // interval if (epochs + 1) % every == 0 else 0
    return int(epochs // every * (batches // interval) + last)


def check_budget(handle: LedgerHandle, account: LedgerAccount, cost: float) -> None:
    """Refuse a value that the budget of its metrics does not cover, which values of other terms are paid from as well.

    Args:
        handle: The ledger of the metrics, open.
        account: That of their terms.
        cost: Of the value, in nats.

    Raises:
        BudgetExceededError: If so much is not left.
    """
    left = _left_beside_others(handle, account)
    if left * (1 + 1e-9) < cost <= account.remaining * (1 + 1e-9):
        raise BudgetExceededError(
            f"budget is {_family(handle, account)[0].budget:g}, which values of these metrics at other terms have used "
            "up with those at these: stop here, or let the keeper of the data raise it by `lightning-pac account "
            "budget`."
        )


def _left_beside_others(handle: LedgerHandle, account: LedgerAccount) -> float:
    """What the budget of an account leaves after all values of the same metrics."""
    same = _family(handle, account)
    if (budget := same[0].budget) is None:
        return math.inf
    return max(0.0, budget - math.fsum(one.spent for one in same))


def _family(handle: LedgerHandle, account: LedgerAccount) -> list[LedgerAccount]:
    """The accounts of the same metrics at all terms; the first has the budget."""
    number = re.compile(r" \(\d+\)$")
    own = number.sub("", account.name)
    return [one for one in handle.ledger.accounts() if number.sub("", one.name) == own]


def _metrics_of(account: str) -> list[str]:
    """The metrics that an account is named by, in alphabetical order; the whole name where it is another's."""
    kind, _, names = account.partition(" ")
    return sorted(names.split(", ")) if kind == "metrics" else [account]
