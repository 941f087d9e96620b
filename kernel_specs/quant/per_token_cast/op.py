"""`per_token_cast`, `per_token_cast_with_sf_only` and `per_token_cast_with_precomputed_sf`."""

from __future__ import annotations

import torch

from kernel_specs.config import get_pdl
from kernel_specs.quant import _options
from kernel_specs.quant._layouts import empty_sf, sf_shape
from kernel_specs.quant._options import PLAIN, QUANTISED, QuantTensor
from kernel_specs.quant.per_token_cast.spec import RUN, SPEC, x_run
from tkc.errors import ArgumentError
from tkc.runtime import KernelTable

__all__ = ["per_token_cast", "per_token_cast_with_precomputed_sf", "per_token_cast_with_sf_only"]

_KERNELS = KernelTable(SPEC)


def per_token_cast(
    x: torch.Tensor | QuantTensor,
    fmt: str,
    num_per_channels: int,
    x_block_size: tuple[int, int] | None = None,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    stochastic_cast: bool = False,
    out: QuantTensor | None = None,
) -> QuantTensor:
    """Quantise the rows of `x` in blocks of `num_per_channels` elements.

    Args:
        x: ``[T, H]``, bfloat16 or float32, last stride 1, H a multiple of 64. Rows that do not begin at multiples of
            16 bytes from each other are copied first. Or quantised data, float8_e4m3fn ``[T, H]`` or int8
            ``[T, H / 2]`` (a byte holds two e2m1, the first one low), and scale factors: float32, float8_e4m3fn or
            packed UE8M0, in any layout.
        fmt: ``e4m3`` or ``e2m1``.
        num_per_channels: 16, 32, 64 or 128; it need not divide H.
        x_block_size: rows and columns of a quantised `x` that share a scale factor; any.
        use_tma_aligned_col_major_sf: scale factors by columns, each padded to 16 bytes.
        round_sf: scale factors are powers of two, rounded up.
        use_packed_ue8m0: they are stored as exponent bytes, four an int32; needs `round_sf`.
        use_e4m3_sf: they are e4m3; excludes `round_sf`.
        stochastic_cast: round each element up or down by chance, from a hash of its neighbours and column.
        out: data and row-major scale factors to write into.

    Returns:
        Data, float8_e4m3fn ``[T, H]`` or int8 ``[T, H / 2]``, and scale factors ``[T, ceil(H / num_per_channels)]``
        (packed: a quarter of that, rounded up). Padding bytes, of packed words and of columns, are 0.

    NaN elements become NaN in e4m3 and 6 in e2m1, and do not count for the maximum. A block with an infinity has an
    infinite float32 scale factor, 448 in e4m3, or 2**127 as a power of two.

    Raises ArgumentError, before anything is launched, for any other dtype, shape, stride, alignment or option.
    """
    kind = _options.kind_of_sf(round_sf, use_packed_ue8m0, use_e4m3_sf)
    _options.check_block(fmt, num_per_channels)
    if isinstance(x, torch.Tensor):
        num_tokens, hidden = _options.plain_rows(x)
        data, x_sf, x_kind, run = _options.aligned_rows(x), None, "none", RUN
        x_name = PLAIN[x.dtype]
    else:
        num_tokens, hidden, x_kind = _options.quantised_rows(x, x_block_size)
        data, x_sf = _options.aligned_rows(x[0]), x[1]
        assert x_block_size is not None
        x_name, run = QUANTISED[data.dtype], x_run(x_block_size[1])
    shape = sf_shape(num_tokens, hidden, (1, num_per_channels), kind)
    if out is None:
        quantised = _empty(fmt, num_tokens, hidden, data.device)
        sf = empty_sf(shape, kind, use_tma_aligned_col_major_sf, data.device)
    else:
        quantised, sf = out
        _options.check_given_sf(sf, use_tma_aligned_col_major_sf, "out")
        _check_data(quantised, "out")
        _check_sf(sf, shape, "out")
    if num_tokens and hidden:
        kernel = _KERNELS[
            data.device, get_pdl(), "cast", x_name, x_kind, run, fmt, num_per_channels, kind, bool(stochastic_cast)
        ]
        if x_sf is None:
            kernel(data, quantised, sf, _options.clamp_of(fmt, kind))
        else:
            kernel(data, x_sf, quantised, sf, *x_block_size, _options.clamp_of(fmt, kind))
    return quantised, sf if sf.shape[0] == num_tokens else sf[:num_tokens]


def per_token_cast_with_sf_only(
    x: torch.Tensor,
    fmt: str,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    out_sf: torch.Tensor | None = None,
) -> torch.Tensor:
    """Give the scale factors of `per_token_cast`, and neither write nor allocate data.

    Args:
        x: ``[T, H]``, bfloat16 or float32, as for `per_token_cast`; so are the options.
        out_sf: row-major scale factors to write into.

    Raises ArgumentError as `per_token_cast` does.
    """
    kind = _options.kind_of_sf(round_sf, use_packed_ue8m0, use_e4m3_sf)
    _options.check_block(fmt, num_per_channels)
    num_tokens, hidden = _options.plain_rows(x)
    _options.check_given_sf(out_sf, use_tma_aligned_col_major_sf, "out_sf")
    shape = sf_shape(num_tokens, hidden, (1, num_per_channels), kind)
    if out_sf is None:
        sf = empty_sf(shape, kind, use_tma_aligned_col_major_sf, x.device)
    else:
        sf = out_sf
        _check_sf(sf, shape, "out_sf")
    if num_tokens and hidden:
        rows = _options.aligned_rows(x)
        kernel = _KERNELS[
            x.device, get_pdl(), "sf_only", PLAIN[x.dtype], "none", RUN, fmt, num_per_channels, kind, False
        ]
        kernel(rows, sf, _options.clamp_of(fmt, kind))
    return sf if sf.shape[0] == num_tokens else sf[:num_tokens]


def per_token_cast_with_precomputed_sf(
    x: torch.Tensor,
    fmt: str,
    num_per_channels: int,
    sf: torch.Tensor,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantise the rows of `x` by scale factors that are given: ``round(x * (1 / sf))``, both steps in float32.

    Args:
        x: ``[T, H]``, bfloat16 or float32, as for `per_token_cast`.
        fmt, num_per_channels: as for `per_token_cast`.
        sf: scale factors as `per_token_cast` returns them for these options, in any layout. Their layout is read
            from their strides, so `use_tma_aligned_col_major_sf` changes nothing; nor does `round_sf`, because
            float32 scale factors are used as they are, powers of two or not.
        out: data to write into.

    Returns:
        float8_e4m3fn ``[T, H]`` or int8 ``[T, H / 2]``.

    Raises ArgumentError as `per_token_cast` does.
    """
    kind = _options.kind_of_sf(round_sf, use_packed_ue8m0, use_e4m3_sf)
    _options.check_block(fmt, num_per_channels)
    num_tokens, hidden = _options.plain_rows(x)
    quantised = _empty(fmt, num_tokens, hidden, x.device) if out is None else out
    _check_sf(sf, sf_shape(num_tokens, hidden, (1, num_per_channels), kind), "sf")
    if out is not None:
        _check_data(out, "out")
    if num_tokens and hidden:
        rows = _options.aligned_rows(x)
        stored = "float32" if kind == "pow2" else kind
        kernel = _KERNELS[
            x.device, get_pdl(), "precomputed", PLAIN[x.dtype], "none", RUN, fmt, num_per_channels, stored, False
        ]
        kernel(rows, sf, quantised)
    return quantised


def _empty(fmt: str, num_tokens: int, hidden: int, device: torch.device) -> torch.Tensor:
    if fmt == "e4m3":
        return torch.empty(num_tokens, hidden, dtype=torch.float8_e4m3fn, device=device)
    return torch.empty(num_tokens, hidden // 2, dtype=torch.int8, device=device)


def _check_data(data: torch.Tensor, argument: str) -> None:
    if data.dim() == 2 and data.shape[0] > 1 and data.stride(0) % 16:
        raise ArgumentError(
            f"{argument} has rows {data.stride(0)} bytes apart; expected a multiple of 16", argument=argument
        )


def _check_sf(sf: torch.Tensor, shape: tuple[int, int], argument: str) -> None:
    if sf.shape != shape:
        raise ArgumentError(
            f"{argument} has scale factors of shape {list(sf.shape)}; expected {list(shape)}", argument=argument
        )
