"""Statements: sequences, loops, branches, bindings, stores."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from tkc.interpret.dtypes import Array, convert
from tkc.interpret.errors import InterpretError
from tkc.interpret.expressions import guarded_indices
from tkc.interpret.frame import Evaluate, Execute, Frame, ThreadIndex, any_active, both
from tkc.interpret.independence import iterations_are_independent, stored_memories
from tkc.interpret.memory import Level, Memory, level_of, store
from tkc.interpret.translate import (
    Node,
    Translator,
    annotations_of,
    constant,
    one_line,
    operation,
    remembered,
    statement,
)

_SERIAL, _PARALLEL, _VECTORIZED, _UNROLLED, _THREAD_BINDING = range(5)

_PERFORMANCE_ONLY = frozenset(
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


@statement("SeqStmt")
def _sequence(translator: Translator, node: Node) -> Execute:
    steps = [translator.stmt(step) for step in node.seq]

    def execute(frame: Frame) -> None:
        for step in steps:
            step(frame)
            if frame.exited is not None or frame.broken:
                frame.apply_exits()
                if not any_active(frame.mask):
                    return

    return execute


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
        if name not in _PERFORMANCE_ONLY:
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
    if str(node.attr_key) not in _PERFORMANCE_ONLY:
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


@statement("Bind", "LetStmt")
def _bind(translator: Translator, node: Node) -> Execute:
    translator.here = node
    if _free_of(translator, node.value):
        value = translator.expr(node.value)
        slot = translator.slot(node.var)
        run = remembered(translator, node, lambda frame: frame.set(slot, value(frame)))
    else:
        translator.inlined[node.var] = node.value
        run = _nothing
    if getattr(node, "body", None) is None:
        return run
    body = translator.stmt(node.body)

    def execute(frame: Frame) -> None:
        run(frame)
        body(frame)

    return execute


def _nothing(frame: Frame) -> None:
    return None


def _free_of(translator: Translator, value: Node) -> bool:
    """Whether every variable of `value` is bound by now. A persistent loop binds names before its counter."""
    from tvm import tirx

    unbound: list[Any] = []

    def visit(node: Any) -> None:
        known = translator.slots.keys() | translator.inlined.keys()
        if type(node).__name__ == "Var" and str(node.dtype) != "handle" and node not in known:
            unbound.append(node)

    tirx.stmt_functor.post_order_visit(value, visit)
    return not unbound


@statement("BufferStore")
def _store(translator: Translator, node: Node) -> Execute:
    translator.here = node
    if node.predicate is not None:
        raise translator.unsupported("a predicated store")
    view = translator.view(node.buffer)
    indices, value = translator.exprs(node.indices), translator.expr(node.value)
    kind, guarded = view.element.numpy, guarded_indices(node)

    def put(frame: Frame, what: Any) -> None:
        where = tuple(index(frame) for index in indices)
        if isinstance(what, tuple):
            for lane, part in enumerate(what):
                at = tuple(index[lane] if isinstance(index, tuple) else index for index in where)
                store(frame, view, at, convert(part, kind), guarded=guarded)
        else:
            store(frame, view, where, convert(what, kind), guarded=guarded)

    def execute(frame: Frame) -> None:
        if frame.sanitizer is None:
            put(frame, value(frame))
            return
        with frame.sanitizer.deferring() as unwritten:
            what = value(frame)
        put(frame, what)
        if unwritten:
            whole = isinstance(what, tuple)
            place = None if whole else view.locate(frame, tuple(index(frame) for index in indices))
            frame.sanitizer.settle(frame, place, unwritten)

    return remembered(translator, node, execute)


@statement("Evaluate")
def _evaluate(translator: Translator, node: Node) -> Execute:
    translator.here = node
    name = operation(node.value)
    if name == "tl.loop_break":
        return remembered(translator, node, _break)
    if name in ("tirx.thread_return", "tirx.ret"):
        return remembered(translator, node, _return)
    value = translator.expr(node.value)

    def execute(frame: Frame) -> None:
        value(frame)

    return remembered(translator, node, execute)


def _active(frame: Frame) -> Array:
    full = np.ones((frame.num_blocks, 1) + (1,) * frame.depth, bool)
    return full if frame.mask is None else np.logical_and(full, frame.mask)


def _break(frame: Frame) -> None:
    if not frame.broken:
        raise InterpretError("loop_break outside a loop that can be left")
    gone = frame.broken[-1]
    frame.broken[-1] = _active(frame) if gone is None else np.logical_or(gone, _active(frame))


def _return(frame: Frame) -> None:
    if frame.depth:
        raise InterpretError("thread_return inside a tile-level loop")
    frame.exited = _active(frame) if frame.exited is None else np.logical_or(frame.exited, _active(frame))


@statement("IfThenElse")
def _if(translator: Translator, node: Node) -> Execute:
    translator.here = node
    condition = translator.expr(node.condition)
    then = translator.stmt(node.then_case)
    otherwise = translator.stmt(node.else_case) if node.else_case is not None else None

    def execute(frame: Frame) -> None:
        frame.statement = node.condition
        held = condition(frame)
        if np.size(held) == 1:
            chosen = then if np.asarray(held).flat[0] else otherwise
            if chosen is not None:
                chosen(frame)
            return
        _branch(frame, held, then)
        if otherwise is not None:
            _branch(frame, np.logical_not(held), otherwise)

    return execute


def _branch(frame: Frame, held: Array, body: Execute) -> None:
    with frame.masked(held) as some:
        if some:
            body(frame)


@statement("While")
def _while(translator: Translator, node: Node) -> Execute:
    translator.here = node
    condition, body = translator.expr(node.condition), translator.stmt(node.body)

    def execute(frame: Frame) -> None:
        outer, count = frame.mask, 0
        frame.broken.append(None)
        try:
            while True:
                frame.statement = node.condition
                frame.mask = both(frame.mask, np.asarray(condition(frame)))
                if not any_active(frame.mask):
                    return
                body(frame)
                frame.apply_exits()
                frame.step(count := count + 1)
        finally:
            frame.broken.pop()
            frame.mask = outer
            frame.apply_exits()

    return named_loop(translator, node, execute)


def named_loop(translator: Translator, node: Node, run: Execute) -> Execute:
    """`run`, whose own errors name the loop by its first line."""

    def execute(frame: Frame) -> None:
        try:
            run(frame)
        except InterpretError as error:
            raise error.at(translator.kernel, one_line(node)) from None

    return execute


@statement("For")
def _for(translator: Translator, node: Node) -> Execute:
    translator.here = node
    kind = int(node.kind)
    if kind == _THREAD_BINDING:
        return _bound_loop(translator, node)
    for name in annotations_of(node):
        if name not in _PERFORMANCE_ONLY:
            raise translator.unsupported(f"the loop annotation {name}")
    first, extent = translator.exprs((node.min, node.extent))
    independent = iterations_are_independent(node)
    slot = translator.slot(node.loop_var)
    if kind == _VECTORIZED:
        translator.vector_loops.append(node.loop_var)
    body = translator.stmt(node.body)
    if kind == _VECTORIZED:
        translator.vector_loops.pop()
    number = np.dtype(str(node.loop_var.dtype)).type
    if kind == _PARALLEL and _belongs_to_block(node):
        private = stored_memories(translator, node, Level.THREAD)
        run = _tile_loop(slot, number, first, extent, body, private)
    elif independent:
        run = _axis_loop(slot, number, first, extent, body)
    else:
        run = _counted_loop(slot, number, first, extent, body)
    return named_loop(translator, node, run)


def _bound_loop(translator: Translator, node: Node) -> Execute:
    tag = str(node.thread_binding.thread_tag)
    slot = translator.slot(node.loop_var)
    if not tag.startswith("blockIdx."):
        raise translator.unsupported(f"a loop bound to {tag}")
    translator.grid_slots[tag] = slot
    return translator.stmt(node.body)


def _belongs_to_block(node: Node) -> bool:
    """Whether a parallel loop is spread over the block's threads.

    One that only fills local buffers, and reads no fragment, is each thread's own.
    """
    from tvm import tirx

    shared: list[Any] = []

    def visit(part: Any) -> None:
        kind = type(part).__name__
        if kind == "BufferStore":
            shared.append(level_of(str(part.buffer.scope())) is not Level.THREAD)
        elif kind == "BufferLoad":
            shared.append(str(part.buffer.scope()) == "local.fragment")
        elif kind == "Call" and operation(part) in ("tl.access_ptr", "tirx.address_of"):
            shared.append(level_of(str(part.args[0].buffer.scope())) is not Level.THREAD)
        elif kind == "Call" and operation(part) == "tl.reducer_update":
            shared.append(True)

    tirx.stmt_functor.post_order_visit(node.body, visit)
    return any(shared)


def _span(frame: Frame, first: Evaluate, extent: Evaluate) -> tuple[Array, Array, int]:
    """Where a loop starts, its extent, and the most iterations that an active lane runs."""
    start, count = np.asarray(first(frame)), np.asarray(extent(frame))
    longest = count if frame.mask is None or count.size == 1 else np.where(frame.mask, count, 0)
    return start, count, max(int(longest.max(initial=0)), 0)


def _tile_loop(
    slot: int, number: Any, first: Evaluate, extent: Evaluate, body: Execute, private: tuple[int, ...]
) -> Execute:
    """A loop over the block's threads: its iterations are an axis, and locals written in it are theirs."""

    def execute(frame: Frame) -> None:
        if frame.sanitizer is not None:
            frame.sanitizer.statement(frame)
        start, count, size = _span(frame, first, extent)
        if not size:
            return
        start, count = frame.one_thread(start, "a loop's start"), frame.one_thread(count, "a loop's extent")
        with ExitStack() as stack:
            iteration = stack.enter_context(frame.axis(size, tile=True))
            for key in private:
                if not frame.memories[key].gather():
                    raise InterpretError(
                        f"{frame.memories[key].name} differs between threads on entry to a tile-level loop"
                    )
                stack.enter_context(frame.memories[key].private(size))
            _along(frame, slot, number, start, count, iteration, body)

    return execute


def _axis_loop(slot: int, number: Any, first: Evaluate, extent: Evaluate, body: Execute) -> Execute:
    """A thread's loop whose iterations do not depend on each other: all at once, along an axis."""

    def execute(frame: Frame) -> None:
        start, count, size = _span(frame, first, extent)
        if size:
            with frame.axis(size, tile=False) as iteration:
                _along(frame, slot, number, start, count, iteration, body)

    return execute


def _along(frame: Frame, slot: int, number: Any, start: Array, count: Array, iteration: Array, body: Execute) -> None:
    start, count = (frame.lift(value, frame.depth - 1) for value in (start, count))
    if count.size > 1:
        frame.mask = both(frame.mask, iteration < count)
    frame.set(slot, (start + iteration).astype(number))
    body(frame)


def _counted_loop(slot: int, number: Any, first: Evaluate, extent: Evaluate, body: Execute) -> Execute:
    """A loop run one iteration after another, all lanes in step."""

    def execute(frame: Frame) -> None:
        start, count, size = _span(frame, first, extent)
        outer = frame.mask
        frame.broken.append(None)
        try:
            for iteration in range(size):
                if count.size > 1:
                    frame.mask = both(frame.mask, iteration < count)
                    if not any_active(frame.mask):
                        return
                frame.set(slot, (start + iteration).astype(number)[()])
                body(frame)
                if frame.exited is not None or frame.broken[-1] is not None:
                    frame.apply_exits()
                    if not any_active(frame.mask):
                        return
        finally:
            frame.broken.pop()
            frame.mask = outer
            frame.apply_exits()

    return execute


__all__ = ["allocation", "constant"]
