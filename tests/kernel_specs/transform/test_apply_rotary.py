"""Rotary embedding: exact to the bit, for any strides, sizes and positions; what cannot be rotated is refused."""

from __future__ import annotations

import math
import os
from fractions import Fraction
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kernel_specs.torch import rotary_embedding_ref
from kernel_specs.transform import apply_rotary
from kernel_specs.transform.apply_rotary.reference import _fma
from tests.kernel_specs.cpu_stores import every_specialization
from tkc.compiler.lower import lower
from tkc.compiler.stages import Unit
from tkc.errors import ArgumentError
from tkc.grids import grid_names, load_grid
from tkc.interpret.check import check_variant
from tkc.model import Host, Specialization, Target
from tkc.registry import find_entry
from tkc.runtime import reset
from tkc.runtime.check import check_loaded

ENTRY = find_entry("transform.apply_rotary")
SPECIALIZATIONS = every_specialization("transform.apply_rotary")

on_cpu = pytest.mark.usefixtures("on_cpu")
reals = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=500)
@given(reals, reals, reals)
@example(1 + 2**-12, 1 + 2**-12, 2**-60)  # a tie of the exact product, broken by a bit that float64 drops
@example(1 + 2**-12, 1 + 2**-12, -(2**-60))
@example(2**-74 * 1.5, 2**-75, 2**-149)  # subnormal results have fewer bits to round to
@example(-(2.0**-80), 2.0**-70, 2.0**-149)
def test_the_reference_rounds_a_sum_of_products_once(a: float, b: float, c: float) -> None:
    """Rounding to float64 first and to float32 after can round twice; the kernel's FMA never does."""
    got = _fma(*(torch.tensor([value], dtype=torch.float32) for value in (a, b, c))).item()
    want = _nearest_float32(Fraction(a) * Fraction(b) + Fraction(c))
    assert got == want


@pytest.mark.parametrize("specialization", SPECIALIZATIONS, ids=str)
def test_cuda_variant_equals_its_reference_and_stays_in_bounds(specialization: Specialization) -> None:
    """Samples have positions outside the cache: nothing outside it may be read."""
    seed = int.from_bytes(os.urandom(4), "little")
    results = list(check_variant(ENTRY, specialization, Target.parse("sm90"), seed=seed, sanitize=True))
    assert len(results) > 8
    assert [result for result in results if not result.ok] == [], f"seed {seed}"


@pytest.mark.parametrize("target", ["sm80", "sm90", "sm100"])
def test_no_load_precedes_the_wait_for_the_kernel_before(target: str, tmp_path: Path) -> None:
    """The peer reads positions and the cache before it waits, so it can read what is not yet written."""
    specialization = ENTRY.spec.bind(dtype="bfloat16", positions="int64")
    output = lower(Unit(ENTRY, specialization, Target.parse(target), Host.this_machine()), tmp_path)
    body = (tmp_path / "device.cu").read_text().split("{", 1)[1]
    assert output.facts["kernels"][0]["pdl"] == (target != "sm80")
    if target != "sm80":
        before, after = body.split("cudaGridDependencySynchronize();")
        assert "load_global" not in before and "= positions[" not in before
        assert "load_global_128" in after and "= positions[" in after


@pytest.mark.parametrize("grid", grid_names())
def test_a_model_needs_a_dozen_artifacts_at_most(grid: str) -> None:
    """D11: with heads and strides compiled in, a grid is never closed."""
    assert len(ENTRY.spec.specializations(load_grid(grid))) <= 12


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
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.integers(0, 3),
    tokens=st.integers(0, 9),
    heads=st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(0, 3))),
    half=st.integers(1, 70),
    before=st.integers(0, 9),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    index=st.sampled_from([None, torch.int32, torch.int64]),
    flags=st.tuples(st.booleans(), st.booleans()),
    offset=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_heads_any_size_any_strides_any_positions(
    batches: int,
    tokens: int,
    heads: tuple[int, int | None],
    half: int,
    before: int,
    dtype: torch.dtype,
    index: torch.dtype | None,
    flags: tuple[bool, bool],
    offset: int,
    seed: int,
) -> None:
    """The peer builds a kernel for each number of heads and each stride, and takes heads of 64 or 128 alone."""
    generator = torch.Generator().manual_seed(seed)
    whole = [
        None if n is None else torch.randn(batches, tokens, n, before + 2 * half, generator=generator).to(dtype)
        for n in heads
    ]
    cache = torch.randn(12 + offset, 2 * half, generator=generator)
    positions = index and torch.randint(0, 12, (batches, tokens), generator=generator, dtype=index)
    query, key = (None if x is None else x[..., before:] for x in whole)
    kept = [None if x is None else x[..., :before].clone() for x in whole]
    want = rotary_embedding_ref(query, cache, key, positions, *flags, offset)
    assert apply_rotary(query, cache, key, positions, *flags, offset) is None
    for got, expected, x, unrotated in zip((query, key), want, whole, kept, strict=True):
        if got is not None:
            assert torch.equal(got, expected)
            assert torch.equal(x[..., :before], unrotated)


@pytest.mark.level1
@on_cpu
def test_one_sequence_needs_no_dimension_for_it() -> None:
    query, key, cache = torch.randn(5, 3, 64), torch.randn(5, 1, 64), torch.randn(9, 64)
    positions = torch.tensor([8, 0, 3, 3, 1])
    want = rotary_embedding_ref(query, cache, key, positions)
    apply_rotary(query, cache, key, positions)
    assert torch.equal(query, want[0]) and torch.equal(key, want[1])


@pytest.mark.level1
@on_cpu
def test_rotating_back_gives_what_was_there() -> None:
    angles = torch.rand(16, 32) * math.tau
    cache = torch.cat((angles.cos(), angles.sin()), dim=1)
    query = torch.randn(16, 4, 64)
    before = query.clone()
    apply_rotary(query, cache)
    assert not torch.allclose(query, before, atol=0.1)
    apply_rotary(query, cache, conjugate=True)
    assert torch.allclose(query, before, atol=1e-5)


@pytest.mark.level1
@on_cpu
def test_an_int64_position_is_not_cut_to_32_bits() -> None:
    """The peer truncates, and rotates by the angle of another position."""
    query = torch.randn(2, 1, 64)
    apply_rotary(query, torch.randn(8, 64), positions=torch.tensor([(1 << 32) + 3, -(1 << 40)]))
    assert not query.any()


@pytest.mark.level1
@on_cpu
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_checked_mode_names_a_position_outside_the_cache(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer sets the head to zero and says nothing."""
    monkeypatch.setenv("TKC_CHECK", "1")
    reset()
    query = torch.randn(3, 1, 64)
    before = query.clone()
    with pytest.raises(ArgumentError, match=r"positions\[1\] is 8; with seqlen_offset 2 it needs row 10 .* has 10"):
        apply_rotary(query, torch.randn(10, 64), positions=torch.tensor([7, 8, 0], dtype=dtype), seqlen_offset=2)
    assert torch.equal(query, before)


@pytest.mark.level1
@on_cpu
def test_a_key_of_other_tokens_is_refused_by_name() -> None:
    """The peer compares neither batch nor tokens of the key with the query's."""
    query, cache = torch.randn(2, 5, 3, 64), torch.randn(9, 64)
    for shape in ((2, 4, 1, 64), (1, 5, 1, 64), (2, 5, 1, 32)):
        with pytest.raises(ArgumentError) as raised:
            apply_rotary(query, cache, torch.randn(shape))
        assert raised.value.argument == "key"


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"query": torch.zeros(5, 64)}, "query"),
        ({"query": torch.zeros(5, 3, 63)}, "query"),
        ({"query": torch.zeros(5, 3, 64, dtype=torch.float64)}, "query"),
        ({"key": torch.zeros(1, 5, 1, 64)}, "key"),
        ({"positions": torch.zeros(1, 5, dtype=torch.int32)}, "positions"),
        ({"positions": torch.zeros(5, dtype=torch.int16)}, "positions"),
        ({"seqlen_offset": 1.0}, "seqlen_offset"),
        ({"seqlen_offset": torch.tensor(1)}, "seqlen_offset"),
        ({"seqlen_offset": True}, "seqlen_offset"),
        ({"seqlen_offset": -1}, "seqlen_offset"),
        ({"seqlen_offset": 5}, "seqlen_offset"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_what_it_cannot_rotate_is_refused_by_name(change: dict[str, object], argument: str) -> None:
    """Rows that do not exist are known before the launch where there are no positions."""
    call = {"query": torch.zeros(5, 3, 64), "cos_sin_cache": torch.zeros(9, 64), **change}
    with pytest.raises(ArgumentError) as raised:
        apply_rotary(**call)
    assert raised.value.argument == argument


def _nearest_float32(exact: Fraction) -> float:
    """`exact` rounded to the nearest float32, ties to even, by comparing fractions."""
    largest = numpy.finfo(numpy.float32).max
    if abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103:  # halfway from the largest to what comes after it
        return math.copysign(math.inf, exact)
    guess = numpy.float32(numpy.clip(float(exact), -largest, largest))
    candidates = {guess, numpy.nextafter(guess, largest), numpy.nextafter(guess, -largest)}
    best = min(candidates, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(numpy.int32)) & 1))
    return float(best)
