"""Contract of `elementwise.scale`: its factor is const, so that there are as many artifacts as one likes."""

from __future__ import annotations

from tkc.model import ConstAxis, DType, KernelSpec, Params, Role, TensorArg, VarAxis

COUNT = 300


def _specialize(factor: int) -> Params:
    return {"factor": factor}


SPEC = KernelSpec(
    name="elementwise.scale",
    summary="Scales a vector by a constant.",
    definition="y = x * factor",
    const=(ConstAxis("factor", tuple(range(1, COUNT + 1)), "the benchmark wants many artifacts"),),
    var=(VarAxis("n", "elements"),),
    specialize=_specialize,
    arguments=lambda specialization: (
        TensorArg("x", ("n",), DType.FLOAT32),
        TensorArg("y", ("n",), DType.FLOAT32, Role.OUT),
    ),
    grid=lambda dims: [{"factor": factor} for factor in range(1, COUNT + 1)],
)
