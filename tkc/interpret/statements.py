"""Statements: sequences, loops, branches, bindings, stores."""

from __future__ import annotations

from typing import Any

import numpy as np

from tkc.interpret.access import store
from tkc.interpret.dtypes import Array, convert
from tkc.interpret.errors import InterpretError
from tkc.interpret.expressions import guarded_indices
from tkc.interpret.frame import Execute, Frame, any_active
from tkc.interpret.translate import Node, Translator, operation, remembered, statement


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
