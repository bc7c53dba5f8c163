"""The files of a ledger: their place and owner, the lock of their one writer, and the marks beside them."""

from lightning_pac.ledger.files.file_system import (
    FileSet,
    check_kind,
    check_place,
    create_private,
    find_move,
    is_full,
    is_on_network,
    make_private,
    prepare_place,
    write_home,
)
from lightning_pac.ledger.files.high_water_mark import HighWaterMark
from lightning_pac.ledger.files.marks import AccountMarks, Facts, Mark, digest_budgets, mark_path
from lightning_pac.ledger.files.stand_ins import place_of, use_stand_ins
from lightning_pac.ledger.files.writer_lock import WriterLock

__all__ = [
    "AccountMarks",
    "Facts",
    "FileSet",
    "HighWaterMark",
    "Mark",
    "WriterLock",
    "check_kind",
    "check_place",
    "create_private",
    "digest_budgets",
    "find_move",
    "is_full",
    "is_on_network",
    "make_private",
    "mark_path",
    "place_of",
    "prepare_place",
    "use_stand_ins",
    "write_home",
]
