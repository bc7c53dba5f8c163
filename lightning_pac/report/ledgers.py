"""What everything tells together that the ledgers of runs list, where their files are still there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_pac.accountants import LedgerTotal, ledger_total
from lightning_pac.cards import at_most
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.report.runs import Run

__all__ = ["FoundLedger", "account_of", "find_ledgers", "lists_figures", "together"]

_FOLDERS_ABOVE = 3  # of a run: its logger's two, and the one where training was started
_MOST_NAMED = 6


@dataclass(frozen=True)
class FoundLedger:
    """A ledger that lists runs of a report.

    Attributes:
        name: Its file, with the folder where others have the same name.
        path: Where it is.
        accounts: Names of the accounts that were charged, with how often.
        total: What everything in it tells together.
    """

    name: str
    path: Path
    accounts: Mapping[str, int]
    total: LedgerTotal


def find_ledgers(runs: Sequence[Run]) -> list[FoundLedger]:
    """The ledgers that list the runs, as they are now; those that are not found or cannot be read are left out.

    A card names the run's account, whose name was drawn at random, so a ledger that has it is the run's: `*.db` in the
    working folder, beside the run or above it, or the file that the card names as `ledger_file`. They are opened for
    reading only.

    Args:
        runs: The runs of a report.
    """
    priors = {account: run.card.details.get("prior", 0.5) for run in runs if run.card and (account := account_of(run))}
    found: dict[str, FoundLedger] = {}
    for path in _candidates([run for run in runs if account_of(run) in priors]):
        with suppress(Exception):  # whatever is wrong with a ledger, the report of its runs is written
            ledger_id, ledger = _read(path, priors)
            # A copy has the same identifier, and may have been left behind.
            best = found.get(ledger_id)
            if best is None or _length(ledger) > _length(best):
                found[ledger_id] = ledger
    names = [ledger.path.name for ledger in found.values()]
    return [
        FoundLedger(
            name if names.count(name) == 1 else f"{ledger.path.parent.name}/{name}",
            ledger.path,
            ledger.accounts,
            ledger.total,
        )
        for name, ledger in zip(names, found.values(), strict=True)
    ]


def account_of(run: Run) -> str | None:
    """The run's account in its ledger, by its card."""
    account = run.card.details.get("ledger") if run.card else None
    return account if isinstance(account, str) else None


def lists_figures(run: Run, ledgers: Sequence[FoundLedger]) -> bool:
    """Whether the noised metrics of a run are charged to its own ledger, or to one of all, where no card names its own.

    Args:
        run: The run.
        ledgers: What `find_ledgers` found.
    """
    own = [ledger for ledger in ledgers if account_of(run) in (None, *ledger.accounts)]
    return any(set(run.with_noise) <= _metrics(ledger) for ledger in own)


def together(ledgers: Sequence[FoundLedger], runs: Sequence[Run]) -> list[str]:
    """How often the secret can be guessed from everything in a ledger, a sentence for all ledgers with the same words.

    Args:
        ledgers: What `find_ledgers` found.
        runs: The runs of the report.
    """
    alike: dict[tuple[str | None, bool], list[str]] = {}
    for ledger in ledgers:
        # Those of a run without a card may be charged anywhere, and the words would be about them, too.
        noised = [run for run in runs if run.with_noise and account_of(run) in (None, *ledger.accounts)]
        included = bool(noised) and all(lists_figures(run, [ledger]) for run in noised)
        limit = None if ledger.total.basis == "none" else at_most(ledger.total.world_success_bound)
        alike.setdefault((limit, included), []).append(ledger.name)
    sentences = []
    for (limit, included), names in alike.items():
        which = f"ledger {names[0]}" if len(names) == 1 else f"one of the ledgers {_listed(names)}"
        figures = ", the figures below included" if included else ""
        if limit is None:
            sentences.append(f"No limit is known for everything together that {which} lists{figures}.")
            continue
        words = limit.replace(" ", "\N{NO-BREAK SPACE}")
        sentences.append(
            f"Someone who sees everything that {which} lists{figures}{',' if figures else ''} can guess the secret "
            f"correctly at most {words} of the time."
        )
    return sentences + ["None of these limits is for several ledgers together."] * (len(ledgers) > 1)


def _candidates(runs: Sequence[Run]) -> list[Path]:
    """Files that may be the runs' ledgers, as they begin: the others are not opened as a database."""
    folders = [run.folder.resolve() for run in runs if run.folder is not None]
    above = [place for folder in folders for place in (folder, *folder.parents[:_FOLDERS_ABOVE])]
    named = [run.card.details.get("ledger_file") for run in runs if run.card is not None]
    stated = {name for name in named if isinstance(name, str)}
    files = [
        path
        for place in dict.fromkeys([Path.cwd(), *above])
        for path in [*(place / name for name in sorted(stated)), *sorted(place.glob("*.db"))]
    ]
    return list(dict.fromkeys(path.resolve() for path in files if _is_ledger(path)))


def _is_ledger(path: Path) -> bool:
    head = b""
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(72)
    # Of a run that was killed early, the mark that the ledger puts there may still be in the log beside the file.
    return head.startswith(b"SQLite format 3\0") and (
        head[68:] == b"PAC1" or path.with_name(f"{path.name}-mark").exists()
    )


def _read(path: Path, priors: Mapping[str, Any]) -> tuple[str, FoundLedger]:
    """Identifier and content of a ledger.

    Raises:
        LookupError: It lists none of the accounts that priors are known of, or nothing else, which its card says.
    """
    with PrivacyLedger.read_only(path) as ledger:
        accounts = {account.name: account.num_charges for account in ledger.accounts() if account.num_charges}
        own = priors.keys() & accounts.keys()
        if not own or len(accounts) == 1:
            raise LookupError(f"{path} has nothing to say beyond the cards.")
        totals = [ledger_total(ledger, prior=prior) for prior in {priors[name] for name in own}]
        total = max(totals, key=lambda total: total.world_success_bound)
        return ledger.ledger_id, FoundLedger(path.name, path, accounts, total)


def _length(ledger: FoundLedger) -> int:
    return sum(ledger.accounts.values())


def _metrics(ledger: FoundLedger) -> set[str]:
    """Names of the noised metrics that a ledger lists; accounts of other terms are numbered."""
    named = [re.sub(r" \(\d+\)$", "", account) for account in ledger.accounts]
    return {name for account in named if account.startswith("metrics ") for name in account[8:].split(", ")}


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"
