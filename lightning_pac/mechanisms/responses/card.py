"""The privacy card of a responder."""

import math
from typing import Any, Literal

from lightning_pac.accountants.bounds import membership_success_bound
from lightning_pac.cards import Guarantee, PrivacyCard, at_most
from lightning_pac.exceptions import LedgerMismatchError
from lightning_pac.ledger import LedgerAccount, PrivacyLedger
from lightning_pac.scenarios import SecretSpace

__all__ = ["attacker_conditions", "declare_space", "open_answers", "responder_card", "success_bound"]

# Of a prior, so that the same table declares the same number on every platform.
_DIGITS = 9

_CONDITIONS = (
    "The guarantee is about which half of the pool was used. It does not hide the pool itself: what all halves have in "
    "common shows, and so do answers on which all models agree.",
    "The index of the model that answers was drawn once, from secure randomness, and is never drawn again; its file "
    "stays with the keeper of the data.",
    "Each model is a fixed function of its half and of the query. Training and the amount spent on an answer do not "
    "look at the index.",
    "Users see the label and nothing else of an answer: not the votes, not how long the answer took.",
    "The ledger is the only record of what was answered. A ledger and a secret file that are restored together from an "
    "earlier backup cannot be told from the newest ones, so the secret file is kept out of backups of the ledger.",
)


def declare_space(space: SecretSpace, rule: str) -> dict[str, Any]:
    """The public facts that an account of answers rests on: the declaration of its ledger."""
    return {
        "table": space.table_hash,
        "num_records": space.num_records,
        "num_secrets": space.num_secrets,
        "membership_prior": _round_up(space.individual_prior),
        "index_prior": _round_up(space.index_guess_prior),
        "priors": "rounded up",
        "rule": rule,
    }


def open_answers(
    ledger: PrivacyLedger,
    name: str,
    space: SecretSpace,
    rule: str,
    kind: Literal["responses", "privatize"],
    budget: float | None = None,
) -> LedgerAccount:
    """The account of answers about a secret of this space, opened if there is none.

    Raises:
        LedgerMismatchError: If it answers about another space, or by another rule.
    """
    declaration = declare_space(space, rule)
    earlier = {key: value for key, value in declaration.items() if key != "priors"} | {
        "membership_prior": round(space.individual_prior, _DIGITS),
        "index_prior": round(space.index_guess_prior, _DIGITS),
    }
    try:
        return ledger.account(name, "mutual_information", declaration, budget, kind, space.table_hash)
    except LedgerMismatchError as mismatch:
        try:  # earlier versions rounded to the nearest
            return ledger.account(name, "mutual_information", earlier, budget, kind, space.table_hash)
        except LedgerMismatchError:
            raise mismatch from None


def responder_card(account: LedgerAccount) -> PrivacyCard:
    """The guarantees for all answers that `account` has paid for, from what its ledger declares.

    Args:
        account: The account of a responder.
    """
    spent, answers, declared = account.spent, account.num_charges, account.declaration
    slack = 0.0 if "priors" in declared else 0.5 * 10.0**-_DIGITS
    prior, blind_guess = (min(1.0, declared[key] + slack) for key in ("membership_prior", "index_prior"))
    success, guess = success_bound(spent, prior), success_bound(spent, blind_guess)
    return PrivacyCard(
        title=f"Privacy of {answers} {'answer' if answers == 1 else 'answers'}",
        secret="Whether a given record was used to train the model that answers, from everyone who sees the answers. "
        f"It was trained on one of {declared['num_secrets']} public subsets of {declared['num_records']:,} records.",
        guarantees=(
            Guarantee(
                "membership_success_bound",
                success,
                "probability",
                "An attacker who saw all answers and knows the record tells correctly whether it was used at most "
                f"{at_most(success)} of the time; without any answer a guess is right {at_most(prior)} of the time.",
            ),
            Guarantee(
                "index_success_bound",
                guess,
                "probability",
                f"They name the whole subset correctly at most {at_most(guess)} of the time; a blind guess is right "
                f"{at_most(blind_guess)} of the time.",
            ),
            Guarantee(
                "mutual_information",
                spent,
                "nats",
                "This is how much all answers together can tell about the subset. Every further answer on which the "
                "models disagree adds to it.",
            ),
        ),
        conditions=(*_CONDITIONS, _on_asking_on(account, prior), *attacker_conditions(declared["num_secrets"], prior)),
        details={
            "account": account.name,
            "answers": answers,
            "budget": account.budget,
            "prior": prior,
            "rule": declared["rule"],
            "table": declared["table"],
        },
    )


def _on_asking_on(account: LedgerAccount, prior: float) -> str:
    """Which figures hold where answers decide how many there are.

    Of answers of 0.0078 nats each that end where the likelihood ratio passes e^1 or e^-1, or after 64, the subset is
    told in 75.6 % of cases, and bounds for the answers given are 74.6 % on average.
    """
    words = (
        "The bounds are for a number of answers that was decided beforehand. Where answers decide whether more follow, "
    )
    budgets = account.budgets
    if not budgets:
        return words + "only a budget of the ledger bounds what they tell."
    # One that was lowered may have been so by what was seen, and one that was raised might have been raised further.
    most = at_most(success_bound(max(*budgets, account.spent), prior))
    raised = " if no answer would have raised it further" if max(budgets) > budgets[0] else ""
    which = "budget" if len(budgets) == 1 else "largest budget so far"
    return (
        f"{words}those of the {which} hold{raised}: whether a record was used is told correctly at most {most} of the "
        "time."
    )


def attacker_conditions(num_secrets: int, membership_prior: float) -> tuple[str, ...]:
    """The assumptions about the attacker under which the bounds on success hold, one sentence each."""
    assumed = (
        "The bounds speak of attackers who know the whole pool and the table of subsets, and nobody's membership.",
        f"Someone who knows of about {math.ceil(math.log2(num_secrets))} records whether they were used can often tell "
        "the whole subset from the public table, without any release.",
    )
    if membership_prior < 1:
        return assumed
    return (*assumed, "Some records are in all subsets or in none: their membership is no secret.")


def success_bound(mutual_information: float, prior: float) -> float:
    """`membership_success_bound`, and 1 where a blind guess is always right."""
    return 1.0 if prior >= 1 else membership_success_bound(mutual_information, prior)


def _round_up(prior: float) -> float:
    # But for the last bits of a sum, so that a half stays one.
    return min(1.0, math.ceil((prior - 1e-15) * 10.0**_DIGITS) / 10.0**_DIGITS)
