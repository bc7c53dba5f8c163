"""`lightning-pac audit`: does the best attack agree with the bound?"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, add_pool_options, make_pool, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.accountants import LedgerAccount, PrivacyLedger
    from lightning_pac.mechanisms.recorded_answers import RecordedAnswers
    from lightning_pac.scenarios import SecretSpace

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = add_command(
        subparsers,
        "audit",
        run,
        "attack recorded answers as well as anyone can, and compare with the bound",
        """
        lightning-pac audit membership responses.db --records 1437
        lightning-pac audit membership responses.db --records 1437 --trials 1000 --plot audit.png
        lightning-pac audit membership responses.db --records 1437 --secret secret.key
        """,
        """
        The Bayes-optimal membership attack, by someone who knows all models and all answers. Games with a secret drawn
        anew are played over the queries that the ledger records, and the attack's success is set beside the bound. With
        --secret, the answers that were really given are attacked as well. Nothing is spent: the ledger is only read.
        """,
    )
    parser.add_argument("attack", choices=["membership"])
    parser.add_argument("ledger", type=Path, help="the responder's ledger")
    add_pool_options(parser)
    parser.add_argument("--account", help="the responder's account, where the ledger has several")
    parser.add_argument("--trials", type=int, default=200, help="games to play (200)")
    parser.add_argument("--secret", type=Path, help="the secret file, to attack the answers that were given")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw success and bound into an image file")


def run(args: argparse.Namespace) -> int:
    """Play the games and print success beside the bound; exit code 1 where an attack refutes it."""
    import numpy as np

    from lightning_pac.accountants import PrivacyLedger
    from lightning_pac.audits import membership_attack, simulate_beliefs

    space = make_pool(args)
    with PrivacyLedger.read_only(args.ledger) as ledger:
        account = _account(ledger, args.account, space)
        answers = _answers(ledger, account)
        rule = account.declaration["rule"]
    votes = np.concatenate([recorded.outputs for recorded in answers])
    budgets = np.concatenate([recorded.budgets for recorded in answers])
    if (budgets != budgets[0]).any():
        raise ValueError("The answers were given at different budgets: this audit plays games of one budget only.")
    moments = _moments(len(votes))
    audit = simulate_beliefs(votes, float(budgets[0]), args.trials, moments, rule)
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
    given = None if args.secret is None else _attack_given(args.secret, space, answers, rule)
    if args.json:
        found = {"trials": args.trials, "rows": rows, "refuted": refuted}
        print_json(found if given is None else {**found, "attack_on_given_answers": given})
    else:
        _print(rows, args.trials, given, refuted)
    if args.plot is not None:
        audit.plot(space, args.plot)
    return int(refuted)


def _account(ledger: "PrivacyLedger", name: str | None, space: "SecretSpace") -> "LedgerAccount":
    found = [
        account for account in ledger.accounts() if name in (None, account.name) and "table" in account.declaration
    ]
    if len(found) != 1:
        names = ", ".join(repr(account.name) for account in found) or "none"
        raise ValueError(f"{ledger.path} has {names} as accounts of a responder: choose one by --account.")
    table = str(found[0].declaration["table"])
    if table != space.table_hash:
        raise ValueError(
            f"The answers in {ledger.path} are about the table {table[:12]}, and these options make "
            f"{space.table_hash[:12]}: give --records, --subsets, --pool-seed and --pool of the responder's pool."
        )
    return found[0]


def _answers(ledger: "PrivacyLedger", account: "LedgerAccount") -> "list[RecordedAnswers]":
    from lightning_pac.accountants.transcript import read_entries
    from lightning_pac.mechanisms.recorded_answers import RecordedAnswers

    answers = [RecordedAnswers.decode(entry.payload) for entry in read_entries(ledger, account)]
    if not answers:
        raise ValueError(f"Account {account.name!r} of {ledger.path} has no answers yet: there is nothing to attack.")
    if any(recorded.outputs.ndim != 2 for recorded in answers):
        raise ValueError(f"The answers of account {account.name!r} are scores: this audit plays games over votes only.")
    return answers


def _attack_given(path: Path, space: "SecretSpace", answers: "list[RecordedAnswers]", rule: Any) -> float:
    """Success of the attack on the pool's records, from the answers that were really given."""
    import operator

    from lightning_pac.audits import membership_attack
    from lightning_pac.mechanisms import AdaptiveComposition

    secret = operator.index(space.load_secret(path))
    composition = AdaptiveComposition(space.prior, None, rule)
    for recorded in answers:
        composition.replay(recorded.outputs, recorded.values, recorded.budgets)
    return membership_attack(composition.belief, secret, space).success


def _moments(num_responses: int) -> list[int]:
    """About ten numbers of responses, evenly spaced on a log scale, and the last."""
    spaced = {max(1, round(num_responses ** (step / 9))) for step in range(10)}
    return sorted(spaced | {num_responses})


def _print(rows: list[dict[str, Any]], trials: int, given: float | None, refuted: bool) -> None:
    table = [
        [
            f"{row['responses']:,}",
            f"{row['mutual_information']:.3g}",
            f"{100 * row['membership_success_bound']:.2f} %",
            f"{100 * row['membership_attack_success']:.2f} %",
            f"{100 * row['interval'][0]:.1f} to {100 * row['interval'][1]:.1f} %",
        ]
        for row in rows
    ]
    verdict = "The attack REFUTES the bound." if refuted else "The attack stays within the bound."
    actual = (
        "" if given is None else f" On the answers that were given it tells {100 * given:.2f} % of the records right."
    )
    print_table(
        f"Bayes-optimal membership attack, {trials} games",
        ["responses", "nats", "bound", "attack", "95 % interval"],
        table,
        verdict + actual,
    )
