"""NVRTC: NVIDIA's compiler for CUDA source as a library, called in this process."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SOURCE_NAME = "device.cu"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What NVRTC gave: PTX, or None if there were errors; and its log."""

    ptx: str | None
    log: str


class Nvrtc:
    """NVRTC's C interface, and the headers that it has precompiled in this process.

    A precompiled header serves this process alone and is removed with it: its content is bound to the
    addresses that the process got. It never changes what is compiled.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._seen: set[tuple[str, ...]] = set()

    def compile(
        self, source: str, options: Sequence[str], includes: Sequence[Path], *, scratch: Path | None = None
    ) -> Compiled:
        """Compile `source` to PTX. Safe to call from several threads.

        Args:
            scratch: where precompiled headers may be kept; None precompiles nothing.
        """
        words = [*options, *(f"-I{path}" for path in includes)]
        if scratch is not None and self._is_seen_again(source, words):
            words += ["-pch", f"-pch-dir={_folder_of_this_process(scratch, os.getpid())}"]
        return self._compile(source.encode(), [word.encode() for word in words])

    def _is_seen_again(self, source: str, words: list[str]) -> bool:
        """Precompiling costs more than one compile saves: it begins when the same headers come again."""
        headers = (*words, *_directives(source))
        if headers in self._seen:
            return True
        self._seen.add(headers)
        return False

    def _compile(self, source: bytes, words: list[bytes]) -> Compiled:
        program = ctypes.c_void_p()
        self._must("nvrtcCreateProgram", ctypes.byref(program), source, SOURCE_NAME.encode(), 0, None, None)
        try:
            status = self._library.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
            log = self._text(program, "ProgramLog")
            if status == 0:
                return Compiled(self._text(program, "PTX"), log)
            return Compiled(None, log or self._library.nvrtcGetErrorString(status).decode())
        finally:
            self._must("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        self._must(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._must(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode(errors="replace")

    def _must(self, function: str, *arguments: Any) -> None:
        if status := getattr(self._library, function)(*arguments):
            raise RuntimeError(f"{function}: {self._library.nvrtcGetErrorString(status).decode()}")


@cache
def load(library: Path) -> Nvrtc:
    """The NVRTC at `library`; one for the process, so that what it precompiled is found again."""
    return Nvrtc(library)


def _directives(source: str) -> tuple[str, ...]:
    """The preprocessor lines that a source begins with: what a precompiled header would hold."""
    directives = []
    for line in source.splitlines():
        if line and not line.startswith("#"):
            break
        directives.append(line)
    return tuple(directives)


@cache
def _folder_of_this_process(scratch: Path, process: int) -> Path:
    """A folder for this process alone, removed when it ends; `process` keeps a forked child off its parent's."""
    folder = Path(tempfile.mkdtemp(prefix="pch-", dir=scratch))

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
