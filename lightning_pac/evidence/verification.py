"""Verifying a folder of evidence: its hashes, its journal, its signature, and every figure computed again."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_pac import __version__
from lightning_pac._shown import shows_itself
from lightning_pac._validation import validated
from lightning_pac.evidence.chain import decode_chain, digest, read_json
from lightning_pac.evidence.document import describe_evidence
from lightning_pac.evidence.folder import (
    DOCUMENT,
    FILES,
    JOURNAL,
    MANIFEST,
    PAGE,
    SCHEMA,
    SIGNATURE,
    package_hash,
    schema_text,
)
from lightning_pac.evidence.page import render_page
from lightning_pac.evidence.signature import check_signature, fingerprint, read_public_key

__all__ = ["EvidenceCheck", "verify_evidence"]

# Another platform's logarithms and sums.
_TOLERANCE = 1e-9


@shows_itself
@dataclass(frozen=True)
class EvidenceCheck:
    """The findings of a verification.

    Attributes:
        findings: A sentence for each thing that is not as it should be; empty if everything holds.
        signed_by: Fingerprint of the key that signed it, None where it is not signed, or wrongly.
        notes: What was not checked, and why.
    """

    findings: tuple[str, ...]
    signed_by: str | None
    notes: tuple[str, ...]


@validated
def verify_evidence(folder: str | Path, key: str | Path | None = None) -> EvidenceCheck:
    """Check a folder that `write_evidence` wrote, from nothing but what is in it.

    Hashes and the journal's chain tell what was changed afterwards; every figure is computed again from the events of
    the journal, and every charge held against the terms of its account. Somebody who writes a whole new journal, with
    figures to match, is told by the signature alone.

    Args:
        folder: The folder.
        key: The Ed25519 key (PEM) of whom it must be signed by.

    Raises:
        FileNotFoundError: If the folder holds no evidence.
        OSError: If a file cannot be read.
        ValueError: If the key is none.
    """
    wanted = None if key is None else read_public_key(Path(key))
    root = Path(folder)
    if not any((root / name).is_file() for name in (DOCUMENT, MANIFEST)):
        raise FileNotFoundError(f"{root} holds no evidence: give the folder that `lightning-pac evidence` wrote.")
    found = {path.name: path for path in sorted(root.iterdir())}
    # What a link leads to is not in what is handed over.
    own = {name: path for name, path in found.items() if path.is_file() and not path.is_symlink()}
    content = {name: own[name].read_bytes() for name in (*FILES, MANIFEST, SIGNATURE) if name in own}
    findings = [*_check_files(root, found, content)]
    signed_by = None
    try:
        signed_by = _check_signature(content, wanted)
    except ValueError as error:
        findings.append(str(error))
    notes: list[str] = []
    findings += _check_content(content, notes)
    return EvidenceCheck(tuple(map(_printable, findings)), signed_by, tuple(map(_printable, notes)))


def _check_files(root: Path, found: Mapping[str, Path], content: Mapping[str, bytes]) -> Iterator[str]:
    for name in (*FILES, MANIFEST):
        if name not in found:
            yield f"{name} is missing."
    for name in (*FILES, MANIFEST, SIGNATURE):
        if name in found and name not in content:
            yield f"{name} is a link or a folder, and no file of its own."
    for name in sorted(set(found) - {*FILES, MANIFEST, SIGNATURE}):
        yield f"{name} is no part of the evidence: somebody added it."
    if MANIFEST not in content:
        return
    try:
        hashes = read_json(content[MANIFEST])["files"]
        listed = {str(name): str(value) for name, value in hashes.items()}
    except Exception:
        yield f"{MANIFEST} does not read as a list of hashes."
        return
    for name in FILES:
        if name not in listed:
            yield f"{MANIFEST} does not name {name}."
        elif name in content and digest(content[name]) != listed[name]:
            yield f"{name} was changed: its hash is not the one in {MANIFEST}."
    for name in sorted(set(listed) - set(FILES)):
        yield f"{MANIFEST} names {name}, which is no part of the evidence."


def _check_signature(content: Mapping[str, bytes], wanted: str | None) -> str | None:
    """The fingerprint of the key that signed.

    Raises:
        ValueError: A finding.
    """
    if SIGNATURE not in content:
        if wanted is not None:
            raise ValueError(f"{SIGNATURE} is missing, so there is nothing to check the key against.")
        return None
    try:
        public = check_signature(content.get(MANIFEST, b""), content[SIGNATURE])
    except ValueError as error:
        raise ValueError(f"{SIGNATURE} {error}.") from None
    if wanted is not None and public != wanted:
        raise ValueError(
            f"{SIGNATURE} is by key {fingerprint(public)} and not by the given one, {fingerprint(wanted)}."
        )
    return fingerprint(public)


def _check_content(content: Mapping[str, bytes], notes: list[str]) -> Iterator[str]:
    """Everything that follows from the journal."""
    if JOURNAL not in content or DOCUMENT not in content:
        return
    try:
        stated = read_json(content[DOCUMENT])
    except (ValueError, RecursionError) as error:
        yield f"{DOCUMENT} does not read as JSON: {str(error) or type(error).__name__}."
        return
    try:
        head = (decode_chain(content[JOURNAL]) or [{}])[0]
        document, claims = describe_evidence(content[JOURNAL])
        page = render_page(document).encode()
    except Exception as error:  # a journal of another hand may hold anything
        # The path is one of this moment, and what is to be done about a ledger is not what is to be done here.
        reason = re.sub(rf"{re.escape(tempfile.gettempdir())}/[^/ ]*/", "", str(error)).partition(": restore")[0]
        yield f"{JOURNAL} has no figures that could be computed again: {reason.rstrip('.') or type(error).__name__}."
        return
    is_same_code = head.get("package_sha256") == package_hash()
    if is_same_code and SCHEMA in content and content[SCHEMA] != schema_text().encode():
        yield f"{SCHEMA} is not the published schema."
    for claim in claims:
        if not claim.follows:
            yield (
                f"Account {claim.account!r} was charged {claim.charged:.9g}, where its terms cost {claim.least:.9g}"
                + (f" to {claim.most:.9g}." if claim.most != claim.least else ".")
            )
    if is_same_code:
        yield from _differences(document, stated, "")
        if PAGE in content and content[PAGE] != page:
            yield f"{PAGE} does not show what the journal says."
        return
    notes.append(
        f"It was written by other code (lightning-pac {head.get('lightning_pac')}) than verifies it "
        f"({__version__}): the figures of {DOCUMENT} were computed again, and its words, {PAGE} and {SCHEMA} were "
        "checked by their hashes alone."
    )
    yield from _differences(document, stated, "", only_numbers=True)


def _differences(follows: Any, stated: Any, place: str, only_numbers: bool = False) -> Iterator[str]:
    """A sentence for each place where the document is not what follows from the journal."""
    where = f"{DOCUMENT}, {place or 'whole'}"
    if isinstance(follows, dict) and isinstance(stated, dict):
        for key in sorted({*follows, *stated}):
            inner = f"{place}.{key}" if place else str(key)
            if key in follows and key in stated:
                yield from _differences(follows[key], stated[key], inner, only_numbers)
            elif key in follows or not only_numbers:
                yield f"{DOCUMENT}, {inner}: {'is missing' if key in follows else 'does not follow from the journal'}."
    elif isinstance(follows, list) and isinstance(stated, list):
        if len(follows) != len(stated):
            yield f"{where}: has {len(stated)} entries, and {len(follows)} follow from the journal."
        for number, (one, other) in enumerate(zip(follows, stated, strict=False)):
            yield from _differences(one, other, f"{place}[{number}]", only_numbers)
    elif _is_number(follows) and _is_number(stated):
        if not (follows == stated or math.isclose(follows, stated, rel_tol=_TOLERANCE)):
            yield f"{where}: is {stated!r}, and {follows!r} follows from the journal."
    elif (type(follows), follows) != (type(stated), stated) and not (
        only_numbers and isinstance(follows, str) and isinstance(stated, str)
    ):
        yield f"{where}: is {_short(stated)}, and {_short(follows)} follows from the journal."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _printable(sentence: str) -> str:
    """Without characters that change what a terminal shows, which another hand may have put there."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in sentence)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
