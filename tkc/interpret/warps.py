"""What the lanes of a warp do together: shuffles, votes, reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tkc.interpret import dtypes, values
from tkc.interpret.access import pack
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import LEAD_AXES, Evaluate, Frame
from tkc.interpret.shadow import WARP
from tkc.interpret.translate import Node, Translator, call, constant, lanewise


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
