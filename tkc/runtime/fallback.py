"""What to do when no layer has an artifact: compile it, refuse, or run the reference.

Every miss is appended to the user store's miss log, from which ``tkc build --from-misses`` makes artifacts.
Compiling reaches `tkc.build` from here alone, and imports it only then.
"""

from __future__ import annotations

import atexit
import math
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from tkc.cache import Hit, Store
from tkc.config import MissPolicy
from tkc.errors import (
    ArtifactMissingError,
    CompileError,
    LoadError,
    StoreFullError,
    StoreReadOnlyError,
    TkcError,
    ToolchainError,
)
from tkc.model import Digest, Host, KernelSpec, Params, Request, Role, Specialization, Target, TensorArg
from tkc.registry import CatalogEntry
from tkc.runtime.artifact import Artifact
from tkc.runtime.device import DeviceInfo
from tkc.runtime.dispatch import Rejected, judge, layers, settings
from tkc.runtime.launch import Launch, as_tensors, explain

if TYPE_CHECKING:
    from tkc.compiler import Unit

T = TypeVar("T")

FETCHES = 8
"""How many artifacts are asked of a remote at once."""

ANNOUNCE_EVERY_S = 3.0
"""How often a compile that a caller waits for says that it is still going on."""


@dataclass(frozen=True)
class Missing:
    """One miss.

    Attributes:
        entry: the kernel.
        request: what the layers were asked.
        device: for which device.
        reasons: one line for each layer.
        params: the call's parameters as the user wrote them, if known.
    """

    entry: CatalogEntry
    request: Request
    device: DeviceInfo
    reasons: tuple[str, ...]
    params: Params | None = None

    @property
    def title(self) -> str:
        return str(self.request)

    @property
    def command(self) -> str:
        """The command that would have built it."""
        values = self.request.specialization if self.params is None else self.params
        words = (f"{name}={_word(value)}" for name, value in values.items())
        return " ".join(("tkc build", self.entry.spec.name, *words, f"--target {self.request.target}"))


class ReferenceKernel:
    """Stands for a kernel without an artifact: runs the PyTorch reference and copies its results out.

    Attributes:
        spec, specialization, device: as of a loaded kernel.
    """

    __slots__ = ("_reference", "device", "spec", "specialization")

    def __init__(self, entry: CatalogEntry, specialization: Specialization, device: DeviceInfo) -> None:
        self.spec: KernelSpec = entry.spec
        self.specialization = specialization
        self.device = device
        self._reference = entry.reference()

    @property
    def target(self) -> Target:
        """The target of the device that it stands in for."""
        return self.device.target

    def launch(self, *args: Any) -> None:
        """Compute the outputs of these launch arguments. Raises ArgumentError if they do not match."""
        args = as_tensors(args)
        if problem := explain(self.spec, self.specialization, args, self.device):
            raise problem
        expected = self.spec.arguments(self.specialization)
        by_name = {arg.name: given for arg, given in zip(expected, args, strict=True)}
        results = self._reference.expected(self.specialization, by_name)
        for arg in expected:
            if isinstance(arg, TensorArg) and arg.role is not Role.IN and by_name[arg.name] is not None:
                by_name[arg.name].copy_(results[arg.name])

    __call__ = launch

    def entry(self, *, pdl: bool = False) -> Launch:
        """The callable for a table; `pdl` makes no difference."""
        return self.launch


Answer: TypeAlias = Artifact | ReferenceKernel
"""What a miss comes to, if it comes to anything."""


def answer(missing: Missing) -> Answer:
    """Take it from the remote, if one is configured and has it; else do what the policy says, and log the miss.

    Raises ArtifactMissingError if the policy is `error`; ToolchainError or CompileError if it is `jit` and
    compiling is impossible here or fails.
    """
    return _fetched(missing) or _by_policy(missing)


def answer_all(missing: Sequence[Missing]) -> Mapping[Digest, Answer | TkcError]:
    """As `answer`, for many: by the key of each request what it gives or raises. Fetches and compiles them together."""
    fetched = _fetch_all(missing)
    left = [one for one in missing if one.request.key not in fetched]
    return {**fetched, **_all_by_policy(left)}


def _by_policy(missing: Missing) -> Answer:
    policy = current_policy()
    started = time.monotonic()
    try:
        if policy is MissPolicy.ERROR:
            raise _missing_error(missing)
        return _reference(missing) if policy is MissPolicy.REFERENCE else _compile(missing)
    finally:
        _log(missing, policy, time.monotonic() - started)


def _all_by_policy(missing: Sequence[Missing]) -> Mapping[Digest, Answer | TkcError]:
    if current_policy() is MissPolicy.JIT and len(missing) > 1:
        started = time.monotonic()
        compiled = _compile_all(missing)
        for one in missing:
            _log(one, MissPolicy.JIT, (time.monotonic() - started) / len(missing))
        return compiled
    return {one.request.key: _answer_or_error(one) for one in missing}


def _answer_or_error(missing: Missing) -> Answer | TkcError:
    try:
        return _by_policy(missing)
    except TkcError as error:
        return error


def _fetch_all(missing: Sequence[Missing]) -> dict[Digest, Artifact]:
    if layers().upstream is None:
        return {}
    with ThreadPoolExecutor(FETCHES, thread_name_prefix="tkc-fetch") as pool:
        found = zip(missing, pool.map(_fetched, missing), strict=True)
        return {one.request.key: artifact for one, artifact in found if artifact is not None}


def _fetched(missing: Missing) -> Artifact | None:
    """What the remote has, kept in the user store. None if it has nothing, there is none, or the process is sealed."""
    if (remote := layers().upstream) is None or _SEALED.is_set():
        return None
    started = time.monotonic()
    found = _in_some_store(lambda store: layers().fetch(missing.request.key, store))
    if not isinstance(found, Hit):
        _say(f"{missing.title} is not there: {found.reason}")
        return None
    if isinstance(verdict := judge(found.manifest, missing.device, missing.request.host), Rejected):
        _say(f"{missing.title} is not taken from {remote}: {verdict.reason}")
        return None
    _say(f"fetched {missing.title} from {remote} in {time.monotonic() - started:.1f} s")
    return Artifact.of(found)


def current_policy() -> MissPolicy:
    """The policy in force: `error` once sealed, else the settings'."""
    return MissPolicy.ERROR if _SEALED.is_set() else settings().on_miss


def seal() -> None:
    """From now on, in this process, a miss is an error: nothing compiles any more.

    What is loaded stays loaded. Call it after `tkc.warmup`, before serving or training begins.
    """
    _SEALED.set()


def unseal() -> None:
    """Take `seal` back. For tests."""
    _SEALED.clear()


_SEALED = threading.Event()


def missing_error(errors: Sequence[ArtifactMissingError]) -> ArtifactMissingError:
    """One error for many misses."""
    if len(errors) == 1:
        return errors[0]
    listed = "\n".join(f"  {line}" for error in errors for line in str(error).splitlines())
    return ArtifactMissingError(
        f"{len(errors)} artifacts are missing, and the policy is to raise:\n{listed}",
        request="; ".join(error.request for error in errors),
        reasons=[reason for error in errors for reason in error.reasons],
    )


def _missing_error(missing: Missing) -> ArtifactMissingError:
    lines = [f"no artifact for {missing.title} on {missing.device}, and the policy is to raise:"]
    lines += [f"  {reason}" for reason in missing.reasons]
    lines.append(f"Build it:  {missing.command}")
    return ArtifactMissingError("\n".join(lines), request=missing.title, reasons=missing.reasons)


def _reference(missing: Missing) -> ReferenceKernel:
    warnings.warn(
        f"no artifact for {missing.title}: running its PyTorch reference, which is slow "
        f"({'; '.join(missing.reasons)}). Build it:  {missing.command}",
        RuntimeWarning,
        stacklevel=2,
    )
    return ReferenceKernel(missing.entry, missing.request.specialization, missing.device)


def _compile(missing: Missing) -> Artifact:
    with _Announcement(missing.title, missing.device, missing.reasons) as announce:
        hit = _in_some_store(lambda store: _compile_into(store, missing, announce))
    return _accept(missing, hit)


def _compile_all(missing: Sequence[Missing]) -> dict[Digest, Artifact | TkcError]:
    first, results = missing[0], dict[Digest, Artifact | TkcError]()
    title = f"{len(missing)} artifacts --target {first.request.target}"
    with _Announcement(title, first.device, first.reasons) as announce:
        found = _in_some_store(lambda store: _compile_all_into(store, missing, announce))
    for one in missing:
        hit = found[one.request.key]
        try:
            results[one.request.key] = hit if isinstance(hit, TkcError) else _accept(one, hit)
        except LoadError as error:
            results[one.request.key] = error
    return results


def _accept(missing: Missing, hit: Hit) -> Artifact:
    if isinstance(verdict := judge(hit.manifest, missing.device, missing.request.host), Rejected):
        raise LoadError(f"{missing.title}: what was just compiled cannot run here: {verdict.reason}")
    return Artifact.of(hit)


def _in_some_store(act: Callable[[Store], T]) -> T:
    """Do `act` with the user store, or, if nothing can be written there, with one that ends with this process."""
    user_store = layers().writable
    if user_store is not None:
        try:
            return act(user_store)
        except (StoreReadOnlyError, StoreFullError) as error:
            problem = str(error)
    else:
        problem = "there is no user store"
    store = _temporary_store(os.getpid())
    warnings.warn(
        f"{problem}; what is compiled is kept in {store.root} until this process ends. "
        "Set TKC_CACHE_DIR to a writable folder to keep it",
        RuntimeWarning,
        stacklevel=2,
    )
    return act(store)


def _compile_into(store: Store, missing: Missing, announce: _Announcement) -> Hit:
    with _explaining_toolchain_errors(missing):
        from tkc.build import compile_one

        return compile_one(_unit(missing), store, announce=announce.at)


def _compile_all_into(
    store: Store, missing: Sequence[Missing], announce: _Announcement
) -> dict[Digest, Hit | TkcError]:
    """Compile with one pool of workers, so that each of them imports the compiler once."""
    found = dict[Digest, Hit | TkcError]()
    with _explaining_toolchain_errors(missing[0]):
        from tkc.build import build, plan

        for outcome in build(plan([_unit(one) for one in missing], store), store, jobs=settings().jobs):
            request = outcome.planned.request
            if outcome.manifest is not None:
                found[request.key] = Hit(outcome.manifest, store)
            else:
                title, log_path = str(request), outcome.log_path
                found[request.key] = CompileError(outcome.error, action=title, stage="", log_path=log_path)
            announce.at(f"{len(found)} of {len(missing)} done")
    return found


def _unit(missing: Missing) -> Unit:
    from tkc.compiler import Unit

    target, host = missing.device.target, Host.parse(missing.request.host)
    return Unit(missing.entry, missing.request.specialization, target, host)


@contextmanager
def _explaining_toolchain_errors(missing: Missing) -> Iterator[None]:
    try:
        yield
    except (ToolchainError, ModuleNotFoundError) as error:
        raise ToolchainError(
            f"no artifact for {missing.title} ({'; '.join(missing.reasons)}), and it cannot be compiled here: "
            f"{error}\nCompiling needs the build extra: pip install 'tilelang-tkc[build]'. "
            f"Or build it elsewhere:  {missing.command}"
        ) from error


@cache
def _temporary_store(pid: int) -> Store:
    """A store for the process `pid` alone, gone when it ends."""
    root = Path(tempfile.mkdtemp(prefix="tkc-store-"))

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    return Store(root, writable=True)


class _Announcement:
    """Says on standard error, at once and then again and again, what a caller is waiting for."""

    def __init__(self, title: str, device: DeviceInfo, reasons: Sequence[str]) -> None:
        self._title, self._device, self._reasons = title, device, reasons
        self._stage = "starting"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="tkc-announce", daemon=True)

    def at(self, stage: str) -> None:
        """Remember what the compile is doing now."""
        self._stage = stage

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        clock, reasons = time.strftime("%H:%M:%S"), "; ".join(self._reasons)
        _say(f"compiling {self._title} for {self._device} since {clock}: no artifact ({reasons})")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        outcome = "compiled" if kind is None else "failed to compile"
        _say(f"{outcome} {self._title} after {time.monotonic() - self._started:.1f} s")

    def _repeat(self) -> None:
        while not self._done.wait(ANNOUNCE_EVERY_S):
            waited = time.monotonic() - self._started
            _say(f"still compiling {self._title}: {self._stage}, {waited:.0f} s")


def _say(text: str) -> None:
    print(f"tkc: {text}", file=sys.stderr, flush=True)


def _log(missing: Missing, policy: MissPolicy, seconds: float) -> None:
    store = layers().writable
    if store is not None:
        store.miss_log.append(
            {
                **missing.request.fields(),
                "params": None if missing.params is None else dict(missing.params),
                "device": missing.device.name or missing.device.kind,
                "machine": platform.node(),
                "policy": policy.value,
                "cost_s": math.ceil(seconds),
                "reasons": missing.reasons,
            }
        )


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)
