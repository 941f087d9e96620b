"""Reference of `per_token_cast`: casts to e4m3 and e2m1 in blocks of any shape, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernel_specs.quant import _reference as ref
from kernel_specs.quant._layouts import empty_sf, sf_shape

__all__ = ["cast"]

QuantTensor = tuple[torch.Tensor, torch.Tensor]


def cast(
    x: torch.Tensor | QuantTensor,
    fmt: str,
    block_size: tuple[int, int] = (32, 32),
    sf: torch.Tensor | None = None,
    x_block_size: tuple[int, int] | None = None,
    round_sf: bool = False,
    use_tma_aligned_col_major_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    *,
    clamp_min: float | None = None,
) -> QuantTensor:
    """Quantise `x` in blocks.

    Args:
        x: ``[num_tokens, hidden]``, floating point; or quantised data (float8_e4m3fn, or int8 pairs of e2m1) and its
            scale factors in blocks of `x_block_size`.
        fmt: ``e4m3`` or ``e2m1``.
        block_size: rows and columns that share a scale factor; ragged blocks at the ends are fine.
        sf: use these scale factors instead of finding them.
        round_sf, use_packed_ue8m0, use_e4m3_sf: powers of two; their exponent bytes, four an int32; e4m3.
        use_tma_aligned_col_major_sf: store scale factors by columns, each padded to 16 bytes.
        clamp_min: least maximum of a block; default as `kernel_specs.config`'s.

    Returns:
        Data, float8_e4m3fn ``[num_tokens, hidden]`` or int8 ``[num_tokens, hidden / 2]``, and scale factors.
    """
    kind = "ue8m0" if use_packed_ue8m0 else "pow2" if round_sf else "e4m3" if use_e4m3_sf else "float32"
    data, factors = _input(x, x_block_size)
    if sf is not None:
        rows, columns = sf_shape(*data.shape, block_size, "float32")
        blocks = ref.read_sf(sf, rows, columns, block_size[1] == 1)
        scale = ref.spread(torch.ones_like(blocks) / blocks, block_size, data.shape)
        return ref.quantised(data * scale, fmt), sf
    if clamp_min is None:
        clamp_min = ref.CLAMP_MIN[fmt, use_e4m3_sf]
    amax = ref.block_maximum(data.abs() * factors, block_size)
    blocks, inverse = ref.sf_and_inverse(amax, fmt, kind, clamp_min)
    scale = ref.spread(inverse, block_size, data.shape)
    scaled = data * factors * scale if block_size[1] == 1 else data * ref.finite(factors * scale)
    stored = ref.stored_sf(blocks, kind, use_tma_aligned_col_major_sf, block_size[1] == 1)
    return ref.quantised(scaled, fmt), stored


def _input(x: torch.Tensor | QuantTensor, block: tuple[int, int] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 data and one factor an element."""
    if isinstance(x, torch.Tensor):
        return x.float(), torch.ones(x.shape, device=x.device)
    if block is None:
        raise ValueError("x_block_size is needed for an input with scale factors")
    data = ref.dequantised(x[0])
    rows, columns = sf_shape(*data.shape, block, "float32")
    return data, ref.spread(ref.read_sf(x[1], rows, columns, block[1] == 1), block, data.shape)


# --- checking a variant ----------------------------------------------------------------------------

_SHAPES = ((1, 64), (3, 192), (33, 576), (18, 1088))
_X_BLOCKS = {16: ((1, 32), (32, 32), (2, 16), (128, 128)), 1: ((1, 8), (4, 1), (3, 4), (1, 2))}


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Launch arguments: ragged sizes, padded rows, both layouts of scale factors, wide exponents, specials."""
    generator = torch.Generator().manual_seed(seed)
    for index, (num_tokens, hidden) in enumerate(_SHAPES):
        yield _sample(specialization, num_tokens, hidden, index, generator)


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What `out` and `sf` must hold, bit by bit."""
    data, factors = args["x"].float(), torch.ones(1)
    if specialization["x_sf"] != "none":
        data, factors = _input((args["x"], args["x_sf"]), (args["x_block_m"], args["x_block_k"]))
    fmt, block = specialization["fmt"], (1, specialization["width"])
    if specialization["mode"] == "precomputed":
        return {"out": cast(data, fmt, block, args["sf"])[0]}
    amax = ref.block_maximum(data.abs() * factors, block)
    blocks, inverse = ref.sf_and_inverse(amax, fmt, specialization["sf"], args["clamp_min"])
    column_major = args["sf"].stride(0) == 1 < args["sf"].stride(1)
    sf = ref.stored_sf(blocks, specialization["sf"], column_major, padded=True)
    if specialization["mode"] == "sf_only":
        return {"sf": sf}
    scaled = data * ref.finite(factors * ref.spread(inverse, block, data.shape))
    if specialization["stochastic"]:
        scaled = ref.canonical(scaled)
        scaled = torch.stack([ref.round_stochastically(row, ref.stochastic_words(row), fmt) for row in scaled])
    return {"out": ref.quantised(scaled, fmt), "sf": sf}


def _sample(
    specialization: Mapping[str, Any], num_tokens: int, hidden: int, index: int, generator: torch.Generator
) -> dict[str, object]:
    mode, fmt, kind = specialization["mode"], specialization["fmt"], specialization["sf"]
    wide = ref.random_values(num_tokens, hidden, generator, infinities=kind in ("pow2", "ue8m0") or fmt == "e4m3")
    args: dict[str, object] = {}
    if specialization["x_sf"] == "none":
        dtype = torch.bfloat16 if specialization["x"] == "bfloat16" else torch.float32
        values = wide.to(dtype).where(~wide.isnan(), torch.tensor(float("nan"), dtype=dtype))
        args["x"] = _in_wider_rows(values, index % 2 * 16)
    else:
        block = _X_BLOCKS[specialization["x_run"]][index]
        data, sf = cast(wide, specialization["x"], block, **_flags(specialization["x_sf"]))
        args.update(x=_in_wider_rows(data, index % 2 * 16), x_sf=sf)
    shape = sf_shape(num_tokens, hidden, (1, specialization["width"]), kind)
    column_major = index % 2 == 1
    sf = empty_sf(shape, kind, column_major, torch.device("cpu"))
    if mode == "precomputed":
        num_blocks = sf_shape(num_tokens, hidden, (1, specialization["width"]), "float32")
        blocks = 2.0 ** torch.randint(-8, 8, num_blocks, generator=generator)
        args["sf"] = ref.stored_sf(blocks, kind, column_major)
    stored = hidden if fmt == "e4m3" else hidden // 2
    out = torch.full((num_tokens, stored + index % 2 * 32), 0x7F, dtype=torch.int8)[:, :stored]
    if mode != "sf_only":
        args["out"] = out.view(torch.float8_e4m3fn) if fmt == "e4m3" else out
    if mode != "precomputed":
        sf.view(torch.int8 if kind == "e4m3" else torch.int32).fill_(0x7F)
        args["sf"] = sf
    if specialization["x_sf"] != "none":
        args.update(x_block_m=block[0], x_block_k=block[1])
    if mode != "precomputed":
        args["clamp_min"] = ref.CLAMP_MIN[fmt, kind == "e4m3"]
    return args


def _flags(kind: str) -> dict[str, bool]:
    packed, e4m3 = kind == "ue8m0", kind == "e4m3"
    return {"round_sf": packed, "use_packed_ue8m0": packed, "use_e4m3_sf": e4m3}


def _in_wider_rows(x: torch.Tensor, extra: int) -> torch.Tensor:
    """`x` with a row stride that is `extra` elements longer."""
    rows = torch.zeros(x.shape[0], x.shape[1] + extra, dtype=x.dtype)[:, : x.shape[1]]
    return rows.copy_(x)
