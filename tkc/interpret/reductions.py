"""Reductions of tiles, running totals, and reducers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tkc.interpret import dtypes, values
from tkc.interpret.access import BufferView, load, pack, store
from tkc.interpret.atomics import combine_in_order
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import LEAD_AXES, Evaluate, Frame
from tkc.interpret.tileops import at, box, check_hints, copy, each_threads, extents_of, read_region, spread_over
from tkc.interpret.translate import Node, Region, Translator, annotations_of, call, constant


def _identity(kind: str, element: np.dtype[Any]) -> Any:
    """What leaves the other operand of a reduction as it is."""
    if kind in ("sum", "abssum", "absmax", "bitor", "bitxor"):
        return np.zeros((), element)[()]
    if kind == "bitand":
        return np.array(True) if element.kind == "b" else np.invert(np.zeros((), element))
    if dtypes.is_float(element):
        return dtypes.convert(np.asarray(-np.inf if kind == "max" else np.inf), element)[()]
    limits = np.iinfo(element)
    return element.type(limits.min if kind == "max" else limits.max)


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": values.add,
    "abssum": values.add,
    "max": values.maximum,
    "absmax": values.maximum,
    "min": values.minimum,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
}
_PROPAGATING = {"max": values.maximum_nan, "absmax": values.maximum_nan, "min": values.minimum_nan}


@call("tl.tileop.reduce")
def _reduce(translator: Translator, node: Node) -> Evaluate:
    check_hints(translator, node, "nan_propagate")
    source, target = translator.region(node.args[0]), translator.region(node.args[1])
    kind, axis, clear = str(node.args[2].value), int(node.args[3]), bool(node.args[4].value)
    combine = _COMBINE[kind]
    if annotations_of(node).get("nan_propagate"):
        combine = _PROPAGATING[kind]

    def evaluate(frame: Frame) -> None:
        tile = not each_threads(source.view, target.view)
        element = target.view.element.numpy
        with box(frame, extents_of(frame, source), tile=tile) as positions:
            value = dtypes.convert(read_region(frame, source, positions), element)
        if kind.startswith("abs"):
            value = values.absolute(value)
        if frame.depth:
            raise InterpretError("T.reduce inside a loop that runs all at once")
        reduced = values.fold(value, LEAD_AXES + axis, combine)
        reduced = combine(np.asarray(_identity(kind, element)), reduced)
        _put(frame, target, reduced, combine if not clear else None, tile=tile)

    return evaluate


def _put(frame: Frame, target: Region, value: Array, combine: Callable[..., Array] | None, *, tile: bool) -> None:
    """Write what a reduction gave; dimensions of one may be missing in it, or in the target."""
    sizes = extents_of(frame, target)
    long = [size for size in sizes if size != 1]
    value = value.reshape(value.shape[:LEAD_AXES] + tuple(size for size in value.shape[LEAD_AXES:] if size != 1))
    with box(frame, long, tile=tile) as positions:
        where = at(frame, target, spread_over(sizes, positions))
        if combine is not None:
            value = combine(load(frame, target.view, where), value)
        store(frame, target.view, where, value)


@call("tl.tileop.cumsum", "tl.tileop.cummax")
def _scan(translator: Translator, node: Node) -> Evaluate:
    check_hints(translator, node)
    combine = values.add if str(node.op.name).endswith("cumsum") else values.maximum
    source, target = translator.region(node.args[0]), translator.region(node.args[1])
    axis, reverse = int(node.args[2]), bool(node.args[3].value) if len(node.args) > 3 else False

    def evaluate(frame: Frame) -> None:
        tile = not each_threads(source.view, target.view)
        with box(frame, extents_of(frame, source), tile=tile) as positions:
            value = dtypes.convert(read_region(frame, source, positions), target.view.element.numpy)
            scanned = _running(value, frame.rank - len(positions) + axis, combine, reverse)
            store(frame, target.view, at(frame, target, positions), scanned)

    return evaluate


def _running(value: Array, axis: int, combine: Callable[..., Array], reverse: bool) -> Array:
    rows = np.moveaxis(value, axis, 0)
    rows = rows[::-1] if reverse else rows
    out = [rows[0]]
    for row in rows[1:]:
        out.append(combine(out[-1], row))
    stacked = np.stack(out[::-1] if reverse else out)
    return np.moveaxis(stacked, 0, axis)


def _kind_of(translator: Translator, view: BufferView) -> str:
    """What a reducer does with its contributions."""
    if view.memory not in translator.reducers:
        raise translator.unsupported(f"the reducer {view.name}, which T.alloc_reducer did not make")
    return translator.reducers[view.memory]


@call("tl.tileop.reducer_init")
def _reducer_init(translator: Translator, node: Node) -> Evaluate:
    target = translator.region(node.args[0])
    kind = _kind_of(translator, target.view)
    start = translator.expr(node.args[1]) if len(node.args) > 1 else constant(None)
    element = target.view.element.numpy

    def evaluate(frame: Frame) -> None:
        first = start(frame)
        value = np.asarray(_identity(kind, element)) if first is None else dtypes.convert(np.asarray(first), element)
        with box(frame, extents_of(frame, target), tile=True) as positions:
            store(frame, target.view, at(frame, target, positions), value)

    return evaluate


@call("tl.reducer_update")
def _reducer_update(translator: Translator, node: Node) -> Evaluate:
    pointer, value = translator.pointer(node.args[0]), translator.expr(node.args[1])
    kind = _kind_of(translator, pointer.view)

    def evaluate(frame: Frame) -> None:
        indices = tuple(index(frame) for index in pointer.indices)
        accumulate(frame, pointer.view, indices, value(frame), kind)

    return evaluate


def accumulate(frame: Frame, view: BufferView, indices: Sequence[Array], value: Array, kind: str) -> None:
    """Combine values into a reducer: first along the axes that share an element, then one after another."""
    place = view.locate(frame, indices)
    if place.outside is not None:
        raise InterpretError(f"update outside the reducer {view.name}{list(view.dims(frame))}")
    combine, element = _COMBINE[kind], view.element.numpy
    value = values.absolute(value) if kind.startswith("abs") else value
    value = dtypes.convert(np.asarray(value), element)
    flat = np.asarray(place.flat)
    if frame.mask is not None:
        value = np.where(frame.mask, value, np.asarray(_identity(kind, element)))
    sizes = _open_sizes(frame, value, flat)
    flat = flat.reshape(flat.shape + (1,) * (frame.rank - flat.ndim))
    value = np.broadcast_to(value, sizes)
    for axis in range(LEAD_AXES, frame.rank):
        if flat.shape[axis] == 1 and sizes[axis] > 1:
            value = np.expand_dims(values.fold(value, axis, combine), axis)
    flat, value = np.broadcast_arrays(flat, value)
    combine_in_order(place, flat.reshape(-1), pack(np.ascontiguousarray(value)).reshape(-1), combine)
    if frame.sanitizer is not None:
        frame.sanitizer.written(frame, place)


def _open_sizes(frame: Frame, *parts: Array) -> tuple[int, ...]:
    """The sizes of all axes: a value that is the same along an open axis still counts once for each iteration."""
    open_axes = (1,) * LEAD_AXES + tuple(frame.axis_sizes)
    masks = () if frame.mask is None else (np.shape(frame.mask),)
    return np.broadcast_shapes(open_axes, *(np.shape(part) for part in parts), *masks)


@call("tl.tileop.finalize_reducer_v2")
def _finalize(translator: Translator, node: Node) -> Evaluate:
    check_hints(translator, node)
    source, target = translator.region(node.args[0]), translator.region(node.args[1])
    return lambda frame: copy(frame, source, target)
