"""Blocks: allocations, attributes, and threads that exist in a part of a kernel."""

from __future__ import annotations

import numpy as np

from tkc.interpret.frame import Execute, Frame, ThreadIndex
from tkc.interpret.memory import Level, Memory, level_of
from tkc.interpret.translate import Node, Translator, annotations_of, statement

PERFORMANCE_ONLY = frozenset(
    [
        "tl.launch_threads",
        "layout_map",
        "l2_hit_ratio_map",
        "min_blocks_per_sm",
        "tl.min_blocks_per_sm",
        "tl_lineno",
        "num_stages",
        "tl.vf_source_index",
        "tl.simtvf_scope",
        "tl.simdvf_scope",
        "pragma_unroll_explicit",
        "pragma_unroll_factor",
        "disable_unroll_explicit",
        "coalesced_width",
        "prefer_async",
        "parallel_prefer_async",
        "parallel_async_without_async_commit_wait",
        "tl_pipeline_order",
        "tl_pipeline_stage",
        "tl_pipeline_sync",
        "tl_pipeline_group",
        "tl.cluster_dims",
        "reducer_info_v2",
        "parallel_loop_layout",
    ]
)
"""Annotations that say how fast, not what."""


@statement("SBlockRealize")
def _realize(translator: Translator, node: Node) -> Execute:
    if len(node.iter_values) or not _is_true(node.predicate):
        translator.here = node
        raise translator.unsupported("a block with iteration variables or a predicate")
    return translator.stmt(node.block)


def _is_true(node: Node) -> bool:
    return type(node).__name__ == "IntImm" and bool(node.value)


@statement("SBlock")
def _block(translator: Translator, node: Node) -> Execute:
    translator.here = node
    if node.init is not None or node.match_buffers:
        raise translator.unsupported("a block with an initialiser or matched buffers")
    for name in annotations_of(node):
        if name not in PERFORMANCE_ONLY:
            raise translator.unsupported(f"the block annotation {name}")
    for data, info in dict(node.annotations.get("reducer_info_v2") or {}).items():
        translator.reducers[translator.memory(data)] = str(info["op"])
    allocations = [allocation(translator, buffer) for buffer in node.alloc_buffers]
    body = translator.stmt(node.body)

    def execute(frame: Frame) -> None:
        for allocate in allocations:
            allocate(frame)
        body(frame)

    return execute


def allocation(translator: Translator, buffer: Node) -> Execute:
    """Allocate a buffer's memory on entry to its block."""
    view = translator.view(buffer)
    level = level_of(view.scope)
    if level is Level.DEVICE:
        # A workspace that all blocks share, so they all run together.
        translator.whole_grid = True

    def execute(frame: Frame) -> None:
        elements = int(np.prod(view.dims(frame), dtype=np.int64))
        size_bytes = -(-elements * view.element.bits // 8)
        lead = () if level is Level.DEVICE else (frame.num_blocks, 1)
        memory = Memory.allocate(view.name, view.scope, lead, size_bytes)
        if frame.sanitizer is not None:
            frame.sanitizer.watch(memory, translator.narrowest[view.memory])
        frame.memories[view.memory] = memory

    return execute


@statement("AttrStmt")
def _attribute(translator: Translator, node: Node) -> Execute:
    if str(node.attr_key) == "thread_extent":
        return _thread_scope(translator, node)
    if str(node.attr_key) not in PERFORMANCE_ONLY:
        translator.here = node
        raise translator.unsupported(f"the attribute {node.attr_key}")
    return translator.stmt(node.body)


def _thread_scope(translator: Translator, node: Node) -> Execute:
    """Threads that exist only inside a scope of the kernel, as in Ascend's SIMT functions."""
    tag = str(node.node.thread_tag)
    if not tag.startswith("threadIdx."):
        translator.here = node
        raise translator.unsupported(f"threads bound to {tag}")
    dim, extent = "xyz".index(tag[-1]), translator.expr(node.value)
    slot, body = translator.slot(node.node.var), translator.stmt(node.body)

    def execute(frame: Frame) -> None:
        outer = frame.thread_shape
        shape = list(outer)
        shape[dim] = int(np.asarray(extent(frame)).flat[0])
        frame.thread_shape = (shape[0], shape[1], shape[2])
        # Inner scopes set sizes along other dimensions, so an index is made when it is asked for.
        frame.set(slot, ThreadIndex(dim))
        try:
            body(frame)
        finally:
            frame.thread_shape = outer

    return execute


@statement("DeclBuffer")
def _declare(translator: Translator, node: Node) -> Execute:
    translator.view(node.buffer)
    return translator.stmt(node.body) if getattr(node, "body", None) is not None else lambda frame: None


@statement("AllocBuffer")
def _allocate(translator: Translator, node: Node) -> Execute:
    allocate = allocation(translator, node.buffer)
    if getattr(node, "body", None) is None:
        return allocate
    body = translator.stmt(node.body)

    def execute(frame: Frame) -> None:
        allocate(frame)
        body(frame)

    return execute
