"""The quantised operators on a device."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernel_specs import quant
from kernel_specs.quant._reference import random_values
from kernel_specs.quant.cast.reference import rounded
from kernel_specs.torch import cast as reference_cast

Benchmark = tuple[str, Callable[[], object], Callable[[], object] | None, int]
"""Name, ours, the peer's if it is installed, and the fewest bytes that the operator must move."""

_SHAPES = ((1, 64), (33, 192), (7, 576), (130, 1536), (8001, 256))
_RECIPES = (
    ("e4m3", 128, "float32"),
    ("e4m3", 32, "ue8m0"),
    ("e4m3", 64, "pow2"),
    ("e4m3", 16, "e4m3"),
    ("e2m1", 32, "ue8m0"),
    ("e2m1", 16, "e4m3"),
    ("e2m1", 128, "float32"),
)
"""Formats, widths and kinds of scale factors: each value of each axis, with few kernels."""
_KINDS = {
    "float32": {},
    "pow2": {"round_sf": True},
    "e4m3": {"use_e4m3_sf": True},
    "ue8m0": {"round_sf": True, "use_packed_ue8m0": True},
}
_X_BLOCKS = ((1, 32), (32, 32), (128, 128), (1, 8), (5, 4), (32, 1))


def correctness(device: torch.device) -> None:
    """Compare every operator with its reference, bit for bit, on fresh random inputs."""
    seed = int.from_bytes(os.urandom(4), "little")
    generator = torch.Generator().manual_seed(seed)
    _check_casts_in_blocks(device, generator, seed)
    _check_requantising(device, generator, seed)
    _check_stochastic(device, generator, seed)
    _check_casts(device, generator, seed)


def benchmarks(device: torch.device, num_tokens: int = 8192) -> Iterator[Benchmark]:
    """Give what is measured: hidden size 7168."""
    peer = _peer()
    hidden = 7168
    numel = num_tokens * hidden
    x = torch.randn(num_tokens, hidden, device=device).bfloat16()
    wide = x.float()

    def both(name: str, function: str, *args: Any, bytes_moved: int, **kwargs: Any) -> Benchmark:
        ours = getattr(quant, function)
        theirs = peer and getattr(peer, function)
        return (
            name,
            lambda: ours(*args, **kwargs),
            theirs and (lambda: theirs(*args, **kwargs)),
            bytes_moved,
        )

    packed = {"round_sf": True, "use_packed_ue8m0": True}
    columns = {**packed, "use_tma_aligned_col_major_sf": True}
    ptc = "per_token_cast"
    yield both("bf16 to e4m3, 128, float32 sf", ptc, x, "e4m3", 128, bytes_moved=numel * 3 + numel // 32)
    yield both("bf16 to e4m3, 32, ue8m0 by columns", ptc, x, "e4m3", 32, bytes_moved=numel * 3 + numel // 32, **columns)
    yield both("bf16 to e4m3, 32, ue8m0 by rows", ptc, x, "e4m3", 32, bytes_moved=numel * 3 + numel // 32, **packed)
    yield both(
        "bf16 to e2m1, 32, ue8m0 by columns", ptc, x, "e2m1", 32, bytes_moved=numel * 5 // 2 + numel // 32, **columns
    )
    yield both("bf16 to e2m1, 32, float32 sf", ptc, x, "e2m1", 32, bytes_moved=numel * 5 // 2 + numel // 8)
    yield both(
        "bf16 to e2m1, 16, e4m3 sf", ptc, x, "e2m1", 16, bytes_moved=numel * 5 // 2 + numel // 16, use_e4m3_sf=True
    )
    yield both("fp32 to e4m3, 128, float32 sf", ptc, wide, "e4m3", 128, bytes_moved=numel * 5 + numel // 32)
    yield both("sf only, bf16, 128", "per_token_cast_with_sf_only", x, "e4m3", 128, bytes_moved=numel * 2 + numel // 32)
    data, sf = quant.per_token_cast(x, "e4m3", 128)
    yield both(
        "given sf, bf16, 128",
        "per_token_cast_with_precomputed_sf",
        x,
        "e4m3",
        128,
        sf,
        bytes_moved=numel * 3 + numel // 32,
    )
    yield both(
        "e4m3 (1, 128) to e4m3, 32, ue8m0 by columns",
        ptc,
        (data, sf),
        "e4m3",
        32,
        (1, 128),
        bytes_moved=numel * 2 + numel // 32 * 2,
        **columns,
    )
    fours = quant.per_token_cast(x, "e2m1", 32, round_sf=True)
    yield both(
        "e2m1 (1, 32) to e4m3, 128, float32 sf",
        ptc,
        fours,
        "e4m3",
        128,
        (1, 32),
        bytes_moved=numel * 3 // 2 + numel // 8 + numel // 32,
    )
    for rows in (1, 64, 512):
        part = x[:rows].clone()
        yield both(
            f"{rows} tokens, bf16 to e4m3, 128, float32 sf", ptc, part, "e4m3", 128, bytes_moved=rows * hidden * 3
        )
    yield both("cast fp32 to bf16", "cast", wide, torch.bfloat16, bytes_moved=numel * 6)
    yield both("cast bf16 to e4m3", "cast", x, torch.float8_e4m3fn, bytes_moved=numel * 3)
    yield both("cast bf16 to fp32", "cast", x, torch.float32, bytes_moved=numel * 6)
    yield both("cast e4m3 to bf16", "cast", data, torch.bfloat16, bytes_moved=numel * 3)


def _check_casts_in_blocks(device: torch.device, generator: torch.Generator, seed: int) -> None:
    for shape, dtype in itertools.product(_SHAPES, (torch.bfloat16, torch.float32)):
        x = _strided(random_values(*shape, generator, infinities=True).to(dtype), device)
        for (fmt, width, kind), columns in itertools.product(_RECIPES, (False, True)):
            case = f"{shape} {dtype} to {fmt}, {width}, {kind}, by columns: {columns}, seed {seed}"
            flags = {**_KINDS[kind], "use_tma_aligned_col_major_sf": columns}
            want, want_sf = reference_cast(x.cpu(), fmt, (1, width), **flags)
            _poison(device)
            data, sf = quant.per_token_cast(x, fmt, width, **flags)
            _compare("per_token_cast", data, want, case)
            _compare("per_token_cast, scale factors", sf, want_sf, case)
            assert sf.stride() == want_sf.stride() or 1 in sf.shape, f"strides: {case}"
            _compare_padding(sf, case)
            if dtype == torch.bfloat16:
                _poison(device)
                _compare("sf_only", quant.per_token_cast_with_sf_only(x, fmt, width, **flags), want_sf, case)
                given, _ = reference_cast(x.cpu(), fmt, (1, width), sf=want_sf)
                again = quant.per_token_cast_with_precomputed_sf(x, fmt, width, sf, **flags)
                _compare("precomputed_sf", again, given, case)
    data, sf = quant.per_token_cast(torch.zeros(0, 128, device=device), "e2m1", 32, None, True, True, True)
    assert data.shape == (0, 64) and sf.shape == (0, 1)


def _check_requantising(device: torch.device, generator: torch.Generator, seed: int) -> None:
    recipes = itertools.cycle((("e4m3", 32, "ue8m0"), ("e4m3", 128, "float32"), ("e2m1", 16, "e4m3")))
    for x_fmt, x_kind in itertools.product(("e4m3", "e2m1"), ("float32", "e4m3", "ue8m0")):
        fmt, width, kind = next(recipes)
        for shape, block, by_columns in itertools.product(((33, 192), (130, 576)), _X_BLOCKS, (False, True)):
            values = random_values(*shape, generator, infinities=False)
            layout = {**_KINDS[x_kind], "use_tma_aligned_col_major_sf": by_columns and block[1] > 1}
            x = reference_cast(values, x_fmt, block, **layout)
            case = f"{shape} {x_fmt} {x_kind} {block} {layout} to {fmt} {width} {kind}, seed {seed}"
            want, want_sf = reference_cast(x, fmt, (1, width), x_block_size=block, **_KINDS[kind])
            _poison(device)
            moved = (x[0].to(device), _same_layout(x[1], device))
            data, sf = quant.per_token_cast(moved, fmt, width, block, **_KINDS[kind])
            _compare("requantised", data, want, case)
            _compare("requantised, scale factors", sf, want_sf, case)


def _check_stochastic(device: torch.device, generator: torch.Generator, seed: int) -> None:
    """Rounding by chance is right on average, gives neighbours only, and is the same at every run."""
    x = torch.rand(512, 1024, generator=generator).to(device) * 4 + 1
    for fmt, width in (("e4m3", 128), ("e2m1", 32)):
        data, sf = quant.per_token_cast(x, fmt, width, round_sf=True, stochastic_cast=True)
        again, _ = quant.per_token_cast(x, fmt, width, round_sf=True, stochastic_cast=True)
        assert torch.equal(_bits(data), _bits(again)), f"stochastic {fmt}: two runs differ, seed {seed}"
        values = data.float() if fmt == "e4m3" else quant.unpack_from_e2m1fn_x2(data)
        error = values * sf.repeat_interleave(width, 1) - x
        spread = error.std() / error.numel() ** 0.5
        assert error.mean().abs() < 6 * spread, f"stochastic {fmt}: biased by {error.mean()}, seed {seed}"
    for source, to in ((x, torch.bfloat16), (x, torch.float8_e4m3fn), (x.bfloat16(), torch.float8_e4m3fn)):
        want = rounded(source.cpu(), to, stochastic=True)
        _compare("stochastic cast", quant.cast(source, to, stochastic_rounding=True), want, f"{to}, seed {seed}")


def _check_casts(device: torch.device, generator: torch.Generator, seed: int) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
    for source, to in itertools.permutations(dtypes, 2):
        for numel, offset in ((1, 0), (3, 1), (4099, 0), (4099, 5), (1 << 20, 0), ((1 << 20) + 7, 2)):
            wide = random_values(1, numel + offset, generator, infinities=True)[0]
            x = rounded(wide, source).to(device)[offset:]
            got, want = quant.cast(x, to).cpu(), rounded(x.cpu(), to)
            number = ~want.float().isnan()
            case = f"cast {source} to {to}, {numel} elements from {offset}, seed {seed}"
            assert torch.equal(got.float().isnan(), ~number), case
            assert torch.equal(_bits(got)[number], _bits(want)[number]), case
    many = (1 << 31) + 4
    x = torch.empty(many, dtype=torch.bfloat16, device=device)
    x[:4], x[-4:] = 1.0, 2.0
    y = quant.cast(x, torch.float8_e4m3fn)
    assert y[:4].float().eq(1).all() and y[-4:].float().eq(2).all(), "more than 2**31 elements"


def _compare(what: str, got: torch.Tensor, want: torch.Tensor, case: str) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{what}: {got.dtype} {got.shape}: {case}"
    got, want = _bits(got.cpu()), _bits(want.cpu())
    if not torch.equal(got, want):
        at = tuple((got != want).nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int((got != want).sum())} differ; {list(at)} is {got[at]:#x}, expected {want[at]:#x}: {case}"
        )


def _compare_padding(sf: torch.Tensor, case: str) -> None:
    """Padding words of column-major scale factors are zero."""
    if sf.dim() == 2 and sf.stride(0) == 1 and sf.stride(1) > sf.shape[0]:
        rows = torch.as_strided(sf, (sf.stride(1), sf.shape[1]), sf.stride())
        assert not _bits(rows[sf.shape[0] :]).any(), f"padding: {case}"


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def _strided(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`x` on the device, with a longer row stride."""
    rows = torch.zeros(x.shape[0], x.shape[1] + 64, dtype=x.dtype, device=device)
    return rows[:, : x.shape[1]].copy_(x)


def _same_layout(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)


def _poison(device: torch.device) -> None:
    """Leave other bytes than zero where the next outputs will be allocated."""
    blocks = [torch.full((size,), 0x7F, dtype=torch.uint8, device=device) for size in (1 << 12, 1 << 18, 1 << 22)]
    del blocks


def _peer() -> Any:
    try:
        from tile_kernels import quant as peer
    except ModuleNotFoundError as error:
        if error.name != "tile_kernels":
            raise
        return None
    return peer
