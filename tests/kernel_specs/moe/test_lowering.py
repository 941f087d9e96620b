"""The kernels lower for every CUDA architecture, with no device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tkc.compiler.lower import lower
from tkc.compiler.stages import Unit
from tkc.grids import load_grid
from tkc.model import Host, Specialization, Target
from tkc.registry import find_entry

from .conftest import specializations


@pytest.mark.level1
@pytest.mark.parametrize("target", ["sm90", "sm100", "sm80"])
@pytest.mark.parametrize("specialization", specializations(), ids=str)
def test_lowers_for_cuda(specialization: Specialization, target: str, tmp_path: Path) -> None:
    entry = find_entry(specialization.spec)
    unit = Unit(entry, specialization, Target.parse(target), Host.this_machine())
    facts = lower(unit, tmp_path).facts
    assert facts["parameters"] == [argument.name for argument in entry.spec.arguments(specialization)]
    assert [kernel["pdl"] for kernel in facts["kernels"]] == [target != "sm80"] * len(facts["kernels"])
    if specialization.spec not in _SHARING:
        assert "__syncthreads" not in (tmp_path / "device.cu").read_text()  # warps share nothing: none may wait


_SHARING = {"moe.group_count", "moe.aux_fi", "moe.get_fused_mapping"}
"""Kernels whose warps work on one result."""


@pytest.mark.parametrize("name", ["moe.expand_to_fused", "moe.reduce_fused"])
def test_rows_move_16_bytes_at_a_time(name: str, tmp_path: Path) -> None:
    """They take as long as the memory needs; narrow accesses would take several times that."""
    entry = find_entry(name)
    (specialization, *_) = entry.spec.specializations(load_grid("deepseek-v3"))
    lower(Unit(entry, specialization, Target.parse("sm90"), Host.this_machine()), tmp_path)
    source = (tmp_path / "device.cu").read_text()
    assert "load_global_128" in source and "store_global_128" in source
