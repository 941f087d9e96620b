"""The specs serve every legal call with few artifacts, and refuse the others before anything is built."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_specs.quant._formats import BLOCK_WIDTHS, recipes
from tkc.errors import SpecError
from tkc.grids import grid_names, load_grid
from tkc.model import ModelDims

from .conftest import CAST, PER_TOKEN_CAST

SF_FLAGS = st.sampled_from(
    [
        {},
        {"round_sf": True},
        {"use_e4m3_sf": True},
        {"round_sf": True, "use_packed_ue8m0": True},
    ]
)
INPUTS = st.one_of(
    st.fixed_dictionaries({"x_dtype": st.sampled_from(["bfloat16", "float32"])}),
    st.fixed_dictionaries(
        {
            "x_dtype": st.sampled_from(["e4m3", "e2m1"]),
            "x_sf": st.sampled_from(["float32", "pow2", "e4m3", "ue8m0"]),
            "x_block_k": st.integers(1, 4096),
        }
    ),
)


@given(INPUTS, st.sampled_from(["e4m3", "e2m1"]), st.sampled_from(BLOCK_WIDTHS), SF_FLAGS, st.booleans())
def test_every_legal_call_is_served(
    x: dict[str, object], fmt: str, width: int, flags: dict[str, bool], stochastic: bool
) -> None:
    """D11: hidden size, strides, block sizes of the input and clamps make no artifacts; formats do."""
    call = {**x, "fmt": fmt, "num_per_channels": width, **flags, "stochastic_cast": stochastic}
    bound = PER_TOKEN_CAST.bind(**call)
    arguments = PER_TOKEN_CAST.arguments(bound)
    assert [argument.name for argument in arguments][:1] == ["x"]
    if "x_block_k" in x:
        assert bound.int("x_run") == (16 if x["x_block_k"] % 16 == 0 else 1)


@given(st.sampled_from(["sf_only", "precomputed"]), st.sampled_from(BLOCK_WIDTHS), SF_FLAGS)
def test_partial_modes_have_only_what_they_need(mode: str, width: int, flags: dict[str, bool]) -> None:
    bound = PER_TOKEN_CAST.bind(mode=mode, num_per_channels=width, **flags)
    names = [argument.name for argument in PER_TOKEN_CAST.arguments(bound)]
    assert names == (["x", "sf", "clamp_min"] if mode == "sf_only" else ["x", "sf", "out"])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"use_packed_ue8m0": True}, "pass round_sf=True"),
        ({"round_sf": True, "use_e4m3_sf": True}, "exclude each other"),
        ({"num_per_channels": 48}, "expected one of 16, 32, 64, 128"),
        ({"fmt": "e5m2"}, "expected one of e4m3, e2m1"),
        ({"x_dtype": "e4m3"}, "only e4m3 and e2m1 have any"),
        ({"x_dtype": "bfloat16", "x_sf": "float32"}, "only e4m3 and e2m1 have any"),
        ({"mode": "sf_only", "stochastic_cast": True}, "plain inputs"),
    ],
)
def test_illegal_call_is_refused_with_the_reason(call: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        PER_TOKEN_CAST.bind(**call)


@pytest.mark.parametrize("grid", grid_names())
def test_grids_are_small_and_serve_their_recipes(grid: str) -> None:
    dims = load_grid(grid)
    assert len(PER_TOKEN_CAST.specializations(dims)) <= 130
    assert len(CAST.specializations(dims)) <= 9
    for model in dims:
        made = PER_TOKEN_CAST.specializations([model])
        for recipe in recipes(model):
            for mode in ("cast", "sf_only", "precomputed"):
                assert any((one["mode"], one["fmt"], one["width"]) == (mode, recipe.fmt, recipe.width) for one in made)


@pytest.mark.parametrize("recipe", ["e4m3", "e4m3:128", "e4m3:128:fp32", "e3m4:128:float32", "e4m3:100:float32"])
def test_malformed_recipe_is_named(recipe: str) -> None:
    with pytest.raises(SpecError, match=recipe):
        PER_TOKEN_CAST.specializations([ModelDims("broken", 128, quant=(recipe,))])
