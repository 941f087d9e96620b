"""The programs."""

from typing import Any

import tilelang.language as T

from tkc.model import Specialization, Target

PASS_CONFIGS = {"tl.disable_data_race_check": True}


def build(specialization: Specialization, target: Target) -> Any:
    return globals()[f"_{specialization.str('program')}"]()


def _row_sums() -> Any:
    rows = T.dynamic("rows")

    @T.prim_func
    def row_sums(x: T.Tensor[(rows, 256), "float32"], out: T.Tensor[(rows,), "float32"]):
        with T.Kernel(T.ceildiv(rows, 4), threads=128) as block:
            tile = T.alloc_fragment((4, 256), "float32")
            sums = T.alloc_fragment((4,), "float32")
            T.copy(x[block * 4, 0], tile)
            T.reduce_sum(tile, sums, dim=1)
            T.copy(sums, out[block * 4])

    return row_sums


def _matmul() -> Any:
    """Tensor maps, and more shared memory than a kernel has unasked."""
    rows = T.dynamic("rows")

    @T.prim_func
    def matmul(
        a: T.Tensor[(rows, 256), "float16"],
        b: T.Tensor[(256, 256), "float16"],
        c: T.Tensor[(rows, 256), "float32"],
    ):
        with T.Kernel(2, T.ceildiv(rows, 128), threads=128) as (column, row):
            left = T.alloc_shared((128, 64), "float16")
            right = T.alloc_shared((64, 128), "float16")
            product = T.alloc_fragment((128, 128), "float32")
            T.clear(product)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(a[row * 128, k * 64], left)
                T.copy(b[k * 64, column * 128], right)
                T.gemm(left, right, product)
            T.copy(product, c[row * 128, column * 128])

    return matmul


def _histogram() -> Any:
    """Atomics of the kind that hardware has."""
    size = T.dynamic("size")

    @T.prim_func
    def histogram(x: T.Tensor[(size,), "int32"], counts: T.Tensor[(64,), "int32"]):
        with T.Kernel(T.ceildiv(size, 128), threads=128) as block:
            for i in T.Parallel(128):
                if block * 128 + i < size:
                    T.atomic_add(counts[x[block * 128 + i]], 1)

    return histogram


def _maxima() -> Any:
    """Atomics that TileLang leaves to CUDA's C++ library."""
    size = T.dynamic("size")

    @T.prim_func
    def maxima(x: T.Tensor[(size,), "int32"], most: T.Tensor[(64,), "int32"]):
        with T.Kernel(T.ceildiv(size, 128), threads=128) as block:
            for i in T.Parallel(128):
                if block * 128 + i < size:
                    T.atomic_max(most[i % 64], x[block * 128 + i])

    return maxima


def _two_passes() -> Any:
    """A barrier of the whole grid."""
    size = T.dynamic("size")

    @T.prim_func
    def two_passes(x: T.Tensor[(size,), "float32"]):
        with T.Kernel(16, threads=128) as block:
            for i in T.Parallel(128):
                if block * 128 + i < size:
                    x[block * 128 + i] = x[block * 128 + i] + 1.0
            T.sync_grid()
            for i in T.Parallel(128):
                if block * 128 + i < size:
                    x[block * 128 + i] = x[block * 128 + i] * 2.0

    return two_passes


def _clustered() -> Any:
    """Blocks in clusters of two."""
    size = T.dynamic("size")

    @T.prim_func
    def clustered(x: T.Tensor[(size,), "float32"], factor: T.float32):
        with T.Kernel(T.ceildiv(size, 256) * 2, threads=128, cluster_dims=(2, 1, 1)) as block:
            for i in T.Parallel(128):
                if block * 128 + i < size:
                    x[block * 128 + i] = x[block * 128 + i] * factor

    return clustered


def _dependent() -> Any:
    """Waits for the kernel before it, and lets the one after it start."""
    size = T.dynamic("size")

    @T.prim_func
    def dependent(x: T.Tensor[(size,), "float32"], shift: T.int32):
        with T.Kernel(T.ceildiv(size, 128), threads=128) as block:
            T.pdl_sync()
            for i in T.Parallel(128):
                if block * 128 + i < size:
                    x[block * 128 + i] = x[block * 128 + i] + T.cast(shift, "float32")
            T.pdl_trigger()

    return dependent


def _persisting() -> Any:
    """Asks that the cache keep its input."""

    @T.prim_func
    def persisting(x: T.Tensor[(4096, 256), "float32"], out: T.Tensor[(4096, 256), "float32"]):
        with T.Kernel(4096, threads=128) as row:
            T.annotate_l2_hit_ratio({x: 0.5})
            for i in T.Parallel(256):
                out[row, i] = x[row, i] * 2.0

    return persisting


def _convolution() -> Any:
    """A tensor map that gathers the windows of an image."""

    @T.prim_func
    def convolution(
        x: T.Tensor[(2, 16, 16, 64), "float16"],
        w: T.Tensor[(3, 3, 64, 64), "float16"],
        out: T.Tensor[(2, 16, 16, 64), "float32"],
    ):
        with T.Kernel(4, threads=128) as block:
            window = T.alloc_shared((128, 64), "float16")
            weight = T.alloc_shared((64, 64), "float16")
            product = T.alloc_fragment((128, 64), "float32")
            flat_w = T.Tensor((3 * 3 * 64, 64), "float16", w.data)
            flat_out = T.Tensor((2 * 16 * 16, 64), "float32", out.data)
            T.clear(product)
            for k in T.Pipelined(9, num_stages=2):
                T.im2col(x, window, block, k, 3, 1, 1, 1)
                T.copy(flat_w[k * 64, 0], weight)
                T.gemm(window, weight, product)
            T.copy(product, flat_out[block * 128, 0])

    return convolution
