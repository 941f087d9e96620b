"""What the threads of a block do together: shuffles, votes, barriers, atomics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tkc.interpret import dtypes
from tkc.interpret.dtypes import Array
from tkc.interpret.frame import Evaluate, Frame
from tkc.interpret.shadow import WARP
from tkc.interpret.translate import Node, Translator, call


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
