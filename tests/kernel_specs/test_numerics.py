"""Every variant of every kernel, interpreted on the CPU, gives what its reference says."""

from __future__ import annotations

import os

import pytest

from tkc.grids import load_grid
from tkc.interpret.check import check_variant
from tkc.model import Specialization, Target
from tkc.registry import CatalogEntry, load_catalog

pytestmark = pytest.mark.level1

TARGETS = tuple(Target.parse(name) for name in ("sm90", "sm100", "ascend950", "cpu"))


def _cases() -> list[tuple[CatalogEntry, Specialization, Target]]:
    dims = load_grid("smoke")
    return [
        (entry, specialization, target)
        for entry in load_catalog()
        for specialization in entry.spec.specializations(dims)
        for target in TARGETS
        if target.backend in entry.backends
    ]


@pytest.mark.parametrize(
    ("entry", "specialization", "target"),
    [pytest.param(*case, id=f"{case[1]} {case[2]}".replace(" ", "-")) for case in _cases()],
)
def test_variant_gives_what_its_reference_says(
    entry: CatalogEntry, specialization: Specialization, target: Target
) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    results = check_variant(entry, specialization, target, seed=seed)
    wrong = [f"sample {result.sample} {result.output}: {result.detail}" for result in results if not result.ok]
    assert not wrong, f"seed {seed}\n" + "\n".join(wrong[:5])


def test_the_grid_reaches_every_kernel() -> None:
    """A kernel that the smoke grid misses would pass unchecked."""
    missed = [entry.spec.name for entry in load_catalog() if not entry.spec.specializations(load_grid("smoke"))]
    assert not missed
