"""Sign what a store holds, so that other machines can tell whose it is. See `tkc.cache.signatures`.

The private key is a file of 64 hexadecimal digits that only its owner can read; the public key, the same form,
goes into ``TKC_REQUIRE_SIGNATURE`` where artifacts are used. Needs the ``cryptography`` package.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache_tools.chosen import choose
from cache_tools.selection import Selection
from tkc.cache import Signature, Signers, Store, signed_message
from tkc.errors import StoreError, TkcError


@dataclass(frozen=True, slots=True)
class Signed:
    """What was signed, or verified.

    Attributes:
        refs: how many.
        signer: the public key.
        skipped: what was not, and why, one line each.
    """

    refs: int
    signer: str
    skipped: tuple[str, ...] = ()


def new_key(path: Path) -> str:
    """Make a private key at `path`, which must not be there yet; the public key. Raises TkcError."""
    key = _ed25519().Ed25519PrivateKey.generate()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise TkcError(f"the key {path} cannot be made: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(key.private_bytes_raw().hex() + "\n")
    return str(key.public_key().public_bytes_raw().hex())


def sign(store: Store, key_path: Path, selection: Selection | None = None, *, dry_run: bool = False) -> Signed:
    """Sign what refs point at and `selection` chooses, after verifying it. Damaged artifacts are left out.

    Raises TkcError if the key cannot be read or others can read it, StoreError if nothing can be written.
    """
    key = _read_key(key_path)
    signer = key.public_key().public_bytes_raw().hex()
    chosen = choose(store, selection or Selection())
    for request, ref in chosen.refs.items():
        signature = key.sign(signed_message(request, chosen.manifests[ref.key])).hex()
        if not dry_run:
            store.write_signature(Signature(request, signer, signature))
    return Signed(len(chosen.refs), signer, chosen.skipped)


def check(store: Store, public_key: str, selection: Selection | None = None) -> Signed:
    """Whether everything that `selection` chooses is signed by this key; what is not is in `skipped`."""
    signers = Signers([public_key])
    chosen = choose(store, selection or Selection())
    complaints = [
        (ref, signers.complaint(request, chosen.manifests[ref.key], store.read_signature(request)))
        for request, ref in chosen.refs.items()
    ]
    bad = tuple(f"{ref.key.short}: {complaint}" for ref, complaint in complaints if complaint)
    return Signed(len(complaints) - len(bad), public_key, (*chosen.skipped, *bad))


def _read_key(path: Path) -> Any:
    try:
        with path.open() as file:
            status, text = os.fstat(file.fileno()), file.read(1000)
    except (OSError, UnicodeDecodeError) as error:
        raise TkcError(f"the key {path} cannot be read: {error}") from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TkcError(
            f"the key {path} can be read by others (mode {stat.S_IMODE(status.st_mode):04o}): chmod 600 {path}"
        )
    try:
        return _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text.strip()))
    except ValueError as error:
        raise TkcError(f"{path} is no key; `tkc cache keygen` makes one") from error


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise StoreError(
            "signing needs the cryptography package. Install it: pip install 'tilelang-tkc[sign]'"
        ) from error
    return ed25519
