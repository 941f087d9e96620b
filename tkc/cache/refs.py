"""Refs: what a runtime asks for → action key. The only entries that change, and the gc roots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tkc.cache.bucket import Bucket, Miss
from tkc.cache.sealed import seal, unseal
from tkc.model import Digest, canonical, parse_canonical

_SCHEMA = "tkc.ref/1"


@dataclass(frozen=True, slots=True)
class RefEntry:
    """A ref.

    Attributes:
        request: digest of the request that it answers; its name.
        key: of the action whose artifact answers it.
        fields: of the request, as JSON values, for people and tools.
    """

    request: Digest
    key: Digest
    fields: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        return canonical({"schema": _SCHEMA, "request": self.request, "key": self.key, "fields": self.fields})

    @classmethod
    def from_bytes(cls, data: bytes) -> RefEntry:
        """Read a ref. Raises ValueError for anything that `to_bytes` did not write."""
        try:
            body = parse_canonical(data)
            if body["schema"] != _SCHEMA:
                raise ValueError(f"ref has schema {body['schema']!r}; expected {_SCHEMA!r}")
            if not isinstance(body["fields"], dict):
                raise TypeError("fields are not an object")
            return cls(Digest.parse(body["request"]), Digest.parse(body["key"]), body["fields"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a ref: {type(error).__name__}: {error}") from error


class Refs:
    """The refs of one store."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, request: Digest) -> RefEntry | Miss:
        """The ref that answers `request`, or why there is none."""
        content = self._bucket.read(request)
        if isinstance(content, Miss):
            return content
        try:
            ref = RefEntry.from_bytes(unseal(content.data))
        except ValueError as error:
            return self._bucket.damaged(request, content, str(error))
        if ref.request != request:
            return self._bucket.damaged(request, content, f"it is the ref of {ref.request.short}")
        return ref

    def write(self, ref: RefEntry) -> None:
        """Point `ref.request` at `ref.key`. Writes nothing if it points there already. Raises OSError."""
        data = ref.to_bytes()
        current = self.read(ref.request)
        if isinstance(current, Miss) or current.to_bytes() != data:
            self._bucket.replace(ref.request, seal(data))
