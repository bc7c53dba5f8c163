"""Options and actions of `lightning-pac account`."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.account.promises import PROMISES, declare_plan, declare_promise, show_total
from lightning_pac.cli.bounds import parse_budget
from lightning_pac.cli.common import Bound, Room, add_command, describe_last_charge, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.cards import PrivacyCard
    from lightning_pac.ledger import LedgerAccount, PrivacyLedger

__all__ = ["add_parser", "run"]

# Actions and how many words they take.
_ACTIONS = {"adopt": 1, "backup": 2, "budget": 2, "plan": 2, "restore": 2, "total": 1}


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "account",
        run,
        summary="show what was spent from a ledger, and change its budgets",
        description="""
        Show the accounts of a ledger: what was spent, in which currency, and what is left. It only reads, so it may run
        beside a training run or a server, as may `backup`, which copies the ledger to one new file. `adopt` accepts a
        ledger that was copied or moved with all its files, and keeps its high-water marks at `--witness` from then on
        if that is given. `restore` goes on with a ledger of which a part was lost, or puts a backup in its place, and
        books what each account may have spent since, which is for you to say. `budget` raises or lowers the budget of
        an account, or the total of a currency, as a dated entry of the ledger; what was spent stays spent. With a
        promise in place of an amount it states what everything about two worlds may tell together, before the first
        charge, and raises that later. `plan` declares a plan (JSON, as LedgerPlan.to_dict() gives it) that runs draw on
        by shares; `total` tells what everything comes to in all three promises, and why. Nobody else may have the
        ledger open while it is changed.
        """,
        examples="""
        lightning-pac account responses.db
        lightning-pac account responses.db --json
        lightning-pac account budget responses.db 2e-4 --account responses
        lightning-pac account budget study.db 16 --currency rpp
        lightning-pac account budget study.db --epsilon 3 --delta 1e-5
        lightning-pac account plan study.db plan.json
        lightning-pac account total study.db --delta 1e-6
        lightning-pac account adopt responses.db
        lightning-pac account adopt study.db --witness /mnt/elsewhere/study.mark
        lightning-pac account backup study.db backups/study-monday.db
        lightning-pac account restore study.db backups/study-monday.db --amount fit=1.5 --amount 0
        """,
    )
    parser.usage = f"lightning-pac account [options] [{' | '.join(_ACTIONS)}] LEDGER [AMOUNT | COPY | PLAN]"
    parser.add_argument("words", nargs="+", metavar="[ACTION] LEDGER [AMOUNT | COPY | PLAN]", help="the ledger file")
    owner = parser.add_mutually_exclusive_group()
    owner.add_argument("--account", metavar="NAME", help="budget: the account whose budget changes")
    owner.add_argument("--currency", metavar="NAME", help="budget: the currency whose total changes")
    parser.add_argument(
        "--amount",
        action="append",
        metavar="ACCOUNT=AMOUNT",
        help="restore: what the account may have spent that the ledger does not know; without ACCOUNT=, each other one",
    )
    parser.add_argument("--epsilon", type=float, help="budget: promise of all runs, with --delta or --renyi-order")
    parser.add_argument("--delta", type=float, help="budget: goes with --epsilon; total: for epsilon (as promised)")
    parser.add_argument("--renyi-order", type=float, metavar="A", help="budget: order at which the ledger counts")
    parser.add_argument("--world-success-bound", type=float, metavar="P", help="budget: most that a guess is right")
    parser.add_argument("--prior", type=float, help="budget, total: prior of one of the worlds (default 0.5)")
    parser.add_argument("--num-draws", type=float, metavar="N", help="budget: most values of noise that are drawn")
    parser.add_argument("--witness", metavar="PATH", help="adopt: where to keep the ledger's high-water marks")


def run(args: argparse.Namespace) -> int:
    """Show a ledger, adopt it, or change a budget in it."""
    from lightning_pac.ledger import PrivacyLedger

    action = args.words.pop(0) if args.words[0] in _ACTIONS and len(args.words) > 1 else "show"
    if len(args.words) > _ACTIONS.get(action, 1):
        args.parser.error(f"One ledger at a time, got {' '.join(args.words)}.")
    owned = args.account is not None or args.currency is not None
    if action != "budget" and owned:
        args.parser.error("--account and --currency say whose budget changes: write `account budget LEDGER AMOUNT`.")
    if args.amount and action != "restore":
        args.parser.error("--amount says what was lost: write `account restore LEDGER --amount ACCOUNT=AMOUNT`.")
    if args.witness and action != "adopt":
        args.parser.error("--witness says where marks are kept: write `account adopt LEDGER --witness PATH`.")
    promised = {f"--{name.replace('_', '-')}" for name in PROMISES if getattr(args, name) is not None}
    if promised - ({"--delta", "--prior"} if action == "total" else set()) and action != "budget":
        args.parser.error(f"{', '.join(sorted(promised))}: a promise is stated by `account budget LEDGER`.")
    if action == "total":
        return show_total(args)
    if action == "plan":
        if len(args.words) < 2:
            args.parser.error("`account plan` needs a ledger and a JSON file with the plan.")
        return declare_plan(args)
    if action == "budget" and promised:
        if len(args.words) > 1 or owned:
            args.parser.error("A promise is in place of an amount, and about the whole ledger: leave the others out.")
        return declare_promise(args)
    if action == "adopt":
        return _adopt(args.words[0], args.witness, args.json)
    if action == "backup":
        if len(args.words) < 2:
            args.parser.error("`account backup` needs a ledger and the file to copy it to.")
        return _backup(args.words[0], args.words[1], args.json)
    if action == "restore":
        return _restore(args.words[0], args.words[1] if len(args.words) > 1 else None, args.amount or [], args.json)
    if action == "budget":
        if len(args.words) < 2 or not owned:
            args.parser.error("`account budget` needs a ledger, an amount, and --account or --currency.")
        return _change_budget(args.words[0], args.words[1], args.account, args.currency, args.json)
    with PrivacyLedger.read_only(args.words[0]) as ledger:
        if args.json:
            print_json(_describe(ledger))
        else:
            _show(ledger)
    return 0


def _adopt(path: str, witness: str | None, as_json: bool) -> int:
    from lightning_pac.ledger import adopt_ledger

    with _open_existing(path) as ledger:
        names = adopt_ledger(ledger, witness)
        last = ledger.last_charge
    if as_json:
        print_json({"adopted": str(ledger.path), "accounts": list(names), "last_charge": last})
    else:
        print(f"{ledger.path} is now the ledger of {', '.join(names) or 'no responder'}. {describe_last_charge(last)}")
    return 0


def _backup(path: str, copy: str, as_json: bool) -> int:
    from lightning_pac.ledger import backup_ledger

    written = backup_ledger(path, copy)
    if as_json:
        print_json({"backup": str(written)})
    else:
        print(f"{written} holds everything that was charged up to now.")
    return 0


def _restore(path: str, backup: str | None, texts: list[str], as_json: bool) -> int:
    from lightning_pac.ledger import restore_ledger

    amounts: dict[str, float] = {}
    otherwise: float | None = None
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise ValueError(f"--amount {text} has no number after the account: write --amount fit=1.5.") from None
        if equals:
            amounts[name] = value
        else:
            otherwise = value
    booked = restore_ledger(path, amounts, backup, otherwise)
    if as_json:
        print_json({"restored": path, "booked": booked})
    else:
        print_table(f"{path} goes on", ("account", "booked as unknown"), list(booked.items()))
    return 0


def _change_budget(path: str, text: str, name: str | None, currency: str | None, as_json: bool) -> int:
    amount = parse_budget(text)
    with _open_existing(path) as ledger:
        owner: LedgerAccount | _Total = (
            _Total(ledger, currency) if currency is not None else _find_account(ledger, str(name))
        )
        before, spent = owner.budget, owner.spent
        words = f"account {name!r}" if name is not None else f"all {currency} accounts together"
        if amount < spent:
            raise ValueError(
                f"{spent!r} is spent by {words} of {ledger.path}, so the budget cannot be {amount:g}: what was "
                f"released stays released; give at least {spent!r}."
            )
        if amount != before:
            owner.set_budget(amount)
        total = ledger.budget(owner.currency)
        bound_by_total = total is not None and owner.remaining < amount - spent
        change = {
            "ledger": str(ledger.path),
            "account": name,
            "currency": owner.currency,
            "before": before,
            "budget": owner.budget,
            "spent": owner.spent,
            "remaining": (remaining := owner.remaining),
        }
    if as_json:
        print_json(change)
    else:
        from lightning_pac.cards import downwards, upwards

        known = "none" if before is None else f"{before:g}"
        print(f"The budget of {words} was {known} and is {amount:g} ({change['currency']}): {upwards(spent)} is spent.")
        why = f", since all accounts share {total:g}" if bound_by_total else ""
        print(f"{downwards(remaining)} is left{why}.")
    return 0


@dataclasses.dataclass(frozen=True)
class _Total:
    """A currency of a ledger, with what an account has too."""

    ledger: "PrivacyLedger"
    currency: str

    def __post_init__(self) -> None:
        if self.currency not in self.ledger.currencies():
            known = ", ".join(self.ledger.currencies()) or "none"
            raise ValueError(f"{self.ledger.path} has no currency {self.currency!r}: it has {known}.")

    @property
    def budget(self) -> float | None:
        return self.ledger.budget(self.currency)

    @property
    def spent(self) -> float:
        return self.ledger.spent(self.currency)

    @property
    def remaining(self) -> float:
        return self.ledger.remaining(self.currency)

    def set_budget(self, amount: float) -> None:
        self.ledger.set_budget(self.currency, amount)


def _find_account(ledger: "PrivacyLedger", name: str) -> "LedgerAccount":
    found = {account.name: account for account in ledger.accounts()}
    if name not in found:
        raise ValueError(f"{ledger.path} has no account {name!r}: it has {', '.join(found) or 'none'}.")
    if found[name].kind == "api_key":
        raise ValueError(
            f"The budget of {name!r} comes from the file of API keys: change it there, by `lightning-pac keys budget`."
        )
    return found[name]


def _open_existing(path: str) -> "PrivacyLedger":
    """A ledger for writing, which is not made if there is none."""
    from lightning_pac.ledger import PrivacyLedger

    PrivacyLedger.read_only(path).close()
    return PrivacyLedger(path)


def _describe(ledger: "PrivacyLedger") -> dict[str, Any]:
    from lightning_pac.ledger import describe_currency

    return {
        "path": str(ledger.path),
        "ledger_id": ledger.ledger_id,
        "last_charge": ledger.last_charge,
        "currencies": {
            currency: {
                "spent": ledger.spent(currency),
                "budget": ledger.budget(currency),
                "remaining": ledger.remaining(currency),
            }
            for currency in ledger.currencies()
        },
        "budget_changes": [dataclasses.asdict(change) for change in ledger.budget_changes()],
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
    from lightning_pac.ledger import describe_currency

    columns: tuple[str, ...] = ("account", "currency", "spent", "budget", "left", "charges", "starts")
    print_table(str(ledger.path), columns, [_row(account) for account in ledger.accounts()])
    print(describe_last_charge(ledger.last_charge))
    totals: list[tuple[object, ...]] = []
    closed = [name for name in ledger.currencies() if ledger.budget(name) == 0 and not ledger.spent(name)]
    for currency in ledger.currencies():
        if currency in closed:
            continue
        budget = ledger.budget(currency)
        left = None if budget is None else Room(ledger.remaining(currency))
        totals.append((currency, Bound(ledger.spent(currency)), budget, left, describe_currency(currency)))
    columns = ("currency", "spent", "budget", "left", "what it counts")
    caption = f"Nothing may be spent in {', '.join(closed)}." if closed else "Currencies do not add up to one another."
    if any(total[0] == "rpp" for total in totals):
        caption += " rpp is a Rényi divergence and no epsilon at a delta, which `lightning-pac account total` says."
    print_table("What was spent in which currency", columns, totals, caption)
    changes = ledger.budget_changes()
    if len(changes) > len({(change.account, change.currency) for change in changes}):
        rows = [(change.time, change.account or "all", change.currency, change.amount) for change in changes]
        print_table("How budgets were set", ("time (UTC)", "account", "currency", "budget"), rows)
    for account in ledger.accounts():
        # That of a run is beside its logs, and those of a sweep would fill pages.
        if account.kind != "training" and (card := _card(account)) is not None:
            print(f"\n{card.to_markdown()}", end="")


def _card(account: "LedgerAccount") -> "PrivacyCard | None":
    if account.kind not in ("responses", "privatize"):
        from lightning_pac.evidence.claims import current_card

        return current_card(account)
    # A responder may be answering at this moment: its card is made from what is spent now.
    from lightning_pac.mechanisms.responses import responder_card

    return responder_card(account)


def _row(account: "LedgerAccount") -> tuple[object, ...]:
    remaining = account.remaining
    left = None if remaining == float("inf") else Room(remaining)
    starts = len(account.attempts()) or None
    return account.name, account.currency, Bound(account.spent), account.budget, left, account.num_charges, starts
