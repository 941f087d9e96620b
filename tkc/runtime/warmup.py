"""Load kernels before they are needed: outside graph capture, on every device, in parallel."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from tkc.errors import ArtifactMissingError, SpecError, TkcError
from tkc.grids import load_grid
from tkc.model import Digest, ModelDims, Params, Specialization
from tkc.registry import CatalogEntry, find_entry, load_catalog
from tkc.runtime.artifact import Artifact
from tkc.runtime.device import DeviceInfo, DeviceLike, device_info
from tkc.runtime.fallback import Answer, Missing, ReferenceKernel, answer, answer_all, missing_error
from tkc.runtime.launch import LoadedKernel
from tkc.runtime.table import Kernel, OnMiss, Wanted, load_kernels

Call: TypeAlias = "tuple[str, Params] | Specialization | ModelDims"
"""What to warm up: a kernel's name and a call's parameters, a specialization, or all that a model needs."""

_SHOW_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """What `warmup` did.

    Attributes:
        loaded: the kernels that are loaded now, in the order asked.
        missed: why each of the others is not, by its specialization.
        seconds: how long it took.
    """

    loaded: tuple[LoadedKernel, ...]
    missed: Mapping[str, str]
    seconds: float

    def __str__(self) -> str:
        return f"{len(self.loaded)} kernels loaded, {len(self.missed)} missed, {self.seconds:.2f} s"


def warmup(what: str | Iterable[Call], device: DeviceLike = None, *, progress: bool = True) -> WarmupReport:
    """Find, verify and load kernels now, on `device`, so that no later call has to.

    ::

        tkc.warmup("deepseek-v3", device="cuda:0")                                    # a grid
        tkc.warmup([("moe.topk_gate", {"num_experts": 256, "num_topk": 8})])          # single calls

    Args:
        what: name of a grid, or any mix of ``(spec name, parameters)``, specializations, model dimensions.
        device: None is the current CUDA device if there is one, else the CPU. Call it once for each device.
        progress: show a bar on a terminal if it takes more than two seconds.

    A miss is treated by the policy: `jit` compiles it, `reference` counts it as missed. Raises
    ArtifactMissingError, naming every miss, if the policy is `error`; SpecError or TkcError for a name that
    is not known, before anything is loaded. Other failures (a compile, a damaged layer) are raised too, the
    first of them, after everything else was loaded.
    """
    started = time.monotonic()
    where = device_info(device)
    wanted = tuple(_wanted(what, where))
    results = _load_all(wanted, where, _set_aside, show=progress)
    if missing := [result.missing for result in results if isinstance(result, _SetAside)]:
        answers = answer_all(missing)
        results = _load_all(wanted, where, lambda missing: _given(answers, missing), show=progress)
    return _report(wanted, results, started)


class _SetAside(Exception):
    """No error: what the first round leaves for the policy to answer."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(missing.title)
        self.missing = missing


def _set_aside(missing: Missing) -> Artifact:
    raise _SetAside(missing)


def _given(answers: Mapping[Digest, Answer | TkcError], missing: Missing) -> Answer:
    found = answers.get(missing.request.key)
    if isinstance(found, TkcError):
        raise found
    return found or answer(missing)  # what only now turns out to be missing


def _load_all(wanted: tuple[Wanted, ...], where: DeviceInfo, on_miss: OnMiss, *, show: bool) -> list[_Result]:
    """What loading each gives or raises. What is loaded already costs one dictionary lookup."""
    results = list[_Result]()
    with _shown_progress(len(wanted), show=show) as advance:
        for result in load_kernels(wanted, where, on_miss):
            results.append(result)
            advance(len(results))
    return results


_Result: TypeAlias = Kernel | BaseException


def _wanted(what: str | Iterable[Call], device: DeviceInfo) -> Iterator[Wanted]:
    """What to load, each specialization once."""
    calls: Iterable[Call] = load_grid(what) if isinstance(what, str) else what
    seen = set[Specialization]()
    for call in calls:
        for wanted in _expand(call, device):
            if wanted.specialization not in seen:
                seen.add(wanted.specialization)
                yield wanted


def _expand(call: Call, device: DeviceInfo) -> Iterator[Wanted]:
    if isinstance(call, Specialization):
        yield Wanted(find_entry(call.spec).spec, call, None)
    elif isinstance(call, ModelDims):
        for entry in _supported(device):
            for params in entry.spec.grid(call):
                yield Wanted(entry.spec, entry.spec.bind(**params), params)
    elif isinstance(call, tuple) and len(call) == 2:
        spec = find_entry(call[0]).spec
        yield Wanted(spec, spec.bind(**call[1]), call[1])
    else:
        raise SpecError(
            f"cannot warm up {call!r}; expected the name of a grid, or a list of (spec name, parameters), "
            "specializations or model dimensions"
        )


def _supported(device: DeviceInfo) -> Iterator[CatalogEntry]:
    return (entry for entry in load_catalog() if device.target.backend in entry.backends)


def _report(wanted: tuple[Wanted, ...], results: list[_Result], started: float) -> WarmupReport:
    loaded, missed = list[LoadedKernel](), dict[str, str]()
    misses, others = list[ArtifactMissingError](), list[BaseException]()
    for (_, specialization, _), result in zip(wanted, results, strict=True):
        if isinstance(result, LoadedKernel):
            loaded.append(result)
        elif isinstance(result, ReferenceKernel):
            missed[str(specialization)] = "no artifact: its reference runs"
        elif isinstance(result, ArtifactMissingError):
            misses.append(result)
        else:
            others.append(result)
    if misses:
        raise missing_error(misses)
    if others:
        raise others[0]
    return WarmupReport(tuple(loaded), missed, time.monotonic() - started)


@contextmanager
def _shown_progress(total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Give a function to be told how many are done, which shows a bar on a terminal once two seconds have gone."""
    deadline = time.monotonic() + _SHOW_AFTER_S
    with ExitStack() as stack:
        bar: Callable[[int], None] | None = None

        def advance(done: int) -> None:
            nonlocal bar
            if bar is None and show and time.monotonic() > deadline and sys.stderr.isatty():
                bar = stack.enter_context(_bar(total))
            if bar is not None:
                bar(done)

        yield advance


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("loading kernels"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)
