"""Contract of `per_token_cast`: rows are quantised in blocks, each with a scale factor of its own."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_specs.quant._formats import (
    BLOCK_WIDTHS,
    LARGEST,
    SF_KINDS,
    SF_STORAGE,
    STORAGE,
    recipes,
    sf_kind,
)
from tkc.errors import SpecError
from tkc.model import (
    Arg,
    ConstAxis,
    DType,
    KernelSpec,
    ModelDims,
    Params,
    Role,
    ScalarArg,
    Specialization,
    TensorArg,
    VarAxis,
)

MODES = ("cast", "sf_only", "precomputed")
RUN = 16
"""Elements that a thread scales by one input scale factor, where the blocks of the input allow it."""


def x_run(x_block_k: int | None) -> int:
    """Elements along a row of the input that surely share a scale factor: `RUN`, or 1 for odd block widths."""
    return RUN if not x_block_k or x_block_k % RUN == 0 else 1


def specialize(
    *,
    x_dtype: str = "bfloat16",
    fmt: str = "e4m3",
    num_per_channels: int = 128,
    mode: str = "cast",
    x_sf: str = "none",
    x_block_k: int = 0,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    stochastic_cast: bool = False,
) -> Params:
    """Map a call's parameters to const values; the names are those of the operator, `x_dtype` may be a format.

    `x_sf` is the kind of the input's scale factors, ``none`` for an input that is not quantised.
    """
    try:
        sf = sf_kind(round_sf, use_packed_ue8m0, use_e4m3_sf)
    except ValueError as error:
        raise SpecError(f"quant.per_token_cast: {error}") from None
    if (x_sf != "none") != (x_dtype in LARGEST):
        raise SpecError(
            f"quant.per_token_cast: input {x_dtype!r} with scale factors {x_sf!r}; only e4m3 and e2m1 have any"
        )
    if mode != "cast" and (x_sf != "none" or stochastic_cast):
        raise SpecError(f"quant.per_token_cast: mode {mode!r} takes plain inputs and rounds to nearest")
    return {
        "mode": mode,
        "x": x_dtype,
        # Both are scale factors in powers of two to a requantising kernel: it reads what is stored.
        "x_sf": "float32" if x_sf == "pow2" else x_sf,
        "x_run": x_run(x_block_k),
        "fmt": fmt,
        "width": num_per_channels,
        "sf": "float32" if mode == "precomputed" and sf == "pow2" else sf,
        "stochastic": stochastic_cast,
    }


def arguments(specialization: Specialization) -> tuple[Arg, ...]:
    mode, x, fmt = (specialization.str(name) for name in ("mode", "x", "fmt"))
    sf, x_sf = specialization.str("sf"), specialization.str("x_sf")
    stored = "packed_hidden" if x == "e2m1" else "hidden"
    x_arg = TensorArg("x", ("num_tokens", stored), STORAGE[x], strides=("x_stride", 1), doc="what to cast, row by row")
    out_arg = TensorArg(
        "out",
        ("num_tokens", "hidden" if fmt == "e4m3" else "packed_hidden"),
        STORAGE[fmt],
        Role.OUT,
        strides=("out_stride", 1),
        doc="quantised elements; a byte of e2m1 holds two, the first one low",
    )
    sf_arg = TensorArg(
        "sf",
        ("num_tokens" if mode == "precomputed" else "sf_rows", "sf_columns"),
        SF_STORAGE[sf],
        Role.IN if mode == "precomputed" else Role.OUT,
        strides=("sf_stride_m", "sf_stride_k"),
        alignment_bytes=SF_STORAGE[sf].size_bytes,
        doc="what quantised elements are multiplied by to decode them",
    )
    if mode == "precomputed":
        return x_arg, sf_arg, out_arg
    clamp = ScalarArg("clamp_min", DType.FLOAT32, "least maximum of a block, so that zeros have a scale factor")
    if mode == "sf_only":
        return x_arg, sf_arg, clamp
    if x_sf == "none":
        return x_arg, out_arg, sf_arg, clamp
    x_sf_arg = TensorArg(
        "x_sf",
        ("x_sf_rows", "x_sf_columns"),
        SF_STORAGE[x_sf],
        strides=("x_sf_stride_m", "x_sf_stride_k"),
        alignment_bytes=SF_STORAGE[x_sf].size_bytes,
        doc="scale factors of `x`",
    )
    block_m = ScalarArg("x_block_m", DType.INT32, "rows of `x` that share a scale factor")
    block_k = ScalarArg("x_block_k", DType.INT32, "columns of `x` that share a scale factor")
    return x_arg, x_sf_arg, out_arg, sf_arg, block_m, block_k, clamp


def grid(dims: ModelDims) -> Iterable[Params]:
    """Casts of activations by each recipe, and into e4m3 from the model's recipes with that kind of scale factors."""
    flags = {
        "float32": {},
        "pow2": {"round_sf": True},
        "e4m3": {"use_e4m3_sf": True},
        "ue8m0": {"round_sf": True, "use_packed_ue8m0": True},
    }
    found: list[Params] = []
    wanted = tuple(recipes(dims))
    for to in wanted:
        call = {"fmt": to.fmt, "num_per_channels": to.width, **flags[to.sf]}
        for x_dtype in dims.dtypes:
            found += [{"x_dtype": x_dtype, **call}, {"x_dtype": x_dtype, "stochastic_cast": True, **call}]
            found += [{"x_dtype": x_dtype, "mode": mode, **call} for mode in ("sf_only", "precomputed")]
        found += [
            {"x_dtype": source.fmt, "x_sf": source.sf, **call}
            for source in wanted
            if to.fmt == "e4m3" and source.sf == to.sf
        ]
    return tuple(found)


SPEC = KernelSpec(
    name="quant.per_token_cast",
    summary="Rows in blocks of 16 to 128 elements, cast to e4m3 or e2m1 with a scale factor for each block",
    definition="sf = max(clamp_min, max|x|) / largest, q = round(x * inverse(sf)); OCP Microscaling formats v1.0",
    const=(
        ConstAxis("mode", MODES, "the arguments differ: no data to write, or no scale factor to find"),
        ConstAxis("x", ("bfloat16", "float32", "e4m3", "e2m1"), "element type of the loads"),
        ConstAxis("x_sf", ("none", "float32", "e4m3", "ue8m0"), "element type of the input's scale factors"),
        ConstAxis(
            "x_run", (RUN, 1), "an input scale factor for 16 elements, or for each: 16 times the loads and products"
        ),
        ConstAxis("fmt", tuple(LARGEST), "e4m3 has an instruction, e2m1 on sm90 takes 10 an element"),
        ConstAxis("width", BLOCK_WIDTHS, "which lanes exchange maxima"),
        ConstAxis("sf", SF_KINDS, "how scale factors are rounded and stored"),
        ConstAxis("stochastic", (False, True), "another rounding of every element"),
    ),
    var=(
        VarAxis("num_tokens", "rows; 0 launches nothing"),
        VarAxis("hidden", "columns, a multiple of 64; `packed_hidden` is half of it"),
        VarAxis("x_stride", "stored elements from one row of `x` to the next, a multiple of 16 bytes"),
        VarAxis("out_stride", "bytes from one row of `out` to the next, a multiple of 16"),
        VarAxis("sf_stride_m", "with `sf_stride_k`, the layout of `sf`: row-major or column-major"),
        VarAxis("sf_stride_k", "see `sf_stride_m`"),
        VarAxis("x_sf_stride_m", "with `x_sf_stride_k`, the layout of `x_sf`"),
        VarAxis("x_sf_stride_k", "see `x_sf_stride_m`"),
        VarAxis("x_block_m", "rows of `x` that share a scale factor"),
        VarAxis("x_block_k", "columns of `x` that share a scale factor"),
        VarAxis("sf_rows", "rows of `sf` with its padding, which becomes zero; at least `num_tokens`"),
        VarAxis("clamp_min", "least maximum of a block"),
    ),
    specialize=specialize,
    arguments=arguments,
    grid=grid,
)
