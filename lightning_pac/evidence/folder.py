"""Writing the folder that is handed over."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tempfile
import zipfile
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lightning_pac
from lightning_pac._durable_files import real_path, replace_file
from lightning_pac._validation import OpenProbability, validated
from lightning_pac.accountants import ledger_total
from lightning_pac.evidence.chain import digest, encode_chain
from lightning_pac.evidence.document import FORMAT, describe_evidence
from lightning_pac.evidence.page import render_page
from lightning_pac.evidence.plain_values import PlainValues
from lightning_pac.evidence.signature import read_private_key, sign
from lightning_pac.evidence.wording import RECORD, STATEMENTS
from lightning_pac.ledger import PrivacyLedger, backup_ledger, public_journal

__all__ = ["DOCUMENT", "FILES", "JOURNAL", "MANIFEST", "PAGE", "SCHEMA", "SIGNATURE", "package_hash", "write_evidence"]

PAGE, DOCUMENT, JOURNAL, SCHEMA = "evidence.html", "evidence.json", "journal.jsonl", "evidence.schema.json"
FILES = (PAGE, DOCUMENT, JOURNAL, SCHEMA)
MANIFEST, SIGNATURE = "manifest.json", "signature.json"

_VERSIONS = ("torch", "lightning", "numpy", "scipy", "opacus")


@validated
def write_evidence(
    ledger: PrivacyLedger | str | Path,
    output: str | Path,
    delta: OpenProbability | None = None,
    prior: OpenProbability = 0.5,
    statements: Mapping[str, str] | None = None,
    released: Sequence[str | Path] = (),
    key: str | Path | None = None,
) -> Path:
    """Write what a ledger proves into a folder of its own, for people, for programs, and to be verified.

    The folder holds a page, the same as JSON with its schema, the public journal of the ledger (see `public_journal`),
    of which both are computed, and a manifest of their hashes. No secret, key, answer or datum is in it.

    Args:
        ledger: The ledger, which a run may be writing.
        output: The folder, which must not exist.
        delta: Failure probability that epsilon goes with; left out, that of the ledger's plan or budget, or 1e-5.
        prior: Probability of one of two worlds before anything is released.
        statements: What only the keeper of the data can state, by `controller`, `purpose`, `intended_use`, `data`,
            `collection`, `evaluation` and `caveats`; nothing checks it.
        released: Files that were released, a checkpoint for one, of which name and hash are kept.
        key: A private Ed25519 key (PEM) that signs the manifest.

    Returns:
        The path of the page.

    Raises:
        FileExistsError: If the folder exists.
        LedgerError: If the ledger cannot be read, or a total is not that of its charges.
        OSError: If a file cannot be read or written.
        ValueError: If a statement has no such heading, the key is none, or a released checkpoint names a run that the
            ledger does not list.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with PrivacyLedger(folder / "study.db") as ledger:
        ...     spent = ledger.account("clusters").charge(0.25)
        >>> page = write_evidence(folder / "study.db", folder / "evidence")
        >>> sorted(path.name for path in page.parent.iterdir())
        ['evidence.html', 'evidence.json', 'evidence.schema.json', 'journal.jsonl', 'manifest.json']
    """
    stated = {name: _text(value) for name, value in (statements or {}).items()}
    if unknown := sorted(set(stated) - {*STATEMENTS, RECORD}):
        headings = ", ".join(STATEMENTS)
        raise ValueError(f"statements has {unknown[0]!r}, which is not a heading: use {headings} or {RECORD}.")
    signing = None if key is None else read_private_key(Path(key))
    folder = Path(output)
    if folder.exists():
        raise FileExistsError(f"{folder} is there already, and evidence is never overwritten: name a new folder.")
    source = ledger.path if isinstance(ledger, PrivacyLedger) else real_path(ledger)
    head: dict[str, Any] = {
        "entry": "evidence",
        "format": FORMAT,
        "ledger": _text(source.name),
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "delta": delta,
        "prior": prior,
        "lightning_pac": lightning_pac.__version__,
        "package_sha256": package_hash(),
        "versions": _versions(),
        "statements": stated,
    }
    with (
        tempfile.TemporaryDirectory() as aside,
        # A copy, so that what a writer adds meanwhile is in all of it or in none.
        PrivacyLedger.read_only(backup_ledger(source, Path(aside) / "ledger.db")) as copy,
    ):
        head["delta"] = ledger_total(copy, delta).delta
        accounts = {account.name for account in copy.accounts()}
        head["released"] = [_describe_file(Path(path), accounts, source) for path in released]
        journal = encode_chain([head, *public_journal(copy)])
    document, _ = describe_evidence(journal)
    texts = {
        PAGE: render_page(document),
        DOCUMENT: json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        JOURNAL: journal.decode(),
        SCHEMA: schema_text(),
    }
    manifest = {"format": FORMAT, "files": {name: digest(text.encode()) for name, text in texts.items()}}
    texts[MANIFEST] = json.dumps(manifest, indent=2) + "\n"
    if signing is not None:
        texts[SIGNATURE] = sign(texts[MANIFEST].encode(), signing)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        replace_file(folder / name, text)
    return folder / PAGE


def package_hash() -> str:
    """A hash of the installed library, over the names and contents of its programs."""
    root = Path(lightning_pac.__file__).parent
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        whole.update(f"{path.relative_to(root).as_posix()} {digest(path.read_bytes())}\n".encode())
    return whole.hexdigest()


def schema_text() -> str:
    """The published schema of the document."""
    return (Path(__file__).parent / SCHEMA).read_text(encoding="utf-8")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _text(value: str) -> str:
    """It as UTF-8 can hold it; names of files may be any bytes."""
    return value.encode(errors="backslashreplace").decode()


def _describe_file(path: Path, accounts: Container[str], ledger: Path) -> dict[str, Any]:
    """Name, hash and length of a released file, and the run that saved it, where it is a checkpoint that says so.

    Raises:
        ValueError: If that run is none of the ledger's, or trained without privacy.
    """
    whole = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            whole.update(block)
    found = {"name": _text(path.name), "sha256": whole.hexdigest(), "bytes": path.stat().st_size}
    saved: Any = None
    with suppress(Exception), zipfile.ZipFile(path) as archive:  # a file of another kind
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
        saved = PlainValues(io.BytesIO(pickled)).load()
    if not isinstance(saved, dict):
        return found
    card = saved.get("privacy_card")
    if card is None and {"pytorch-lightning_version", "optimizer_states"} <= saved.keys():
        raise ValueError(
            f"{path} has no privacy card, so that a training without privacy saved it: name the checkpoint of a run "
            f"that {ledger} lists."
        )
    details = card.get("details") if isinstance(card, dict) else None
    account = details.get("ledger") if isinstance(details, dict) else None
    if not isinstance(account, str):
        return found
    if account not in accounts:
        raise ValueError(
            f"{path} was trained by run {account!r}, which {ledger} does not list: name the ledger that paid for it, "
            "or the file that was released under this one."
        )
    return {**found, "run": account}
