"""Compile artifacts again and compare digests: whether what a store holds is what its inputs give."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tkc.build import Outcome, Planned, build, planned
from tkc.cache import Hit, RefEntry, Store
from tkc.compiler import CompileOptions, Unit
from tkc.errors import TkcError
from tkc.model import Digest, FieldDiff, Host, Manifest, Target, diff_fields
from tkc.registry import Catalog, load_catalog, sources_read_once


class Verdict(StrEnum):
    """What became of one artifact that was to be compiled again."""

    SAME = "same"
    DIFFERS = "differs"
    FAILED = "failed"
    OTHER_INPUTS = "other inputs"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One artifact, compiled again.

    Attributes:
        title: of the artifact.
        verdict: ``OTHER_INPUTS`` if the sources or tools here are not those that it was made with.
        detail: the digests that differ, the inputs that do, or the compiler's words.
    """

    title: str
    verdict: Verdict
    detail: str = ""


def sample(store: Store, number: int, seed: int) -> tuple[RefEntry, ...]:
    """Choose `number` of a store's artifacts by chance, the same for the same seed; all if there are fewer."""
    refs = sorted(store.refs(), key=lambda ref: ref.request)
    return tuple(refs if number >= len(refs) else random.Random(seed).sample(refs, number))


def rebuild(store: Store, refs: Sequence[RefEntry], *, jobs: int = 0) -> Iterator[Rebuilt]:
    """Compile the artifacts of `refs` again, in a store of its own that is gone afterwards, and compare every file.

    An artifact that is missing or damaged in `store` differs. Raises what probing the tools raises.
    """
    with tempfile.TemporaryDirectory(prefix="tkc-rebuild-") as folder:
        fresh, plan, there = Store(Path(folder), writable=True), list[Planned](), dict[Digest, Manifest]()
        with sources_read_once():
            prepared = [_prepare(store, ref, fresh, load_catalog()) for ref in refs]
        for found in prepared:
            if isinstance(found, Rebuilt):
                yield found
            else:
                plan.append(found[0])
                there[found[1].key] = found[1]
        for outcome in build(plan, fresh, jobs=jobs):
            yield _verdict(outcome, there[outcome.planned.action.key])


def _prepare(store: Store, ref: RefEntry, fresh: Store, catalog: Catalog) -> Rebuilt | tuple[Planned, Manifest]:
    """Plan to compile an artifact again; or say why that would prove nothing."""
    title = _title(ref)
    found = store.lookup(ref.key)
    if not isinstance(found, Hit):
        return Rebuilt(title, Verdict.DIFFERS, found.reason)
    try:
        item = planned(_unit(ref, found.manifest, catalog), fresh)
    except TkcError as error:
        return Rebuilt(title, Verdict.OTHER_INPUTS, str(error))
    if item.action.key != found.manifest.key:
        changed = diff_fields(item.action.plain_fields(), found.manifest.action)
        return Rebuilt(title, Verdict.OTHER_INPUTS, "; ".join(map(_difference, changed)))
    return item, found.manifest


def _unit(ref: RefEntry, manifest: Manifest, catalog: Catalog) -> Unit:
    fields, entry = ref.fields, catalog.find(ref.fields["spec"])
    assembler = manifest.action.get("assembler")
    return Unit(
        entry=entry,
        specialization=entry.spec.specialization(fields["specialization"]),
        target=Target.parse(fields["target"]),
        host=Host.parse(fields["host"]),
        options=CompileOptions(assembler if assembler in ("nvrtc", "nvcc") else None),
    )


def _verdict(outcome: Outcome, manifest: Manifest) -> Rebuilt:
    title = outcome.planned.title
    if outcome.manifest is None:
        return Rebuilt(title, Verdict.FAILED, outcome.error)
    ours, theirs = ({file.name: file.digest for file in one.files} for one in (manifest, outcome.manifest))
    if ours == theirs:
        return Rebuilt(title, Verdict.SAME)
    names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return Rebuilt(title, Verdict.DIFFERS, "; ".join(f"{n}: {ours.get(n)} there, {theirs.get(n)} now" for n in names))


def _title(ref: RefEntry) -> str:
    values = (f"{name}={value}" for name, value in ref.fields.get("specialization", {}).items())
    return " ".join((str(ref.fields.get("spec")), *values, f"--target {ref.fields.get('target')}"))


def _difference(one: FieldDiff) -> str:
    return f"{one.field} is {one.ours} here, was {one.theirs}"
