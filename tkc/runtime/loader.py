"""Open an artifact's library and find its entries. The only file that touches tvm-ffi.

What is opened is a private copy of the very bytes that were verified, not the file in the store: nobody
can change it in between, a network file system cannot take its pages away later (ESTALE, SIGBUS), and a
cache folder mounted ``noexec`` works. A library stays open for the life of the process, because kernels
that it launched may still run when the last Python object that knows it is gone.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tkc.errors import LoadError
from tkc.model import Digest

_MAIN, _MAIN_PDL, _LOAD = "__tvm_ffi_main", "__tvm_ffi_main_pdl", "__tkc_load"

Entry = Callable[..., Any]


class Library:
    """The entries of an open library.

    What a process may never call is looked up when it is first asked for: three hundred libraries are opened at a
    start, and each object of Python's that is kept brings its garbage collector closer.

    Attributes:
        main: launches; takes the launch arguments in order.
    """

    __slots__ = ("_handle", "_main_pdl", "main")

    def __init__(self, handle: int) -> None:
        """Raises LoadError if the library is not one of ours."""
        main = _function(handle, _MAIN)
        if main is None:
            raise LoadError(f"the artifact's library exports no {_MAIN}; it was not linked by tkc. Build it again")
        self.main: Entry = main
        self._main_pdl: Entry | None = None
        self._handle = handle

    @property
    def main_pdl(self) -> Entry:
        """As `main`, with programmatic dependent launch; `main` itself where there is no difference."""
        if self._main_pdl is None:
            self._main_pdl = _function(self._handle, _MAIN_PDL) or self.main
        return self._main_pdl

    def load(self, index: int) -> None:
        """Load every function on the device with this index, launch nothing. Does nothing for a CPU's library."""
        if load := _function(self._handle, _LOAD):
            load(index)


def open_library(digest: Digest, data: bytes) -> Library:
    """Open the library whose bytes these are; the same bytes are opened once a process, whoever asks.

    Raises LoadError if the operating system refuses it, or it is not one of ours.
    """
    with _LOCK:
        if digest.hex not in _OPEN:
            _OPEN[digest.hex] = Library(_dlopen(data, digest))
        return _OPEN[digest.hex]


_OPEN: dict[str, Library] = {}
_LOCK = threading.Lock()


def _new_lock_in_child() -> None:
    global _LOCK
    _LOCK = threading.Lock()  # another thread may have held it when the process was forked


os.register_at_fork(after_in_child=_new_lock_in_child)


def _function(handle: int, symbol: str) -> Entry | None:
    from tvm_ffi import Function

    address = _linker().dlsym(handle, symbol.encode())
    if not address:
        return None
    function: Entry = Function.__from_extern_c__(address)
    return function


def _dlopen(data: bytes, digest: Digest) -> int:
    """Open a private copy of a library; its handle."""
    _tvm_ffi()  # its library must be in the process before ours, which needs its C ABI

    try:
        return _dlopen_memory(data, digest)
    except (OSError, AttributeError):  # no memfd here, or it may not be executed
        return _dlopen_file(data, digest)


@cache
def _tvm_ffi() -> None:
    """Bring tvm-ffi's library in, and tell it which class a LoadError of the device runtime is."""
    import tvm_ffi

    tvm_ffi.register_error("LoadError", LoadError)


def _dlopen_memory(data: bytes, digest: Digest) -> int:
    file = os.memfd_create(f"tkc-{digest.short}")
    with open(file, "wb", buffering=0) as memory:  # noqa: PTH123  a descriptor, not a path
        memory.write(data)
        return _dlopen_path(_alias(file, next(_COUNTER)))


_COUNTER = itertools.count()


def _alias(descriptor: int, number: int) -> str:
    """A path of an open file that is spelled differently for each `number`.

    The dynamic linker takes two libraries with one path for one library, and descriptors are reused.
    ``/`` and ``/.`` mean nothing in a path, so they spell the number in binary.
    """
    spelled = "".join("/." if bit == "1" else "/" for bit in f"{number:b}")
    return f"/proc/self/fd{spelled}/{descriptor}"


def _dlopen_file(data: bytes, digest: Digest) -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="tkc-") as folder:
            path = Path(folder) / f"tkc-{digest.short}.so"
            path.write_bytes(data)
            return _dlopen_path(str(path))
    except OSError as error:
        raise LoadError(
            f"the operating system refuses library {digest.short}: {error}. "
            "Set TMPDIR to a folder from which code may be executed, if it is for that"
        ) from error


def _dlopen_path(path: str) -> int:
    linker = _linker()
    handle: int | None = linker.dlopen(path.encode(), os.RTLD_NOW | os.RTLD_LOCAL)
    if handle is None:
        raise OSError(os.fsdecode(linker.dlerror() or b"dlopen failed"))
    return handle


@cache
def _linker() -> ctypes.CDLL:
    """The dynamic linker's own functions: a `ctypes.CDLL` of each library would make a Python class, at twice the cost.

    Other threads run meanwhile; each has a `dlerror` of its own.
    """
    linker = ctypes.CDLL(None)
    linker.dlopen.argtypes, linker.dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    linker.dlsym.argtypes, linker.dlsym.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_void_p
    linker.dlerror.argtypes, linker.dlerror.restype = [], ctypes.c_char_p
    return linker
