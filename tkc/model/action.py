"""Actions: every input of one compile, or of one stage of it, as named fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tkc.model.digest import Digest, canonical
from tkc.model.stage import Stage


@dataclass(frozen=True, eq=False)
class Action:
    """Every input of one compile, or of one stage of it.

    `fields` holds what the canonical encoder takes: digests of consumed files, names, numbers.
    Never an absolute path, a time, a counter or the environment at large. Two actions with
    equal fields have equal keys, on any machine.
    """

    stage: Stage
    fields: Mapping[str, Any]

    @cached_property
    def key(self) -> Digest:
        return Digest.of_fields(f"tkc.action.{self.stage}/1", self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Action) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def plain_fields(self) -> dict[str, Any]:
        """The fields as JSON values, the way a manifest keeps them."""
        plain: dict[str, Any] = json.loads(canonical(self.fields))
        return plain


@dataclass(frozen=True, slots=True)
class FieldDiff:
    """One field in which two actions or requests differ. ``None`` means absent."""

    field: str
    ours: Any
    theirs: Any


def diff_fields(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[FieldDiff, ...]:
    """Compare two field mappings, nested ones too; names are joined with dots."""
    return tuple(_diff(json.loads(canonical(ours)), json.loads(canonical(theirs)), ""))


def _diff(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str) -> Iterator[FieldDiff]:
    for name in sorted({*ours, *theirs}):
        left, right = ours.get(name), theirs.get(name)
        if left == right:
            continue
        if isinstance(left, dict) and isinstance(right, dict):
            yield from _diff(left, right, f"{prefix}{name}.")
        else:
            yield FieldDiff(prefix + name, left, right)
