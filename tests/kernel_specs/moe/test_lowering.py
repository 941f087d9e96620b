"""Both kernels lower for every CUDA architecture, for every specialization, with no device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tkc.compiler.lower import lower
from tkc.compiler.stages import Unit
from tkc.model import Host, Specialization, Target
from tkc.registry import find_entry

from .conftest import specializations


@pytest.mark.parametrize("target", ["sm90", "sm100", "sm80"])
@pytest.mark.parametrize("specialization", specializations(), ids=str)
def test_lowers_for_cuda(specialization: Specialization, target: str, tmp_path: Path) -> None:
    entry = find_entry(specialization.spec)
    unit = Unit(entry, specialization, Target.parse(target), Host.this_machine())
    facts = lower(unit, tmp_path).facts
    (kernel,) = facts["kernels"]
    assert facts["parameters"] == [argument.name for argument in entry.spec.arguments(specialization)]
    assert kernel["pdl"] == (target != "sm80")
    assert "__syncthreads" not in (tmp_path / "device.cu").read_text()  # warps share nothing: none may wait
