"""What the references of the quantised operators share: formats and scale factors in plain PyTorch, bit by bit."""

from __future__ import annotations

import torch

from kernel_specs.quant._layouts import PACK, empty_sf

LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
CLAMP_MIN = {
    ("e4m3", False): 1e-4,
    ("e4m3", True): 448.0 * 2.0**-9,
    ("e2m1", False): 6.0 * 2.0**-126,
    ("e2m1", True): 6.0 * 2.0**-9,
}
"""Least maximum of a block by format, and whether scale factors are e4m3; the defaults of `kernel_specs.config`."""

# Between neighbouring magnitudes of e2m1; a tie goes to the even code, which is the upper one where marked.
_E2M1_MIDPOINTS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


# --- formats ---------------------------------------------------------------------------------------


def round_e4m3(x: torch.Tensor) -> torch.Tensor:
    """`x` in float8_e4m3fn: to nearest even, saturating at 448; every NaN becomes 0x7F."""
    return torch.where(x.isnan(), float("nan"), x.float().clamp(-448.0, 448.0)).to(torch.float8_e4m3fn)


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """`x` as e2m1 codes 0 to 15, one a byte: to nearest even, saturating at 6; -0 keeps its sign, NaN gives +6."""
    magnitude = x.float().abs()
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for midpoint, upper_is_even in _E2M1_MIDPOINTS:
        code += magnitude >= midpoint if upper_is_even else magnitude > midpoint
    code += torch.signbit(x).to(torch.uint8) * 8
    return torch.where(x.isnan(), 7, code)


def pack_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """Pairs of codes along the last dimension as int8; the first of a pair is the low half."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).view(torch.int8)


def decode_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """float32 values of int8 or uint8 pairs; the last dimension doubles."""
    byte = packed.view(torch.uint8)
    codes = torch.stack((byte & 15, byte >> 4), dim=-1).flatten(-2)
    magnitudes = torch.tensor(_E2M1_MAGNITUDES, dtype=torch.float32, device=packed.device)
    return torch.where(codes >= 8, -1.0, 1.0) * magnitudes[(codes & 7).long()]


def quantised(x: torch.Tensor, fmt: str) -> torch.Tensor:
    """float32 `x` rounded to `fmt`, as it is stored."""
    return round_e4m3(x) if fmt == "e4m3" else pack_e2m1(round_e2m1(x))


def dequantised(x: torch.Tensor) -> torch.Tensor:
    """`x` as float32; int8 holds pairs of e2m1."""
    return decode_e2m1(x) if x.dtype == torch.int8 else x.float()


# --- scale factors ---------------------------------------------------------------------------------


def sf_and_inverse(amax: torch.Tensor, fmt: str, kind: str, clamp_min: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale factor of a block with this maximum, as float32, and what its elements are multiplied by.

    An infinite maximum has an infinite float32 scale factor (finite elements become 0, infinite ones NaN), the
    largest e4m3 one, or the power of two 2**127.
    """
    largest = torch.full_like(amax, LARGEST[fmt])
    c = torch.maximum(amax, torch.full_like(amax, clamp_min))
    if kind == "float32":
        return c / largest, largest / c
    if kind == "e4m3":
        sf = round_e4m3(c / largest).float()
        return sf, torch.ones_like(sf) / sf
    byte = _exponent_byte(c * torch.full_like(amax, 1.0 / LARGEST[fmt]))
    inverse_bits = torch.where(byte == 254, 1 << 22, (254 - byte) << 23)
    return _power_of_two(byte), inverse_bits.view(torch.float32)


def _exponent_byte(value: torch.Tensor) -> torch.Tensor:
    """Biased exponent of the least power of two that is not below the positive, normal `value`; 254 at most."""
    return (((value.view(torch.int32) - 1) >> 23) + 1).clamp(max=254)


def _power_of_two(byte: torch.Tensor) -> torch.Tensor:
    return (byte.int() << 23).view(torch.float32)


def stored_sf(
    sf: torch.Tensor, kind: str, column_major: bool = False, along_columns: bool = False, padded: bool = False
) -> torch.Tensor:
    """Blocks' scale factors, float32, as an operator returns them, or with the `padded` rows; padding is zero.

    `along_columns`: blocks are one column wide, so that packed bytes are neighbours in a column.
    """
    values = sf
    if kind == "e4m3":
        values = round_e4m3(sf)
    elif kind == "ue8m0":
        values = _packed((sf.contiguous().view(torch.int32) >> 23) & 255, along_columns)
    out = empty_sf((values.shape[0], values.shape[1]), kind, column_major, sf.device)
    out.view(torch.uint8 if kind == "e4m3" else torch.int32).zero_()
    out[: len(values)].copy_(values)
    return out if padded else out[: len(values)]


def _packed(byte: torch.Tensor, along_columns: bool) -> torch.Tensor:
    if along_columns:
        return _packed(byte.t(), False).t().contiguous()
    rows, columns = byte.shape
    padded = torch.zeros(rows, -(-columns // PACK) * PACK, dtype=torch.uint8, device=byte.device)
    padded[:, :columns] = byte
    return padded.view(torch.int32)


def read_sf(sf: torch.Tensor, rows: int, columns: int, along_columns: bool = False) -> torch.Tensor:
    """float32 scale factors ``[rows, columns]`` of blocks, from any layout; int32 is packed exponent bytes."""
    if sf.dtype != torch.int32:
        return sf[:rows, :columns].float()
    if along_columns:
        return read_sf(sf.t(), columns, rows).t()
    words = torch.empty(sf.shape, dtype=sf.dtype, device=sf.device).copy_(sf)  # row-major, whatever its strides
    byte = words.view(torch.uint8)[:rows, :columns]
    return _power_of_two(byte)


# --- blocks ----------------------------------------------------------------------------------------


def finite(x: torch.Tensor) -> torch.Tensor:
    """`x` with the largest float32 in place of infinity: a factor that overflows must not turn zeros into NaN."""
    return torch.where(x == float("inf"), torch.finfo(torch.float32).max, x)


def block_maximum(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Largest magnitude of each block, ragged ones included; NaN does not count."""
    rows, columns = x.shape
    bm, bk = block
    padded = torch.zeros(-(-rows // bm) * bm, -(-columns // bk) * bk, dtype=torch.float32, device=x.device)
    padded[:rows, :columns] = torch.where(x.isnan(), 0.0, x.abs())
    return padded.view(-(-rows // bm), bm, -(-columns // bk), bk).amax(dim=(1, 3))


def spread(blocks: torch.Tensor, block: tuple[int, int], shape: tuple[int, int]) -> torch.Tensor:
    """One value an element, from one value a block."""
    rows, columns = shape
    return blocks.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]


# --- stochastic rounding ---------------------------------------------------------------------------

_MASK = 0xFFFFFFFF
_MANTISSA = {"e4m3": 3, "e2m1": 1, "bfloat16": 7}
_SMALLEST_EXPONENT = {"e4m3": -6, "e2m1": 0, "bfloat16": -126}
_SATURATED = {"e4m3": 448.0, "e2m1": 6.0, "bfloat16": 3.3895313892515355e38}


def stochastic_words(x: torch.Tensor, words: int = 1) -> torch.Tensor:
    """Random words, int64 ``[n / 4, words]``, for float32 `x` ``[n]`` whose groups of four count from 0."""
    fours = _bits(x).view(-1, 4)
    h = torch.arange(len(fours), device=x.device)
    for i, factor in enumerate((0x5671D42B, 0x9995E499, 0xACE1B8A5, 0xE153538D)):
        h = (h + _times(fours[:, i], factor)) & _MASK
    h = _times(h ^ (h >> 23), 0x7FEB352D)
    h = h ^ (h >> 16)
    found = [_times(h, factor) for factor in (0x846CA68B, 0xD35A2D97)[:words]]
    return torch.stack([word ^ (word >> 11) for word in found], dim=-1)


def canonical(x: torch.Tensor) -> torch.Tensor:
    """float32 `x` with the NaN that CUDA's arithmetic gives in place of any other: hashes are of bits."""
    return torch.where(x.isnan(), 0x7FFFFFFF, x.contiguous().view(torch.int32)).int().view(torch.float32)


def round_stochastically(x: torch.Tensor, words: torch.Tensor, fmt: str) -> torch.Tensor:
    """float32 `x` ``[n]`` rounded to a neighbour in `fmt`, as float32; saturates, keeps NaN (e2m1: 6).

    As PTX defines its ``.rs`` conversions: 16 random bits are added to the leading 16 of those that are dropped, and
    a carry rounds away from zero. A word serves 4 elements (bfloat16: 2). e4m3 takes its low half for elements 0 and
    1 and its high half for 2 and 3; bfloat16 one half each; e2m1 the low byte of each half, or the high ones.
    """
    limit = torch.full_like(x, _SATURATED[fmt])
    magnitude = torch.where(x.isnan(), limit, torch.minimum(x.abs(), limit)).double()
    exponent = torch.frexp(magnitude).exponent - 1
    step = torch.ldexp(torch.ones_like(magnitude), exponent.clamp(min=_SMALLEST_EXPONENT[fmt]) - _MANTISSA[fmt])
    whole = (magnitude / step).floor()
    dropped = ((magnitude / step - whole) * 65536).floor().long()
    carry = (dropped + _lane_bits(words, fmt)) >> 16
    rounded = ((whole + carry) * step).float().copysign(x)
    return torch.where(x.isnan(), x if fmt != "e2m1" else limit, rounded)


def _lane_bits(words: torch.Tensor, fmt: str) -> torch.Tensor:
    if fmt == "bfloat16":
        return torch.stack((words & 0xFFFF, words >> 16), dim=-1).flatten()
    if fmt == "e4m3":
        return torch.stack((words & 0xFFFF, words & 0xFFFF, words >> 16, words >> 16), dim=-1).flatten()
    low = (words & 0xFF) | ((words >> 8) & 0xFF00)
    high = ((words >> 8) & 0xFF) | ((words >> 16) & 0xFF00)
    return torch.stack((low, low, high, high), dim=-1).flatten()


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32).long() & _MASK


def _times(x: torch.Tensor, factor: int) -> torch.Tensor:
    """Product modulo 2**32, without overflowing int64."""
    low, high = x & 0xFFFF, x >> 16
    return (low * factor + (((high * factor) & 0xFFFF) << 16)) & _MASK


# --- values to check with --------------------------------------------------------------------------


def random_values(rows: int, columns: int, generator: torch.Generator, infinities: bool) -> torch.Tensor:
    """Normal values whose scale differs by row and by element; among them zeros, ties, NaN and maybe infinities."""
    x = torch.randn(rows, columns, generator=generator)
    x *= 2.0 ** torch.randint(-3, 4, (rows, columns), generator=generator)
    x *= 2.0 ** torch.randint(-40, 40, (rows, 1), generator=generator)
    x[:, : columns // 4] *= torch.rand(rows, columns // 4, generator=generator) < 0.5
    kind = torch.randint(0, 8, (rows,), generator=generator)
    x[kind == 0] = torch.randint(-14, 15, (int((kind == 0).sum()), columns), generator=generator) / 2.0
    x[kind == 1] *= 2.0**80
    x[kind == 2] *= 2.0**-80
    infinite = (float("inf"), -float("inf")) if infinities else ()
    for special in (float("nan"), -0.0, *infinite):
        x[torch.rand(rows, columns, generator=generator) < 0.002] = special
    return x
