# ruff: noqa: F821 — TileLang annotations are expressions, not names.
"""Binding arguments, naming what is not supported, and loops whose order matters."""

import subprocess
import sys

import pytest
import tilelang.language as T
import torch

import tkc
from tkc.interpret import InterpretError, Program, UnsupportedError, interpret


def scaled():
    rows, stride = T.dynamic("rows"), T.dynamic("stride", "int64")

    @T.prim_func
    def scaled(
        x: T.StridedTensor[(rows, 8), (stride, 1), "float32"], out: T.Tensor[(rows, 8), "float32"], scale: T.int32
    ):
        with T.Kernel(rows, threads=32) as block:
            for i in T.Parallel(8):
                out[block, i] = x[block, i] * T.cast(scale, "float32")

    return scaled


def test_the_package_is_the_function():
    x, out = torch.randn(3, 8), torch.zeros(3, 8)
    tkc.interpret(scaled(), x, out, 2)
    assert torch.equal(out, x * 2)


def test_importing_the_package_imports_neither_torch_nor_tilelang():
    code = "import sys, tkc.interpret; assert not {'torch', 'tilelang', 'tvm'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_may_be_strided_and_repeated():
    x, out = torch.randn(3, 12)[:, 2:10], torch.zeros(3, 8)
    interpret(scaled(), x, out, 3)
    assert torch.equal(out, x * 3)
    interpret(scaled(), x[:1].expand(3, 8), out, 1)
    assert torch.equal(out, x[:1].expand(3, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 8), torch.zeros(3, 8)), r"takes 3 arguments \(x, out, scale\); got 2"),
        ((torch.zeros(3, 9), torch.zeros(3, 8), 1), "x: size of dimension 1 is 9; expected 8"),
        ((torch.zeros(3, 8), torch.zeros(4, 8), 1), "out: size of dimension 0 is 4; .* says that rows is 3"),
        ((torch.zeros(3, 8), torch.zeros(8, 3).T, 1), "out: stride of dimension 0 is 1; expected 8"),
        ((torch.zeros(3, 8), torch.zeros(3, 8, dtype=torch.float64), 1), "out has dtype float64; expected float32"),
        ((torch.zeros(3, 8), torch.zeros(24), 1), "out has 1 dimensions; expected 2"),
        ((torch.zeros(3, 8), torch.zeros(3, 8), 2**31), "scale is 2147483648, which int32 does not hold"),
        ((torch.zeros(3, 8), torch.zeros(3, 8), "2"), "scale is str, expected a number"),
        ((torch.zeros(3, 8), torch.zeros(3, 8, device="meta"), 1), "a tensor on meta, expected one on the CPU"),
        ((torch.zeros(3, 8), None, 1), "buffer out is used, and nothing allocated it"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(arguments, message):
    with pytest.raises(InterpretError, match=message):
        interpret(scaled(), *arguments)


@T.prim_func
def calls_the_unknown(x: T.Tensor[(32,), "float32"]):
    with T.Kernel(1, threads=32):
        x[0] = T.call_extern("float32", "mystery", x[1])


@T.prim_func
def joins_a_cluster(x: T.Tensor[(32,), "float32"]):
    with T.Kernel(1, threads=32):
        if x[0] > 0.0:
            T.cluster_sync()


@pytest.mark.parametrize(
    ("program", "operation", "statement"),
    [
        (calls_the_unknown, "the device function mystery", 'x[0] = T.call_extern("float32", "mystery", x[1])'),
        (joins_a_cluster, "the operation tl.cluster_sync", "T.cluster_sync()"),
    ],
)
def test_what_is_not_supported_is_named_with_its_statement_before_anything_runs(program, operation, statement):
    with pytest.raises(UnsupportedError) as caught:
        Program.translate(program)
    assert operation in caught.value.operation
    assert caught.value.statement == statement
    assert statement in str(caught.value)


@T.prim_func
def ordered(x: T.Tensor[(32,), "int32"], out: T.Tensor[(5, 32), "int32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        running = T.alloc_local((8,), "int32")
        counts = T.alloc_local((4,), "int32")
        pairs = T.alloc_local((4,), "int32")
        total = T.alloc_var("int32")
        total = 0
        running[0] = 1
        for i in T.vectorized(4):
            counts[i] = 0
            pairs[i] = 0
        for i in T.serial(7):
            running[i + 1] = running[i] * 2
        for i in T.unroll(32):
            counts[x[i]] = counts[x[i]] + 1
        for i in T.vectorized(8):
            pairs[i // 2] = pairs[i // 2] * 10 + i
        for i in T.serial(5):
            for k in T.serial(3):
                total = total * 3 + i + k
        out[0, thread] = running[7]
        out[1, thread] = counts[thread % 4]
        out[2, thread] = pairs[3]
        out[3, thread] = total
        for i in T.serial(4):
            for k in T.serial(8):
                running[k] = running[k] * 2 + counts[i]
        out[4, thread] = running[1]


def test_loops_whose_iterations_depend_on_each_other_run_in_order():
    x, out = torch.randint(0, 4, (32,), dtype=torch.int32), torch.zeros(5, 32, dtype=torch.int32)
    interpret(ordered, x, out)
    counts = torch.bincount(x, minlength=4).tolist()
    assert out[0].unique().tolist() == [128]
    assert out[1].tolist() == counts * 8
    assert out[2].unique().tolist() == [67]
    total, value = 0, 2
    for i in range(5):
        for k in range(3):
            total = total * 3 + i + k
    for count in counts:
        value = value * 2 + count
    assert out[3].unique().tolist() == [(total + 2**31) % 2**32 - 2**31]
    assert out[4].unique().tolist() == [value]


@T.prim_func
def matrices(
    a: T.Tensor[(2, 32, 16), "bfloat16"], b: T.Tensor[(24, 16), "bfloat16"], c: T.Tensor[(2, 32, 24), "float32"]
):
    with T.Kernel(2, threads=128) as block:
        left, right = T.alloc_shared((32, 16), "bfloat16"), T.alloc_shared((24, 16), "bfloat16")
        product = T.alloc_fragment((32, 24), "float32")
        T.copy(a[block, 0:32, 0:16], left)
        T.copy(b, right)
        T.clear(product)
        for _ in T.serial(2):
            T.gemm(left, right, product, transpose_B=True)
        T.copy(product, c[block, 0:32, 0:24])


def test_a_matrix_product_adds_to_what_is_there():
    a, b = torch.randn(2, 32, 16).to(torch.bfloat16), torch.randn(24, 16).to(torch.bfloat16)
    c = torch.zeros(2, 32, 24)
    interpret(matrices, a, b, c)
    torch.testing.assert_close(c, 2 * (a.float() @ b.float().T))


@T.prim_func
def two_phases(x: T.Tensor[(4,), "int32"], out: T.Tensor[(4,), "int32"]):
    with T.Kernel(4, threads=32) as block:
        x[block] = block + 1
        T.sync_grid()
        out[block] = x[3 - block]


def test_a_grid_barrier_lets_every_block_see_what_all_wrote():
    x, out = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    interpret(two_phases, x, out, chunk_bytes=1, sanitize=True)
    assert out.tolist() == [4, 3, 2, 1]


@T.prim_func
def random_words(out: T.Tensor[(6, 32), "uint32"], floats: T.Tensor[(32,), "float32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        T.rng_init(0, thread, 0)
        for i in T.serial(6):
            out[i, thread] = T.rng_rand()
        floats[thread] = T.rng_rand_float()


def test_philox_gives_its_published_first_words():
    """Key and counter zero give these four words in the Random123 known-answer tests."""
    out, floats = torch.zeros(6, 32, dtype=torch.uint32), torch.zeros(32)
    interpret(random_words, out, floats)
    assert [int(v) for v in out[:4, 0]] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert len(out.unique()) == 6 * 32
    assert floats.gt(0).all() and floats.le(1).all()


@T.prim_func
def larger(x: T.Tensor[(4,), "float32"], y: T.Tensor[(4,), "float32"], out: T.Tensor[(4,), "float32"]):
    with T.Kernel(1, threads=32):
        for i in T.serial(4):
            out[i] = T.max(x[i], y[i])


def test_the_larger_of_a_nan_and_a_number_is_what_each_backend_computes():
    nan = float("nan")
    x, y, out = torch.tensor([nan, 1.0, nan, 2.0]), torch.tensor([1.0, nan, nan, 3.0]), torch.zeros(4)
    interpret(larger, x, y, out)
    assert out[:2].tolist() == [1, 1] and out[2].isnan() and out[3] == 3
    interpret(larger, x, y, out, backend="cpu")
    assert out[0] == 1 and out[1].isnan() and out[2].isnan() and out[3] == 3


@T.prim_func
def bits_of_a_nan(x: T.Tensor[(3,), "float32"], out: T.Tensor[(3,), "uint32"]):
    with T.Kernel(1, threads=32):
        for i in T.serial(3):
            out[i] = T.reinterpret(x[i] * 2.0, "uint32")


def test_a_nan_that_arithmetic_makes_has_the_device_s_bits():
    x = torch.tensor([0x7FC00001, -1, 0x3F800000], dtype=torch.int32).view(torch.float32)
    out = torch.zeros(3, dtype=torch.uint32)
    interpret(bits_of_a_nan, x, out)
    assert out.tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 0x40000000]
