"""Signatures: who vouches that a request is answered by these very bytes.

A store is code. Where it comes from somebody else (a shared folder, a remote, a bundle), ownership of files
says too little; a signature by a key that the user chose says enough. What is signed is the request, the
action key and the digest of the manifest, which holds the digest of every blob: nothing else can be passed
off for it, neither other bytes nor another kernel that was signed as well.

Ed25519 and not a keyed hash: a machine that verifies holds nothing that could sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tkc.cache.bucket import Bucket, Miss
from tkc.cache.sealed import seal, unseal
from tkc.errors import StoreError
from tkc.model import Digest, Manifest, canonical, parse_canonical

_SCHEMA = "tkc.signature/1"


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature as it is kept.

    Attributes:
        request: digest of the request that it is about; its name.
        signer: the signer's public key, 64 hexadecimal digits.
        signature: 128 hexadecimal digits.
    """

    request: Digest
    signer: str
    signature: str

    def to_bytes(self) -> bytes:
        """Write the record; it verifies itself against damage, not against forgery."""
        body = {"schema": _SCHEMA, "request": self.request, "signer": self.signer, "signature": self.signature}
        return seal(canonical(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Signature:
        """Read a record. Raises ValueError for anything that `to_bytes` did not write."""
        try:
            body = parse_canonical(unseal(data))
            if body["schema"] != _SCHEMA:
                raise ValueError(f"it has schema {body['schema']!r}; expected {_SCHEMA!r}")
            bytes.fromhex(body["signer"]), bytes.fromhex(body["signature"])
            return cls(Digest.parse(body["request"]), body["signer"], body["signature"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a signature: {type(error).__name__}: {error}") from error


def signed_message(request: Digest, manifest: Manifest) -> bytes:
    """What a signer signs."""
    return canonical(
        {
            "schema": _SCHEMA,
            "request": request,
            "key": manifest.key,
            "manifest": Digest.of_bytes(manifest.to_bytes()),
        }
    )


class Verifier(Protocol):
    """Judges signatures."""

    def complaint(self, request: Digest, manifest: Manifest, signature: Signature | Miss) -> str | None:
        """Why `manifest` must not answer `request`, or None."""


class Signers:
    """The public keys that a user trusts; needs the ``cryptography`` package.

    Raises StoreError if a key is none, or the package is missing.
    """

    def __init__(self, public_keys: Sequence[str]) -> None:
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        except ModuleNotFoundError as error:
            raise StoreError(
                "signatures are required, and the cryptography package that checks them is not installed. "
                "Install it: pip install 'tilelang-tkc[sign]'"
            ) from error
        self._invalid = InvalidSignature
        try:
            self._keys = {key: Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)) for key in public_keys}
        except ValueError as error:
            raise StoreError(
                f"not an Ed25519 public key: {error}. Expected 64 hexadecimal digits, as `tkc cache keygen` prints"
            ) from error

    def complaint(self, request: Digest, manifest: Manifest, signature: Signature | Miss) -> str | None:
        """Why `manifest` must not answer `request`, or None."""
        if isinstance(signature, Miss):
            return f"it is not signed ({signature.reason})"
        key = self._keys.get(signature.signer)
        if key is None:
            return f"it is signed by {signature.signer[:16]}…, whom this user does not trust"
        try:
            key.verify(bytes.fromhex(signature.signature), signed_message(request, manifest))
        except self._invalid:
            return f"its signature by {signature.signer[:16]}… is of something else"
        return None


class Signatures:
    """The signatures of one store."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, request: Digest) -> Signature | Miss:
        """The signature of what answers `request`, unverified, or why there is none."""
        content = self._bucket.read(request)
        if isinstance(content, Miss):
            return content
        try:
            signature = Signature.from_bytes(content.data)
        except ValueError as error:
            return self._bucket.damaged(request, content, str(error))
        if signature.request != request:
            return self._bucket.damaged(request, content, f"it is the signature of {signature.request.short}")
        return signature

    def write(self, signature: Signature) -> None:
        """Keep a signature, in place of an earlier one. Raises OSError."""
        self._bucket.replace(signature.request, signature.to_bytes())

    def remove(self, request: Digest) -> bool:
        """Forget a signature; whether there was one. Raises OSError."""
        return self._bucket.remove(request)
