"""Digests, and the one canonical encoding that everything is hashed through."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_HEX = frozenset("0123456789abcdef")
_PREFIX = "sha256:"
_FLOAT = "$float"
MAX_DEPTH = 100
"""How deep values may be nested that are read back."""


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A SHA-256 digest: 64 lowercase hexadecimal digits, written ``sha256:…``."""

    hex: str

    def __post_init__(self) -> None:
        if len(self.hex) != 64 or not _HEX.issuperset(self.hex):
            raise ValueError(f"not a SHA-256 digest: {self.hex!r}; expected 64 lowercase hexadecimal digits")

    @classmethod
    def of_bytes(cls, data: bytes | memoryview) -> Self:
        """Digest of `data`."""
        return cls(hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Digest of the file's content. Raises OSError if it cannot be read."""
        with path.open("rb") as file:
            return cls(hashlib.file_digest(file, "sha256").hexdigest())

    @classmethod
    def of_fields(cls, schema: str, fields: Mapping[str, Any]) -> Self:
        """Digest of named fields under a schema name such as ``tkc.action/1``."""
        return cls.of_bytes(canonical({"schema": schema, "fields": fields}))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``sha256:…``. Raises ValueError for anything else."""
        if not text.startswith(_PREFIX):
            raise ValueError(f"not a digest: {text!r}; expected 'sha256:' and 64 hexadecimal digits")
        return cls(text.removeprefix(_PREFIX))

    def __str__(self) -> str:
        return _PREFIX + self.hex

    @property
    def short(self) -> str:
        """The first twelve digits, for people."""
        return self.hex[:12]


def canonical(value: Any) -> bytes:
    """Encode `value` the one way that is hashed and written.

    Takes None, bool, int, finite float, str, Digest, and lists, tuples and string-keyed
    mappings of these. Mapping keys are sorted; floats are written by ``float.hex`` so that
    no shortest-representation rule enters a key. Raises TypeError for every other type, and for
    mapping keys that start with ``$``, which mark encoded floats. What was read back from canonical
    bytes encodes to the same bytes.
    """
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except _NoCanonicalForm as error:
        raise TypeError(f"cannot encode value{''.join(reversed(error.path))}: {error.reason}") from None


def parse_canonical(data: bytes) -> Any:
    """Read back what `canonical` wrote: JSON values that can be encoded again, and printed.

    Raises ValueError for anything else, such as JSON with floats as JSON has them, keys that are reserved, halves of
    characters, or nesting deeper than `MAX_DEPTH`. Spaces and the order of keys are not looked at.
    """
    try:
        value = _READER.decode(data.decode())
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _require_shallow(value)
    if b"$" in data:
        _require_encodable(value)
    if b"\\" in data:
        json.dumps(value, ensure_ascii=False).encode()
    return value


_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def _refuse_number(text: str) -> Any:
    raise ValueError(f"number {text:.40} is not written as tkc writes it")


_READER = json.JSONDecoder(parse_float=_refuse_number, parse_constant=_refuse_number)


def _require_shallow(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _require_encodable(value: Any) -> None:
    try:
        canonical(value)
    except TypeError as error:
        raise ValueError(str(error)) from error


class _NoCanonicalForm(Exception):
    """A value deep inside another cannot be encoded; the way to it is collected, innermost first, on the way out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


_ENCODED_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def _plain(value: Any) -> Any:
    if type(value) in _ENCODED_AS_THEY_ARE or isinstance(value, str):
        return value
    if isinstance(value, Digest):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NoCanonicalForm(f"{value!r} is not finite")
        return {_FLOAT: value.hex()}
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list | tuple):
        return _plain_list(value)
    raise _NoCanonicalForm(
        f"{type(value).__module__}.{type(value).__qualname__} has no canonical form. "
        "Turn it into str, int or a mapping of these first"
    )


def _plain_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    for key in value:
        if type(key) is not str:
            raise _NoCanonicalForm(f"key {key!r} is {type(key).__name__}, expected str")
        if key.startswith("$") and not (len(value) == 1 and key == _FLOAT and _is_float_text(value[_FLOAT])):
            raise _NoCanonicalForm("keys that start with '$' are reserved")
    plain = {}
    for key, item in value.items():
        try:
            plain[key] = _plain(item)
        except _NoCanonicalForm as error:
            error.path.append(f".{key}")
            raise
    return plain


def _plain_list(value: Sequence[Any]) -> list[Any]:
    plain = []
    for item in value:
        try:
            plain.append(_plain(item))
        except _NoCanonicalForm as error:
            error.path.append(f"[{len(plain)}]")
            raise
    return plain


def _is_float_text(text: Any) -> bool:
    try:
        return isinstance(text, str) and float.fromhex(text).hex() == text
    except (ValueError, OverflowError):
        return False
