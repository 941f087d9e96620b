"""Device functions that kernels call by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tkc.interpret import dtypes, values
from tkc.interpret.bits import reinterpret
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import Evaluate, Frame
from tkc.interpret.memory import Level
from tkc.interpret.translate import Node, Translator, call, elementwise

EXTERNS: dict[str, Callable[..., Any]] = {}
"""By name: a function of the operands' values."""


def extern(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what device functions of these names compute, element by element."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            EXTERNS[name] = function
        return function

    return add


@call("tirx.call_extern", "tirx.call_pure_extern")
def _call_extern(translator: Translator, node: Node) -> Evaluate:
    name = str(node.args[0].value)
    if name in _ADDRESSES:
        return address(translator, node.args[1])
    if name not in EXTERNS:
        raise translator.unsupported(f"the device function {name}")
    to = dtypes.parse(str(node.dtype))
    result = elementwise(EXTERNS[name], translator.exprs(node.args[1:]))
    return lambda frame: _typed(result(frame), to)


_ADDRESSES = frozenset({"__cvta_generic_to_global"})


def address(translator: Translator, node: Node) -> Evaluate:
    """The address of an element in device memory, as a number."""
    pointer = translator.pointer(node)

    def evaluate(frame: Frame) -> Array:
        place = pointer.view.locate(frame, tuple(index(frame) for index in pointer.indices))
        if place.memory.level is not Level.DEVICE:
            raise InterpretError(f"the address of {pointer.view.name}, which is not in device memory, used as a number")
        return np.int64(place.memory.address) + place.flat * np.int64(pointer.view.element.bits) // np.int64(8)

    return evaluate


def _typed(value: Any, to: dtypes.ElementType) -> Any:
    same = isinstance(value, tuple) or value.dtype == to.numpy
    return value if same else dtypes.convert(np.asarray(value), to.numpy)


def _as(name: str) -> Callable[[Array], Array]:
    to = dtypes.parse(name)
    return lambda value: reinterpret(value, to)


EXTERNS |= {
    "__float_as_uint": _as("uint32"),
    "__float_as_int": _as("int32"),
    "__uint_as_float": _as("float32"),
    "__int_as_float": _as("float32"),
    "__fadd_rn": values.add,
    "__fsub_rn": values.subtract,
    "__fmul_rn": values.multiply,
    "__fdiv_rn": values.divide,
    "__fmaf_rn": values.fused_multiply_add,
    "fmaf": values.fused_multiply_add,
    "fmaxf": values.maximum,
    "fminf": values.minimum,
    "__popc": values.population_count,
}


@extern("__byte_perm")
def byte_permute(x: Array, y: Array, selector: Array) -> Array:
    """Pick four bytes out of eight, by the low three bits of each nibble of the selector."""
    whole = (y.astype(np.uint64) << np.uint64(32)) | pack32(x)
    result = np.zeros(np.broadcast_shapes(np.shape(whole), np.shape(selector)), np.uint32)
    for byte in range(4):
        wanted = (pack32(selector) >> np.uint64(4 * byte)) & np.uint64(7)
        picked = (whole >> (wanted * np.uint64(8))) & np.uint64(255)
        result |= (picked << np.uint64(8 * byte)).astype(np.uint32)
    return result


def pack32(value: Array) -> Array:
    """The low 32 bits as an unsigned 64-bit number."""
    return np.asarray(value).astype(np.uint64) & np.uint64(0xFFFFFFFF)
