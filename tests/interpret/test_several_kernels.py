# ruff: noqa: F821 (dtypes in quotes name no type)
"""A function that launches several kernels: they run in order, and the end of one is a barrier for the next."""

import pytest
import tilelang.language as T
import torch

from tkc.interpret import FaultError, interpret

n, m = T.dynamic("n"), T.dynamic("m")


@T.prim_func
def fill_then_add(x: T.Tensor[(n,), "int32"], y: T.Tensor[(m,), "int32"]):
    with T.Kernel(T.ceildiv(n, 32), threads=32) as block:
        i = T.alloc_var("int32")
        i = block * 32 + T.get_thread_binding()
        if i < n:
            x[i] = i
    with T.Kernel(T.ceildiv(m, 64), threads=64) as block:
        i = T.alloc_var("int32")
        i = block * 64 + T.get_thread_binding()
        if i < m:
            x[n - 1 - i] = -1
            y[i] = x[i % (n // 2)]


def test_kernels_of_one_function_run_in_order_on_grids_of_their_own() -> None:
    """The second read names of the first, and died on them; and its blocks write what other blocks wrote before."""
    x, y = torch.full((200,), -7, dtype=torch.int32), torch.full((90,), -7, dtype=torch.int32)
    interpret(fill_then_add, x, y, sanitize=True, unwritten=("x", "y"))
    assert torch.equal(x, torch.cat([torch.arange(110), torch.full((90,), -1)]).int())
    assert torch.equal(y, torch.arange(90).int())


@T.prim_func
def blocks_collide(x: T.Tensor[(n,), "int32"]):
    with T.Kernel(1, threads=32):
        x[0] = 1
    with T.Kernel(2, threads=32) as block:
        x[0] = block


def test_blocks_of_one_kernel_still_may_not_write_one_element() -> None:
    with pytest.raises(FaultError, match="block conflict"):
        interpret(blocks_collide, torch.zeros(4, dtype=torch.int32), sanitize=True)
