"""Compare the artifacts of two stores or wheels: the same, other code, other resources, only in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from tkc.cache import Miss, Store
from tkc.model import FieldDiff, Manifest, diff_fields
from tkc.wheel.contents import LIBRARY, Item

COMPARED = ("arch", "registers", "spill_bytes", "stack_bytes", "static_shared_bytes", "code_bytes")
"""What is compared of each kernel."""

NOT_RESOURCES = ("code_bytes",)
"""Of these, what may differ without a kernel asking the device for more or less."""


class Change(StrEnum):
    """How an artifact differs. ``RESOURCES`` implies other code."""

    SAME = "same"
    CODE = "code"
    RESOURCES = "resources"
    ONLY_A = "only in A"
    ONLY_B = "only in B"


@dataclass(frozen=True, slots=True)
class ArtifactDiff:
    """One artifact in both.

    Attributes:
        title: the kernel, its const values, target and host.
        change: how it differs.
        kernels: of each kernel whose facts differ: its symbol, and ``fact → (in A, in B)``.
        inputs: fields of the actions that differ: why.
    """

    title: str
    change: Change
    kernels: tuple[tuple[str, Mapping[str, tuple[Any, Any]]], ...] = ()
    inputs: tuple[FieldDiff, ...] = ()


_Identity: TypeAlias = "tuple[str, ...]"


def diff_stores(ours: Store, theirs: Store) -> tuple[ArtifactDiff, ...]:
    """Compare what answers the same call in two stores, whatever sources it was built from; ordered by title.

    If a store has several artifacts for one call, its newest counts. Reads manifests alone; verifies nothing.
    """
    a, b = _artifacts(ours), _artifacts(theirs)
    return tuple(_compare(name, a.get(name), b.get(name)) for name in sorted({*a, *b}))


def _artifacts(store: Store) -> dict[_Identity, tuple[Item, Manifest]]:
    newest = {status.name: status.used_s for status in store.ref_statuses()}
    found: dict[_Identity, tuple[Item, Manifest]] = {}
    for ref in sorted(store.refs(), key=lambda ref: (newest.get(ref.request, 0.0), ref.request)):
        manifest = store.read_manifest(ref.key)
        if not isinstance(manifest, Miss) and any(file.name == LIBRARY for file in manifest.files):
            item = Item.of(ref.request, ref.fields, manifest)
            found[item.title, str(ref.fields.get("target")), str(ref.fields.get("host"))] = item, manifest
    return found


def _compare(name: _Identity, ours: tuple[Item, Manifest] | None, theirs: tuple[Item, Manifest] | None) -> ArtifactDiff:
    title = "{} --target {} --host {}".format(*name)
    if ours is None or theirs is None:
        return ArtifactDiff(title, Change.ONLY_B if ours is None else Change.ONLY_A)
    if ours[0].library == theirs[0].library:
        return ArtifactDiff(title, Change.SAME)
    kernels = tuple(_kernel_diffs(ours[0].kernels, theirs[0].kernels))
    resources = any(set(facts) - set(NOT_RESOURCES) for _, facts in kernels)
    inputs = diff_fields(ours[1].action, theirs[1].action)
    return ArtifactDiff(title, Change.RESOURCES if resources else Change.CODE, kernels, inputs)


def _kernel_diffs(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, tuple[Any, Any]]]]:
    a, b = ({str(kernel.get("symbol")): kernel for kernel in kernels} for kernels in (ours, theirs))
    for symbol in sorted({*a, *b}):
        left, right = a.get(symbol, {}), b.get(symbol, {})
        facts = {name: (left.get(name), right.get(name)) for name in COMPARED if left.get(name) != right.get(name)}
        if facts:
            yield symbol, facts
