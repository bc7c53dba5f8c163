"""The transcript of a responder: every answer in an authenticated chain, in the same transaction as its cost."""

import hmac
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_pac._validation import Natural, NonNegative, checks_itself, validated
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger.account import LedgerAccount
from lightning_pac.ledger.files import HighWaterMark, write_home
from lightning_pac.ledger.ledger import PrivacyLedger
from lightning_pac.ledger.recovery import adopt_ledger as adopt_ledger  # its place in version 0.1.0

__all__ = [
    "Entry",
    "Payment",
    "ResponseTranscript",
    "Snapshot",
    "answers_for",
    "read_entries",
    "read_state",
]


@dataclass(frozen=True)
class Entry:
    """The answers of one transaction.

    Attributes:
        sequence: 1 for the first entry.
        num_answers: Answers in it.
        cost: Their cost, summed.
        payload: What is needed to replay them.
    """

    sequence: int
    num_answers: int
    cost: float
    payload: bytes


@dataclass(frozen=True)
class Snapshot:
    """The state after entry `sequence`, so that a replay need not start at the first one.

    Attributes:
        sequence: Entries that went into it.
        num_answers: Answers in them.
        spent: Their cost, summed.
        state: The responder's state (its log-belief).
    """

    sequence: int
    num_answers: int
    spent: float
    state: bytes


@dataclass(frozen=True)
class Payment:
    """Another account's payment for some of the answers of an entry.

    Attributes:
        account: An account of the same ledger in another currency, so that nothing counts twice.
        cost: Cost of its answers, summed.
        num_answers: How many they are.
    """

    account: LedgerAccount
    cost: float
    num_answers: int


@validated
class ResponseTranscript:
    """The entries of one account that answers for one secret, open for appending.

    Every entry carries `tag_k = HMAC(key, tag_{k-1}, entry_k)`. The key is in the secret file, so nobody without that
    file can write, change or reorder entries; the snapshot and what follows it are checked when the ledger is opened,
    and older entries when they are read. The high-water mark in the secret file tells a ledger that lost its last
    entries, and the place of the ledger tells a copy. Restoring the ledger and the secret file together, to the same
    earlier moment, leaves no trace that could be found: keep the secret file out of backups of the ledger.

    Args:
        ledger: An open ledger.
        account: The account that pays.
        key: From the secret file.
        secret_path: The secret file.
        index: The secret, which the ledger is bound to: with a digit changed it is another, and refused. A ledger of an
            earlier version is bound to the index that it meets first.

    Raises:
        LedgerError: If the ledger is a copy, was rolled back or changed by another hand, or the secret is in use.
        LedgerMismatchError: If the secret answers through another account or ledger.
    """

    def __init__(
        self, ledger: PrivacyLedger, account: LedgerAccount, key: bytes, secret_path: Path, index: int
    ) -> None:
        self._ledger = ledger
        self._account = account
        self._key = key
        self._index = index
        self._in_doubt = False
        self._mark = HighWaterMark(secret_path, ledger.ledger_id)
        try:
            self._sequence, self._tag = self._read_end()
            self._check_mark(secret_path)
            self._enrol()
            self.snapshot = self._read_snapshot()
            self._check_totals()
            if self._sequence > self._mark.value:
                self._mark.advance(self._sequence)
        except BaseException:
            self._mark.close()
            raise

    @property
    def account(self) -> LedgerAccount:
        """The account that pays."""
        return self._account

    @property
    def sequence(self) -> int:
        """Number of entries."""
        return self._sequence

    @checks_itself
    def append(
        self,
        payload: bytes,
        num_answers: Natural,
        cost: NonNegative,
        state: bytes | None = None,
        requests: Sequence[str | None] = (),
        payments: Sequence[Payment] = (),
    ) -> None:
        """Charges and records answers, durably before it returns.

        Args:
            payload: What is needed to replay them.
            num_answers: How many they are.
            cost: Their cost, summed.
            state: The state after them, to be kept as the snapshot; None keeps the one before.
            requests: Names under which `find` finds the answers again, in order; None for an answer without one.
            payments: What other accounts of this ledger pay in the same transaction, in currencies of their own.

        Raises:
            BudgetExceededError: If the cost or a payment would exceed a budget; nothing is recorded.
            ValueError: If a request was answered before, or an account that pays is of another ledger or of the same
                currency; nothing is recorded.
            LedgerError: If it cannot be written. Whether it was recorded, `sequence` says.
        """
        if self._mark.closed:
            raise LedgerError(f"The responder of account {self._account.name!r} is closed: open it again.")
        if self._in_doubt:
            raise LedgerError(f"{self._ledger.path} failed while it was written: open it again.")
        named = [request for request in requests if request is not None]
        if len(set(named)) < len(named) or any(self.find(request) for request in named):
            raise ValueError("A request is answered once: look up the recorded answer instead of asking again.")
        for payment in payments:
            self._check_payer(payment.account)
        sequence = self._sequence + 1
        tag = self._entry_tag(self._tag, Entry(sequence, num_answers, cost, payload))
        storage = self._ledger.storage
        try:
            with storage.transaction() as connection:
                connection.execute(
                    "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                    (self._account.id, sequence, num_answers, cost, payload, tag),
                )
                spent = self._account.add(connection, cost, num_answers)
                for payment in payments:
                    payment.account.add(connection, payment.cost, payment.num_answers, is_payment=True)
                if state is not None:
                    snapshot = Snapshot(sequence, self._account.num_charges, spent, state)
                    connection.execute(
                        "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?)",
                        (self._account.id, *_fields(snapshot), tag, self._snapshot_tag(snapshot, tag)),
                    )
                connection.executemany(
                    "INSERT INTO requests VALUES (?, ?, ?, ?)",
                    [
                        (self._account.id, request, sequence, position)
                        for position, request in enumerate(requests)
                        if request is not None
                    ],
                )
        finally:
            # An interrupt may have come after the commit. An end that is neither the one before nor this entry is of
            # another writer, whose answer the state of this one does not know.
            self._in_doubt = True
            end = self._read_end()
            if end in ((self._sequence, self._tag), (sequence, tag)):
                self._sequence, self._tag = end
                self._in_doubt = False
        self._mark.advance(sequence)

    def entries(self, after: Natural = 0) -> Iterator[Entry]:
        """Entries `after + 1`, ..., each checked against the chain.

        Raises:
            LedgerError: If an entry was changed, or one is missing.
        """
        tag = self._tag_at(after)
        sequence = after
        for entry, stored_tag in _read_entries(self._ledger, self._account, after):
            sequence += 1
            tag = self._entry_tag(tag, entry)
            if entry.sequence != sequence or not hmac.compare_digest(tag, stored_tag):
                raise self._altered(f"entry {sequence}")
            yield entry
        if sequence < self._sequence:
            raise self._altered(f"entry {sequence + 1}")

    def find(self, request: str) -> tuple[Entry, int] | None:
        """The entry that holds the answer to a request, and its position there; None if it was never answered."""
        rows = self._ledger.storage.read(
            "SELECT sequence, position FROM requests WHERE account = ? AND request = ?", (self._account.id, request)
        )
        if not rows:
            return None
        sequence, position = rows[0]
        return next(self.entries(after=sequence - 1)), int(position)

    def close(self) -> None:
        """Lets another responder use the secret. The ledger stays open."""
        self._mark.close()

    def _check_payer(self, payer: LedgerAccount) -> None:
        if not payer.is_in(self._ledger.storage):
            raise ValueError(f"Account {payer.name!r} is not an account of {self._ledger.path}: open it there.")
        if payer.currency == self._account.currency:
            raise ValueError(
                f"Account {payer.name!r} would count {payer.currency} a second time: give it a currency of its own."
            )

    def _enrol(self) -> None:
        storage = self._ledger.storage
        secret, unbound = bind_secret(self._key, self._index), _hmac(self._key, b"secret").hex()
        rows = storage.read(
            "SELECT account, secret FROM transcripts WHERE account = ? OR secret IN (?, ?)",
            (self._account.id, secret, unbound),
        )
        if not rows:
            with storage.transaction() as connection:
                connection.execute(
                    "INSERT INTO transcripts VALUES (?, ?, ?)",
                    (self._account.id, secret, write_home(self._ledger.path)),
                )
            return
        account, enrolled = rows[0]
        if account != self._account.id:
            raise LedgerMismatchError(
                f"This secret already answers through another account of {self._ledger.path}: use that account, since "
                "two would each believe that nothing else was released."
            )
        if enrolled == unbound:
            with storage.transaction() as connection:
                connection.execute("UPDATE transcripts SET secret = ? WHERE account = ?", (secret, account))
        elif enrolled != secret:
            raise LedgerMismatchError(
                f"Account {self._account.name!r} of {self._ledger.path} holds the answers of another secret: open "
                "it with the secret file it was made with."
            )

    def _read_snapshot(self) -> Snapshot | None:
        rows = self._ledger.storage.read(
            "SELECT sequence, num_answers, spent, state, chain, tag FROM snapshots WHERE account = ?",
            (self._account.id,),
        )
        if not rows:
            return None
        snapshot = Snapshot(*rows[0][:4])
        chain, tag = rows[0][4:]
        if chain != self._tag_at(snapshot.sequence) or not hmac.compare_digest(
            tag, self._snapshot_tag(snapshot, chain)
        ):
            raise self._altered("its snapshot")
        return snapshot

    def _read_end(self) -> tuple[int, bytes]:
        rows = self._ledger.storage.read(
            "SELECT sequence, tag FROM entries WHERE account = ? ORDER BY sequence DESC LIMIT 1", (self._account.id,)
        )
        return rows[0] if rows else (0, self._tag_at(0))

    def _check_mark(self, secret_path: Path) -> None:
        if self._sequence < self._mark.value:
            raise LedgerError(
                f"{self._ledger.path} was rolled back: it has {self._sequence} entries and {secret_path} knows of "
                f"{self._mark.value}; restore the newest ledger, since answers that are missing here are known outside."
            )

    def _check_totals(self) -> None:
        start = self.snapshot or Snapshot(0, 0, 0.0, b"")
        num_answers, spent = self._ledger.storage.read(
            "SELECT TOTAL(num_answers), TOTAL(cost) FROM entries WHERE account = ? AND sequence > ?",
            (self._account.id, start.sequence),
        )[0]
        same_spent = math.isclose(start.spent + spent, self._account.spent, rel_tol=1e-9, abs_tol=1e-300)
        if start.num_answers + num_answers != self._account.num_charges or not same_spent:
            raise self._altered("the total")

    def _tag_at(self, sequence: int) -> bytes:
        if sequence == 0:
            return self._hmac(b"start", self._ledger.ledger_id.encode(), struct.pack("<q", self._account.id))
        rows = self._ledger.storage.read(
            "SELECT tag FROM entries WHERE account = ? AND sequence = ?", (self._account.id, sequence)
        )
        if not rows:
            raise self._altered(f"entry {sequence}")
        return bytes(rows[0][0])

    def _entry_tag(self, previous: bytes, entry: Entry) -> bytes:
        return self._hmac(
            b"entry", previous, struct.pack("<qqd", entry.sequence, entry.num_answers, entry.cost), entry.payload
        )

    def _snapshot_tag(self, snapshot: Snapshot, chain: bytes) -> bytes:
        fields = struct.pack("<qqd", snapshot.sequence, snapshot.num_answers, snapshot.spent)
        return self._hmac(b"snapshot", chain, fields, snapshot.state)

    def _hmac(self, purpose: bytes, *parts: bytes) -> bytes:
        return _hmac(self._key, purpose, *parts)

    def _altered(self, what: str) -> LedgerError:
        return LedgerError(
            f"{self._ledger.path} was changed by another hand ({what} of account {self._account.name!r} fails its "
            "check): restore the newest ledger from before that."
        )


@validated
def read_entries(ledger: PrivacyLedger, account: LedgerAccount) -> Iterator[Entry]:
    """All entries as they stand, for a reader without the secret file, who cannot check the chain."""
    return (entry for entry, _ in _read_entries(ledger, account, 0))


@validated
def read_state(ledger: PrivacyLedger, account: LedgerAccount) -> bytes | None:
    """The last state on record as it stands, for a reader who does not check the chain; None where there is none."""
    rows = ledger.storage.read("SELECT state FROM snapshots WHERE account = ?", (account.id,))
    return bytes(rows[0][0]) if rows else None


@validated
def answers_for(ledger: PrivacyLedger, account: LedgerAccount, key: bytes, index: int) -> bool:
    """Whether the entries of an account are about the secret with this key and index."""
    rows = ledger.storage.read("SELECT secret FROM transcripts WHERE account = ?", (account.id,))
    # Ledgers of earlier versions are bound to the key alone until they are opened for writing.
    return bool(rows) and rows[0][0] in (bind_secret(key, index), _hmac(key, b"secret").hex())


def bind_secret(key: bytes, index: int) -> str:
    """The name of a secret in its ledger: a code over its index under its key."""
    return _hmac(key, b"secret index", str(index).encode()).hex()


def _read_entries(ledger: PrivacyLedger, account: LedgerAccount, after: int) -> Iterator[tuple[Entry, bytes]]:
    # In pages, so that a writer is not kept waiting and memory is bounded.
    while True:
        rows = ledger.storage.read(
            "SELECT sequence, num_answers, cost, payload, tag FROM entries "
            "WHERE account = ? AND sequence > ? ORDER BY sequence LIMIT 1000",
            (account.id, after),
        )
        if not rows:
            return
        for row in rows:
            yield Entry(*row[:4]), row[4]
        after = rows[-1][0]


def _hmac(key: bytes, purpose: bytes, *parts: bytes) -> bytes:
    # Every part but the last has a fixed length, given its purpose.
    return hmac.digest(key, b"lightning-pac " + purpose + b"\0" + b"".join(parts), "sha256")


def _fields(snapshot: Snapshot) -> tuple[int, int, float, bytes]:
    return snapshot.sequence, snapshot.num_answers, snapshot.spent, snapshot.state
