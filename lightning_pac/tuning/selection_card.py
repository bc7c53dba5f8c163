"""The privacy card of the run that a private selection releases."""

from collections.abc import Mapping
from typing import Any

from lightning_pac.accountants import LedgerBudget, LedgerPlan, account_total, total_guarantees
from lightning_pac.cards import Guarantee, PrivacyCard
from lightning_pac.ledger import LedgerAccount, PrivacyLedger
from lightning_pac.scenarios import TwoWorldScenario

__all__ = ["selection_card"]

_CONDITIONS = (
    "The number of runs, the losing runs and how long all took stay secret.",
    "Settings were drawn at random from a space that was stated without looking at the data, and no run knows of "
    "others.",
    "Every run ended after steps that its settings state, or by what it had released: no private record decided when.",
    "The figures are of this selection alone. `lightning-pac account total` says what it reveals together with the "
    "other runs and metrics of its ledger, and whether a plan or a budget bounds that.",
)


def selection_card(
    ledger: PrivacyLedger, account: LedgerAccount, scenario: TwoWorldScenario, released: Mapping[str, Any]
) -> PrivacyCard:
    """The guarantees of a selection that was charged, at the delta or the prior that its ledger promises.

    Args:
        ledger: The ledger.
        account: That of the selection.
        scenario: The two worlds.
        released: What else is known of the run: model, settings and score.
    """
    stated = LedgerPlan.of(ledger) or LedgerBudget.of(ledger)
    promise = None if stated is None else stated.promise
    delta, prior = getattr(promise, "delta", 1e-5), getattr(promise, "prior", 0.5)
    order = account.declaration["coupling"]["renyi_order"]
    worlds = scenario.to_dict()
    del worlds["secret"]  # which the card has in words
    return PrivacyCard(
        title="The best of a secret number of private runs",
        secret=scenario.describe_secret(),
        guarantees=(
            *total_guarantees(account_total(account, delta, prior), prior),
            Guarantee(
                "rpp_epsilon",
                account.spent,
                "nats",
                f"The Rényi divergence of order {order:g} between what the two worlds release is at most this.",
            ),
        ),
        conditions=_CONDITIONS,
        details={
            "scenario": worlds,
            "renyi_order": order,
            "unit_of_privacy": "record",
            "prior": prior,
            **released,
            "ledger": account.name,
            "ledger_file": ledger.path.name,
        },
    )
