# ruff: noqa: F821 — TileLang annotations are expressions, not names.
"""The Ascend dialect: copies between memories, SIMT and SIMD vector functions, persistent loops."""

import tilelang.ascend.language as T
import torch

from tkc.interpret import interpret


@T.prim_func
def simd(x: T.Tensor[(64, 128), "float32"], y: T.Tensor[(64, 128), "float32"], z: T.Tensor[(64,), "float32"]):
    with T.Kernel(2) as block:
        tile = T.alloc_shared((32, 128), "float32")
        largest = T.alloc_shared((32,), "float32")
        T.copy(x[block * 32, 0], tile)
        with T.SimdVF():
            for i, j in T.Parallel(32, 128):
                tile[i, j] = tile[i, j] * 2.0
            T.reduce_max(tile, largest, dim=1)
        T.copy(tile, y[block * 32, 0])
        T.copy(largest, z[block * 32])


def test_a_simd_function_works_on_tiles_in_the_unified_buffer():
    x, y, z = torch.randn(64, 128), torch.zeros(64, 128), torch.zeros(64)
    interpret(simd, x, y, z, backend="ascend", sanitize=True, unwritten=("y", "z"))
    assert torch.equal(y, x * 2)
    assert torch.equal(z, (x * 2).amax(1))


def persistent_simt():
    size = T.dynamic("size")

    @T.prim_func
    def doubled(x: T.Tensor[(size,), "float32"], y: T.Tensor[(size,), "float32"]):
        with T.Kernel(3) as block:
            for step in T.serial(T.truncdiv(T.ceildiv(size, 64) - block + 2, 3)):
                first = (block + step * 3) * 64
                with T.SimtVF(threads=64):
                    index = first + T.get_thread_binding()
                    if index < size:
                        y[index] = x[index] * 2.0

    return doubled


def test_a_simt_function_has_threads_of_its_own_inside_a_persistent_loop():
    for size in (1, 64, 500):
        x, y = torch.randn(size), torch.zeros(size)
        interpret(persistent_simt(), x, y, backend="ascend", sanitize=True, unwritten=("y",))
        assert torch.equal(y, x * 2)


@T.prim_func
def vectors_of_a_thread(x: T.Tensor[(64, 4), "float32"], y: T.Tensor[(64, 4), "float32"]):
    with T.Kernel(1), T.SimtVF(threads=64):
        for i in T.vectorized(4):
            y[T.get_thread_binding(), i] = x[63 - T.get_thread_binding(), i]


def test_a_thread_of_a_simt_function_keeps_its_index_inside_a_loop():
    x, y = torch.randn(64, 4), torch.zeros(64, 4)
    interpret(vectors_of_a_thread, x, y, backend="ascend", sanitize=True)
    assert torch.equal(y, x.flip(0))
