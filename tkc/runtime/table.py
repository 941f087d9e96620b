"""The kernels that this process has loaded: by operator (`KernelTable`), and all of them."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from tkc.cache import Miss
from tkc.errors import LoadError, SpecError, TkcError
from tkc.model import Backend, KernelSpec, Manifest, Params, Specialization, Value
from tkc.registry import entry_of, find_entry
from tkc.runtime import dispatch, fallback
from tkc.runtime.artifact import LIBRARY
from tkc.runtime.collection import paused_collection
from tkc.runtime.device import DeviceInfo, DeviceLike, device_info, is_capturing
from tkc.runtime.fallback import Answer, Missing, ReferenceKernel
from tkc.runtime.launch import Launch, LoadedKernel, forked, forked_after_loading, mark_forked
from tkc.runtime.loader import open_library

Kernel: TypeAlias = LoadedKernel | ReferenceKernel
"""What answers a call: a loaded artifact, or the reference if the policy is `reference`."""


class KernelTable(dict[tuple[Any, ...], Launch]):
    """The loaded kernels of one operator, by ``table[device, pdl, *values of the const axes]``.

    `device` is the tensors' ``torch.device``; `pdl` whether to launch without waiting for the kernel
    before; the values are in the order of ``SPEC.const``. The value is called with the launch arguments.
    A hit is one dictionary lookup; a missing key is found, verified and loaded, once, whichever thread
    comes first. Raises as `load_kernel` does, and SpecError for values that are not legal.
    """

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__()
        self.spec = spec
        _TABLES.append(weakref.ref(self))

    def __missing__(self, key: tuple[Any, ...]) -> Launch:
        device, pdl, *values = key
        if _asked is not None:
            _asked.append((self.spec, self._specialization(values)))
            return _launch_nothing
        info = device_info(device)
        launch = load_kernel(self.spec, self._specialization(values), info).entry(pdl=bool(pdl))
        if device.index is not None or info.target.backend is Backend.CPU:
            self[key] = launch  # without an index the key means another device tomorrow
        return launch

    def _specialization(self, values: list[Value]) -> Specialization:
        axes = [axis.name for axis in self.spec.const]
        if len(values) != len(axes):
            raise SpecError(
                f"{self.spec.name}: a key has {len(values)} const values; expected {len(axes)}: {', '.join(axes)}"
            )
        return self.spec.specialization(dict(zip(axes, values, strict=True)))


_asked: list[tuple[KernelSpec, Specialization]] | None = None


@contextmanager
def recording() -> Iterator[list[tuple[KernelSpec, Specialization]]]:
    """Within the block nothing is loaded or launched: what tables are asked for and do not have is listed.

    For walking operators without a device, with tensors on ``meta``. Not for several threads.
    """
    global _asked
    before, _asked = _asked, []
    try:
        yield _asked
    finally:
        _asked = before


def _launch_nothing(*args: Any) -> None:
    """Stands for a kernel while what is asked for is recorded."""


def kernel(name: str, device: DeviceLike = None, **params: Value) -> Kernel:
    """Load the kernel `name` for a call with these parameters.

    ::

        kernel = tkc.kernel("moe.topk_gate", num_experts=256, num_topk=8)
        kernel(scores, topk_idx)                       # launch arguments, in the order of kernel.spec

    Args:
        name: ``<family>.<kernel>``; `tkc list` shows them.
        device: where to load it; None is the current CUDA device if there is one, else the CPU.
        params: as in ``tkc build <name> key=value …``; `tkc show <name>` lists them.

    Raises SpecError for a name or parameter that is not known, and as `load_kernel` does.
    """
    spec = find_entry(name).spec
    return load_kernel(spec, spec.bind(**params), device_info(device), params)


OnMiss: TypeAlias = Callable[[Missing], Answer]
"""What to do when no layer has an artifact."""


def load_kernel(
    spec: KernelSpec,
    specialization: Specialization,
    device: DeviceInfo,
    params: Params | None = None,
    *,
    on_miss: OnMiss = fallback.answer,
) -> Kernel:
    """The kernel of this specialization, loaded on `device`; found and loaded by the first who asks.

    Raises LoadError if it would have to be loaded while a CUDA graph is captured, or in a process that was
    forked from one that had used the device; SpecError if the kernel has no variant for the device; and as
    `on_miss` does, by default what the policy says, if no layer has it.
    """
    wanted = Wanted(spec, specialization, params)
    return _loaded.get(_key(wanted, device), lambda: _load(wanted, device, on_miss))


class Wanted(NamedTuple):
    """A kernel to load.

    Attributes:
        spec, specialization: which.
        params: the call's parameters as the user wrote them, if known.
    """

    spec: KernelSpec
    specialization: Specialization
    params: Params | None = None


def load_kernels(wanted: Iterable[Wanted], device: DeviceInfo, on_miss: OnMiss) -> Iterator[Kernel | BaseException]:
    """As `load_kernel` for each, in order; what that would raise is given instead.

    While the dynamic linker and the driver open one artifact, which needs no interpreter, the next is found and
    verified. One thread for each side: more of them hand the interpreter's lock to and fro for longer than they save.
    """
    started = deque[Future[Kernel]]()
    with paused_collection(), ThreadPoolExecutor(1, "tkc-device") as driver:
        for one in wanted:
            started.append(_start(one, device, on_miss, driver))
            while started and started[0].done():
                yield _outcome(started.popleft())
        for future in started:
            yield _outcome(future)


def _start(wanted: Wanted, device: DeviceInfo, on_miss: OnMiss, driver: Executor) -> Future[Kernel]:
    """Find a kernel and verify it, and leave the rest to `driver`."""
    key = _key(wanted, device)
    if (found := _loaded.find(key)) is not None:
        return _done(found)
    try:
        answer = _find(wanted, device, on_miss)
    except Exception as error:  # noqa: BLE001  given to the caller, whatever it is
        return _failed(error)
    return driver.submit(lambda: _loaded.keep(key, _open(wanted, device, answer)))


def _done(kernel: Kernel) -> Future[Kernel]:
    future = Future[Kernel]()
    future.set_result(kernel)
    return future


def _failed(error: BaseException) -> Future[Kernel]:
    future = Future[Kernel]()
    future.set_exception(error)
    return future


def _outcome(future: Future[Kernel]) -> Kernel | BaseException:
    return future.exception() or future.result()


def _key(wanted: Wanted, device: DeviceInfo) -> Hashable:
    return wanted.specialization, device.kind, device.index


def reset() -> None:
    """Forget what was loaded, the settings and the seal. For tests."""
    global _loaded
    for table in _live_tables():
        table.clear()
    _loaded = _Loaded()
    fallback.unseal()
    dispatch.forget_settings()


class _Loaded:
    """Kernels by key. Each is loaded once; those who ask meanwhile wait for it."""

    def __init__(self) -> None:
        self._kernels: dict[Hashable, Kernel] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], Kernel]) -> Kernel:
        """The kernel under `key`. What `load` raises passes through, and the next who asks tries again."""
        if (found := self._kernels.get(key)) is not None:
            return found
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if (found := self._kernels.get(key)) is None:
                with paused_collection():
                    found = self._kernels[key] = load()
        self._locks.pop(key, None)  # those who wait for it hold it themselves
        return found

    def find(self, key: Hashable) -> Kernel | None:
        """The kernel under `key`, if it is loaded."""
        return self._kernels.get(key)

    def keep(self, key: Hashable, kernel: Kernel) -> Kernel:
        """Put a kernel under `key`, unless another thread was faster; the one that is there now."""
        return self._kernels.setdefault(key, kernel)

    def that_survive_a_fork(self) -> _Loaded:
        """The kernels that a forked child can go on using, with locks that nobody holds."""
        rest = _Loaded()
        rest._kernels = {key: kernel for key, kernel in self._kernels.items() if _survives_fork(kernel)}
        return rest

    def __len__(self) -> int:
        return len(self._kernels)


def _survives_fork(kernel: Kernel) -> bool:
    return kernel.device.target.backend is Backend.CPU


_loaded = _Loaded()
_TABLES: list[weakref.ref[KernelTable]] = []


def _live_tables() -> list[KernelTable]:
    return [table for reference in _TABLES if (table := reference()) is not None]


def _after_fork_in_child() -> None:
    global _loaded
    before = len(_loaded)
    _loaded = _loaded.that_survive_a_fork()
    if len(_loaded) < before:
        mark_forked()
    for table in _live_tables():
        for key in [key for key in table if key[0].type != "cpu"]:
            del table[key]


os.register_at_fork(after_in_child=_after_fork_in_child)


def _load(wanted: Wanted, device: DeviceInfo, on_miss: OnMiss) -> Kernel:
    return _open(wanted, device, _find(wanted, device, on_miss))


def _find(wanted: Wanted, device: DeviceInfo, on_miss: OnMiss) -> Answer:
    """The verified artifact, or what stands for it."""
    spec, specialization, params = wanted
    _refuse_where_loading_fails(specialization, device, params)
    entry = entry_of(spec)
    request = dispatch.request_for(entry, specialization, device)
    found = dispatch.dispatch(request, device)
    if isinstance(found, Miss):
        reasons = dispatch.why_not_found(request, found)
        return on_miss(Missing(entry, request, device, reasons, params))
    return found


def _open(wanted: Wanted, device: DeviceInfo, found: Answer) -> Kernel:
    """Open what was found and load it on its device."""
    if isinstance(found, ReferenceKernel):
        return found
    manifest = found.manifest
    try:
        library = open_library(manifest.file(LIBRARY).digest, found.library)
        library.load(device.index)
    except Exception as error:
        raise _load_error(error, wanted.specialization, manifest, device) from error
    return LoadedKernel(wanted.spec, wanted.specialization, manifest, device, found.layer, library)


def _load_error(error: Exception, what: Specialization, manifest: Manifest, device: DeviceInfo) -> TkcError:
    """What to raise for whatever the driver or the linker reports, by way of tvm-ffi or not."""
    if isinstance(error, TkcError):
        return error
    return LoadError(f"{what}: artifact {manifest.key.short} cannot be loaded on {device}: {error}")


def _refuse_where_loading_fails(specialization: Specialization, device: DeviceInfo, params: Params | None) -> None:
    if device.target.backend is not Backend.CPU and forked_after_loading():
        raise LoadError(forked(str(specialization), device))
    if is_capturing(device):
        values = dict(specialization if params is None else params)
        raise LoadError(
            f"{specialization} is not loaded on {device}, and cannot be while the stream is captured into a CUDA "
            "graph: loading would fail, and the capture with it. Load it before the capture:  "
            f"tkc.warmup([({specialization.spec!r}, {values!r})], device={device.place!r})"
        )
