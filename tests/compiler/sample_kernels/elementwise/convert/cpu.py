"""A plain loop."""

from typing import Any

import tilelang.language as T

from tkc.model import Specialization, Target


def build(specialization: Specialization, target: Target) -> Any:
    size = T.dynamic("size")
    source, to = specialization.str("source"), specialization.str("target")

    @T.prim_func
    def convert(x: T.Tensor[(size,), source], out: T.Tensor[(size,), to]):
        with T.Kernel(1) as _:
            for i in T.serial(size):
                out[i] = T.cast(x[i], to)

    return convert
