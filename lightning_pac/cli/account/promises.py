"""Plans and promises of a ledger in `lightning-pac account`: declaring them, and telling what is in force."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import Bound, Room, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.accountants import LedgerPlan
    from lightning_pac.ledger import PrivacyLedger

__all__ = ["PROMISES", "declare_plan", "declare_promise", "show_total"]

PROMISES = ("epsilon", "delta", "renyi_order", "world_success_bound", "prior", "num_draws")


def declare_plan(args: argparse.Namespace) -> int:
    """Declare the plan in a file, in a ledger that holds no charge yet; it is made if there is none."""
    from lightning_pac.accountants import LedgerPlan
    from lightning_pac.ledger import PrivacyLedger

    path, source = args.words
    try:
        values = json.loads(Path(source).read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("no mapping")
        plan = LedgerPlan.from_dict(values)
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"{source} is not a plan ({reason}): write one as LedgerPlan.to_dict() gives it.") from None
    with PrivacyLedger(path) as ledger:
        plan.declare(ledger)
        if args.json:
            print_json({"ledger": str(ledger.path), "plan": plan.to_dict()})
        else:
            _print_shares(ledger, plan)
    return 0


def declare_promise(args: argparse.Namespace) -> int:
    """State what everything in a ledger may tell, or raise what was stated."""
    from lightning_pac.accountants import LedgerBudget
    from lightning_pac.cards import upwards
    from lightning_pac.ledger import PrivacyLedger

    (path,) = args.words
    given = {name: getattr(args, name) for name in PROMISES if getattr(args, name) is not None}
    budget = LedgerBudget(**given)
    with PrivacyLedger(path) as ledger:
        before = LedgerBudget.of(ledger)
        budget.declare(ledger)
        stands = LedgerBudget.of(ledger)
        assert stands is not None
        if args.json:
            change = {"before": None if before is None else dataclasses.asdict(before)}
            print_json({"ledger": str(ledger.path), **change, "promise": dataclasses.asdict(stands), "cap": stands.cap})
            return 0
        largest = LedgerBudget.largest(ledger)
        holds = "" if largest == stands else f" What holds for what was charged is {largest}, which stood since."
        print(
            f"{ledger.path} promises {stands}{'' if before is None else f' (it was {before})'}, which is a cap of "
            f"{upwards(stands.cap)} at order {stands.renyi_order:g}: {upwards(ledger.spent('rpp'))} is spent.{holds}"
        )
    return 0


def show_total(args: argparse.Namespace) -> int:
    """Everything a ledger holds about two worlds, in all three promises, and what a plan has left."""
    from lightning_pac.accountants import LedgerPlan, ledger_total
    from lightning_pac.cards import at_most, upwards
    from lightning_pac.ledger import PrivacyLedger

    with PrivacyLedger.read_only(args.words[0]) as ledger:
        total = ledger_total(ledger, args.delta, **({} if args.prior is None else {"prior": args.prior}))
        plan = LedgerPlan.of(ledger)
        if args.json:
            shares = {} if plan is None else {"shares": _shares(ledger, plan)}
            print_json({"ledger": str(ledger.path), **dataclasses.asdict(total), **shares})
            return 0
        if total.basis == "none" and total.renyi_order is None and plan is None:
            print(f"{total.reason} `lightning-pac account {ledger.path}` says what they are.")
            return 0
        order = "" if total.renyi_order is None else f" of order {total.renyi_order:g}"
        rows: list[tuple[object, ...]] = [
            ("a guess of the world is right at most", at_most(total.world_success_bound)),
            (f"epsilon at delta {upwards(total.delta)}", Bound(total.epsilon_at_delta)),
        ]
        if plan is None:  # which promises none
            rows.append((f"Rényi divergence{order}", Bound(total.renyi_epsilon)))
        print_table(f"What {ledger.path} tells of two worlds", ("promise", "figure"), rows, total.reason)
        if plan is not None:
            _print_shares(ledger, plan)
    return 0


def _print_shares(ledger: "PrivacyLedger", plan: "LedgerPlan") -> None:
    from lightning_pac.cards import downwards, upwards

    rows = [  # with six digits: at four, what was taken of a share that is used up reads larger than the share
        (share["name"], share["release"], downwards(share["size"]), taken and upwards(taken), Room(share["left"]))
        for share in _shares(ledger, plan)
        for taken in [share["taken"]]
    ]
    print_table(f"Plan of {ledger.path}", ("share", "of", "size", "taken", "left"), rows)


def _shares(ledger: "PrivacyLedger", plan: "LedgerPlan") -> list[dict[str, Any]]:
    from lightning_pac.accountants import share_unit, taken_of_shares

    try:
        taken: Mapping[str, float | None] = taken_of_shares(ledger, plan)
    except ValueError:  # a release that draws on no share, which the total says
        taken = dict.fromkeys(plan.by_name)
    return [
        {
            "name": name,
            "release": share_unit(share),
            "size": plan.size(name),
            "taken": taken[name],
            "left": 0.0 if (used := taken[name]) is None else max(0.0, plan.size(name) - used),
        }
        for name, share in plan.by_name.items()
    ]
