"""Scalar operations that are written as calls: mathematics, bits, conversions, device functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tkc.interpret import dtypes, values
from tkc.interpret.access import load
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.expressions import arithmetic, choose, load_lanes
from tkc.interpret.frame import Evaluate, Frame, any_active, both
from tkc.interpret.translate import Node, Translator, call, constant, elementwise


def _sigmoid(x: Array) -> Array:
    one = np.float32(1)
    return dtypes.convert(one / (one + _exp(np.float32(0) - dtypes.widen(x))), x.dtype)


def _copysign(magnitude: Array, sign: Array) -> Array:
    return dtypes.convert(np.copysign(dtypes.widen(magnitude), dtypes.widen(sign)), magnitude.dtype)


_exp = values.through_float64(np.exp)
_rsqrt = values.through_float64(lambda x: 1.0 / np.sqrt(x))
_reciprocal = values.exact_on_float(lambda x: np.divide(np.float32(1), x))
_sqrt = values.exact_on_float(np.sqrt)

_UNARY: dict[str, Callable[..., Array]] = {
    "tirx.exp": _exp,
    "tl.__exp": _exp,
    "tirx.exp2": values.through_float64(np.exp2),
    "tirx.exp10": values.through_float64(lambda x: np.power(10.0, x)),
    "tl.__exp10": values.through_float64(lambda x: np.power(10.0, x)),
    "tirx.log": values.through_float64(np.log),
    "tl.__log": values.through_float64(np.log),
    "tirx.log2": values.through_float64(np.log2),
    "tl.__log2": values.through_float64(np.log2),
    "tirx.log10": values.through_float64(np.log10),
    "tl.__log10": values.through_float64(np.log10),
    "tirx.log1p": values.through_float64(np.log1p),
    "tirx.sin": values.through_float64(np.sin),
    "tl.__sin": values.through_float64(np.sin),
    "tirx.cos": values.through_float64(np.cos),
    "tl.__cos": values.through_float64(np.cos),
    "tirx.tan": values.through_float64(np.tan),
    "tirx.tanh": values.through_float64(np.tanh),
    "tirx.erf": values.through_float64(values.erf),
    "tirx.sigmoid": _sigmoid,
    "tirx.sqrt": _sqrt,
    "tl.ieee_fsqrt": _sqrt,
    "tirx.rsqrt": _rsqrt,
    "tl.ieee_frsqrt": _rsqrt,
    "tl.fast_rcp": _reciprocal,
    "tl.ieee_frcp": _reciprocal,
    "tirx.floor": values.exact_on_float(np.floor),
    "tirx.ceil": values.exact_on_float(np.ceil),
    "tirx.trunc": values.exact_on_float(np.trunc),
    "tirx.round": values.exact_on_float(values.round_half_away),
    "tirx.nearbyint": values.exact_on_float(np.rint),
    "tirx.rint": values.exact_on_float(np.rint),
    "tirx.fabs": values.absolute,
    "tirx.abs": values.absolute,
    "tirx.isnan": lambda x: np.isnan(dtypes.widen(x)),
    "tirx.isinf": lambda x: np.isinf(dtypes.widen(x)),
    "tirx.isfinite": lambda x: np.isfinite(dtypes.widen(x)),
    "tirx.bitwise_not": np.invert,
    "tirx.popcount": values.population_count,
    "tirx.clz": values.leading_zeros,
}
_BINARY: dict[str, Callable[..., Array]] = {
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.shift_left": values.shift_left,
    "tirx.shift_right": values.shift_right,
    "tirx.pow": values.through_float64(np.power),
    "tirx.fmod": values.truncmod,
    "tirx.ldexp": values.scale_by_power_of_two,
    "tirx.atan2": values.through_float64(np.arctan2),
    "tirx.copysign": _copysign,
    "tl.max_nan": values.maximum_nan,
    "tl.min_nan": values.minimum_nan,
    "tl.fmul": values.multiply,
    "tl.ieee_add": values.add,
    "tl.ieee_sub": values.subtract,
    "tl.ieee_mul": values.multiply,
    "tl.ieee_fdiv": values.divide,
    "tl.add2": values.add,
    "tl.sub2": values.subtract,
    "tl.mul2": values.multiply,
    "tl.max2": values.maximum,
    "tl.min2": values.minimum,
}
_TERNARY: dict[str, Callable[..., Array]] = {
    "tl.fma": values.fused_multiply_add,
    "tirx.fma": values.fused_multiply_add,
    "tl.ieee_fmaf": values.fused_multiply_add,
    "tl.fma2": values.fused_multiply_add,
    "tl.clamp": lambda x, low, high: values.minimum(values.maximum(x, low), high),
}
_ON_THE_SIGN = ("tirx.fabs", "tirx.abs", "tirx.copysign")
"""What only touches a float's sign bit, so that a NaN keeps its other bits."""

_ELEMENTWISE = {
    **{name: (1, function) for name, function in (*_UNARY.items(), ("tl.abs2", values.absolute))},
    **{name: (2, function) for name, function in _BINARY.items()},
    **{name: (3, function) for name, function in _TERNARY.items()},
}


@call(*_ELEMENTWISE)
def _elementwise(translator: Translator, node: Node) -> Evaluate:
    name = str(node.op.name)
    count, function = _ELEMENTWISE[name]
    for extra in node.args[count:]:
        if getattr(extra, "value", None) != "rn":
            raise translator.unsupported(f"the operation {name} with {extra}")
    if name not in _ON_THE_SIGN:
        function = arithmetic(translator, node, function)
    return elementwise(function, translator.exprs(node.args[:count]))


@call("tirx.if_then_else")
def _if_then_else(translator: Translator, node: Node) -> Evaluate:
    condition, yes, no = translator.exprs(node.args)
    return lambda frame: choose(frame, condition(frame), yes, no)


@call("tirx.likely")
def _likely(translator: Translator, node: Node) -> Evaluate:
    return translator.expr(node.args[0])


@call("tl.infinity", "tirx.infinity")
def _infinity(translator: Translator, node: Node) -> Evaluate:
    return constant(dtypes.convert(np.float64(np.inf), dtypes.parse(str(node.dtype)).numpy)[()])


@call("tirx.max_value", "tirx.min_value")
def _limit(translator: Translator, node: Node) -> Evaluate:
    kind = dtypes.parse(str(node.dtype)).numpy
    limits: Any = np.finfo(kind) if dtypes.is_float(kind) else np.iinfo(kind)
    return constant(kind.type(limits.max if str(node.op.name).endswith("max_value") else limits.min))


@call("tl.__ldg")
def _ldg(translator: Translator, node: Node) -> Evaluate:
    pointer = translator.pointer(node.args[0])
    if len(node.args) > 1:
        raise translator.unsupported("__ldg with an index of its own")
    return lambda frame: load_lanes(frame, pointer.view, tuple(index(frame) for index in pointer.indices))


@call("tl.any_of", "tl.all_of")
def _any_of(translator: Translator, node: Node) -> Evaluate:
    pointer, count = translator.flattened(node.args[0]), int(node.args[1])
    reduce = np.logical_or if str(node.op.name) == "tl.any_of" else np.logical_and

    def evaluate(frame: Frame) -> Any:
        (start,) = (index(frame) for index in pointer.indices)
        return reduce.reduce([load(frame, pointer.view, (start + np.int64(i),)) != 0 for i in range(count)])

    return evaluate


@call("tirx.assume")
def _assume(translator: Translator, node: Node) -> Evaluate:
    (condition,) = translator.exprs(node.args)

    def evaluate(frame: Frame) -> None:
        if frame.sanitizer is not None:
            frame.sanitizer.expect(frame, condition(frame), "assumption", "an assumption does not hold")

    return evaluate


@call("tl.device_assert", "tl.device_assert_with_msg")
def _device_assert(translator: Translator, node: Node) -> Evaluate:
    condition, *message = translator.exprs(node.args)

    def evaluate(frame: Frame) -> None:
        held, text = condition(frame), message[0](frame) if message else "device_assert failed"
        if frame.sanitizer is not None:
            frame.sanitizer.expect(frame, held, "assertion", text)
        else:
            require(frame, held, text)

    return evaluate


def require(frame: Frame, held: Any, text: str) -> None:
    """Raise InterpretError unless `held` holds for every active lane."""
    if any_active(both(frame.mask, np.logical_not(held))):
        raise InterpretError(f"device assertion failed: {text}")


_NO_OPERATION = (
    "tl.pdl_sync",
    "tl.pdl_trigger",
    "tl.no_set_max_nreg",
    "tl.set_max_nreg",
    "tl.annotate_producer_reg_dealloc",
    "tl.annotate_consumer_reg_alloc",
    "tl.fence_proxy_async",
    "tl.tma_store_arrive",
    "tl.tma_store_wait",
    "tl.ascend_pipe_barrier",
    "tl.ascend_set_flag",
    "tl.ascend_wait_flag",
    "tl.ascend_threadfence",
    "tirx.ptx_commit_group",
    "tirx.ptx_wait_group",
)


@call(*_NO_OPERATION)
def _nothing(translator: Translator, node: Node) -> Evaluate:
    """Ordering of memory and registers, which a run in one order needs none of."""
    return constant(None)
