"""`lightning-pac account`: what a ledger says was spent."""

import argparse
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.accountants import LedgerAccount, PrivacyCard, PrivacyLedger

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "account",
        run,
        summary="show what was spent from a ledger",
        description="""
        Show the accounts of a ledger: what was spent, in which currency, and what is left. It only reads, so it may run
        beside a training run or a server. `adopt` accepts a ledger file that was copied or moved.
        """,
        examples="""
        lightning-pac account responses.db
        lightning-pac account responses.db --json
        lightning-pac account adopt responses.db
        """,
    )
    parser.add_argument("words", nargs="+", metavar="[adopt] LEDGER", help="the ledger file")


def run(args: argparse.Namespace) -> int:
    """Show a ledger, or adopt it."""
    from lightning_pac.accountants import PrivacyLedger

    adopt, path = args.words[0] == "adopt" and len(args.words) > 1, args.words[-1]
    if len(args.words) > 1 + adopt:
        args.parser.error(f"One ledger is shown at a time, got {' '.join(args.words)}.")
    if adopt:
        return _adopt(path, args.json)
    with PrivacyLedger.read_only(path) as ledger:
        if args.json:
            print_json(_describe(ledger))
        else:
            _show(ledger)
    return 0


def _adopt(path: str, as_json: bool) -> int:
    from lightning_pac.accountants import PrivacyLedger, adopt_ledger
    from lightning_pac.accountants.storage import LedgerStorage

    LedgerStorage(path, writable=False).close()
    with PrivacyLedger(path) as ledger:
        names = adopt_ledger(ledger)
    if as_json:
        print_json({"adopted": str(ledger.path), "accounts": list(names)})
    else:
        print(f"{ledger.path} is now the ledger of {', '.join(names) or 'no responder'}.")
    return 0


def _describe(ledger: "PrivacyLedger") -> dict[str, Any]:
    from lightning_pac.accountants import describe_currency

    return {
        "path": str(ledger.path),
        "ledger_id": ledger.ledger_id,
        "currencies": {
            currency: {
                "spent": ledger.spent(currency),
                "budget": ledger.budget(currency),
                "remaining": ledger.remaining(currency),
            }
            for currency in ledger.currencies()
        },
        "rules": {currency: describe_currency(currency) for currency in ledger.currencies()},
        "accounts": [
            {
                "name": account.name,
                "currency": account.currency,
                "spent": account.spent,
                "budget": account.budget,
                "remaining": account.remaining,
                "num_charges": account.num_charges,
                "attempts": [
                    {"first_step": attempt.first_step, "num_steps": attempt.num_steps, "cost": attempt.cost}
                    for attempt in account.attempts()
                ],
                "declaration": account.declaration,
                "card": None if card is None else card.to_dict(),
            }
            for account, card in ((account, _card(account)) for account in ledger.accounts())
        ],
    }


def _show(ledger: "PrivacyLedger") -> None:
    from lightning_pac.accountants import describe_currency

    columns: tuple[str, ...] = ("account", "currency", "spent", "budget", "left", "charges", "starts")
    print_table(str(ledger.path), columns, [_row(account) for account in ledger.accounts()])
    totals: list[tuple[object, ...]] = []
    for currency in ledger.currencies():
        budget = ledger.budget(currency)
        left = None if budget is None else ledger.remaining(currency)
        totals.append((currency, ledger.spent(currency), budget, left, describe_currency(currency)))
    columns = ("currency", "spent", "budget", "left", "what it counts")
    print_table("What was spent in which currency", columns, totals, "Currencies do not add up to one another.")
    for account in ledger.accounts():
        if (card := _card(account)) is not None:
            print(f"\n{card.to_markdown()}", end="")


def _card(account: "LedgerAccount") -> "PrivacyCard | None":
    if "membership_prior" not in account.declaration:
        return account.card
    # A responder may be answering at this moment: its card is made from what is spent now.
    from lightning_pac.mechanisms.responder_card import responder_card

    return responder_card(account)


def _row(account: "LedgerAccount") -> tuple[object, ...]:
    remaining = account.remaining
    left = None if remaining == float("inf") else remaining
    starts = len(account.attempts()) or None
    return account.name, account.currency, account.spent, account.budget, left, account.num_charges, starts
