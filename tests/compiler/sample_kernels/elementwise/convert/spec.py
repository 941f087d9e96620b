"""``out = x`` in another element type."""

from __future__ import annotations

from tkc.model import Arg, ConstAxis, DType, KernelSpec, Params, Role, Specialization, TensorArg, VarAxis

_TYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def _specialize(source: str, target: str) -> Params:
    return {"source": source, "target": target}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return (
        TensorArg("x", ("size",), DType(specialization.str("source"))),
        TensorArg("out", ("size",), DType(specialization.str("target")), role=Role.OUT),
    )


SPEC = KernelSpec(
    name="elementwise.convert",
    summary="Convert every element to another type.",
    definition="out = x, rounded to nearest even; 8-bit types saturate",
    const=(ConstAxis("source", _TYPES, "part of the code"), ConstAxis("target", _TYPES, "part of the code")),
    var=(VarAxis("size", "elements"),),
    specialize=_specialize,
    arguments=_arguments,
    grid=lambda model: (),
)
