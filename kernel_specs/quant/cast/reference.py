"""Reference of `cast`: one rounding an element, in plain PyTorch. Casts in blocks are `per_token_cast`'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernel_specs.quant import _reference as ref

__all__: list[str] = []

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
_NAN_BITS = {
    torch.float16: 0x7FFF,
    torch.bfloat16: 0x7FFF,
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7F,
}


def rounded(x: torch.Tensor, dtype: torch.dtype, stochastic: bool = False) -> torch.Tensor:
    """`x` in `dtype`: to nearest even, or by chance; 8-bit formats saturate, infinities too. NaN has all bits set."""
    wide = x.float()
    if stochastic:
        fmt = "e4m3" if dtype == torch.float8_e4m3fn else "bfloat16"
        words = ref.stochastic_words(wide.flatten(), 2 if fmt == "bfloat16" else 1)
        wide = ref.round_stochastically(wide.flatten(), words, fmt).view(x.shape)
    if limit := _LARGEST.get(dtype):
        wide = wide.clamp(-limit, limit)
    y = wide.to(dtype)
    if dtype not in _NAN_BITS:
        return y
    storage = torch.int16 if y.element_size() == 2 else torch.int8
    return torch.where(x.float().isnan(), _NAN_BITS[dtype], y.view(storage)).to(storage).view(dtype)


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Launch arguments: sizes that are no multiple of a vector, and tensors that begin anywhere."""
    generator = torch.Generator().manual_seed(seed)
    x_dtype, y_dtype = (getattr(torch, specialization[name]) for name in ("x_dtype", "y_dtype"))
    widens = torch.finfo(x_dtype).bits < torch.finfo(y_dtype).bits
    for num_rows, num_columns, offset in ((1, 4, 0), (1, 1, 0), (3, 683, 0), (9, 29, 1)):
        if specialization["stochastic"]:
            num_columns, offset = (num_columns + 3) // 4 * 4, 0
        numel = num_rows * num_columns
        wide = ref.random_values(1, numel, generator, infinities=True)[0]
        wide *= 2.0 ** torch.randint(-120, 120, (numel,), generator=generator)
        if widens:  # the bits of a widened NaN are the hardware's own affair
            wide = torch.nan_to_num(wide)
        flat = {"x": _at(rounded(wide, x_dtype), offset), "y": _at(_poisoned(numel, y_dtype), offset)}
        yield {name: tensor.view(num_rows, num_columns) for name, tensor in flat.items()}


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What `y` must hold, bit by bit."""
    return {"y": rounded(args["x"], args["y"].dtype, specialization["stochastic"])}


def _at(x: torch.Tensor, offset: int) -> torch.Tensor:
    """`x` in storage that begins `offset` elements earlier."""
    return torch.cat((x[:1].expand(offset), x))[offset:]


def _poisoned(numel: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((numel * dtype.itemsize,), 0x7F, dtype=torch.uint8).view(dtype)
