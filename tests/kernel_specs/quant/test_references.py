"""The references against tables worked out by hand and against PyTorch, so that two wrongs cannot agree."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from kernel_specs.quant import _reference as ref
from kernel_specs.quant import unpack_from_e2m1fn_x2
from kernel_specs.quant._reference import CLAMP_MIN, LARGEST
from kernel_specs.quant.cast.reference import rounded
from kernel_specs.torch import cast
from tkc.errors import ArgumentError

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3_values() -> list[float]:
    """The value of each code, from the format's definition."""
    values = []
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        if code & 0x7F == 0x7F:
            value = math.nan
        values.append(math.copysign(value, -1) if code & 0x80 else value)
    return values


def test_every_e4m3_code_decodes_and_encodes_to_itself() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    for decoded, value in zip(codes.float().tolist(), e4m3_values(), strict=True):
        assert decoded == value or (math.isnan(decoded) and math.isnan(value))
    again = ref.round_e4m3(torch.tensor(e4m3_values())).view(torch.uint8)
    numbers = [code for code in range(256) if code & 0x7F != 0x7F]
    assert again[numbers].tolist() == numbers
    assert again[[0x7F, 0xFF]].tolist() == [0x7F, 0x7F]


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_halfway_values_go_to_the_even_code_and_neighbours_to_the_nearer(fmt: str) -> None:
    values = e4m3_values()[:0x7F] if fmt == "e4m3" else list(E2M1)
    encode = (lambda x: ref.round_e4m3(x).view(torch.uint8)) if fmt == "e4m3" else ref.round_e2m1
    sign = 0x80 if fmt == "e4m3" else 8
    for code, (low, high) in enumerate(itertools.pairwise(values)):
        middle = torch.tensor((low + high) / 2, dtype=torch.float32)
        below, above = torch.nextafter(middle, torch.tensor(0.0)), torch.nextafter(middle, torch.tensor(1e9))
        want = [code + code % 2, code, code + 1]
        assert encode(torch.stack((middle, below, above))).tolist() == want
        assert encode(-torch.stack((middle, below, above))).tolist() == [sign + one for one in want]


@pytest.mark.parametrize(("fmt", "largest", "sign"), [("e4m3", 0x7E, 0x80), ("e2m1", 7, 8)])
def test_saturation_zeros_and_non_numbers(fmt: str, largest: int, sign: int) -> None:
    encode = (lambda x: ref.round_e4m3(x).view(torch.uint8)) if fmt == "e4m3" else ref.round_e2m1
    got = encode(torch.tensor([1e30, -1e30, math.inf, -math.inf, 0.0, -0.0, 1e-30, -1e-30, math.nan, -math.nan]))
    nan = 0x7F if fmt == "e4m3" else 7
    assert got.tolist() == [largest, largest + sign, largest, largest + sign, 0, sign, 0, sign, nan, nan]


def test_the_first_element_of_a_pair_is_low() -> None:
    packed = ref.pack_e2m1(ref.round_e2m1(torch.tensor([[0.5, -6.0, 4.0, 0.0]])))
    assert packed.view(torch.uint8).tolist() == [[0xF1, 0x06]]
    assert unpack_from_e2m1fn_x2(packed).tolist() == [[0.5, -6.0, 4.0, 0.0]]


def test_every_byte_unpacks() -> None:
    byte = torch.arange(256, dtype=torch.uint8)
    values = [*E2M1, *(-value for value in E2M1)]
    want = torch.tensor([[values[b & 15], values[b >> 4]] for b in range(256)]).flatten()
    for x in (byte, byte.view(torch.int8)):
        got = unpack_from_e2m1fn_x2(x, torch.bfloat16)
        assert got.dtype == torch.bfloat16
        assert torch.equal(got.float(), want)
        assert torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("x", [torch.tensor(1, dtype=torch.int8), torch.zeros(4)])
def test_unpacking_refuses_what_holds_no_pairs(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="x has") as caught:
        unpack_from_e2m1fn_x2(x)
    assert isinstance(caught.value, ArgumentError)


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_power_of_two_is_the_least_that_does_not_overflow(fmt: str) -> None:
    generator = torch.Generator().manual_seed(3)
    amax = torch.rand(20000, generator=generator) * 2.0 ** torch.randint(-110, 127, (20000,), generator=generator)
    exact = LARGEST[fmt] * 2.0 ** torch.arange(-10, 10)
    amax = torch.cat((amax, exact, torch.nextafter(exact, exact * 2), torch.nextafter(exact, exact * 0)))
    sf, inverse = ref.sf_and_inverse(amax, fmt, "pow2", CLAMP_MIN[fmt, False])
    clamped = amax.clamp(min=torch.tensor(CLAMP_MIN[fmt, False]).item()).double()
    assert (torch.frexp(sf).mantissa == 0.5).all()
    assert (sf.double() * LARGEST[fmt] >= clamped).all()
    assert (sf.double() * LARGEST[fmt] / 2 < clamped).all()
    assert (sf.double() * inverse.double() == 1).all()


def test_scale_factors_of_zeros_are_those_of_the_clamp() -> None:
    zeros = torch.zeros(1, 64)
    assert cast(zeros, "e4m3", (1, 64))[1].item() == torch.tensor(1e-4).div(torch.tensor(448.0)).item()
    packed = {"round_sf": True, "use_packed_ue8m0": True}
    assert cast(zeros, "e4m3", (1, 64), **packed)[1].item() == 105
    assert cast(zeros, "e2m1", (1, 64), **packed)[1].item() == 1
    assert cast(zeros, "e4m3", (1, 64), use_e4m3_sf=True)[1].float().item() == 2.0**-9


def test_infinite_block_with_powers_of_two_keeps_its_finite_values() -> None:
    """The peer stores exponent byte 255 and multiplies by minus infinity."""
    x = torch.full((1, 64), 2.0**127)
    x[0, 0] = math.inf
    data, sf = cast(x, "e4m3", (1, 64), round_sf=True)
    assert sf.item() == 2.0**127
    assert data.float()[0, :2].tolist() == [448.0, 1.0]


@pytest.mark.parametrize("kind", ["float32", "pow2", "e4m3", "ue8m0"])
@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("block", [(1, 32), (32, 32), (32, 1)])
def test_every_layout_of_scale_factors_is_read_back(kind: str, column_major: bool, block: tuple[int, int]) -> None:
    rows, columns = 7, 11
    blocks = 2.0 ** torch.randint(-6, 6, (rows, columns))
    along_columns = block[1] == 1
    if along_columns and column_major:
        return
    stored = ref.stored_sf(blocks, kind, column_major, along_columns)
    assert torch.equal(ref.read_sf(stored, rows, columns, along_columns), blocks)
    if column_major:
        assert stored.stride() == (1, 16 if kind == "e4m3" else 8)


def test_packed_bytes_are_little_endian_and_padded_with_zeros() -> None:
    blocks = 2.0 ** torch.tensor([[0, 1, 2, 3, 4]])
    assert ref.stored_sf(blocks, "ue8m0").tolist() == [[0x8281807F - (1 << 32), 0x83]]
    assert ref.stored_sf(blocks.t(), "ue8m0", along_columns=True).flatten().tolist() == [0x8281807F - (1 << 32), 0x83]


def test_requantising_takes_the_maximum_over_each_input_block() -> None:
    """The peer reads one input scale factor for 16 elements, whatever the width of its blocks."""
    data = torch.ones(1, 64).to(torch.float8_e4m3fn)
    sf = torch.tensor([[1.0, 1.0, 64.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    out, out_sf = cast((data, sf), "e4m3", (1, 64), x_block_size=(1, 8))
    assert out_sf.item() == torch.tensor(64.0).div(torch.tensor(448.0)).item()
    assert out.float()[0, 16:24].tolist() == [448.0] * 8


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1", "bfloat16"])
def test_stochastic_rounding_gives_neighbours_and_is_right_on_average(fmt: str) -> None:
    generator = torch.Generator().manual_seed(11)
    x = torch.rand(1 << 16, generator=generator) * 5
    got = ref.round_stochastically(x, ref.stochastic_words(x, 2 if fmt == "bfloat16" else 1), fmt)
    values = {"e4m3": e4m3_values()[:0x7F], "e2m1": list(E2M1)}.get(fmt)
    if values is None:
        values = torch.arange(0x40C0, dtype=torch.int16).view(torch.bfloat16).float().tolist()
    table = torch.tensor(values)
    above = torch.searchsorted(table, x)
    assert ((got == table[above]) | (got == table[above - 1])).all()
    error = got - x
    assert abs(error.mean().item()) < 5 * error.std().item() / len(x) ** 0.5


def test_exact_values_are_never_moved_by_chance() -> None:
    x = torch.tensor([*E2M1] * 64)
    assert torch.equal(ref.round_stochastically(x, ref.stochastic_words(x), "e2m1"), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_plain_rounding_is_pytorchs_within_range(dtype: torch.dtype) -> None:
    x = torch.randn(10000) * 2.0 ** torch.randint(-16, 15, (10000,))
    kept = x.abs() < torch.finfo(dtype).max
    assert torch.equal(rounded(x, dtype)[kept].float(), x[kept].to(dtype).float())
