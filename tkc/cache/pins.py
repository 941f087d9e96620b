"""Pins: actions that are kept whatever the policy says. Roots of gc, beside the refs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tkc.cache.bucket import Bucket, Miss
from tkc.cache.sealed import seal, unseal
from tkc.model import Digest, canonical, parse_canonical

_SCHEMA = "tkc.pin/1"


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin.

    Attributes:
        key: of the action whose artifact is kept.
        note: why, for people; empty if the record cannot be read.
    """

    key: Digest
    note: str = ""


class Pins:
    """The pins of one store. A pin counts even if its record is damaged: its name says all that matters."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def add(self, pin: Pin) -> None:
        """Keep an action from now on. Raises OSError."""
        body = canonical({"schema": _SCHEMA, "key": pin.key, "note": pin.note})
        self._bucket.replace(pin.key, seal(body))

    def remove(self, key: Digest) -> bool:
        """Keep it no longer; whether it was pinned. Raises OSError."""
        return self._bucket.remove(key)

    def __iter__(self) -> Iterator[Pin]:
        """Every pin, lazily."""
        return (Pin(status.name, self._note(status.name)) for status in self._bucket.statuses())

    def _note(self, key: Digest) -> str:
        content = self._bucket.read(key)
        if isinstance(content, Miss):
            return ""
        try:
            return str(parse_canonical(unseal(content.data))["note"])
        except (ValueError, KeyError, TypeError):
            return ""
