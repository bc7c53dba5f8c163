"""Copies of a ledger, and how to go on with one."""

import contextlib
import os
import shlex
import sqlite3
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from lightning_pac._durable_files import flush_folder, real_path
from lightning_pac._validation import NonNegative, validated
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger.account import LedgerAccount
from lightning_pac.ledger.currencies import KEY_CURRENCY
from lightning_pac.ledger.files import AccountMarks, check_kind, mark_path, use_stand_ins
from lightning_pac.ledger.ledger import PrivacyLedger
from lightning_pac.ledger.plan import lost_budgets, note_lost_budgets

__all__ = ["adopt_ledger", "backup_ledger", "copies_of_ledgers", "restore_ledger"]

_SUFFIXES = ("", "-wal", "-shm")


@validated
def backup_ledger(path: str | Path, target: str | Path) -> Path:
    """Copies a ledger, also while another process writes it, to one file that holds everything up to this moment.

    Args:
        path: The ledger.
        target: The copy, which must not exist; it is readable by its owner only. To go on with it is `restore_ledger`.

    Returns:
        The copy, resolved.

    Raises:
        LedgerError: If there is no sound ledger, or the copy exists or cannot be written.
    """
    copy = real_path(target)
    with PrivacyLedger.read_only(path) as ledger:
        if copy.exists():
            raise LedgerError(f"{copy} exists, and a backup overwrites nothing: name another file.")
        try:
            descriptor, aside = tempfile.mkstemp(prefix=f".{copy.name}.", suffix=".partial", dir=copy.parent)
            os.close(descriptor)
            try:
                with closing(sqlite3.connect(aside)) as connection:
                    ledger.storage.copy_to(connection)
                    connection.execute("PRAGMA journal_mode = DELETE")
                descriptor = os.open(aside, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
                os.rename(aside, copy)
            finally:
                Path(aside).unlink(missing_ok=True)
            flush_folder(copy.parent)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", error)
            raise LedgerError(
                f"{copy} cannot be written ({reason}): choose a writable folder with room for a copy of {ledger.path}."
            ) from error
    return copy


@validated
def adopt_ledger(ledger: PrivacyLedger, witness: str | Path | None = None) -> tuple[str, ...]:
    """Accepts a ledger that was copied or moved in its new place.

    Only one of the copies may go on. A secret file lets the one that is ahead answer and refuses any other; for other
    accounts only the user can know.

    Args:
        ledger: The ledger in its new place, opened for writing.
        witness: A file elsewhere that keeps its marks from now on (see `PrivacyLedger`).

    Returns:
        Names of the accounts that hold answers.

    Raises:
        LedgerError: If the ledger is behind its marks, or came without them and holds charges that no secret file knows
            of: then see `restore_ledger`. Or if the witness knows better than the ledger, or cannot be written.
    """
    accounts = ledger.accounts()
    with_secret = tuple(account for account in accounts if ledger.storage.has_transcript(account.id))
    found = ledger.storage.behind()
    if found is not None:
        raise found
    if not ledger.storage.marks.exists and any(
        account.num_charges for account in accounts if account not in with_secret and account.kind != "api_key"
    ):
        raise LedgerError(
            f"{ledger.storage.marks.path} is missing, without which nobody can tell how far {ledger.path} had come: "
            "copy it, too, while no process writes the ledger, or book what may be missing with `lightning-pac account "
            f"restore {shlex.quote(str(ledger.path))}`."
        )
    if witness is not None:
        ledger.storage.check_witness(real_path(witness))
    with ledger.storage.mending():
        pass  # nothing is missing
    if witness is not None:
        ledger.storage.keep_marks_at(real_path(witness))
    return tuple(account.name for account in with_secret)


@validated
def restore_ledger(
    path: str | Path,
    amounts: Mapping[str, NonNegative],
    backup: str | Path | None = None,
    otherwise: NonNegative | None = None,
) -> dict[str, float]:
    """Goes on with a ledger of which a part is lost, and books what it cannot know as unknown.

    What an account is known to have spent by its mark and lacks in the ledger is the least that may be booked. A
    responder whose answers are lost stays refused by its secret file, since its belief is lost with them.

    Args:
        path: The ledger.
        amounts: What each account may have spent since the ledger was whole, by its name.
        backup: A copy to put in the ledger's place; what is there is kept under another name. None takes what is there.
        otherwise: The amount for accounts that `amounts` does not name; None refuses if there are any.

    Returns:
        What was booked to each account.

    Raises:
        LedgerError: If an account has no amount, or less than is known to be missing.
        ValueError: If an amount is negative or not finite, or of no account.
    """
    place = real_path(path)
    lost = 0
    if backup is not None:
        with contextlib.suppress(LedgerError), PrivacyLedger.read_only(place) as before:
            lost = lost_budgets(before)  # by an earlier restore, of which the backup does not know either
        _put_in_place(place, real_path(backup))
    elif not place.exists() and not mark_path(place).exists():
        raise LedgerError(f"There is no ledger at {place}: check the path, or name a backup to put there.")
    with PrivacyLedger(place) as ledger:
        storage = ledger.storage
        found = {account.name: account for account in ledger.accounts()}
        stored = dict(storage.read("SELECT name, spent FROM accounts"))  # by a ledger that is refused as it is
        known = {mark.name: mark for mark in storage.marks.accounts.values()}
        if unknown := sorted(set(amounts) - set(found) - set(known)):
            raise ValueError(f"{place} has no account {unknown[0]!r}: it has {', '.join(sorted({*found, *known}))}.")
        booked = {}
        for name in sorted({*found, *known}):
            least = max(0.0, known[name].spent - stored.get(name, 0.0)) if name in known else 0.0
            if name not in amounts and otherwise is None:
                raise LedgerError(
                    f"What account {name!r} of {place} may have spent and does not know is for you to say: at least "
                    f"{least!r} is known to be missing; give it as --amount {shlex.quote(f'{name}={least!r}')} or more."
                )
            amount = float(amounts.get(name, otherwise or 0.0))
            if amount < least * (1 - 1e-9):
                raise LedgerError(
                    f"{amount!r} was given for account {name!r} of {place}, of whose charges {least!r} are known to be "
                    "missing: give at least that."
                )
            booked[name] = amount
        missing = {name: mark.currency for name, mark in known.items() if name not in found}
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        lost += max(0, storage.marks.num_budgets - len(ledger.budget_changes()))
        with storage.mending():
            if lost > 0:
                note_lost_budgets(ledger, lost)
            for name, amount in booked.items():
                account = found.get(name) or _reopen(ledger, name, missing[name])
                if amount > 0:
                    account.book(amount, {"unknown": "lost with a part of the ledger", "restored": time})
    if lost > 0:
        warnings.warn(
            f"Budgets of {place} that were set after the backup are not in it: those of before are in force again, and "
            "no promise or total is stated by what they say.",
            stacklevel=2,
        )
    return booked


def _reopen(ledger: PrivacyLedger, name: str, currency: str) -> LedgerAccount:
    """An account that the ledger has lost: its name and currency are known, and its declaration is that of its kin."""
    if currency == KEY_CURRENCY:
        return ledger.account(name, currency, {"api_key": name.removeprefix("key ")}, kind="api_key")
    kin = [account for account in ledger.accounts() if account.currency == currency]
    coupling = kin[0].declaration.get("coupling") if kin else None
    return ledger.account(name, currency, None if coupling is None else {"coupling": coupling})


def _put_in_place(place: Path, backup: Path) -> None:
    with PrivacyLedger.read_only(backup) as copy:
        ledger_id = copy.ledger_id
    check_kind(place)
    if backup == place:
        raise LedgerError(f"{backup} cannot be put in its own place: leave the backup out to go on with what is there.")
    known = ""
    with contextlib.suppress(LedgerError):  # marks that are damaged or gone tell nothing
        known = AccountMarks(place).ledger_id
    if known not in ("", ledger_id):
        raise LedgerMismatchError(
            f"{backup} is of another ledger ({ledger_id[:8]}) than {place} ({known[:8]}): name a backup of this one."
        )
    stamp, number = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ"), 1
    while any(_aside(place, stamp, suffix).exists() for suffix in _SUFFIXES):
        number += 1  # an earlier restore in the same second
        stamp = f"{stamp.partition('-')[0]}-{number}"
    for suffix in _SUFFIXES:
        file = place.with_name(place.name + suffix)
        if file.exists():
            file.rename(_aside(place, stamp, suffix))
    backup_ledger(backup, place)


def _aside(place: Path, stamp: str, suffix: str) -> Path:
    return place.with_name(f"{place.name}.before-{stamp}{suffix}")


@validated
def copies_of_ledgers(folder: Path) -> contextlib.AbstractContextManager[dict[Path, Path]]:
    """Let a copy in a folder stand for every ledger that this process opens, as in a dry run.

    Args:
        folder: Where copies are made.

    Returns:
        A context whose value holds the copies by the ledgers' paths.
    """
    return use_stand_ins(folder, _copy)


def _copy(ledger: Path, copy: Path) -> None:
    copy.touch(mode=0o600)
    with (
        contextlib.closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    restore_ledger(copy, {}, otherwise=0.0)  # a copy is refused until somebody says that it may go on
