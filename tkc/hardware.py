"""Ask the driver what devices this machine has, without torch and without creating a context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tkc.errors import TargetError
from tkc.model import Target

_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One CUDA device of this machine."""

    index: int
    name: str
    capability: tuple[int, int]

    @property
    def target(self) -> Target:
        """The target that serves this device."""
        return cuda_target(self.capability)


def cuda_target(capability: tuple[int, int]) -> Target:
    """The target for a compute capability; 10.3 is served by sm100, whose binaries are for the family."""
    major, minor = capability
    return Target.parse("sm100" if (major, minor) == (10, 3) else f"sm{major}{minor}")


def cuda_devices() -> tuple[CudaDevice, ...]:
    """The CUDA devices that the driver shows; none if there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_describe(driver, index) for index in range(count.value))


def default_target() -> Target:
    """The target of this machine's first device, else `cpu`."""
    devices = cuda_devices()
    return devices[0].target if devices else Target.parse("cpu")


def driver_version() -> str | None:
    """The newest CUDA version that the driver supports, such as ``13.0``; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _describe(driver: ctypes.CDLL, index: int) -> CudaDevice:
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    _must(driver.cuDeviceGet(ctypes.byref(handle), index), index)
    _must(driver.cuDeviceGetName(name, len(name), handle), index)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        _must(driver.cuDeviceGetAttribute(ctypes.byref(value), number, handle), index)
        return value.value

    capability = attribute(_COMPUTE_CAPABILITY_MAJOR), attribute(_COMPUTE_CAPABILITY_MINOR)
    return CudaDevice(index, name.value.decode(errors="replace"), capability)


def _must(status: int, index: int) -> None:
    if status != 0:
        raise TargetError(f"CUDA device {index} does not answer (driver error {status}); check it with nvidia-smi")
