"""Both kernels lower for every target with no device, and use the accesses and instructions that make them fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from tkc.compiler.lower import lower
from tkc.compiler.stages import Unit
from tkc.model import Host, Specialization, Target
from tkc.registry import find_entry

from .conftest import CAST, PER_TOKEN_CAST, casts, per_token_casts


def _lowered(specialization: Specialization, target: str, folder: Path) -> tuple[dict, str]:
    entry = find_entry(specialization.spec)
    unit = Unit(entry, specialization, Target.parse(target), Host.this_machine())
    facts = lower(unit, folder).facts
    assert facts["parameters"] == [argument.name for argument in entry.spec.arguments(specialization)]
    return facts, next(path for path in folder.iterdir() if path.stem == "device").read_text()


@pytest.mark.parametrize("target", ["sm90", "cpu"])
@pytest.mark.parametrize("specialization", (*per_token_casts()[::2], *casts()[-2:]), ids=str)
def test_lowers_with_the_arguments_of_the_spec(specialization: Specialization, target: str, tmp_path: Path) -> None:
    facts, source = _lowered(specialization, target, tmp_path)
    (kernel,) = facts["kernels"]
    assert kernel["pdl"] == (target != "cpu")
    assert "__syncthreads" not in source
    declared = {argument.name: argument for argument in find_entry(specialization.spec).spec.arguments(specialization)}
    pointers = [argument for argument in kernel["args"] if argument["kind"] == "pointer"]
    assert pointers
    for pointer in pointers:  # a view that lent its name to a tensor would lose the tensor's alignment
        assert pointer["alignment_bytes"] == declared[pointer["name"]].alignment_bytes


@pytest.mark.parametrize("specialization", casts()[:20:3], ids=str)
def test_cast_lowers_for_ascend_without_cann(specialization: Specialization, tmp_path: Path) -> None:
    _, source = _lowered(specialization, "ascend950", tmp_path)
    assert "__simt_vf__" in source


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_rows_are_loaded_and_stored_in_whole_vectors(target: str, tmp_path: Path) -> None:
    """TileLang falls back to single elements, with a warning only, where it cannot prove alignment."""
    call = PER_TOKEN_CAST.bind(x_dtype="bfloat16", fmt="e4m3", num_per_channels=128)
    _, source = _lowered(call, target, tmp_path)
    assert "= *(uint4*)(x + " in source or "= *(ulonglong4*)(x + " in source
    assert "*(fp8_e4_16_t*)(out + " in source
    assert "__nv_cvt_float2_to_fp8x2" in source


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_packed_scale_factors_of_four_rows_are_stored_at_once(target: str, tmp_path: Path) -> None:
    requantised = {"x_dtype": "e4m3", "x_sf": "float32", "x_block_k": 128}
    call = PER_TOKEN_CAST.bind(**requantised, num_per_channels=32, round_sf=True, use_packed_ue8m0=True)
    _, source = _lowered(call, target, tmp_path)
    assert "*(int4*)(sf + " in source


def test_elements_that_are_looked_up_are_moved_in_whole_vectors(tmp_path: Path) -> None:
    _, source = _lowered(PER_TOKEN_CAST.bind(x_dtype="e2m1", x_sf="float32", x_block_k=32), "sm90", tmp_path)
    assert "= *(uint4*)(((uint*)x)" in source
    assert "*(uint4*)(((uint*)out)" in source


def test_cast_moves_sixteen_bytes_at_once(tmp_path: Path) -> None:
    _, source = _lowered(CAST.bind(x_dtype="float32", y_dtype="bfloat16"), "sm90", tmp_path)
    assert "= *(float4*)(x + " in source
    assert "*(uint2*)(y + " in source
