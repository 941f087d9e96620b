"""A tensor's device: which target serves it, and what it is doing. torch is imported on first use only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from tkc.errors import TargetError
from tkc.hardware import cuda_target
from tkc.model import Backend, Target

if TYPE_CHECKING:
    import torch

DeviceLike: TypeAlias = "torch.device | str | int | None"
"""A device as users name it: ``torch.device``, ``"cuda:1"``, an index, or None for the default."""

_BACKENDS = {"cpu": Backend.CPU, "cuda": Backend.CUDA, "npu": Backend.ASCEND}


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of this process, as far as choosing and loading an artifact goes.

    Attributes:
        target: which artifacts serve it.
        kind: PyTorch's name of the device type: ``cpu``, ``cuda``, ``npu``.
        index: among the devices of its kind; 0 for the CPU.
        name: of the product, for people.
        capability: compute capability; None unless it is a CUDA device.
    """

    target: Target
    kind: str
    index: int
    name: str = ""
    capability: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        """The device as PyTorch writes it: ``cuda:0``, ``cpu``."""
        return self.kind if self.target.backend is Backend.CPU else f"{self.kind}:{self.index}"

    def __str__(self) -> str:
        return f"{self.place} ({self.name}, {self.target})" if self.name else self.place


def device_info(device: DeviceLike = None) -> DeviceInfo:
    """Describe `device`; None is the current CUDA device if there is one, else the CPU.

    A device without an index is the current one of its kind, asked anew at every call. Raises
    TargetError for a kind of device that no target serves, or an index that is not there. Only ``"cpu"`` needs no
    torch: kernels for the CPU take NumPy arrays too.
    """
    if device == "cpu":
        return _describe("cpu", 0)
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    asked = torch.device(device)
    if asked.type not in _BACKENDS:
        raise TargetError(
            f"no target serves device {str(asked)!r}; tkc knows {', '.join(_BACKENDS)}. "
            "Move the tensors to one of these"
        )
    return _describe(asked.type, _current_index(asked.type) if asked.index is None else asked.index)


def is_capturing(device: DeviceInfo) -> bool:
    """Whether the current stream of `device` is being captured into a CUDA graph."""
    return device.target.backend is Backend.CUDA and _is_capturing(device.index)


def _is_capturing(index: int) -> bool:
    import torch

    if not torch.cuda.is_initialized():
        return False
    with torch.cuda.device(index):
        return bool(torch.cuda.is_current_stream_capturing())


def _current_index(kind: str) -> int:
    import torch

    if kind == "cpu":
        return 0
    try:
        return int(getattr(torch, kind).current_device())
    except (AttributeError, AssertionError, RuntimeError) as error:
        raise TargetError(f"there is no usable {kind!r} device in this process: {error}") from error


@cache
def _describe(kind: str, index: int) -> DeviceInfo:
    if kind == "cuda":
        return _describe_cuda(index)
    if kind == "npu":
        return DeviceInfo(Target.parse("ascend950"), kind, index, "Ascend 950")
    return DeviceInfo(Target.parse("cpu"), kind, index)


def _describe_cuda(index: int) -> DeviceInfo:
    import torch

    try:
        properties = torch.cuda.get_device_properties(index)
    except (AssertionError, RuntimeError) as error:
        raise TargetError(f"there is no usable device 'cuda:{index}' in this process: {error}") from error
    capability = (properties.major, properties.minor)
    return DeviceInfo(cuda_target(capability), "cuda", index, properties.name, capability)
