"""The claim of each account of a ledger: its card, its source, and its charges held against its terms."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_pac.accountants import (
    NumberOfRuns,
    SelectionPrice,
    account_total,
    accountant_of,
    total_guarantees,
)
from lightning_pac.cards import Guarantee, PrivacyCard, downwards
from lightning_pac.cards.card import records_of_person
from lightning_pac.evidence.wording import SOURCES, check_of
from lightning_pac.ledger import LedgerAccount, describe_currency
from lightning_pac.mechanisms.responses import responder_card
from lightning_pac.scenarios import TwoWorldScenario

__all__ = ["Claim", "claim_of", "current_card"]

# Prices are sums of floats, and those of amplified steps are computed to a few digits less.
_TOLERANCE = 1e-6

Kind = Literal[
    "training", "metric", "table", "selection", "answers", "values", "mechanism", "padding", "static", "other"
]


@dataclass(frozen=True)
class Claim:
    """The claim that is made of one account.

    Attributes:
        account: Its name.
        kind: The kind of mechanism that it pays for.
        card: The promises, computed from what the ledger declares wherever it declares enough.
        charged: What was charged, in the currency of the account, but for what was booked as lost.
        least: The least that its terms cost, as they are computed now; None where it declares none.
        most: The most.
    """

    account: str
    kind: Kind
    card: PrivacyCard
    charged: float
    least: float | None = None
    most: float | None = None

    @property
    def follows(self) -> bool:
        """Whether the charges are those of the terms."""
        if self.least is None or self.most is None:
            return True
        return self.least * (1 - _TOLERANCE) <= self.charged <= self.most * (1 + _TOLERANCE)

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain values."""
        mechanism, source = SOURCES[self.kind]
        return {
            "account": self.account,
            "mechanism": mechanism,
            "source": source,
            "card": json.loads(self.card.to_json()),
            "checks": [check_of(condition) for condition in self.card.conditions],
            "charged": self.charged,
            "least_by_terms": self.least,
            "most_by_terms": self.most,
        }


def claim_of(account: LedgerAccount, delta: float, prior: float) -> Claim:
    """The claim of one account, computed from what it declares.

    Args:
        account: The account.
        delta: Failure probability that epsilon goes with.
        prior: Probability of one of two worlds before anything is released.
    """
    kind = _kind(account)
    known = [charge for charge in account.events() if "unknown" not in (charge.event or {})]
    charged = math.fsum([*(charge.cost for charge in known), *(attempt.cost for attempt in account.attempts())])
    least, most = _cost_of_terms(account, kind, [charge.cost for charge in known])
    if kind in ("answers", "values"):
        card, charged = responder_card(account), account.spent
    elif kind in _TITLES:
        card = _card_of_worlds(account, kind, delta, prior)
    else:
        card = current_card(account) or _card_of_charges(account)
    return Claim(account.name, kind, card, charged, least, most)


def current_card(account: LedgerAccount) -> PrivacyCard | None:
    """The card that stands for an account; None where it was attached before charges that it does not know.

    Args:
        account: The account.
    """
    card = account.card
    if card is None or card.details.get("num_observations", account.num_charges) >= account.num_charges:
        return card
    # A process that was killed leaves the card of the one before it, and what was lost is booked beside it.
    limits = [
        entry.value for entry in card.guarantees if account.currency.endswith(entry.name.removeprefix("padding_"))
    ]
    limits += [] if account.budget is None else [account.budget]
    return None if any(account.spent > limit * (1 + _TOLERANCE) for limit in limits) else card


def _kind(account: LedgerAccount) -> Kind:
    declared = account.declaration
    if "membership_prior" in declared:
        return "values" if account.kind == "privatize" else "answers"
    if "coupling" in declared and "noise_multiplier" in declared:
        return "training"
    if "coupling" in declared and "epsilon_of_each" in declared:
        return "table" if "columns" in declared else "metric"
    if "coupling" in declared and "selection" in declared:
        return "selection"
    if "mutual_information_per_release" in declared:
        return "mechanism"
    if account.currency == "static_pufferfish":
        return "static"
    return "padding" if account.currency.startswith(("time_", "batch_size_")) else "other"


def _cost_of_terms(account: LedgerAccount, kind: Kind, costs: Sequence[float]) -> tuple[float | None, float | None]:
    """The least and the most that what was done may have cost by the declared terms, None where they do not say."""
    declared = account.declaration
    if kind == "training":
        accountant = accountant_of(declared)
        noise, draws = declared["noise_multiplier"], int(declared.get("draws_per_step", 0))
        steps = [attempt.num_steps for attempt in account.attempts()]
        # Whether a start went on with the pass of the one before, its checkpoint knew.
        ends = [accountant.track(noise, stretches, draws_per_step=draws).epsilon for stretches in ([sum(steps)], steps)]
        return min(ends), max(ends)
    if kind in ("metric", "table"):
        return (len(costs) * declared["epsilon_of_each"],) * 2
    if kind == "selection":
        price = SelectionPrice.from_dict(declared["selection"]).renyi(declared["coupling"]["renyi_order"])
        return (price,) * 2 if costs else (0.0, 0.0)
    if kind == "mechanism":
        # A release of n rows is charged for n of them at once.
        each = declared["mutual_information_per_release"]
        return math.fsum(max(1, round(cost / each)) * each for cost in costs) if each else 0.0, math.inf
    return None, None


def _card_of_worlds(account: LedgerAccount, kind: Kind, delta: float, prior: float) -> PrivacyCard:
    """The card of a run, a metric, a table or a selection, with the figures that follow from its releases."""
    attached, declared = account.card, account.declaration
    order = float(declared["coupling"]["renyi_order"])
    worlds = declared["coupling"]["scenario"]
    conditions = list(attached.conditions) if attached is not None else []
    if kind == "training" and attached is None:
        conditions = [
            *accountant_of(declared).conditions(),
            "The run left no card, so that what its checks could not show is not on record here.",
        ]
    guarantees = [
        Guarantee(
            f"{account.currency}_epsilon",
            account.spent,
            "nats",
            f"Charged as a Rényi divergence of order {order:g} between what the two worlds release.",
        )
    ]
    try:
        total = account_total(account, delta, prior)
    except ValueError as error:
        conditions.append(f"No other figure is stated: {str(error).rstrip('.')}.")
    else:
        if kind == "metric":
            rows = sum(number) if isinstance(number := worlds["num_differing"], list) else number
            few = "one row" if rows == 1 else f"{rows} rows"
            conditions.append(
                f"An evaluation has at most {few} about any one person, or about what else the secret names."
            )
        if kind in ("metric", "table"):
            conditions.append(
                "The figures are of what was charged so far, and hold if nothing that it showed decided how much that "
                "is: where it did, only a plan or a promise of the ledger is a bound."
            )
        guarantees = [*total_guarantees(total, prior), *guarantees]
    counts = {"steps": sum(attempt.num_steps for attempt in account.attempts()), "charges": len(account.events())}
    return PrivacyCard(
        title=f"{_TITLES[kind]} {account.name}",
        secret=_secret(worlds) if attached is None else attached.secret,
        guarantees=tuple(guarantees),
        conditions=tuple(conditions),
        estimates=() if attached is None else attached.estimates,
        details={
            **{name: count for name, count in counts.items() if count},
            **_terms(declared),
            **({} if attached is None else {"run": attached.details}),
        },
    )


_TITLES = {"training": "Training run", "metric": "Noised", "table": "Columns of", "selection": "Private selection"}


def _terms(declared: Mapping[str, Any]) -> dict[str, Any]:
    """The declared terms, those of a selection in words, and with persons in the secret where they are the unit."""
    coupling = declared["coupling"]
    if "unit" in (worlds := coupling["scenario"]):
        declared = {**declared, "coupling": {**coupling, "scenario": {**worlds, "secret": _secret(worlds)}}}
    if "selection" not in declared:
        return dict(declared)
    price = SelectionPrice.from_dict(declared["selection"])
    return {**declared, "expected_runs": NumberOfRuns(price.runs.gamma, price.runs.eta).mean}


def _secret(worlds: Mapping[str, Any]) -> str:
    terms = {name: value for name, value in worlds.items() if name != "unit"}
    words = TwoWorldScenario.from_dict(terms).describe_secret("person" if "unit" in worlds else "record")
    if "unit" not in worlds:
        return words
    return f"{words} The unit is a person, with {records_of_person(worlds['unit'].removeprefix('person by '))}."


def _card_of_charges(account: LedgerAccount) -> PrivacyCard:
    """The card of an account that says no more than what it spent."""
    secret = account.declaration.get("secret")
    condition = account.declaration.get("condition")
    confidence = account.declaration.get("confidence")
    conditions = [str(condition)] if condition else []
    if isinstance(confidence, float) and confidence < 1:
        conditions.append(f"The price of a release was measured, and is right with confidence {downwards(confidence)}.")
    return PrivacyCard(
        title=f"Account {account.name}",
        secret=str(secret) if secret else "Not declared in the ledger.",
        guarantees=(
            Guarantee(
                account.currency,
                account.spent,
                "",
                f"Charged in {account.num_charges} charges; {describe_currency(account.currency)}.",
            ),
        ),
        conditions=tuple(conditions),
        details=dict(account.declaration),
    )
