"""The tables of a ledger, format 2."""

import sqlite3

__all__ = ["APPLICATION_ID", "OLDEST_VERSION", "SCHEMA_VERSION", "SET_BUDGET", "create_schema", "is_empty"]

APPLICATION_ID = 0x50414331  # "PAC1", where `file` and SQLite look for it
SCHEMA_VERSION = 2
OLDEST_VERSION = 1

# A budget that is set after the first charge, or another budget, must look so, also where the clock was put back or has
# not moved.
SET_BUDGET = """INSERT INTO budgets (currency, amount, time) SELECT ?, ?, MAX(
    strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), COALESCE(strftime('%Y-%m-%dT%H:%M:%fZ', MIN(time), '+0.001 seconds'), ''),
    COALESCE((SELECT MAX(time) FROM budgets WHERE account IS NULL), '')
) FROM (SELECT time FROM charges UNION ALL SELECT time FROM attempts)"""
"""Sets the total of a currency."""

_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # Amounts are only ever added, so that a raised budget stays visible; the latest one holds.
    """CREATE TABLE budgets (
        id INTEGER PRIMARY KEY, currency TEXT, account INTEGER REFERENCES accounts (id), amount REAL NOT NULL,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))""",
    """CREATE TABLE accounts (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, currency TEXT NOT NULL, declaration TEXT NOT NULL,
        spent REAL NOT NULL DEFAULT 0.0, num_charges INTEGER NOT NULL DEFAULT 0,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
        kind TEXT NOT NULL DEFAULT 'charges', table_hash TEXT, paid REAL NOT NULL DEFAULT 0.0,
        num_paid INTEGER NOT NULL DEFAULT 0, last_charge TEXT)""",
    """CREATE TABLE charges (
        id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id), cost REAL NOT NULL, event TEXT,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))""",
    "CREATE INDEX charges_of_account ON charges (account)",
    """CREATE TABLE attempts (
        id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id), first_step INTEGER NOT NULL,
        num_steps INTEGER NOT NULL, cost REAL NOT NULL,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))""",
    "CREATE INDEX attempts_of_account ON attempts (account)",
    """CREATE TABLE transcripts (
        account INTEGER PRIMARY KEY REFERENCES accounts (id), secret TEXT NOT NULL UNIQUE, home TEXT NOT NULL)""",
    """CREATE TABLE entries (
        account INTEGER NOT NULL REFERENCES accounts (id), sequence INTEGER NOT NULL, num_answers INTEGER NOT NULL,
        cost REAL NOT NULL, payload BLOB NOT NULL, tag BLOB NOT NULL,
        PRIMARY KEY (account, sequence)) WITHOUT ROWID""",
    """CREATE TABLE snapshots (
        account INTEGER PRIMARY KEY REFERENCES accounts (id), sequence INTEGER NOT NULL, num_answers INTEGER NOT NULL,
        spent REAL NOT NULL, state BLOB NOT NULL, chain BLOB NOT NULL, tag BLOB NOT NULL)""",
    """CREATE TABLE requests (
        account INTEGER NOT NULL REFERENCES accounts (id), request TEXT NOT NULL, sequence INTEGER NOT NULL,
        position INTEGER NOT NULL, PRIMARY KEY (account, request)) WITHOUT ROWID""",
)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether the file has no tables yet."""
    return not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()


def create_schema(connection: sqlite3.Connection, ledger_id: str, home: str) -> None:
    """Make the tables of a new ledger, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES ('ledger_id', ?), ('home', ?)", (ledger_id, home))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
