"""What the threads of a block do together: shuffles, votes, barriers, atomics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tkc.interpret import dtypes, values
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import LEAD_AXES, Evaluate, Frame
from tkc.interpret.memory import BufferView, Place, check_outside, load, pack, selected, write
from tkc.interpret.translate import Node, Translator, call, constant, lanewise

WARP = 32


@call("tl.launch_thread_idx")
def _thread_index(translator: Translator, node: Node) -> Evaluate:
    dim = int(node.args[0])
    return lambda frame: frame.thread_index(dim)


def _flat_thread(frame: Frame) -> Array:
    return frame.lift(np.arange(frame.num_threads, dtype=np.int32).reshape(1, -1), 0)


def _warp_size(node: Node) -> int:
    return int(node.args[0]) if len(node.args) else WARP


@call("tl.get_lane_idx")
def _lane_index(translator: Translator, node: Node) -> Evaluate:
    size = _warp_size(node)
    return lambda frame: (
        frame.one_thread(_flat_thread(frame) % np.int32(size), "the lane index")
        if frame.tile
        else (_flat_thread(frame) % np.int32(size))
    )


@call("tl.get_warp_idx", "tl.get_warp_idx_sync")
def _warp_index(translator: Translator, node: Node) -> Evaluate:
    size = _warp_size(node)
    return lambda frame: _flat_thread(frame) // np.int32(size)


@call("tl.get_warp_group_idx")
def _warp_group_index(translator: Translator, node: Node) -> Evaluate:
    size = _warp_size(node) * (int(node.args[1]) if len(node.args) > 1 else 4)
    return lambda frame: _flat_thread(frame) // np.int32(size)


def warps(frame: Frame, value: Any, what: str) -> Array:
    """A value as ``[blocks, warps, 32, loop axes…]``."""
    if frame.tile:
        raise InterpretError(f"{what} inside a tile-level loop, whose iterations are not threads")
    if frame.num_threads % WARP:
        raise InterpretError(f"{what} in a block of {frame.num_threads} threads; expected whole warps of {WARP}")
    if frame.sanitizer is not None:
        frame.sanitizer.warp_step(frame)
    full = frame.full(value)
    return full.reshape(full.shape[0], -1, WARP, *full.shape[LEAD_AXES:])


def unwarp(value: Array) -> Array:
    """Back from ``[blocks, warps, 32, …]`` to ``[blocks, threads, …]``."""
    return value.reshape(value.shape[0], -1, *value.shape[3:])


def _shuffle(source: Callable[[Array, Array, int], Array]) -> Callable[[Translator, Node], Evaluate]:
    """A shuffle: `source` gives each lane the lane that it reads, from its own number, the operand and the width."""

    def rule(translator: Translator, node: Node) -> Evaluate:
        name = str(node.op.name)
        value, operand = translator.exprs(node.args[1:3])
        width = int(node.args[3]) if len(node.args) > 3 else WARP
        read_lane = lanewise(lambda frame, item, lane: _take(frame, item, lane, source, width, name))
        return lambda frame: read_lane(frame, value(frame), operand(frame))

    return rule


def _take(frame: Frame, value: Any, operand: Any, source: Any, width: int, name: str) -> Array:
    item, amount = warps(frame, value, name), warps(frame, operand, name)
    lane = np.arange(WARP).reshape((1, 1, WARP) + (1,) * frame.depth)
    wanted = source(lane, amount.astype(np.int64), width)
    shape = np.broadcast_shapes(item.shape, wanted.shape)
    return unwarp(np.take_along_axis(np.broadcast_to(item, shape), np.broadcast_to(wanted, shape), axis=2))


def _xor(lane: Array, amount: Array, width: int) -> Array:
    target = lane ^ amount
    return np.where(target // width > lane // width, lane, target)


def _down(lane: Array, amount: Array, width: int) -> Array:
    return np.where(lane % width + amount < width, lane + amount, lane)


def _up(lane: Array, amount: Array, width: int) -> Array:
    return np.where(lane % width >= amount, lane - amount, lane)


def _index(lane: Array, amount: Array, width: int) -> Array:
    return lane - lane % width + amount % width


call("tl.shfl_xor_sync")(_shuffle(_xor))
call("tl.shfl_down_sync")(_shuffle(_down))
call("tl.shfl_up_sync")(_shuffle(_up))
call("tl.shfl_sync")(_shuffle(_index))


def active_warps(frame: Frame) -> Array:
    """Which threads are active, by warp."""
    return warps(frame, True if frame.mask is None else frame.mask, "a warp operation")


_WARP_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "tl.warp_reduce_sum": values.add,
    "tl.warp_reduce_max": values.maximum,
    "tl.warp_reduce_min": values.minimum,
    "tl.warp_reduce_bitand": np.bitwise_and,
    "tl.warp_reduce_bitor": np.bitwise_or,
}


@call(*_WARP_REDUCTIONS)
def _warp_reduce(translator: Translator, node: Node) -> Evaluate:
    name = str(node.op.name)
    combine, (value,) = _WARP_REDUCTIONS[name], translator.exprs(node.args)

    def evaluate(frame: Frame) -> Array:
        item = warps(frame, value(frame), name)
        return unwarp(butterfly(item, combine))

    return evaluate


def butterfly(item: Array, combine: Callable[..., Array], width: int = WARP) -> Array:
    """Combine lanes at distances 16, 8, 4, 2, 1; every lane ends with the result."""
    lane = np.arange(WARP)
    distance = width // 2
    while distance:
        item = combine(item, item[:, :, lane ^ distance])
        distance //= 2
    return item


@call("tl.any_sync", "tl.all_sync")
def _vote(translator: Translator, node: Node) -> Evaluate:
    name, (predicate,) = str(node.op.name), translator.exprs(node.args[1:])

    def evaluate(frame: Frame) -> Array:
        held, active = warps(frame, np.asarray(predicate(frame)) != 0, name), active_warps(frame)
        result = (
            (held & active).any(axis=2, keepdims=True)
            if name == "tl.any_sync"
            else (held | ~active).all(axis=2, keepdims=True)
        )
        kind = dtypes.parse(str(node.dtype)).numpy
        return unwarp(np.broadcast_to(result, np.broadcast_shapes(held.shape, active.shape)).astype(kind))

    return evaluate


@call("tl.ballot_sync", "tl.ballot", "tl.activemask")
def _ballot(translator: Translator, node: Node) -> Evaluate:
    name = str(node.op.name)
    predicate = translator.expr(node.args[-1]) if name != "tl.activemask" else constant(np.True_)
    kind = dtypes.parse(str(node.dtype)).numpy

    def evaluate(frame: Frame) -> Array:
        held = warps(frame, np.asarray(predicate(frame)) != 0, name) & active_warps(frame)
        return unwarp(np.broadcast_to(lane_bits(held), held.shape).astype(kind))

    return evaluate


def lane_bits(held: Array, axis: int = 2) -> Array:
    """One bit a lane, lowest first, as a number on an axis of one."""
    weights = (np.uint64(1) << np.arange(WARP, dtype=np.uint64)).reshape((WARP,) + (1,) * (held.ndim - axis - 1))
    return (held * weights).sum(axis=axis, keepdims=True, dtype=np.uint64)


@call("tl.match_any_sync", "tl.match_all_sync")
def _match(translator: Translator, node: Node) -> Evaluate:
    name, (value,) = str(node.op.name), translator.exprs(node.args[1:2])
    kind = dtypes.parse(str(node.dtype)).numpy

    def evaluate(frame: Frame) -> Array:
        item, active = warps(frame, value(frame), name), active_warps(frame)
        bits = pack(np.ascontiguousarray(item))
        same = (bits[:, :, :, None] == bits[:, :, None]) & active[:, :, None]
        found = lane_bits(np.moveaxis(same, 3, 2).swapaxes(2, 3), axis=3)[:, :, :, 0]
        if name == "tl.match_all_sync":
            everyone = lane_bits(active)
            found = np.where(found == everyone, everyone, np.uint64(0))
        return unwarp(found.astype(kind))

    return evaluate


@call("tl.__ffs")
def _find_first_set(translator: Translator, node: Node) -> Evaluate:
    (value,) = translator.exprs(node.args)
    return lambda frame: find_first_set(value(frame)).astype(np.int32)


def find_first_set(value: Array) -> Array:
    """One more than the position of the lowest bit that is set; 0 if none is."""
    bits = pack(value).astype(np.uint64)
    lowest = bits & (~bits + np.uint64(1))
    return np.where(bits == 0, 0, np.bitwise_count(lowest - np.uint64(1)).astype(np.int64) + 1)


@call("tl.syncthreads_count", "tl.syncthreads_and", "tl.syncthreads_or")
def _barrier_vote(translator: Translator, node: Node) -> Evaluate:
    name, (predicate,) = str(node.op.name), translator.exprs(node.args)
    reductions: dict[str, Callable[..., Array]] = {"count": np.sum, "and": np.all, "or": np.any}
    reduce = reductions[name.rpartition("_")[2]]
    kind = dtypes.parse(str(node.dtype)).numpy

    def evaluate(frame: Frame) -> Array:
        barrier(frame, "block")
        held = frame.full(np.asarray(predicate(frame)) != 0)
        return np.asarray(reduce(held, axis=1, keepdims=True)).astype(kind)

    return evaluate


@call("tirx.tvm_storage_sync", "tl.sync_threads")
def _sync_threads(translator: Translator, node: Node) -> Evaluate:
    return lambda frame: barrier(frame, "block")


@call("tl.sync_warp")
def _sync_warp(translator: Translator, node: Node) -> Evaluate:
    return lambda frame: barrier(frame, "warp")


@call("tl.sync_grid")
def _sync_grid(translator: Translator, node: Node) -> Evaluate:
    translator.whole_grid = True
    return lambda frame: barrier(frame, "grid")


def barrier(frame: Frame, scope: str) -> None:
    """Threads wait for each other. They run in step here, so only the sanitizer cares."""
    if frame.sanitizer is not None:
        frame.sanitizer.barrier(frame, scope)


@call("tl.tl_shuffle_elect")
def _elect(translator: Translator, node: Node) -> Evaluate:
    extent = int(node.args[0])
    return lambda frame: (_flat_thread(frame) % np.int32(extent or frame.num_threads)) == 0


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
