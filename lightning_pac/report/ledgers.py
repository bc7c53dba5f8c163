"""What everything tells together that the ledgers of runs list, where their files are still there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_pac.accountants import LedgerTotal, ledger_total
from lightning_pac.cards import at_most, upwards
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.report.runs import Run

__all__ = [
    "FoundLedger",
    "account_of",
    "beside_runs",
    "figure_ledgers",
    "find_ledgers",
    "lists_figures",
    "quoted",
    "together",
]

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
        worlds: The scenarios of these accounts, as they declare them.
    """

    name: str
    path: Path
    accounts: Mapping[str, int]
    total: LedgerTotal
    worlds: tuple[Mapping[str, Any], ...] = ()

    @property
    def limit(self) -> str | None:
        """How often a guess from everything in it is right, and epsilon; None where no bound is known."""
        if self.total.basis == "none":
            return None
        epsilon = f"epsilon {upwards(self.total.epsilon_at_delta, 4)} at delta {self.total.delta:g}"
        bound = at_most(self.total.world_success_bound).replace(" ", "\N{NO-BREAK SPACE}")
        budget = ", its whole budget, also where some of it is left" if self.total.basis == "cap" else ""
        return f"{bound} of the time ({epsilon}{budget})"


def find_ledgers(runs: Sequence[Run], alone: bool = False) -> list[FoundLedger]:
    """The ledgers that list the runs, as they are now; those that are not found or cannot be read are left out.

    A card names the run's account, whose name was drawn at random, so a ledger that has it is the run's: `*.db` in the
    working folder, beside the run or above it, or the file that the card names as `ledger_file`. They are opened for
    reading only.

    Args:
        runs: The runs of a report.
        alone: Whether also those with one account alone, of which the card of the run says as much.
    """
    priors, fewest = _priors(runs), 1 if alone else 2
    return _distinct(
        _candidates(runs), priors, lambda accounts: bool(priors.keys() & accounts) and len(accounts) >= fewest
    )


def figure_ledgers(runs: Sequence[Run], ledgers: Sequence[FoundLedger]) -> list[FoundLedger]:
    """Ledgers beside those of the runs that list noised metrics alone, of names that no run's own ledger lists.

    They name no run, so whose figures they are is not known.

    Args:
        runs: The runs of a report.
        ledgers: What `find_ledgers` found.
    """
    names = {name for run in runs if not lists_figures(run, ledgers) for name in run.with_noise}
    own = find_ledgers(runs, alone=True) if names else []
    beside = [path for path in _candidates(runs) if path.parent in {ledger.path.parent for ledger in own}]
    return _distinct(beside, {}, lambda accounts: bool(_metrics(accounts) & names) and all(map(_metrics_of, accounts)))


def beside_runs(figures: Sequence[FoundLedger], runs: Sequence[Run]) -> list[str]:
    """What ledgers of noised figures tell by themselves, and when the larger limit holds for models and figures.

    Args:
        figures: What `figure_ledgers` found.
        runs: The runs of the report.
    """
    told = [
        f"Ledger {ledger.name} lists figures of such names: a guess from them alone is correct at most {ledger.limit}."
        for ledger in figures
        if ledger.limit is not None
    ]
    worlds = [run.card.details.get("scenario", {}) for run in runs if run.card is not None and run.card.guarantees]
    worlds += [world for ledger in figures for world in ledger.worlds]
    # Parallel composition: one record that is there or not is in the data of one of them, whatever the others are.
    one_record = all((world.get("adjacency"), world.get("num_differing")) == ("add_remove", 1) for world in worlds)
    if len(told) == len(figures) == 1 and one_record:
        told.append(
            "Where each record decides by itself whether it is trained on or held out, the larger of these limits "
            "holds for a model and its figures together; of persons, where each decides so and has one row in the "
            "figures."
        )
    return told


def _priors(runs: Sequence[Run]) -> dict[str, Any]:
    """What was likely beforehand, by the accounts of the runs."""
    return {account: run.card.details.get("prior", 0.5) for run in runs if run.card and (account := account_of(run))}


def _distinct(
    paths: Sequence[Path], priors: Mapping[str, Any], is_meant: Callable[[Set[str]], bool]
) -> list[FoundLedger]:
    """The ledgers among files whose accounts are meant, each once, by names that differ."""
    found: dict[str, FoundLedger] = {}
    for path in paths:
        with suppress(Exception):  # whatever is wrong with a ledger, the report of its runs is written
            ledger_id, ledger = _read(path, priors, is_meant)
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
            ledger.worlds,
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
    return any(set(run.with_noise) <= _metrics(ledger.accounts) for ledger in own)


def quoted(ledgers: Sequence[FoundLedger], runs: Sequence[Run]) -> FoundLedger | None:
    """The ledger whose limit stands for a whole report: the only one, which lists its noised figures and all its runs.

    Args:
        ledgers: What `find_ledgers` found.
        runs: The runs of the report.
    """
    cards = [run.card for run in runs if run.card is not None and run.card.guarantees]
    noised = [run for run in runs if run.with_noise]
    if len(ledgers) != 1 or not noised or len({card.secret for card in cards}) != 1:
        return None
    (ledger,) = ledgers
    is_whole = all(card.details.get("ledger") in ledger.accounts for card in cards)
    is_told = all(lists_figures(run, ledgers) for run in noised)
    return ledger if is_whole and is_told and ledger.limit is not None else None


def together(ledgers: Sequence[FoundLedger], runs: Sequence[Run]) -> list[str]:
    """How often the secret can be guessed from everything in a ledger, a sentence for all ledgers with the same words.

    Args:
        ledgers: What `find_ledgers` found.
        runs: The runs of the report.
    """
    several = len({run.card.secret for run in runs if run.card and run.card.guarantees}) > 1
    alike: dict[tuple[str | None, bool, str], list[str]] = {}
    for ledger in ledgers:
        # Those of a run without a card may be charged anywhere, and the words would be about them, too.
        noised = [run for run in runs if run.with_noise and account_of(run) in (None, *ledger.accounts)]
        included = bool(noised) and all(lists_figures(run, [ledger]) for run in noised)
        secret = _secret(ledger, runs) if several else "the secret"
        alike.setdefault((ledger.limit, included, secret), []).append(ledger.name)
    sentences = []
    for (limit, included, secret), names in alike.items():
        which = f"ledger {names[0]}" if len(names) == 1 else f"one of the ledgers {_listed(names)}"
        figures = ", the noised figures below included" if included else ""
        if limit is None:
            sentences.append(f"No limit is known for everything together that {which} lists{figures}.")
            continue
        sentences.append(
            f"Someone who sees everything that {which} lists{figures}{',' if figures else ''} can guess {secret} "
            f"correctly at most {limit}."
        )
    return sentences + ["None of these limits is for several ledgers together."] * (len(ledgers) > 1)


def _secret(ledger: FoundLedger, runs: Sequence[Run]) -> str:
    """The secret of a ledger's runs, as they state it first."""
    cards = [run.card for run in runs if run.card is not None and account_of(run) in ledger.accounts]
    first = [card.secret.partition(". ")[0].removesuffix(".") for card in cards]
    clauses = [re.sub(r"^(Whether|Which|Who|What|How)\b", lambda found: found[0].lower(), words) for words in first]
    return f"the secret ({'; '.join(dict.fromkeys(clauses))})"


def _candidates(runs: Sequence[Run]) -> list[Path]:
    """Files that may be the runs' ledgers, as they begin: the others are not opened as a database."""
    folders = [run.folder.resolve() for run in runs if run.folder is not None and account_of(run) is not None]
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


def _read(path: Path, priors: Mapping[str, Any], is_meant: Callable[[Set[str]], bool]) -> tuple[str, FoundLedger]:
    """Identifier and content of a ledger.

    Raises:
        LookupError: Its accounts are not meant.
    """
    with PrivacyLedger.read_only(path) as ledger:
        accounts = {account.name: account.num_charges for account in ledger.accounts() if account.num_charges}
        if not is_meant(accounts.keys()):
            raise LookupError(f"{path} has nothing to say beyond the cards.")
        known = {priors[name] for name in priors.keys() & accounts.keys()} or {0.5}
        totals = [ledger_total(ledger, prior=prior) for prior in known]
        total = max(totals, key=lambda total: total.world_success_bound)
        declared = [account.declaration for account in ledger.accounts() if account.num_charges]
        worlds = tuple(terms.get("coupling", {}).get("scenario", {}) for terms in declared)
        return ledger.ledger_id, FoundLedger(path.name, path, accounts, total, worlds)


def _length(ledger: FoundLedger) -> int:
    return sum(ledger.accounts.values())


def _metrics(accounts: Iterable[str]) -> set[str]:
    """Names of the noised metrics that accounts are of."""
    return {name for account in accounts for name in _metrics_of(account)}


def _metrics_of(account: str) -> list[str]:
    """Those of one account; accounts of other terms are numbered."""
    kind, _, names = re.sub(r" \(\d+\)$", "", account).partition(" ")
    return names.split(", ") if kind == "metrics" else []


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"
