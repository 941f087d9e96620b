"""Runs in a process of its own, on the fake driver: tensors with made-up addresses, and an artifact's entries."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm_ffi

from tkc.errors import LoadError
from tkc.model import Digest
from tkc.runtime.loader import Library, open_library

tvm_ffi.register_error("LoadError", LoadError)

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_CUDA = 2


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_kept: list[Any] = []


class _Exporter:
    """What `from_dlpack` takes."""

    def __init__(self, managed: _DLManagedTensor) -> None:
        self._managed = managed

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._managed.tensor.device_type, self._managed.tensor.device_id


def tensor(
    shape: Sequence[int],
    kind: str = "float",
    bits: int = 32,
    *,
    address: int = 0x7F0000001000,
    device: int = 0,
) -> Any:
    """A contiguous tensor at `address`, which nobody reads."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    numbers = ctypes.c_int64 * len(shape)
    managed = _DLManagedTensor(
        _DLTensor(
            *(address, _CUDA, device, len(shape), _CODES[kind], bits, 1),
            *(numbers(*shape), numbers(*strides), 0),
        )
    )
    _kept.append(managed)
    return tvm_ffi.from_dlpack(_Exporter(managed))


def library() -> Library:
    """The artifact named on the command line, opened as the runtime opens it."""
    data = Path(sys.argv[1]).read_bytes()
    return open_library(Digest.of_bytes(data), data)


def refusal(call: Any, *arguments: Any) -> str:
    """What a call raises, as its type and its words."""
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was not refused")
