"""Accesses of several elements at once: 4 to 32 bytes that one thread moves in one instruction."""

from __future__ import annotations

from typing import Any

import numpy as np

from tkc.interpret import dtypes
from tkc.interpret.access import load, store
from tkc.interpret.bits import from_bytes, to_bytes
from tkc.interpret.frame import Evaluate, Frame
from tkc.interpret.translate import Node, Pointer, Translator, call


def _bits(node: Node) -> int:
    return int(str(node.op.name).lstrip("tl.dgs"))


@call("tl.ldg32", "tl.ldg64", "tl.ldg128", "tl.ldg256", "tl.lds32", "tl.lds64", "tl.lds128")
def _wide_load(translator: Translator, node: Node) -> Evaluate:
    if len(node.args) > 1:
        raise translator.unsupported(f"{node.op.name} with a predicate")
    pointer, to = translator.pointer(node.args[0]), dtypes.parse(str(node.dtype))
    count = _bits(node) // pointer.view.element.bits

    def evaluate(frame: Frame) -> Any:
        places = _run(frame, pointer, count)
        return from_bytes(to_bytes(tuple(load(frame, pointer.view, place, guarded=False) for place in places)), to)

    return evaluate


@call("tl.stg32", "tl.stg64", "tl.stg128", "tl.stg256", "tl.sts32", "tl.sts64", "tl.sts128")
def _wide_store(translator: Translator, node: Node) -> Evaluate:
    if len(node.args) > 2:
        raise translator.unsupported(f"{node.op.name} with a predicate")
    pointer, value = translator.pointer(node.args[0]), translator.expr(node.args[1])
    element = pointer.view.element
    count = _bits(node) // element.bits
    to = dtypes.parse(f"{element.name}x{count}" if count > 1 else element.name)

    def evaluate(frame: Frame) -> None:
        whole = value(frame)
        parts = from_bytes(to_bytes(whole if isinstance(whole, tuple) else (whole,)), to)
        for place, part in zip(_run(frame, pointer, count), parts if count > 1 else (parts,), strict=True):
            store(frame, pointer.view, place, part, guarded=False)

    return evaluate


def _run(frame: Frame, pointer: Pointer, count: int) -> list[tuple[Any, ...]]:
    """Indices of `count` elements in a row from a pointer; it must be aligned to all of them."""
    *outer, last = (index(frame) for index in pointer.indices)
    if frame.sanitizer is not None:
        place = pointer.view.locate(frame, (*outer, last))
        frame.sanitizer.aligned(frame, place, count * pointer.view.element.bits // 8)
    return [(*outer, np.asarray(last) + last.dtype.type(offset)) for offset in range(count)]
