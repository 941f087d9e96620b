"""A spec whose const axis chooses the program."""

from __future__ import annotations

from tkc.model import Arg, ConstAxis, DType, KernelSpec, Params, Role, ScalarArg, Specialization, TensorArg, VarAxis

FLOAT32, FLOAT16, INT32 = DType.FLOAT32, DType.FLOAT16, DType.INT32

ARGUMENTS: dict[str, tuple[Arg, ...]] = {
    "row_sums": (TensorArg("x", ("rows", 256), FLOAT32, alignment_bytes=16), TensorArg("out", ("rows",), FLOAT32)),
    "matmul": (
        TensorArg("a", ("rows", 256), FLOAT16),
        TensorArg("b", (256, 256), FLOAT16),
        TensorArg("c", ("rows", 256), FLOAT32, role=Role.OUT),
    ),
    "histogram": (TensorArg("x", ("size",), INT32), TensorArg("counts", (64,), INT32, role=Role.INOUT)),
    "maxima": (TensorArg("x", ("size",), INT32), TensorArg("most", (64,), INT32, role=Role.INOUT)),
    "two_passes": (TensorArg("x", ("size",), FLOAT32, role=Role.INOUT),),
    "clustered": (TensorArg("x", ("size",), FLOAT32, role=Role.INOUT), ScalarArg("factor", FLOAT32)),
    "dependent": (TensorArg("x", ("size",), FLOAT32, role=Role.INOUT), ScalarArg("shift", INT32)),
    "persisting": (TensorArg("x", (4096, 256), FLOAT32), TensorArg("out", (4096, 256), FLOAT32, role=Role.OUT)),
    "convolution": (
        TensorArg("x", (2, 16, 16, 64), FLOAT16),
        TensorArg("w", (3, 3, 64, 64), FLOAT16),
        TensorArg("out", (2, 16, 16, 64), FLOAT32, role=Role.OUT),
    ),
}


def _specialize(program: str) -> Params:
    return {"program": program}


def _arguments(specialization: Specialization) -> tuple[Arg, ...]:
    return ARGUMENTS[specialization.str("program")]


SPEC = KernelSpec(
    name="samples.programs",
    summary="One of several programs.",
    definition="see each",
    const=(ConstAxis("program", tuple(ARGUMENTS), "another program"),),
    var=(VarAxis("rows", "rows"), VarAxis("size", "elements")),
    specialize=_specialize,
    arguments=_arguments,
    grid=lambda model: (),
)
