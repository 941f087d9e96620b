"""The kernels that this process has loaded: by operator (`KernelTable`), and all of them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from tkc.cache import Miss
from tkc.errors import LoadError, SpecError, TkcError
from tkc.model import Backend, KernelSpec, Params, Specialization, Value
from tkc.registry import CatalogEntry, entry_of, find_entry
from tkc.runtime import dispatch, fallback
from tkc.runtime.artifact import LIBRARY, Artifact
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
    key = (specialization, device.kind, device.index)
    return _loaded.get(key, lambda: _load(entry_of(spec), specialization, device, params, on_miss))


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
        return found

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


def _load(
    entry: CatalogEntry, specialization: Specialization, device: DeviceInfo, params: Params | None, on_miss: OnMiss
) -> Kernel:
    _refuse_where_loading_fails(specialization, device, params)
    request = dispatch.request_for(entry, specialization, device)
    found = dispatch.dispatch(request, device)
    if isinstance(found, Miss):
        reasons = dispatch.why_not_found(request, found)
        answered = on_miss(Missing(entry, request, device, reasons, params))
        if isinstance(answered, ReferenceKernel):
            return answered
        found = answered
    return _open(entry.spec, specialization, device, found)


def _open(spec: KernelSpec, specialization: Specialization, device: DeviceInfo, artifact: Artifact) -> LoadedKernel:
    manifest = artifact.manifest
    try:
        library = open_library(manifest.file(LIBRARY).digest, artifact.library)
        if library.load is not None:
            library.load(device.index)
    except TkcError:
        raise
    except Exception as error:  # whatever the driver reports through tvm-ffi
        raise LoadError(
            f"{specialization}: artifact {manifest.key.short} cannot be loaded on {device}: {error}"
        ) from error
    return LoadedKernel(spec, specialization, manifest, device, artifact.layer, library)


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
