"""The CUDA variants, interpreted on the CPU under the sanitizer, bit for bit as the references say."""

from __future__ import annotations

import os

import pytest

from tkc.interpret.check import check_variant
from tkc.model import Specialization, Target
from tkc.registry import find_entry

from .conftest import casts, per_token_casts


@pytest.mark.parametrize("specialization", (*per_token_casts(), *casts()), ids=str)
def test_cuda_variant_equals_its_reference(specialization: Specialization) -> None:
    """Two roundings that were written independently agree; nothing is read or written out of range."""
    seed = int.from_bytes(os.urandom(4), "little")
    entry = find_entry(specialization.spec)
    results = check_variant(entry, specialization, Target.parse("sm90"), seed=seed, sanitize=True)
    assert results
    assert [result for result in results if not result.ok] == [], f"seed {seed}"
