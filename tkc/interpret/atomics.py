"""Atomic operations, in the order of blocks, threads and iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tkc.interpret import dtypes, values
from tkc.interpret.access import BufferView, Place, check_outside, load, pack, selected, write
from tkc.interpret.dtypes import Array
from tkc.interpret.frame import Evaluate, Frame
from tkc.interpret.translate import Node, Translator, call

_ATOMICS: dict[str, tuple[str, Callable[..., Array]]] = {
    "add": ("add", values.add),
    "max": ("max", values.maximum),
    "min": ("min", values.minimum),
    "or": ("or", np.bitwise_or),
}


@call(*(f"tl.atomic_{kind}_{ret}elem_op" for kind in _ATOMICS for ret in ("", "ret_")))
def _atomic(translator: Translator, node: Node) -> Evaluate:
    name = str(node.op.name).removeprefix("tl.atomic_").partition("_")[0]
    returns = "_ret_" in str(node.op.name)
    pointer, value = translator.pointer(node.args[0]), translator.expr(node.args[1])
    return lambda frame: atomic(
        frame, pointer.view, tuple(i(frame) for i in pointer.indices), value(frame), _ATOMICS[name][1], returns
    )


@call("tl.atomic_addx2_elem_op", "tl.atomic_addx4_elem_op")
def _atomic_vector(translator: Translator, node: Node) -> Evaluate:
    lanes = int(str(node.op.name)[len("tl.atomic_addx")])
    target, source = translator.pointer(node.args[0]), translator.pointer(node.args[1])

    def evaluate(frame: Frame) -> None:
        *outer, last = (index(frame) for index in target.indices)
        *source_outer, source_last = (index(frame) for index in source.indices)
        for lane in range(lanes):
            value = load(frame, source.view, (*source_outer, source_last + source_last.dtype.type(lane)))
            atomic(frame, target.view, (*outer, last + last.dtype.type(lane)), value, values.add, False)

    return evaluate


@call("tl.atomic_load_elem_op")
def _atomic_load(translator: Translator, node: Node) -> Evaluate:
    pointer = translator.pointer(node.args[0])
    return lambda frame: load(frame, pointer.view, tuple(index(frame) for index in pointer.indices))


@call("tl.atomic_store_elem_op")
def _atomic_store(translator: Translator, node: Node) -> Evaluate:
    pointer, value = translator.pointer(node.args[0]), translator.expr(node.args[1])

    def evaluate(frame: Frame) -> None:
        place = pointer.view.locate(frame, tuple(index(frame) for index in pointer.indices))
        outside = check_outside(frame, place, writing=True)
        if frame.sanitizer is not None:
            frame.sanitizer.written(frame, place)
        write(frame, place, dtypes.convert(value(frame), pointer.view.element.numpy), outside)

    return evaluate


def atomic(
    frame: Frame,
    view: BufferView,
    indices: tuple[Any, ...],
    value: Any,
    combine: Callable[..., Array],
    returns: bool,
) -> Any:
    """Combine each lane's value into memory, in the order of blocks, threads and iterations.

    Outside a tile-level loop every thread does it, though all may do it alike.
    Gives what each lane found there before, if asked.
    """
    place = view.locate(frame, indices)
    outside = check_outside(frame, place, writing=True)
    if frame.sanitizer is not None:
        frame.sanitizer.read(frame, place, atomic=True)
    value = dtypes.convert(np.asarray(value), view.element.numpy)
    flat, spread = (np.asarray(place.flat), value) if frame.tile else (frame.full(place.flat), frame.full(value))
    chosen, bits = selected(frame, flat, outside, pack(np.ascontiguousarray(spread)))
    found = combine_in_order(place, chosen.reshape(-1), bits.reshape(-1), combine)
    if frame.sanitizer is not None:
        frame.sanitizer.written(frame, place)
    if not returns:
        return None
    shape = np.broadcast_shapes(flat.shape, spread.shape, np.shape(frame.mask) if frame.mask is not None else ())
    result = np.zeros(shape, bits.dtype)
    active = np.ones(shape, bool) if frame.mask is None else np.broadcast_to(frame.mask, shape)
    if outside is not None:
        active = np.logical_and(active, ~outside)
    result[active] = found
    return result.view(view.element.numpy)


def combine_in_order(place: Place, flat: Array, bits: Array, combine: Callable[..., Array]) -> Array:
    """Combine values into elements, one round for each repetition of an index; gives what was there before."""
    elements = place.memory.elements(place.view.element.numpy)
    kind = place.view.element.numpy
    before = np.zeros(flat.shape, bits.dtype)
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if flat.size else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, flat.size])
    if kind.kind in "iu" and combine is values.add and lengths.size and lengths.max() > 64:
        return _add_integers(elements, kind, ordered, order, starts, lengths, bits)
    for turn in range(int(lengths.max(initial=0))):
        lanes = order[starts[lengths > turn] + turn]
        before[lanes] = elements[flat[lanes]]
        elements[flat[lanes]] = pack(combine(before[lanes].view(kind), bits[lanes].view(kind)))
    return before


def _add_integers(
    elements: Array, kind: Any, ordered: Array, order: Array, starts: Array, lengths: Array, bits: Array
) -> Array:
    """The same for many integer additions to few elements: running sums, which wrap alike."""
    added = bits[order].view(kind)
    running = np.cumsum(added, dtype=kind)
    base = np.repeat(running[starts] - added[starts], lengths)
    first = np.repeat(elements[ordered[starts]].view(kind), lengths)
    before = np.zeros(order.shape, bits.dtype)
    before[order] = pack((first + (running - added) - base).astype(kind))
    last = starts + lengths - 1
    elements[ordered[last]] = pack((first[last] + running[last] - base[last]).astype(kind))
    return before
