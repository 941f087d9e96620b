"""The target table: which devices artifacts are compiled for, and the hosts beside them."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from tkc.errors import TargetError, unknown_name


class Backend(StrEnum):
    """Kind of device. A spec supports a backend if its folder holds the file of that name."""

    CUDA = "cuda"
    ASCEND = "ascend"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a kernel may ask of its hardware at compile time.

    Attributes:
        vector_bytes: widest load or store of one thread.
        shared_memory_bytes: per block, opted in (Ascend: unified buffer of a vector core).
        threads_per_block: most threads of one block.
        warp_size: threads that run in lockstep; 1 where there are none.
    """

    vector_bytes: int
    shared_memory_bytes: int
    threads_per_block: int
    warp_size: int


@dataclass(frozen=True, slots=True)
class Target:
    """One entry of the target table. Compare and hash by value; ``str()`` is the name."""

    name: str
    backend: Backend
    arch: str
    limits: Limits

    @classmethod
    def parse(cls, name: str) -> Self:
        """Give the target called `name`: a table entry, or any other ``smNN``.

        Raises TargetError, with the nearest name, for anything else.
        """
        if name in _TABLE:
            backend, arch, limits = _TABLE[name]
            return cls(name, backend, arch, limits)
        if match := re.fullmatch(r"sm(\d{2,3})", name):
            return cls(name, Backend.CUDA, *_other_cuda(int(match[1]), name))
        raise TargetError(unknown_name("target", name, _TABLE, hint="Any other CUDA architecture: smNN, such as sm80."))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Host:
    """CPU architecture and C library level that an artifact's host part is built for."""

    arch: str
    glibc: str = "2.28"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Give the host called `name`. Raises TargetError if there is none."""
        arch = _HOST_ALIASES.get(name.lower())
        if arch is None:
            raise TargetError(unknown_name("host", name, HOST_NAMES))
        return cls(arch)

    @classmethod
    def this_machine(cls) -> Self:
        """The host that this process runs on."""
        return cls.parse(platform.machine())

    def __str__(self) -> str:
        return self.arch


HOST_NAMES = ("x86_64", "aarch64")
_HOST_ALIASES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}

_KIB = 1024
_TABLE = {
    "sm90": (Backend.CUDA, "sm_90a", Limits(16, 227 * _KIB, 1024, 32)),
    "sm100": (Backend.CUDA, "sm_100f", Limits(32, 227 * _KIB, 1024, 32)),
    "ascend950": (Backend.ASCEND, "dav-3510", Limits(256, 248 * _KIB, 2048, 1)),
    "cpu": (Backend.CPU, "generic", Limits(16, 1024 * _KIB, 1, 1)),
}
TARGET_NAMES = tuple(_TABLE)

# Opt-in shared memory per block, in KiB, by compute capability (CUDA programming guide, table of
# technical specifications). Architectures that are not listed get the smallest of their generation.
_SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}


def _other_cuda(number: int, name: str) -> tuple[str, Limits]:
    if number < 75:
        raise TargetError(f"target {name!r} is too old: CUDA 13 compiles for sm75 and newer")
    shared = _SHARED_KIB.get(number, 99 if number >= 80 else 64)
    suffix = "a" if number >= 90 else ""
    vector = 32 if 100 <= number < 120 else 16
    return f"sm_{number}{suffix}", Limits(vector, shared * _KIB, 1024, 32)
