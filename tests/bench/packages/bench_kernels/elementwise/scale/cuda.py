"""`elementwise.scale` for CUDA."""

import tilelang.language as T

_THREADS = 128


def build(specialization, target):
    """Give the program for one factor."""
    factor = specialization.int("factor")
    n = T.dynamic("n")

    @T.prim_func
    def scale(x: T.Tensor[(n,), "float32"], y: T.Tensor[(n,), "float32"]):
        with T.Kernel(T.ceildiv(n, _THREADS), threads=_THREADS) as block:
            for i in T.Parallel(_THREADS):
                if block * _THREADS + i < n:
                    y[block * _THREADS + i] = x[block * _THREADS + i] * T.float32(factor)

    return scale
