"""`lightning-pac audit responses`: does the best attack on answers agree with the bound?"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import make_pool, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.ledger import LedgerAccount, PrivacyLedger
    from lightning_pac.mechanisms.responses import RecordedAnswers
    from lightning_pac.scenarios import SecretSpace

__all__ = ["attack_responses"]

_KEEP = "It was computed from the secret and, with the public table, all but names it: keep it to yourself."


def attack_responses(args: argparse.Namespace) -> int:
    """Play the games and print success beside the bound; exit code 1 where an attack refutes it."""
    from lightning_pac.ledger import PrivacyLedger

    if args.records is None:
        raise ValueError("The table of subsets is unknown: give --records of the pool that the answers are about.")
    if args.trials < 1:
        raise ValueError(f"{args.trials} games show nothing: give --trials of at least 1.")
    if args.secret is not None and not args.secret.is_file():
        raise ValueError(f"There is no secret file at {args.secret}: check the path.")
    space = make_pool(args)
    with PrivacyLedger.read_only(args.ledger) as ledger:
        account = _account(ledger, args.account, space)
        if account.kind == "privatize":
            return _audit_given(ledger, account, space, args)
        answers = _answers(ledger, account)
        reason = _why_no_games(account, answers)
        if reason is not None:
            if args.secret is None:
                raise ValueError(f"{reason}; give --secret to attack those that were given.")
            return _audit_given(ledger, account, space, args, answers)
        given = None if args.secret is None else _attack_given(ledger, account, space, args.secret, answers)
        rule = account.declaration["rule"]
    return _play(args, space, answers, rule, given)


def _play(
    args: argparse.Namespace, space: "SecretSpace", answers: "list[RecordedAnswers]", rule: Any, given: float | None
) -> int:
    import numpy as np

    from lightning_pac.audits import membership_attack, simulate_beliefs

    votes = np.concatenate([recorded.outputs for recorded in answers])
    moments = _moments(len(votes))
    audit = simulate_beliefs(votes, float(answers[0].budgets[0]), args.trials, moments, rule)
    attacks = [membership_attack(beliefs, audit.secrets, space) for beliefs in audit.beliefs]
    bounds = audit.bound(space).tolist()
    rows = [
        {
            "responses": count,
            "mutual_information": nats,
            "membership_success_bound": bound,
            "membership_attack_success": attack.success,
            "interval": list(attack.interval),
        }
        for count, nats, bound, attack in zip(moments, audit.mutual_information.tolist(), bounds, attacks, strict=True)
    ]
    refuted = any(attack.refutes(bound) for attack, bound in zip(attacks, bounds, strict=True))
    if args.json:
        found = {"trials": args.trials, "rows": rows, "refuted": refuted}
        print_json(found if given is None else {**found, **_for_the_keeper(given)})
    else:
        _print(rows, args.trials, given, refuted)
    if args.plot is not None:
        audit.plot(space, args.plot)
    return int(refuted)


def _account(ledger: "PrivacyLedger", name: str | None, space: "SecretSpace") -> "LedgerAccount":
    accounts = ledger.accounts()
    found = [account for account in accounts if name in (None, account.name) and account.table_hash is not None]
    if not found:
        others = ", ".join(f"{account.name!r} ({account.currency})" for account in accounts) or "none"
        asked = "no account" if name is None else f"no account {name!r}"
        raise ValueError(
            f"{ledger.path} has {asked} of answers or values about a secret subset, which is what a membership audit "
            f"attacks (its accounts: {others}): give the ledger of a responder or of privatize."
        )
    if len(found) > 1:
        names = ", ".join(repr(account.name) for account in found)
        raise ValueError(f"{ledger.path} has {names} as accounts about secret subsets: choose one by --account.")
    table = str(found[0].table_hash)
    if table != space.table_hash:
        raise ValueError(
            f"The answers in {ledger.path} are about the table {table[:12]}, and these options make "
            f"{space.table_hash[:12]}: give --records, --subsets, --pool-seed and --pool of theirs."
        )
    return found[0]


def _answers(ledger: "PrivacyLedger", account: "LedgerAccount") -> "list[RecordedAnswers]":
    from lightning_pac.ledger import read_entries
    from lightning_pac.mechanisms.responses import RecordedAnswers

    answers = [RecordedAnswers.decode(entry.payload) for entry in read_entries(ledger, account)]
    if not answers:
        raise ValueError(f"Account {account.name!r} of {ledger.path} has no answers yet: there is nothing to attack.")
    return answers


def _why_no_games(account: "LedgerAccount", answers: "list[RecordedAnswers]") -> str | None:
    if any(recorded.outputs.ndim != 2 for recorded in answers):
        return f"The answers of account {account.name!r} are scores, and games are played over votes only"
    if any((recorded.budgets != answers[0].budgets[0]).any() for recorded in answers):
        return "The answers were given at different budgets, and games of one budget only are played"
    return None


def _audit_given(
    ledger: "PrivacyLedger",
    account: "LedgerAccount",
    space: "SecretSpace",
    args: argparse.Namespace,
    answers: "list[RecordedAnswers] | None" = None,
) -> int:
    """Print the attack on what was really released beside the bound: one trial, which refutes nothing."""
    from lightning_pac.accountants import membership_success_bound
    from lightning_pac.cards import at_most, upwards

    if args.plot is not None:
        raise ValueError("Only games can be drawn, and none are played here: leave --plot out.")
    if answers is None:
        _check_values(ledger, account, args.secret)
    success = _attack_given(ledger, account, space, args.secret, answers)
    bound = membership_success_bound(account.spent, space.individual_prior)
    if args.json:
        row = {
            "responses": account.num_charges,
            "mutual_information": account.spent,
            "membership_success_bound": bound,
        }
        print_json({"trials": 0, "rows": [row], "refuted": False, **_for_the_keeper(success)})
        return 0
    print_table(
        "Attack on what was released",
        ["releases", "nats", "bound", "attack"],
        [[f"{account.num_charges:,}", upwards(account.spent, 3), at_most(bound), f"{100 * success:.2f} %"]],
        "The bound is an average over secrets, and one secret can neither refute it nor prove it. About the attack's "
        f"success: {_KEEP}",
    )
    return 0


def _check_values(ledger: "PrivacyLedger", account: "LedgerAccount", secret: Path | None) -> None:
    from lightning_pac.ledger import read_entries

    if account.num_charges == 0:
        raise ValueError(f"Account {account.name!r} of {ledger.path} has no values yet: there is nothing to attack.")
    if next(read_entries(ledger, account), None) is None:
        raise ValueError(
            f"Account {account.name!r} of {ledger.path} paid for a single release, whose index was drawn and "
            "forgotten: there is no secret to test an attack on."
        )
    if secret is None:
        raise ValueError(
            f"Account {account.name!r} of {ledger.path} holds values of privatize without what other subsets would "
            "have given, so no games can be played: give --secret to attack the values that were released."
        )


def _attack_given(
    ledger: "PrivacyLedger",
    account: "LedgerAccount",
    space: "SecretSpace",
    path: Path,
    answers: "list[RecordedAnswers] | None",
) -> float:
    """Success of the attack on the pool's records, from what was really released."""
    import operator

    from lightning_pac.audits import membership_attack
    from lightning_pac.ledger import answers_for
    from lightning_pac.mechanisms import AdaptiveComposition
    from lightning_pac.mechanisms.privatization import recorded_belief

    secret = space.load_secret(path)
    if not answers_for(ledger, account, secret.key, operator.index(secret)):
        raise ValueError(
            f"{path} is not the secret that account {account.name!r} of {ledger.path} answers for: give the file that "
            "the answers were made with."
        )
    if answers is None:
        belief = recorded_belief(ledger, account)
    else:
        composition = AdaptiveComposition(space.prior, None, account.declaration["rule"])
        for recorded in answers:
            composition.replay(recorded.outputs, recorded.values, recorded.budgets)
        belief = composition.belief
    return membership_attack(belief, operator.index(secret), space).success


def _moments(num_responses: int) -> list[int]:
    """About ten numbers of responses, evenly spaced on a log scale, and the last."""
    spaced = {max(1, round(num_responses ** (step / 9))) for step in range(10)}
    return sorted(spaced | {num_responses})


def _print(rows: list[dict[str, Any]], trials: int, given: float | None, refuted: bool) -> None:
    from lightning_pac.cards import at_most, downwards, upwards

    table = [
        [
            f"{row['responses']:,}",
            upwards(row["mutual_information"], 3),
            at_most(row["membership_success_bound"]),
            f"{100 * row['membership_attack_success']:.2f} %",
            f"{downwards(100 * row['interval'][0], 3)} to {upwards(100 * row['interval'][1], 3)} %",
        ]
        for row in rows
    ]
    verdict = "The attack REFUTES the bound." if refuted else "The attack stays within the bound."
    actual = (
        ""
        if given is None
        else f" On the answers that were given it tells {100 * given:.2f} % of the records right. {_KEEP}"
    )
    print_table(
        f"Bayes-optimal membership attack, {trials} games",
        ["responses", "nats", "bound", "attack", "95 % interval"],
        table,
        verdict + actual,
    )


def _for_the_keeper(success: float) -> dict[str, Any]:
    """The figure that only the keeper of the secret may see, marked as such."""
    return {"attack_on_given_answers": success, "not_to_be_published": ["attack_on_given_answers"]}
