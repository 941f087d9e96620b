"""What TileLang's C backend leaves undone, done on its lowered programs for the CPU.

It prints float32 constants with seven digits, converts 8-bit floats without subnormals, and knows no C for
some functions. The functions called here are libc's, or are defined in ``link_headers/tkc_cpu.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any


def call_as_c(host: Any) -> Any:
    """Let the host part call its kernels as plain C functions."""
    from tilelang import tvm
    from tvm import tirx

    def as_extern(call: Any) -> Any:
        if isinstance(call.op, tvm.ir.GlobalVar):
            return tirx.call_extern(call.dtype, call.op.name_hint, *call.args)
        return None

    return _rewritten(host, "tirx.Call", as_extern)


def complete(device: Any) -> Any:
    """Give kernels that the C backend prints right."""
    from tvm import tirx

    device = _rewritten(device, "tirx.Call", _call_function)
    device = _rewritten(device, "tirx.Cast", _convert_by_function)
    for legalize in (
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ):
        device = legalize(device)
    return _rewritten(device, "ir.FloatImm", _exact_constant)


def _rewritten(module: Any, kind: str, rewrite: Callable[[Any], Any]) -> Any:
    """Replace each node of a kind, in every function, by what `rewrite` gives; None keeps it."""
    from tvm import tirx

    for name, function in module.functions.items():
        body = tirx.stmt_functor.ir_transform(function.body, None, rewrite, [kind])
        module.update_func(name, function.with_body(body))
    return module


_LIBC = {"tirx.fabs": "fabs", "tirx.fmod": "fmod", "tl.ieee_fmaf": "fma", "tl.ieee_fsqrt": "sqrt"}
_BY_TYPE = {
    "tirx.clz": "tkc_clz",
    "tirx.popcount": "tkc_popcount",
    "tirx.isfinite": "tkc_isfinite",
    "tirx.isinf": "tkc_isinf",
}
_ROUNDED = {"tl.ieee_add": "Add", "tl.ieee_sub": "Sub", "tl.ieee_mul": "Mul", "tl.ieee_fdiv": "Div"}


def _call_function(call: Any) -> Any:
    """Say in C what TileLang has no C for; not with a rounding other than to nearest, which C has not."""
    from tvm import tirx

    name = getattr(call.op, "name", "")
    operands = [operand for operand in call.args if not isinstance(operand, tirx.StringImm)]
    if any(isinstance(operand, tirx.StringImm) and operand.value != "rn" for operand in call.args):
        return None
    if name in _LIBC:
        suffix = "" if str(call.dtype) == "float64" else "f"
        return tirx.call_extern(call.dtype, _LIBC[name] + suffix, *operands)
    if name in _BY_TYPE:
        return tirx.call_extern(call.dtype, f"{_BY_TYPE[name]}_{operands[0].dtype}", *operands)
    if name == "tirx.reinterpret" and isinstance(operands[0], tirx.FloatImm):
        return _reinterpreted(operands[0], str(call.dtype))
    if name in _ROUNDED:
        return getattr(tirx, _ROUNDED[name])(*operands)
    return None


_FORMS = {"float32": "<f", "float64": "<d", "int32": "<i", "int64": "<q", "uint32": "<I", "uint64": "<Q"}


def _reinterpreted(constant: Any, dtype: str) -> Any:
    """The integer with the bits of a constant; C cannot take a constant's address."""
    from tvm import tirx

    source, target = _FORMS.get(str(constant.dtype)), _FORMS.get(dtype)
    if source is None or target is None:
        return None
    return tirx.const(struct.unpack(target, struct.pack(source, float(constant.value)))[0], dtype)


_FLOATS_OF_8_BITS = ("float8_e4m3fn", "float8_e5m2")


def _convert_by_function(cast: Any) -> Any:
    """Convert 8-bit floats by functions of tkc's: TVM's conversions lose subnormals, NaN and saturation."""
    from tvm import tirx

    target, value, source = str(cast.dtype), cast.value, str(cast.value.dtype)
    if source in _FLOATS_OF_8_BITS:
        bits = tirx.reinterpret("uint8", value)
        value, source = tirx.call_extern("float32", f"tkc_from_{source}", bits), "float32"
    if target in _FLOATS_OF_8_BITS:
        wide = value if source == "float32" else tirx.Cast("float32", value)
        return tirx.reinterpret(target, tirx.call_extern("uint8", f"tkc_to_{target}", wide))
    return value if source == target else tirx.Cast(target, value)


def _exact_constant(constant: Any) -> Any:
    """Write a constant by its bits if the seven digits that would be printed are too few."""
    from tvm import tirx

    dtype, value = str(constant.dtype), float(constant.value)
    if dtype not in ("float32", "float64") or value != value or value in (float("inf"), float("-inf")):
        return None
    form, unsigned = _FORMS[dtype], dtype.replace("float", "uint")
    if struct.pack(form, float(f"{value:e}")) == struct.pack(form, value):
        return None
    return tirx.call_extern(dtype, f"tkc_{dtype}_of_bits", _reinterpreted(constant, unsigned))
