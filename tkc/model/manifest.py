"""Manifests: what one action produced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from tkc.model.digest import Digest, canonical, parse_canonical
from tkc.model.stage import Stage

if TYPE_CHECKING:
    from tkc.model.action import Action

SCHEMA = "tkc.manifest/1"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One produced file: a name relative to the artifact, the digest of its bytes, and their number."""

    name: str
    digest: Digest
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Record of one artifact, or of one stage's output.

    Attributes:
        key: of the action that produced it.
        stage: of that action.
        action: its fields, as JSON values, kept so that a miss can be explained field by field.
        files: what was produced.
        facts: what the producer says of it, as JSON values: entry symbol, launch facts, and for each
            kernel its registers, spills, shared memory, stack and code size.
        inputs: keys of the actions whose output was consumed; gc keeps them.
        provenance: who, when, which commit. Not part of any key.
        written: the very bytes that it was read from; None if it was made here.
    """

    key: Digest
    stage: Stage
    action: Mapping[str, Any]
    files: tuple[FileEntry, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Digest, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    written: bytes | None = field(init=False, default=None, repr=False, compare=False)

    def file(self, name: str) -> FileEntry:
        """The entry called `name`. Raises KeyError if there is none."""
        for entry in self.files:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def to_bytes(self) -> bytes:
        """Write the manifest; equal manifests give equal bytes."""
        body = {
            "schema": SCHEMA,
            "key": self.key,
            "stage": self.stage.value,
            "action": self.action,
            "files": [{"name": f.name, "digest": f.digest, "size_bytes": f.size_bytes} for f in self.files],
            "facts": self.facts,
            "inputs": self.inputs,
            "provenance": self.provenance,
        }
        return canonical(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a manifest. Raises ValueError for anything that `to_bytes` did not write."""
        try:
            body = parse_canonical(data)
            if body["schema"] != SCHEMA:
                raise ValueError(f"manifest has schema {body['schema']!r}; expected {SCHEMA!r}")
            manifest = cls(
                key=Digest.parse(body["key"]),
                stage=Stage(body["stage"]),
                action=_mapping(body["action"]),
                files=tuple(_file_entry(entry) for entry in body["files"]),
                facts=_mapping(body["facts"]),
                inputs=tuple(Digest.parse(key) for key in body["inputs"]),
                provenance=_mapping(body["provenance"]),
            )
            object.__setattr__(manifest, "written", data)
            return manifest
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a manifest: {type(error).__name__}: {error}") from error


def manifest_of(action: Action, files: tuple[FileEntry, ...], **rest: Any) -> Manifest:
    """Give the manifest of what `action` produced."""
    return Manifest(key=action.key, stage=action.stage, action=action.plain_fields(), files=files, **rest)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value


def _file_entry(entry: Any) -> FileEntry:
    name, size = entry["name"], entry["size_bytes"]
    if (
        not isinstance(name, str)
        or not name
        or name.startswith((".", "/"))
        or "/" in name
        or "\\" in name
        or "\0" in name
    ):
        raise TypeError(f"file name {name!r} is not a plain name")
    if type(size) is not int or not 0 <= size < 1 << 63:
        raise TypeError(f"size {size!r} is not a number of bytes")
    return FileEntry(name, Digest.parse(entry["digest"]), size)
