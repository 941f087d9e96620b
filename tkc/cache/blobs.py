"""Blobs: bytes named by their digest. Once visible they never change."""

from __future__ import annotations

import hashlib

from tkc.cache.bucket import Bucket, Content, Miss
from tkc.model import Digest


class Blobs:
    """The blobs of one store."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, digest: Digest) -> bytes | Miss:
        """The blob's bytes, verified, or why there are none."""
        content = self._verified(digest)
        return content.data if isinstance(content, Content) else content

    def flaw(self, digest: Digest, size_bytes: int) -> Miss | None:
        """Why the blob cannot be used, or None if it is there, whole and as its digest says."""
        content = self._verified(digest, size_bytes)
        return content if isinstance(content, Miss) else None

    def publish(self, data: bytes) -> Digest:
        """Keep `data`, unless it is here already; its digest. Raises OSError."""
        digest = Digest.of_bytes(data)
        self._bucket.publish(digest, data, is_good=lambda: self.flaw(digest, len(data)) is None)
        return digest

    def _verified(self, digest: Digest, size_bytes: int | None = None) -> Content | Miss:
        content = self._bucket.read(digest)
        if isinstance(content, Miss):
            return content
        if size_bytes is not None and len(content.data) != size_bytes:
            return self._bucket.damaged(digest, content, f"{len(content.data)} bytes instead of {size_bytes}")
        if hashlib.sha256(content.data).hexdigest() != digest.hex:
            return self._bucket.damaged(digest, content, f"its {len(content.data)} bytes have another digest")
        return content
