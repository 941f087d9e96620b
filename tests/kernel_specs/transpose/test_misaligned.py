"""Rows that do not start on 16 bytes: every byte goes to its place, whatever keeps them from it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_specs.transpose.batched_transpose.cuda import PASS_CONFIGS, build, tuned
from kernel_specs.transpose.batched_transpose.reference import batched_transpose as reference
from tests.kernel_specs.cpu_stores import every_specialization
from tkc.interpret import Program
from tkc.model import Specialization, Target

SPECIALIZATIONS = every_specialization("transpose.batched_transpose")
DTYPES = {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32, 8: torch.int64}
AXES = ("base", "stride_row", "stride_batch", "num_rows", "num_columns")
"""What may keep rows from starting on a vector: of `x` the first three, of `out` the fourth; the last cuts vectors."""


@pytest.mark.level1
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("specialization", SPECIALIZATIONS, ids=str)
def test_one_thing_alone_is_misaligned(specialization: Specialization, axis: str) -> None:
    """Whatever of the five is overlooked when the way is chosen, a vector access faults on it."""
    program, vector = _program(specialization), 16 // specialization.int("size_bytes")
    for elements in sorted({1, vector // 2, vector - 1}):
        _check(program, specialization, {axis: elements}, seed=elements)


@pytest.mark.level1
@pytest.mark.parametrize("specialization", SPECIALIZATIONS, ids=str)
def test_everything_is_misaligned_by_different_amounts(specialization: Specialization) -> None:
    program, vector = _program(specialization), 16 // specialization.int("size_bytes")
    amounts = st.fixed_dictionaries(dict.fromkeys(AXES, st.integers(0, vector - 1)))

    @settings(deadline=None, max_examples=8)
    @given(amounts, st.integers(0, 2**32 - 1))
    def check(misaligned_by: dict[str, int], seed: int) -> None:
        _check(program, specialization, misaligned_by, seed)

    check()


def _program(specialization: Specialization) -> Program:
    return Program.translate(build(specialization, Target.parse("sm90")), "cuda", PASS_CONFIGS)


def _check(program: Program, specialization: Specialization, misaligned_by: Mapping[str, int], seed: int) -> None:
    """Two matrices of a tile and a bit more both ways, each axis off a multiple of 16 bytes by so many elements."""
    size_bytes = specialization.int("size_bytes")
    vector, config = 16 // size_bytes, tuned(size_bytes, Target.parse("sm90"))
    off = dict.fromkeys(AXES, 0) | dict(misaligned_by)
    rows, columns = config.rows + vector + off["num_rows"], config.columns + vector + off["num_columns"]
    stride_row = -(-columns // vector) * vector + off["stride_row"]
    stride_batch = -(-rows * stride_row // vector) * vector + off["stride_batch"]

    generator = torch.Generator().manual_seed(seed)
    length = (off["base"] + 2 * stride_batch) * size_bytes
    bits = torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator).view(DTYPES[size_bytes])
    x = bits.as_strided((2, rows, columns), (stride_batch, stride_row, 1), off["base"])
    out = torch.empty((2, columns, rows), dtype=x.dtype)
    out.view(torch.uint8).fill_(0x7F)
    program.run([x, out], sanitize=True, unwritten=["out"])
    assert torch.equal(out.view(torch.uint8), reference(x).view(torch.uint8)), dict(misaligned_by)
