"""Transposes: every size of element, any shape and stride, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_specs import transpose
from kernel_specs.torch import batched_transpose as reference
from tests.kernel_specs.cpu_stores import every_specialization
from tkc.compiler.lower import lower
from tkc.compiler.stages import Unit
from tkc.errors import ArgumentError
from tkc.grids import grid_names, load_grid
from tkc.interpret.check import check_variant
from tkc.model import Host, Specialization, Target
from tkc.registry import find_entry
from tkc.runtime.check import check_loaded

ENTRY = find_entry("transpose.batched_transpose")
SPECIALIZATIONS = every_specialization("transpose.batched_transpose")
DTYPES = (torch.bool, torch.int8, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64)

on_cpu = pytest.mark.usefixtures("on_cpu")


@pytest.mark.parametrize("specialization", SPECIALIZATIONS, ids=str)
def test_cuda_variant_equals_its_reference_and_stays_in_bounds(specialization: Specialization) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    results = list(check_variant(ENTRY, specialization, Target.parse("sm90"), seed=seed, sanitize=True))
    assert len(results) > 8
    assert [result for result in results if not result.ok] == [], f"seed {seed}"


@pytest.mark.parametrize("target", ["sm80", "sm90", "sm100"])
@pytest.mark.parametrize("specialization", SPECIALIZATIONS, ids=str)
def test_rows_that_start_anywhere_still_move_16_bytes_at_a_time(
    specialization: Specialization, target: str, tmp_path: Path
) -> None:
    """Rows that do not start on 16 bytes cost seven times as much when they went element by element."""
    source, facts = _lowered(specialization, target, tmp_path)
    for access in ("= tl::load_global_128(", "tl::store_global_128("):
        assert source.count(access) == 2, "one for each way through a tile"
    assert facts["kernels"][0]["pdl"] == (target != "sm80")


@pytest.mark.level1
@pytest.mark.parametrize("specialization", SPECIALIZATIONS, ids=str)
def test_lowers_for_ascend_with_no_toolkit(specialization: Specialization, tmp_path: Path) -> None:
    source, _ = _lowered(specialization, "ascend950", tmp_path)
    assert "__gm__" in source and "__ubuf__" in source


@pytest.mark.parametrize("grid", grid_names())
def test_a_model_needs_no_more_artifacts_than_sizes_of_element(grid: str) -> None:
    """D11: shapes and strides are free, so a grid is closed with at most four artifacts."""
    assert 1 <= len(ENTRY.spec.specializations(load_grid(grid))) <= 4


@pytest.mark.level1
@on_cpu
@pytest.mark.parametrize("specialization", SPECIALIZATIONS, ids=str)
def test_every_cpu_artifact_equals_its_reference(specialization: Specialization) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    results = list(check_loaded(ENTRY, specialization, "cpu", seed=seed))
    assert results
    assert [result for result in results if not result.ok] == [], f"seed {seed}"


@pytest.mark.level1
@on_cpu
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(0, 70), st.integers(0, 70)),
    padding=st.integers(0, 5),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_any_row_stride_any_dtype(
    shape: tuple[int, int, int], padding: int, dtype: torch.dtype, seed: int
) -> None:
    """The peer takes multiples of 64 alone, and strides that are multiples of 4."""
    batches, rows, columns = shape
    x = _random(batches, rows, columns + padding, dtype, seed)[:, :, padding // 2 : padding // 2 + columns]
    got = transpose.batched_transpose(x)
    assert got.is_contiguous() and got.dtype == dtype
    assert torch.equal(got.view(torch.uint8), reference(x).view(torch.uint8))
    if batches:
        assert torch.equal(transpose.transpose(x[0]).view(torch.uint8), got[0].view(torch.uint8))


@pytest.mark.level1
@on_cpu
@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.zeros(3), "shape"),
        (torch.zeros(2, 3, 4, 5), "shape"),
        (torch.zeros(2, 3, 4, dtype=torch.complex128), "complex128"),
        (torch.zeros(2, 4, 6)[:, :, ::2], "stride"),
    ],
    ids=["rank 1", "rank 4", "16-byte elements", "last stride"],
)
def test_what_it_cannot_take_is_refused_by_name(x: torch.Tensor, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as raised:
        transpose.batched_transpose(x)
    assert raised.value.argument == "x"


def test_a_matrix_is_not_taken_for_a_batch() -> None:
    with pytest.raises(ArgumentError, match=r"expected a matrix"):
        transpose.transpose(torch.zeros(2, 3, 4))


@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (1, 1)])
def test_the_reference_never_returns_its_input(shape: tuple[int, int]) -> None:
    """A transposed vector is contiguous already; a reference that hands it back aliases its input."""
    x = torch.zeros(shape)
    out = reference(x)
    out.fill_(1)
    assert not x.any()


def _lowered(specialization: Specialization, target: str, folder: Path) -> tuple[str, dict[str, object]]:
    output = lower(Unit(ENTRY, specialization, Target.parse(target), Host.this_machine()), folder)
    device = next(name for name in output.files if name.startswith("device."))
    return (folder / device).read_text(), dict(output.facts)


def _random(batches: int, rows: int, columns: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size_bytes = torch.empty(0, dtype=dtype).element_size()
    limit = 2 if dtype is torch.bool else 256
    length = batches * rows * columns * size_bytes
    bits = torch.randint(0, limit, (length,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).view(batches, rows, columns)
