"""The operators and their artifacts, run on the CPU through the loader, bit for bit as the references say."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from kernel_specs import config, quant
from kernel_specs.quant._reference import random_values
from kernel_specs.quant.cast.reference import rounded
from kernel_specs.torch import cast as reference_cast
from tkc.errors import ArgumentError
from tkc.model import Specialization
from tkc.registry import find_entry
from tkc.runtime.check import check_loaded

from .conftest import compiled

pytestmark = [pytest.mark.level1, pytest.mark.usefixtures("on_cpu")]

COLUMNS = {"round_sf": True, "use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True}


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))


@pytest.mark.parametrize("specialization", compiled(), ids=str)
def test_every_artifact_equals_its_reference(specialization: Specialization) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    results = list(check_loaded(find_entry(specialization.spec), specialization, "cpu", seed=seed))
    assert results
    assert [result for result in results if not result.ok] == [], f"seed {seed}"


@pytest.mark.parametrize("num_tokens", [0, 1, 33])
@pytest.mark.parametrize(
    ("fmt", "width", "flags"),
    [
        ("e4m3", 128, {}),
        ("e4m3", 128, {"use_tma_aligned_col_major_sf": True}),
        ("e2m1", 32, COLUMNS),
        ("e2m1", 16, {"use_e4m3_sf": True}),
    ],
    ids=["e4m3 rows", "e4m3 columns", "e2m1 packed", "e2m1 e4m3"],
)
def test_per_token_cast_of_ragged_strided_rows(
    num_tokens: int, fmt: str, width: int, flags: dict[str, Any], generator: torch.Generator
) -> None:
    """192 columns leave half a block of 128; rows of 200 elements begin anywhere."""
    values = random_values(num_tokens, 200, generator, infinities=False).bfloat16()[:, :192]
    data, sf = quant.per_token_cast(values, fmt, width, **flags)
    want, want_sf = reference_cast(values, fmt, (1, width), **flags)
    assert torch.equal(_bits(data), _bits(want))
    assert torch.equal(_bits(sf), _bits(want_sf))
    assert (sf.dtype, sf.shape) == (want_sf.dtype, want_sf.shape)
    assert num_tokens < 2 or sf.stride() == want_sf.stride()


def test_outputs_are_written_in_place_and_returned(generator: torch.Generator) -> None:
    x = random_values(5, 128, generator, infinities=False).bfloat16()
    out = (torch.empty(5, 160, dtype=torch.float8_e4m3fn)[:, :128], torch.empty(5, 1))
    got = quant.per_token_cast(x, "e4m3", 128, out=out)
    assert got[0] is out[0] and got[1] is out[1]
    want, want_sf = reference_cast(x, "e4m3", (1, 128))
    assert torch.equal(_bits(out[0]), _bits(want)) and torch.equal(out[1], want_sf)


def test_scale_factors_alone_and_then_their_use(generator: torch.Generator) -> None:
    x = random_values(9, 192, generator, infinities=False).bfloat16()
    flags = {"round_sf": True, "use_packed_ue8m0": True}
    sf = quant.per_token_cast_with_sf_only(x, "e4m3", 128, **flags)
    assert torch.equal(sf, reference_cast(x, "e4m3", (1, 128), **flags)[1])
    floats = torch.rand(9, 2, generator=generator) + 0.5
    data = quant.per_token_cast_with_precomputed_sf(x, "e4m3", 128, floats, round_sf=True)
    assert torch.equal(_bits(data), _bits(reference_cast(x, "e4m3", (1, 128), sf=floats)[0]))


def test_the_clamp_is_asked_at_every_call() -> None:
    zeros = torch.zeros(1, 128, dtype=torch.bfloat16)
    with config.override(amax_clamp={("e4m3", False): 448.0}):
        assert quant.per_token_cast(zeros, "e4m3", 128)[1].item() == 1.0
    assert quant.per_token_cast(zeros, "e4m3", 128)[1].item() < 1e-6


@pytest.mark.parametrize("block", [(1, 32), (32, 32), (2, 48)])
def test_requantising_from_blocks_of_any_size(block: tuple[int, int], generator: torch.Generator) -> None:
    values = random_values(40, 192, generator, infinities=False)
    x = reference_cast(values, "e4m3", block)
    data, sf = quant.per_token_cast(x, "e4m3", 32, block, **COLUMNS)
    want, want_sf = reference_cast(x, "e4m3", (1, 32), x_block_size=block, **COLUMNS)
    assert torch.equal(_bits(data), _bits(want)) and torch.equal(sf, want_sf)


def _named(value: object) -> str | None:
    """A name for a parameter; tensors would be printed in full."""
    return value if isinstance(value, str) else ""


X = torch.zeros(4, 128, dtype=torch.bfloat16)
Q = (torch.zeros(4, 128, dtype=torch.float8_e4m3fn), torch.zeros(4, 4))


@pytest.mark.parametrize(
    ("args", "kwargs", "argument"),
    [
        ((X, "e5m2", 128), {}, "fmt"),
        ((X, "e4m3", 48), {}, "num_per_channels"),
        ((X[:, :96], "e4m3", 32), {}, "x"),
        ((X[0], "e4m3", 32), {}, "x"),
        ((X.half(), "e4m3", 32), {}, "x"),
        ((X, "e4m3", 128), {"use_packed_ue8m0": True}, "use_packed_ue8m0"),
        ((X, "e4m3", 128), {"round_sf": True, "use_e4m3_sf": True}, "use_e4m3_sf"),
        ((Q, "e4m3", 32), {}, "x_block_size"),
        ((Q, "e4m3", 32, (1, 64)), {}, "x"),
        ((Q, "e4m3", 32, (0, 32)), {}, "x_block_size"),
        (((Q[0], Q[1].double()), "e4m3", 32, (1, 32)), {}, "x"),
        ((X, "e4m3", 128), {"out": (Q[0], torch.zeros(4, 1)), "use_tma_aligned_col_major_sf": True}, "out"),
        ((X, "e4m3", 128), {"out": (Q[0], torch.zeros(3, 1))}, "out"),
        ((X, "e4m3", 128), {"out": (Q[0], torch.zeros(4, 2))}, "out"),
        ((X, "e4m3", 128), {"out": (torch.zeros(4, 128), torch.zeros(4, 1))}, "out"),
    ],
    ids=_named,
)
def test_wrong_arguments_are_named_before_anything_runs(
    args: tuple[Any, ...], kwargs: dict[str, Any], argument: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        quant.per_token_cast(*args, **kwargs)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("x", "sf"),
    [(X, torch.zeros(4, 2)), (X, torch.zeros(3, 1)), (X, torch.zeros(4, 1, dtype=torch.bfloat16))],
)
def test_given_scale_factors_must_fit(x: torch.Tensor, sf: torch.Tensor) -> None:
    with pytest.raises(ArgumentError) as caught:
        quant.per_token_cast_with_precomputed_sf(x, "e4m3", 128, sf)
    assert caught.value.argument == "sf"


@pytest.mark.parametrize("numel", [0, 1, 4097])
@pytest.mark.parametrize("offset", [0, 3])
def test_cast_takes_any_size_and_any_offset(numel: int, offset: int, generator: torch.Generator) -> None:
    wide = random_values(1, numel + offset, generator, infinities=True)[0]
    for source, to in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float8_e4m3fn)):
        x = rounded(wide, source)[offset:]
        got = quant.cast(x, to)
        assert got.dtype == to
        assert torch.equal(_bits(got), _bits(rounded(x, to)))


def test_cast_keeps_shapes_and_copies_where_nothing_changes() -> None:
    x = torch.randn(2, 3, 4)
    assert quant.cast(x, torch.bfloat16).shape == (2, 3, 4)
    same = quant.cast(x, torch.float32)
    assert torch.equal(same, x) and same.data_ptr() != x.data_ptr()
    assert quant.cast(torch.tensor(2.5), torch.bfloat16).item() == 2.5


@pytest.mark.parametrize(
    ("x", "dtype", "stochastic", "argument"),
    [
        (torch.zeros(4, 8).T, torch.bfloat16, False, "x"),
        (torch.zeros(6), torch.bfloat16, True, "x"),
        (torch.zeros(8), torch.float8_e5m2, True, "stochastic_rounding"),
    ],
)
def test_cast_refuses_what_it_cannot_do(x: torch.Tensor, dtype: torch.dtype, stochastic: bool, argument: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        quant.cast(x, dtype, stochastic)
    assert caught.value.argument == argument
