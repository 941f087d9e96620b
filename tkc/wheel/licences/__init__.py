"""Whose work is inside an artifact, under which licence, and the texts that must travel with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tkc.model import Backend

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Part:
    """Something of which compiled code is in every artifact of some backends.

    Attributes:
        name: of the project.
        component: of the toolchain whose version it has; empty for what is tkc's own.
        licence: SPDX expression.
        texts: files in this folder.
        backends: whose artifacts hold it.
        what: what of it is inside.
    """

    name: str
    component: str
    licence: str
    texts: tuple[str, ...]
    backends: tuple[Backend, ...]
    what: str


_ALL = tuple(Backend)

PARTS = (
    Part("tkc", "", "MIT", ("tkc-MIT.txt",), _ALL, "device runtime, kernels"),
    Part(
        "tilelang",
        "tilelang",
        "MIT",
        ("tilelang-MIT.txt",),
        _ALL,
        "generated host code; templates inlined in device code",
    ),
    Part(
        "apache-tvm-ffi",
        "tvm-ffi-headers",
        "Apache-2.0",
        ("Apache-2.0.txt", "tvm-ffi-NOTICE.txt"),
        _ALL,
        "declarations of its C interface",
    ),
    Part(
        "cutlass",
        "tilelang-templates",
        "BSD-3-Clause",
        ("cutlass-BSD-3-Clause.txt",),
        (Backend.CUDA,),
        "templates inlined in device code, as tilelang ships them",
    ),
    Part(
        "nvidia-cuda-runtime",
        "cuda-headers",
        "LicenseRef-NVIDIA-CUDA-EULA",
        ("nvidia-cuda-EULA.txt",),
        (Backend.CUDA,),
        "headers inlined in device code; no library",
    ),
)


def parts_of(backend: Backend) -> tuple[Part, ...]:
    """What is inside an artifact for `backend`."""
    return tuple(part for part in PARTS if backend in part.backends)


def texts_of(backend: Backend) -> Mapping[str, bytes]:
    """The licence texts of a wheel for `backend`, by file name."""
    names = sorted({text for part in parts_of(backend) for text in part.texts})
    return {name: (_FOLDER / name).read_bytes() for name in names}


@cache
def verbatim() -> frozenset[bytes]:
    """Every licence text, as it is here."""
    return frozenset(path.read_bytes() for path in _FOLDER.glob("*.txt"))


def expression_of(backend: Backend) -> str:
    """The licences of a wheel for `backend`, as one SPDX expression."""
    return " AND ".join(sorted({part.licence for part in parts_of(backend)}))
