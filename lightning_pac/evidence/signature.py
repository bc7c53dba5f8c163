"""An Ed25519 signature of a manifest, by a key of the user's.

It proves that who holds the key signed these files as they are. It does not prove whose key that is, when it was used,
or that the ledger is the only one about these data.
"""

import json
from pathlib import Path
from typing import Any

from lightning_pac.evidence.chain import digest

__all__ = ["check_signature", "fingerprint", "read_private_key", "read_public_key", "sign"]

_MAKE = "make one with `openssl genpkey -algorithm ed25519 -out NAME.pem`"


def read_private_key(path: Path) -> Any:
    """The key in a PEM file, an `Ed25519PrivateKey`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no such key, or one under a password.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except TypeError:
        raise ValueError(f"{path} is under a password: sign with a copy without one, in memory or elsewhere.") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} is not a private Ed25519 key in PEM: {_MAKE}.")
    return key


def read_public_key(path: Path) -> str:
    """The public key in a PEM file, which may hold the private one, in hexadecimal digits.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no such key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = path.read_bytes()
    if b"PRIVATE KEY" in content:
        return _public(read_private_key(path))
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(
            f"{path} is not a public Ed25519 key in PEM: get it by `openssl pkey -in NAME.pem -pubout -out NAME.pub`."
        )
    return key.public_bytes_raw().hex()


def sign(manifest: bytes, key: Any) -> str:
    """The text of a signature file."""
    signed = {"algorithm": "Ed25519", "public_key": _public(key), "signature": key.sign(manifest).hex()}
    return json.dumps(signed, indent=2) + "\n"


def check_signature(manifest: bytes, text: bytes) -> str:
    """The public key by which a manifest was signed.

    Raises:
        ValueError: If the signature is not one of this manifest.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signed = json.loads(text)
        public, signature = bytes.fromhex(signed["public_key"]), bytes.fromhex(signed["signature"])
        if signed["algorithm"] != "Ed25519":
            raise ValueError("another algorithm")
        Ed25519PublicKey.from_public_bytes(public).verify(signature, manifest)
    except InvalidSignature:
        raise ValueError("does not belong to the manifest: files were changed after they were signed") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("is no signature") from None
    return public.hex()


def fingerprint(public_key: str) -> str:
    """A short name of a public key, to be compared by people."""
    return digest(bytes.fromhex(public_key))[:16]


def _public(key: Any) -> str:
    return str(key.public_key().public_bytes_raw().hex())
