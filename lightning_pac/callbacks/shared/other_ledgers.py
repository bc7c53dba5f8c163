"""Telling where what was released adds up, and of ledgers whose costs add to that."""

from pathlib import Path

__all__ = ["on_record", "words_on_other_ledgers"]

_NAMED = 3  # ledgers


def on_record(ledger: Path, account: str = "") -> str:
    """Where a release is on record, beside which others may be.

    Args:
        ledger: That it was charged to.
        account: That of the release, where it is to be named.
    """
    named = f" as {account!r}" if account else ""
    return f"On record in {ledger}{named}; `lightning-pac account total {ledger}` adds up all that is in it."


def words_on_other_ledgers(ledger: Path, is_named: bool) -> str:
    """That costs add over runs of the same data, where others near this one have ledgers of their own; empty if none.

    Args:
        ledger: Of the run.
        is_named: Whether the run was given it, and has not begun one beside its logs.
    """
    if is_named:
        marked = {path.name.removesuffix("-mark") for path in ledger.parent.glob("*-mark")}  # as ledgers are
        others = sorted(marked - {ledger.name})
        named = ", ".join(others[:_NAMED]) + ", ..." * (len(others) > _NAMED)
        return f" Beside it: {named}. Costs of ledgers add up where a record is in the data of both." if others else ""
    folders = ledger.parent.parent.glob("version_*") if ledger.parent.name.startswith("version_") else [ledger.parent]
    number = sum(len(list(folder.glob("privacy_ledger*.db"))) for folder in folders) - 1
    if number < 1:
        return ""
    runs = (
        "1 other run here has a ledger of its" if number == 1 else f"{number:,} other runs here have ledgers of their"
    )
    return f" {runs} own: on the same data all of them cost together, which one ledger= for all would add up."
