"""Expressions: arithmetic, casts, loads, selections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tkc.interpret import dtypes, values
from tkc.interpret.access import BufferView, Guards, load
from tkc.interpret.dtypes import Array
from tkc.interpret.frame import Evaluate, Frame
from tkc.interpret.stochastic import round_stochastically
from tkc.interpret.translate import (
    CALLS,
    Node,
    Translator,
    annotations_of,
    constant,
    elementwise,
    expression,
    operation,
)

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": values.add,
    "Sub": values.subtract,
    "Mul": values.multiply,
    "Div": values.divide,
    "Mod": values.truncmod,
    "FloorDiv": values.floordiv,
    "FloorMod": values.floormod,
    "Min": values.minimum,
    "Max": values.maximum,
    "EQ": values.compare(np.equal),
    "NE": values.compare(np.not_equal),
    "LT": values.compare(np.less),
    "LE": values.compare(np.less_equal),
    "GT": values.compare(np.greater),
    "GE": values.compare(np.greater_equal),
}
_IN_C = {"Max": values.larger_in_c, "Min": values.smaller_in_c}
_CHECKED = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


@expression("IntImm", "FloatImm")
def _number(translator: Translator, node: Node) -> Evaluate:
    kind = dtypes.parse(str(node.dtype)).numpy
    wide = np.asarray(node.value, np.float64 if dtypes.is_float(kind) else None)
    if dtypes.is_float(kind):
        return constant(dtypes.convert(wide, kind)[()])
    return constant(np.asarray(node.value).astype(kind)[()])


@expression("StringImm")
def _string(translator: Translator, node: Node) -> Evaluate:
    return constant(str(node.value))


@expression("Var", "SizeVar")
def _variable(translator: Translator, node: Node) -> Evaluate:
    if node in translator.inlined:
        return translator.expr(translator.inlined[node])
    if node not in translator.slots:
        raise translator.unsupported(f"the variable {node.name} of type {node.dtype}, which nothing binds")
    slot, name = translator.slots[node], str(node.name)
    return lambda frame: frame.get(slot, name)


@expression(*_BINARY)
def _binary(translator: Translator, node: Node) -> Evaluate:
    kind = type(node).__name__
    operands = translator.exprs((node.a, node.b))
    if kind in _IN_C and translator.semantics.backend == "cpu":
        return elementwise(_IN_C[kind], operands)
    if kind in _CHECKED and str(node.dtype) in ("int32", "int64"):
        return _checked(_BINARY[kind], _CHECKED[kind], operands)
    return elementwise(arithmetic(translator, node, _BINARY[kind]), operands)


def arithmetic(translator: Translator, node: Node, function: Callable[..., Array]) -> Callable[..., Array]:
    """`function`, as the backend's arithmetic units compute it: NaN has one bit pattern on NVIDIA's."""
    canonical = translator.semantics.backend == "cuda" and str(node.dtype) == "float32"
    return values.with_canonical_nan(function) if canonical else function


def _checked(wrapping: Callable[..., Array], exact: Callable[..., Array], operands: tuple[Evaluate, ...]) -> Evaluate:
    """Signed arithmetic: it wraps, and the sanitizer is told where it does."""
    plain = elementwise(wrapping, operands)

    def evaluate(frame: Frame) -> Any:
        if frame.sanitizer is None:
            return plain(frame)
        left, right = (operand(frame) for operand in operands)
        result = wrapping(left, right)
        frame.sanitizer.overflow(frame, exact, left, right, result)
        return result

    return evaluate


@expression("And")
def _and(translator: Translator, node: Node) -> Evaluate:
    left, right = translator.exprs((node.a, node.b))
    return lambda frame: choose(frame, left(frame), right, constant(np.False_))


@expression("Or")
def _or(translator: Translator, node: Node) -> Evaluate:
    left, right = translator.exprs((node.a, node.b))
    return lambda frame: choose(frame, left(frame), constant(np.True_), right)


@expression("Not")
def _not(translator: Translator, node: Node) -> Evaluate:
    return elementwise(np.logical_not, translator.exprs((node.a,)))


@expression("Select")
def _select(translator: Translator, node: Node) -> Evaluate:
    condition, yes, no = translator.exprs((node.condition, node.true_value, node.false_value))
    return lambda frame: choose(frame, condition(frame), yes, no)


def choose(frame: Frame, condition: Any, yes: Evaluate, no: Evaluate) -> Any:
    """One side or the other, lane by lane; neither is evaluated for lanes that do not take it."""
    if isinstance(condition, tuple):
        return elementwise(np.where, (constant(condition), yes, no))(frame)
    if np.size(condition) == 1:
        return yes(frame) if np.asarray(condition).flat[0] else no(frame)
    with frame.masked(condition) as some:
        taken = yes(frame) if some else None
    with frame.masked(np.logical_not(condition)) as some:
        other = no(frame) if some else None
    if taken is None or other is None:
        return other if taken is None else taken
    if isinstance(taken, tuple):
        return tuple(np.where(condition, a, b) for a, b in zip(taken, other, strict=True))
    return np.where(condition, taken, other)


@expression("Cast")
def _cast(translator: Translator, node: Node) -> Evaluate:
    kind = dtypes.parse(str(node.dtype)).numpy
    if found := annotations_of(node):
        return _rounded_cast(translator, node, kind, found)
    return elementwise(lambda value: dtypes.convert(value, kind), translator.exprs((node.value,)))


def _rounded_cast(translator: Translator, node: Node, kind: Any, found: Mapping[str, Any]) -> Evaluate:
    mode = getattr(found.get("round"), "value", found.get("round"))
    if mode != "rs" or set(found) != {"round", "rbits"}:
        raise translator.unsupported(f"a cast with {found}")
    value, word = translator.exprs((node.value, found["rbits"]))
    lane = translator.expr(translator.vector_loops[-1]) if translator.vector_loops else constant(np.int32(0))
    return lambda frame: round_stochastically(value(frame), word(frame), lane(frame), kind)


@expression("BufferLoad")
def _load(translator: Translator, node: Node) -> Evaluate:
    if node.predicate is not None:
        raise translator.unsupported("a predicated load")
    view, indices = translator.view(node.buffer), translator.exprs(node.indices)
    guarded = guarded_indices(node)
    return lambda frame: load_lanes(frame, view, tuple(index(frame) for index in indices), guarded)


def guarded_indices(node: Node) -> tuple[bool, ...]:
    """Which indices of an access to device memory TileLang guards: those that are not constant."""
    from tvm import tirx

    def varies(index: Node) -> bool:
        found: list[bool] = []
        tirx.stmt_functor.post_order_visit(index, lambda part: found.append(type(part).__name__ in _VARYING))
        return any(found)

    return tuple(varies(index) for index in node.indices)


_VARYING = ("Var", "BufferLoad")


def load_lanes(frame: Frame, view: BufferView, indices: tuple[Any, ...], guarded: Guards = True) -> Any:
    """Read a buffer; an index of a vector type gives a value of one."""
    lanes = next((len(index) for index in indices if isinstance(index, tuple)), 0)
    if not lanes:
        return load(frame, view, indices, guarded=guarded)
    return tuple(
        load(frame, view, tuple(i[lane] if isinstance(i, tuple) else i for i in indices), guarded=guarded)
        for lane in range(lanes)
    )


@expression("Ramp")
def _ramp(translator: Translator, node: Node) -> Evaluate:
    base, stride = translator.exprs((node.base, node.stride))
    lanes = int(node.lanes)

    def evaluate(frame: Frame) -> Any:
        start, step = base(frame), stride(frame)
        return tuple(start + step * start.dtype.type(lane) for lane in range(lanes))

    return evaluate


@expression("Broadcast")
def _broadcast(translator: Translator, node: Node) -> Evaluate:
    value, lanes = translator.expr(node.value), int(node.lanes)
    return lambda frame: (value(frame),) * lanes


@expression("Shuffle")
def _shuffle(translator: Translator, node: Node) -> Evaluate:
    vectors, chosen = translator.exprs(node.vectors), [int(index) for index in node.indices]

    def evaluate(frame: Frame) -> Any:
        lanes: list[Any] = []
        for vector in vectors:
            value = vector(frame)
            lanes += value if isinstance(value, tuple) else [value]
        picked = tuple(lanes[index] for index in chosen)
        return picked if len(picked) > 1 else picked[0]

    return evaluate


@expression("Let")
def _let(translator: Translator, node: Node) -> Evaluate:
    value = translator.expr(node.value)
    slot = translator.slot(node.var)
    body = translator.expr(node.body)

    def evaluate(frame: Frame) -> Any:
        frame.set(slot, value(frame))
        return body(frame)

    return evaluate


@expression("Call")
def _call(translator: Translator, node: Node) -> Evaluate:
    name = operation(node)
    if name not in CALLS:
        raise translator.unsupported(f"the operation {name or node.op}")
    return CALLS[name](translator, node)
