"""Plan and build: the only place where compiler and store meet.

A plan is the list of artifacts that a grid needs, each with its action key. Building looks each up and
compiles what misses, in worker processes; each stage is looked up too, so that an unchanged device
source never reaches the device compiler again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tkc.cache import Hit, Miss, Store
from tkc.compiler import (
    CompileOptions,
    StageOutput,
    Tools,
    Unit,
    assemble,
    assemble_action,
    compile_action,
    link,
    link_action,
    lower,
    lower_action,
    probe,
)
from tkc.compiler.stages import LOWER_TOOLS
from tkc.errors import CompileError, SpecError, StoreError, TargetError, TkcError, ToolchainError
from tkc.model import Action, Backend, Component, Digest, Host, Manifest, Request, Stage, Target, Toolchain
from tkc.registry import CatalogEntry, load_catalog, sources_read_once
from tkc.version import __version__
from tkc.workers import Finished, Message, WorkerPool

DEFAULT_TIMEOUT_S = 600.0
FETCHES = 8
"""How many artifacts are asked of a remote at once."""


@dataclass(frozen=True)
class Planned:
    """One artifact of a plan.

    Attributes:
        unit: what to compile.
        request: what a runtime will ask.
        action: names every input of the whole compile.
        lowered: what was lowered earlier, to go on from; None to start with lowering.
    """

    unit: Unit
    request: Request
    action: Action
    lowered: Hit | None = None

    @property
    def title(self) -> str:
        return f"{self.unit.specialization} --target {self.unit.target}"


class Status(StrEnum):
    """How a planned artifact ended."""

    HIT = "hit"
    BUILT = "built"
    FAILED = "failed"
    REFUSED = "refused"  # the variant says that its target cannot do this call


@dataclass(frozen=True)
class Outcome:
    """What became of one planned artifact."""

    planned: Planned
    status: Status
    seconds: float = 0.0
    manifest: Manifest | None = None
    error: str = ""
    kind: str = ""
    log_path: Path | None = None

    @property
    def spilling_kernels(self) -> tuple[str, ...]:
        """Kernels of this artifact that spill registers to local memory."""
        kernels = self.manifest.facts.get("kernels", []) if self.manifest else []
        return tuple(kernel["symbol"] for kernel in kernels if kernel.get("spill_bytes"))


OnEvent = Callable[[Planned, Message], None]


def plan(units: Iterable[Unit], store: Store) -> tuple[Planned, ...]:
    """Name the action and the request of each unit. Imports no tool and needs none."""
    with sources_read_once():
        return tuple(planned(unit, store) for unit in units)


def plan_from_lowered(source: Store, names: tuple[str, ...], host: Host, store: Store) -> tuple[Planned, ...]:
    """Plan to go on from everything that was lowered into `source`, or what of it `names` selects.

    Raises SpecError if something was lowered from other source files than the catalogue has here.
    """
    entries = {entry.spec.name: entry for entry in load_catalog().select(names)}
    found = [hit for hit in map(source.lookup, source.keys()) if isinstance(hit, Hit)]
    lowered = [hit for hit in found if hit.manifest.stage is Stage.LOWER]
    chosen = [hit for hit in lowered if hit.manifest.action["spec"] in entries]
    with sources_read_once():
        return tuple(_planned_from(hit, entries[hit.manifest.action["spec"]], host, store) for hit in chosen)


def planned(unit: Unit, store: Store, lowered: Hit | None = None) -> Planned:
    """Name the action and the request of one unit."""
    toolchain = tools_for(unit, store).toolchain
    if lowered is not None:
        toolchain = _with_lowering_of(toolchain, lowered.manifest, unit)
    request = Request(
        specialization=unit.specialization,
        source=unit.entry.source_digest(unit.target.backend),
        target=unit.target.name,
        host=unit.host.arch,
    )
    return Planned(unit, request, compile_action(unit, toolchain), lowered)


def tools_for(unit: Unit, store: Store) -> Tools:
    """Find the tools that compile `unit`; asked once for each target, host and set of options."""
    return _probe(unit.target, unit.host, unit.options, stamps_dir=store.stamps_dir)


_probe = cache(probe)


def build(
    plan: Sequence[Planned],
    store: Store,
    *,
    jobs: int = 0,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    lower_only: bool = False,
    on_event: OnEvent | None = None,
    upstream: ActionSource | None = None,
) -> Iterator[Outcome]:
    """Look up every planned artifact, compile what misses, and yield each outcome as it comes.

    With `upstream`, a remote is asked for what misses before it is compiled.

    A failed compile is an outcome, not an exception, and does not stop the others. Raises StoreError
    if the store cannot be written at all.
    """
    missing = yield from _hits(plan, store, lower_only=lower_only)
    if missing and upstream is not None and not lower_only:
        _fetch(missing, store, upstream)
        missing = yield from _hits(missing, store)
    if missing:
        store.require_writable()
        yield from _build_missing(missing, store, jobs or os.cpu_count() or 1, timeout_s, lower_only, on_event)


class ActionSource(Protocol):
    """A remote store, as a build asks it."""

    def fetch_action(self, key: Digest, request: Digest, into: Store) -> Hit | Miss:
        """Copy the artifact of an action into a writable store, verified; or say why there is none; never raises."""


def _hits(
    plan: Sequence[Planned], store: Store, *, lower_only: bool = False
) -> Generator[Outcome, None, list[Planned]]:
    """Yield what the store has; return the rest."""
    missing = []
    for item in plan:
        found = store.lookup(_wanted(item, store, lower_only=lower_only).key)
        if isinstance(found, Hit):
            yield _hit(item, found.manifest, store, lower_only=lower_only)
        else:
            missing.append(item)
    return missing


def _fetch(missing: Sequence[Planned], store: Store, upstream: ActionSource) -> None:
    from concurrent.futures import ThreadPoolExecutor

    store.require_writable()
    with ThreadPoolExecutor(FETCHES, thread_name_prefix="tkc-fetch") as pool:
        list(pool.map(lambda item: upstream.fetch_action(item.action.key, item.request.key, store), missing))


def compile_one(unit: Unit, store: Store, *, announce: Callable[[str], None] | None = None) -> Hit:
    """Compile one artifact in a worker process, or wait for whoever is compiling it already.

    Used on a miss at run time. Raises CompileError with the worker's words if it fails, ToolchainError
    if this machine cannot compile for the target.
    """
    item = planned(unit, store)

    def on_event(item: Planned, message: Message) -> None:
        if announce is not None:
            announce(str(message.get("stage") or message.get("problem") or message["event"]))

    (outcome,) = build([item], store, jobs=1, on_event=on_event)
    if outcome.manifest is None:
        raise _error(outcome)
    return Hit(outcome.manifest, store)


def compile_and_commit(
    item: Planned, store: Store, *, on_stage: Callable[[str], None], lower_only: bool = False
) -> tuple[Manifest, bool]:
    """Compile in this process and commit. Gives the manifest, and whether it was compiled here.

    Under the action's lock, which saves double work when several processes miss at once; a writer
    that does not get the lock compiles for itself.
    """
    wanted = _wanted(item, store, lower_only=lower_only)
    with store.lock(wanted.key, on_wait=lambda owner: on_stage(f"waiting for {owner}")):
        if isinstance(found := store.lookup(wanted.key), Hit):
            manifest, fresh = found.manifest, False
        else:
            manifest, fresh = _run_stages(item, store, on_stage, lower_only=lower_only), True
        if not lower_only:
            store.write_ref(item.request.key, item.request.fields(), manifest.key)
        return manifest, fresh


def planned_from_task(task: Mapping[str, Any]) -> Planned:
    """Read back, in a worker, what `_task` wrote; raises TkcError if the tools or sources changed meanwhile."""
    entry = load_catalog(task["package"]).find(task["spec"])
    unit = Unit(
        entry=entry,
        specialization=entry.spec.specialization(task["specialization"]),
        target=Target.parse(task["target"]),
        host=Host.parse(task["host"]),
        options=CompileOptions(task["assembler"], tuple(task["flags"])),
    )
    item = planned(unit, Store(Path(task["store"]), writable=True), _lowered_from_task(task))
    if item.action.key.hex != task["key"]:
        raise TkcError(f"{item.title}: sources or tools changed while the build was running; build again")
    return item


def _run_stages(item: Planned, store: Store, on_stage: Callable[[str], None], *, lower_only: bool) -> Manifest:
    unit, tools = item.unit, tools_for(item.unit, store)
    if item.lowered is not None:
        return _finish(item, item.lowered, store, tools, on_stage)
    action = lower_action(unit, tools.toolchain)

    def run(folder: Path) -> StageOutput:
        tools.require(Stage.LOWER)
        return lower(unit, folder)

    lowered = _stage(store, action, run, on_stage)
    return lowered if lower_only else _finish(item, Hit(lowered, store), store, tools, on_stage)


def _finish(item: Planned, source: Hit, store: Store, tools: Tools, on_stage: Callable[[str], None]) -> Manifest:
    """Assemble and link what was lowered, and commit the whole to `store`."""
    unit, lowered = item.unit, source.manifest
    files = {entry.name: source.path(entry.name) for entry in lowered.files}
    assembled = None
    if unit.target.backend is not Backend.CPU:
        assembled = _stage(
            store,
            assemble_action(unit, lowered, tools.toolchain),
            lambda folder: assemble(unit, tools, lowered, files, folder),
            on_stage,
            inputs=(lowered,),
        )
        files |= {entry.name: store.blob_path(entry.digest) for entry in assembled.files}
    linked = _stage(
        store,
        link_action(unit, lowered, assembled, tools.toolchain),
        lambda folder: link(unit, tools, lowered, assembled, files, folder),
        on_stage,
        inputs=tuple(manifest for manifest in (lowered, assembled) if manifest),
    )
    return store.commit_manifest(
        replace(
            linked,
            key=item.action.key,
            stage=Stage.COMPILE,
            action=item.action.plain_fields(),
            inputs=(linked.key,),
            provenance=provenance(unit.entry.folder),
        )
    )


def _stage(
    store: Store,
    action: Action,
    run: Callable[[Path], StageOutput],
    on_stage: Callable[[str], None],
    inputs: tuple[Manifest, ...] = (),
) -> Manifest:
    if isinstance(found := store.lookup(action.key), Hit):
        return found.manifest
    on_stage(action.stage.value)
    with store.stage() as folder:
        try:
            output = run(folder)
        except CompileError as error:
            raise _with_kept_log(error, store, action) from error
        return store.commit(
            action,
            folder,
            output.files,
            facts=output.facts,
            inputs=tuple(manifest.key for manifest in inputs),
        )


def _planned_from(hit: Hit, entry: CatalogEntry, host: Host, store: Store) -> Planned:
    fields = hit.manifest.action
    target = Target.parse(fields["target"]["name"])
    here = {name: str(digest) for name, digest in entry.sources(target.backend).items()}
    if here != fields["sources"]:
        changed = sorted(name for name in {*here, *fields["sources"]} if here.get(name) != fields["sources"].get(name))
        raise SpecError(
            f"{entry.spec.name} was lowered from other source files than the catalogue has here: {', '.join(changed)} "
            "differ. Install the same version of the kernels on both machines, or lower again"
        )
    unit = Unit(entry, entry.spec.specialization(fields["specialization"]), target, host)
    return planned(unit, store, hit)


def _with_lowering_of(toolchain: Toolchain, lowered: Manifest, unit: Unit) -> Toolchain:
    """The tools that really made the artifact: those that lowered it elsewhere, and this machine's for the rest."""
    there = {
        name: Component(name, one["version"], Digest.parse(one["digest"]))
        for name, one in lowered.action["toolchain"].items()
    }
    here = {one.name: one for one in toolchain.components if one.name not in LOWER_TOOLS[unit.target.backend]}
    return Toolchain(tuple((there | here).values()))


def _lowered_from_task(task: Mapping[str, Any]) -> Hit | None:
    if task["lowered"] is None:
        return None
    found = Store(Path(task["lowered"]["store"])).lookup(Digest(task["lowered"]["key"]))
    if not isinstance(found, Hit):
        raise TkcError(f"what was lowered is not there any more: {found.reason}")
    return found


def _with_kept_log(error: CompileError, store: Store, action: Action) -> CompileError:
    if error.log_path is None or not error.log_path.exists():
        return error
    kept = store.keep_log(action.key, error.log_path.read_text(errors="replace"))
    return CompileError(str(error), action=error.action, stage=error.stage, log_path=kept)


def _build_missing(
    missing: Sequence[Planned],
    store: Store,
    jobs: int,
    timeout_s: float,
    lower_only: bool,
    on_event: OnEvent | None,
) -> Iterator[Outcome]:
    started: dict[int, float] = {}

    def relay(index: int, message: Message) -> None:
        started.setdefault(index, time.monotonic())
        if on_event is not None:
            on_event(missing[index], message)

    tasks = [_task(item, store, lower_only=lower_only) for item in missing]
    with WorkerPool(jobs, timeout_s, relay) as pool:
        for finished in pool.run(tasks):
            now = time.monotonic()
            yield _outcome(missing[finished.index], finished, store, now - started.get(finished.index, now))


def _outcome(item: Planned, finished: Finished, store: Store, seconds: float) -> Outcome:
    message = finished.message
    if message is not None and message["event"] == "done":
        status = Status.BUILT if message["fresh"] else Status.HIT
        return Outcome(item, status, seconds, Manifest.from_bytes(message["manifest"].encode()))
    error = message["error"] if message is not None else f"{item.title}: {finished.problem}"
    kind = message["kind"] if message is not None else "CompileError"
    log = "\n".join(text for text in (error, message and message["log"], finished.log) if text)
    status = Status.REFUSED if kind == TargetError.__name__ else Status.FAILED
    return Outcome(item, status, seconds, None, error, kind, store.keep_log(item.action.key, log))


def _hit(item: Planned, manifest: Manifest, store: Store, *, lower_only: bool) -> Outcome:
    """A hit; its ref is written if another toolchain's artifact, or nothing, answers the request so far."""
    if not lower_only and store.read_ref(item.request.key) != manifest.key:
        store.write_ref(item.request.key, item.request.fields(), manifest.key)
    return Outcome(item, Status.HIT, manifest=manifest)


def _wanted(item: Planned, store: Store, *, lower_only: bool) -> Action:
    return lower_action(item.unit, tools_for(item.unit, store).toolchain) if lower_only else item.action


def _task(item: Planned, store: Store, *, lower_only: bool) -> Message:
    unit = item.unit
    return {
        "package": unit.entry.package,
        "spec": unit.entry.spec.name,
        "specialization": dict(unit.specialization),
        "target": unit.target.name,
        "host": unit.host.arch,
        "assembler": unit.options.assembler,
        "flags": list(unit.options.flags),
        "key": item.action.key.hex,
        "store": str(store.root),
        "lowered": item.lowered and {"store": str(item.lowered.store.root), "key": item.lowered.manifest.key.hex},
        "lower_only": lower_only,
    }


def _error(outcome: Outcome) -> TkcError:
    """The error that a worker reported, as the class that it was there."""
    simple = {kind.__name__: kind for kind in (SpecError, TargetError, ToolchainError, StoreError)}
    if outcome.kind in simple:
        return simple[outcome.kind](outcome.error)
    return CompileError(outcome.error, action=outcome.planned.title, stage="", log_path=outcome.log_path)


@cache
def provenance(folder: Path) -> Mapping[str, str]:
    """Where the sources of a compile came from: the commit they were at, and whether they were changed since."""
    facts = {"tkc": __version__}
    if shutil.which("git") is None:
        return facts
    commit = _git(folder, "rev-parse", "HEAD")
    if commit:
        facts |= {
            "commit": commit,
            "dirty": "yes" if _git(folder, "status", "--porcelain", "--", ".") else "no",
        }
    return facts


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
