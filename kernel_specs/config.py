"""Settings of the operators: how many multiprocessors they use, how they launch, what they clamp.

The settings are one immutable value. A setter replaces it as a whole, so threads never see half a
change; `reset_runtime_config` goes back to the defaults; `override` changes them for a block of code
in the current thread or task alone. Facts about a device are asked of that device, never remembered
from another. Importing this module imports no torch; only questions about devices do.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tkc.errors import ArgumentError, TargetError, unknown_name

if TYPE_CHECKING:
    import torch

__all__ = [
    "get_amax_clamp_for_quant",
    "get_deterministic_algorithms",
    "get_device",
    "get_device_num_sms",
    "get_max_smem_per_sm",
    "get_max_ub_per_vector_core",
    "get_num_ai_cores",
    "get_num_cube_cores",
    "get_num_sms",
    "get_num_vec_cores",
    "get_pdl",
    "get_token_alignment",
    "is_ascend",
    "override",
    "reset_runtime_config",
    "set_amax_clamp_for_quant",
    "set_num_sms",
    "set_pdl",
    "set_token_alignment",
    "use_deterministic_algorithms",
]

# Largest finite value of each format, and the smallest scale factor that is neither zero nor
# subnormal (float32 scale factors) or neither zero nor rounded to it (e4m3 scale factors).
_LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
_SMALLEST_SF = {False: 2.0**-126, True: 2.0**-9}

_Clamps: TypeAlias = Mapping[tuple[str, bool], float]
"""By format, and whether the scale factors are e4m3."""

_AMAX_CLAMP: _Clamps = {
    ("e4m3", False): 1e-4,
    ("e4m3", True): 448.0 * 2.0**-9,
    ("e2m1", False): 6.0 * 2.0**-126,
    ("e2m1", True): 6.0 * 2.0**-9,
}


@dataclass(frozen=True, slots=True)
class _RuntimeConfig:
    """Every setting. `num_sms` 0 means as many as the device has."""

    num_sms: int = 0
    token_alignment: int = 128
    pdl: bool = False
    deterministic_algorithms: bool = False
    amax_clamp: _Clamps = field(default_factory=lambda: _AMAX_CLAMP)


_DEFAULTS = _RuntimeConfig()
_process = _DEFAULTS
_process_lock = threading.Lock()
_scoped: ContextVar[_RuntimeConfig | None] = ContextVar("kernel_specs_runtime_config", default=None)


@contextmanager
def override(**settings: Any) -> Iterator[None]:
    """Change settings inside a ``with`` block, for the current thread or asynchronous task.

    Everything is as before when the block ends, also what a setter changed inside it. Other threads,
    and threads started inside the block, keep the settings of the process.

    Args:
        settings: ``num_sms``, ``token_alignment``, ``pdl``, ``deterministic_algorithms``, and ``amax_clamp``
            (a mapping from ``(fmt, use_e4m3_sf)``; entries that are not named keep their value).

    Raises ArgumentError for an unknown setting, with the nearest name, and for an illegal value.
    """
    current = _current()
    token = _scoped.set(replace(current, **_checked(settings, current)))
    try:
        yield
    finally:
        _scoped.reset(token)


def reset_runtime_config() -> None:
    """Go back to the defaults of every setting; inside an `override` block, until the block ends."""
    _change({setting.name: getattr(_DEFAULTS, setting.name) for setting in fields(_RuntimeConfig)})


# --- launching -------------------------------------------------------------------------------------


def set_pdl(enabled: bool) -> None:
    """Say whether kernels launch with programmatic dependent launch, where the device has it. Default: no."""
    _change({"pdl": enabled})


def get_pdl() -> bool:
    """Whether kernels launch with programmatic dependent launch."""
    return (_scoped.get() or _process).pdl


def use_deterministic_algorithms(enabled: bool) -> None:
    """Say whether operators must give the same bits at every run, if need be more slowly. Default: no."""
    _change({"deterministic_algorithms": enabled})


def get_deterministic_algorithms() -> bool:
    """Whether operators must give the same bits at every run."""
    return (_scoped.get() or _process).deterministic_algorithms


# --- sizes -----------------------------------------------------------------------------------------


def set_num_sms(num_sms: int | None) -> None:
    """Limit how many multiprocessors (Ascend: cube cores) kernels with a persistent grid use.

    Args:
        num_sms: 1 up to what the current device has; 0 or None lifts the limit.

    Raises ArgumentError for anything else.
    """
    _change({"num_sms": num_sms})


def get_num_sms(device: torch.device | int | str | None = None) -> int:
    """How many multiprocessors kernels use on `device` (default: the current one), up to the limit set."""
    limit = (_scoped.get() or _process).num_sms
    available = get_device_num_sms(device)
    return min(limit, available) if limit else available


get_num_ai_cores = get_num_sms
get_num_cube_cores = get_num_sms


def get_num_vec_cores(device: torch.device | int | str | None = None) -> int:
    """How many vector cores kernels use on `device`: two for each cube core."""
    return 2 * get_num_sms(device)


def set_token_alignment(alignment: int) -> None:
    """Set the multiple to which each expert's group of tokens is padded. Raises ArgumentError below 1."""
    _change({"token_alignment": alignment})


def get_token_alignment() -> int:
    """The multiple to which each expert's group of tokens is padded. Default: 128."""
    return (_scoped.get() or _process).token_alignment


def set_amax_clamp_for_quant(fmt: str, use_e4m3_sf: bool, value: float) -> None:
    """Set the least maximum that a quantised block is scaled by, so that a block of zeros has a scale factor.

    Args:
        fmt: ``e4m3`` or ``e2m1``.
        use_e4m3_sf: whether the limit is for e4m3 scale factors, or for all others.
        value: finite, and not so small that the scale factor becomes zero.

    Raises ArgumentError otherwise.
    """
    _change({"amax_clamp": {(fmt, use_e4m3_sf): value}})


def get_amax_clamp_for_quant(fmt: str, use_e4m3_sf: bool) -> float:
    """The least maximum that a quantised block is scaled by. Raises ArgumentError for an unknown `fmt`."""
    try:
        return (_scoped.get() or _process).amax_clamp[fmt, use_e4m3_sf]
    except KeyError:
        raise ArgumentError(unknown_name("format", str(fmt), _LARGEST), argument="fmt") from None


# --- devices ---------------------------------------------------------------------------------------


@cache
def is_ascend() -> bool:
    """Whether this machine has an Ascend driver."""
    return Path("/dev/davinci_manager").exists()


def get_device() -> str:
    """Type of this machine's devices: ``npu``, ``cuda``, or ``cpu`` where there is neither."""
    import torch

    if is_ascend():
        return "npu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def get_device_num_sms(device: torch.device | int | str | None = None) -> int:
    """Multiprocessors (Ascend: cube cores) of `device`, by default the current one. A CPU counts as one."""
    kind, index = _resolve(device)
    return 1 if kind == "cpu" else _num_sms_of(kind, index)


def get_max_smem_per_sm(device: torch.device | int | str | None = None) -> int:
    """Bytes of shared memory of one multiprocessor of a CUDA `device`. Raises TargetError for other kinds."""
    import torch

    kind, index = _resolve(device)
    if kind != "cuda":
        raise TargetError(f"shared memory per multiprocessor is a CUDA notion; the device is a {kind!r}")
    return int(torch.cuda.get_device_properties(index).shared_memory_per_multiprocessor)


def get_max_ub_per_vector_core(use_simt: bool = True) -> int:
    """Bytes of unified buffer that a kernel may use on an Ascend vector core.

    Args:
        use_simt: whether the kernel has threads of its own, which take a part for their stacks.

    Raises TargetError on a machine without an Ascend driver.
    """
    if not is_ascend():
        raise TargetError("the unified buffer is an Ascend notion; this machine has no /dev/davinci_manager")
    return (216 if use_simt else 248) * 1024


# --- the value and its checks ----------------------------------------------------------------------


def _current() -> _RuntimeConfig:
    return _scoped.get() or _process


def _change(settings: Mapping[str, Any]) -> None:
    """Check `settings` and replace the value that they change; no other thread's change comes in between."""
    global _process
    if (scoped := _scoped.get()) is not None:
        _scoped.set(replace(scoped, **_checked(settings, scoped)))
        return
    with _process_lock:
        _process = replace(_process, **_checked(settings, _process))


def _checked(settings: Mapping[str, Any], current: _RuntimeConfig) -> dict[str, Any]:
    known = {
        "num_sms": _checked_num_sms,
        "token_alignment": lambda value: _checked_int("token_alignment", value, least=1),
        "pdl": lambda value: _checked_flag("pdl", value),
        "deterministic_algorithms": lambda value: _checked_flag("deterministic_algorithms", value),
        "amax_clamp": lambda value: _merged_clamps(current.amax_clamp, value),
    }
    for name in settings:
        if name not in known:
            raise ArgumentError(unknown_name("setting", name, known), argument=name)
    return {name: known[name](value) for name, value in settings.items()}


def _checked_num_sms(value: Any) -> int:
    if value is None:
        return 0
    num_sms = _checked_int("num_sms", value, least=0)
    kind, _ = _resolve(None) if num_sms else ("cpu", 0)
    available = get_device_num_sms() if kind != "cpu" else num_sms
    if num_sms > available:
        raise ArgumentError(
            f"num_sms is {num_sms}; the current device has {available}. Give 1 to {available}, or 0 for all",
            argument="num_sms",
        )
    return num_sms


def _checked_int(name: str, value: Any, *, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise ArgumentError(f"{name} is {value!r}; expected an integer of at least {least}", argument=name)
    return number


def _checked_flag(name: str, value: Any) -> bool:
    if not (isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))):
        raise ArgumentError(f"{name} is {value!r}; expected True or False", argument=name)
    return bool(value)


def _merged_clamps(current: _Clamps, changes: Any) -> _Clamps:
    merged = dict(current)
    for (fmt, use_e4m3_sf), value in dict(changes).items():
        if fmt not in _LARGEST:
            raise ArgumentError(unknown_name("format", str(fmt), _LARGEST), argument="fmt")
        key = fmt, _checked_flag("use_e4m3_sf", use_e4m3_sf)
        merged[key] = _checked_clamp(key, value)
    return merged


def _checked_clamp(key: tuple[str, bool], value: Any) -> float:
    fmt, use_e4m3_sf = key
    least = _LARGEST[fmt] * _SMALLEST_SF[use_e4m3_sf]
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not least <= number <= 2.0**127:
        raise ArgumentError(
            f"the clamp for {fmt} is {value!r}; expected a finite number of at least {least:g} "
            f"({_LARGEST[fmt]:g} times the smallest scale factor)",
            argument="value",
        )
    return number


def _resolve(device: torch.device | int | str | None) -> tuple[str, int]:
    """Type and index of a device; the current one where either is missing."""
    import torch

    if device is None:
        device = get_device()
    elif isinstance(device, int):
        return get_device(), device
    found = torch.device(device)
    if found.type == "cpu":
        return "cpu", 0
    if found.index is not None:
        return found.type, found.index
    return found.type, int(torch.get_device_module(found).current_device())


@cache
def _num_sms_of(kind: str, index: int) -> int:
    import torch

    properties = torch.get_device_module(kind).get_device_properties(index)
    return int(properties.cube_core_num if kind == "npu" else properties.multi_processor_count)
