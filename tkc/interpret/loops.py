"""Loops: one iteration after another, or all at once along an axis."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from tkc.interpret.blocks import PERFORMANCE_ONLY
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import Evaluate, Execute, Frame, any_active, both
from tkc.interpret.independence import iterations_are_independent, stored_memories
from tkc.interpret.memory import Level, level_of
from tkc.interpret.translate import Node, Translator, annotations_of, one_line, operation, statement

_SERIAL, _PARALLEL, _VECTORIZED, _UNROLLED, _THREAD_BINDING = range(5)


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
        if name not in PERFORMANCE_ONLY:
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
