"""The same bits as other types: reinterpreting, packing, unpacking."""

from __future__ import annotations

from typing import Any

import numpy as np

from tkc.interpret import dtypes
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import Evaluate
from tkc.interpret.translate import Node, Translator, call


@call("tirx.reinterpret")
def _reinterpret(translator: Translator, node: Node) -> Evaluate:
    to = dtypes.parse(str(node.dtype))
    (value,) = translator.exprs(node.args)
    return lambda frame: reinterpret(value(frame), to)


def reinterpret(value: Any, to: dtypes.ElementType) -> Any:
    """The same bits as another type, of one lane or several."""
    if not isinstance(value, tuple) and to.lanes == 1 and value.dtype.itemsize == to.numpy.itemsize:
        return np.asarray(value).view(to.numpy)
    lanes = value if isinstance(value, tuple) else (value,)
    whole = to_bytes(lanes)
    if whole.shape[-1] * 8 != to.bits * to.lanes:
        raise InterpretError(
            f"reinterpret of {whole.shape[-1]} bytes as {to.name} x {to.lanes}, which has another size"
        )
    return from_bytes(whole, to)


def to_bytes(lanes: tuple[Any, ...]) -> Array:
    """Lanes joined, low lane first, as bytes on a last axis."""
    spread = np.broadcast_arrays(*lanes) if len(lanes) > 1 else [np.asarray(lanes[0])]
    joined = np.ascontiguousarray(np.stack(spread, axis=-1))
    if joined.dtype == dtypes.E2M1:
        nibbles = joined.view(np.uint8) & np.uint8(15)
        return nibbles[..., 0::2] | (nibbles[..., 1::2] << np.uint8(4))
    return joined.view(np.uint8)


def from_bytes(whole: Array, to: dtypes.ElementType) -> Any:
    """Bytes on a last axis as lanes of a type."""
    if to.numpy == dtypes.E2M1:
        split = np.stack([whole & np.uint8(15), whole >> np.uint8(4)], axis=-1)
        parts = split.reshape(*whole.shape[:-1], -1).view(dtypes.E2M1)
    else:
        parts = np.ascontiguousarray(whole).view(to.numpy)
    lanes = tuple(parts[..., lane] for lane in range(to.lanes))
    return lanes if to.lanes > 1 else lanes[0]


@call("tl.pack_b16")
def _pack_b16(translator: Translator, node: Node) -> Evaluate:
    to = dtypes.parse(str(node.dtype))
    low, high = translator.exprs(node.args)
    return lambda frame: reinterpret((low(frame), high(frame)), to)


@call("tl.pack_b8x4")
def _pack_b8x4(translator: Translator, node: Node) -> Evaluate:
    to = dtypes.parse(str(node.dtype))
    parts = translator.exprs(node.args)
    return lambda frame: reinterpret(tuple(part(frame) for part in parts), to)
