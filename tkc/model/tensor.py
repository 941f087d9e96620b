"""What a kernel takes at launch: tensors, scalars, and the axes of their shapes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class DType(StrEnum):
    """Element types, by their PyTorch names."""

    BOOL = "bool"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return _SIZE_BYTES[self]


_SIZE_BYTES = {
    DType.BOOL: 1,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.INT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.FLOAT8_E4M3FN: 1,
    DType.FLOAT8_E5M2: 1,
}

Dim: TypeAlias = str | int
"""A dimension or stride: an axis name, or a fixed number."""


class Role(StrEnum):
    """What the kernel does with a tensor."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor that a kernel takes at launch.

    Attributes:
        name: as in the variant's function, and in every error about it.
        shape: one entry a dimension: an axis name (the same name means the same size), or a number.
        dtype: element type.
        role: read, written, or both.
        strides: like `shape`, in elements; None means row-major contiguous.
        nullable: whether None may be passed.
        alignment_bytes: of the first element's address.
        doc: what it holds, with units.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: DType
    role: Role = Role.IN
    strides: tuple[Dim, ...] | None = None
    nullable: bool = False
    alignment_bytes: int = 16
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A number that a kernel takes at launch."""

    name: str
    dtype: DType
    doc: str = ""


Arg: TypeAlias = TensorArg | ScalarArg
