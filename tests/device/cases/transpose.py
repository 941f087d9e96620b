"""The transposes on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch

from kernel_specs.torch import batched_transpose as reference
from kernel_specs.transpose import batched_transpose, transpose

Benchmark = tuple[str, Callable[[], object], Callable[[], object] | None, int]
"""Name, ours, the peer's if it is installed, and the fewest bytes that the operator must move."""

_DTYPES = (
    *(torch.uint8, torch.float8_e4m3fn, torch.bool),
    *(torch.bfloat16, torch.int16),
    *(torch.float32, torch.int32),
    *(torch.int64, torch.float64),
)

# batches, rows, columns, elements between rows, offset of the first element: whole tiles, cut tiles, sizes,
# strides and addresses that are no multiple of 16 bytes.
_SHAPES = (
    (1, 128, 128, 0, 0),
    (1, 512, 7168, 0, 0),
    (3, 1040, 272, 0, 0),
    (2, 256, 512, 64, 16),
    (1, 4001, 576, 0, 0),
    (1, 64, 4099, 0, 0),
    (2, 129, 127, 1, 0),
    (1, 256, 256, 0, 1),
    (1, 256, 256, 8, 4),
    (5, 1, 1, 0, 0),
    (1, 1, 5000, 0, 0),
    (1, 5000, 1, 0, 0),
    (0, 4, 4, 0, 0),
    (2, 0, 4, 0, 0),
    (2, 4, 0, 0, 0),
)


def correctness(device: torch.device) -> None:
    """Compare both operators with their reference, bit for bit, on fresh random bits."""
    seed = int.from_bytes(os.urandom(4), "little")
    generator = torch.Generator().manual_seed(seed)
    for dtype in _DTYPES:
        for shape in _SHAPES:
            x = _random(*shape, dtype, device, generator)
            _check(f"{dtype}, {shape}, seed {seed}", x)
    _check_far_apart(device, seed)


def benchmarks(device: torch.device, num_tokens: int = 8192) -> Iterator[Benchmark]:
    """Give what is measured: tokens of 7168 bfloat16, and the same numbers of other elements."""
    peer = _peer()
    for dtype, shape in (
        (torch.bfloat16, (1, num_tokens, 7168)),
        (torch.float8_e4m3fn, (1, num_tokens, 7168)),
        (torch.float32, (1, num_tokens, 7168)),
        (torch.bfloat16, (32, 2048, 7168)),
        (torch.float8_e4m3fn, (32, 2048, 7168)),
        (torch.int64, (1, num_tokens, 7168)),
        (torch.bfloat16, (1, 8001, 7168)),
    ):
        x = torch.randint(0, 100, shape, device=device, dtype=torch.int32).to(dtype)
        served = peer if shape[1] % 64 == 0 and dtype is not torch.int64 else None
        yield (
            f"transpose.batched_transpose {str(dtype).removeprefix('torch.')} {'x'.join(map(str, shape))}",
            lambda x=x: batched_transpose(x),
            served and (lambda x=x, peer=served: peer.batched_transpose(x)),
            2 * x.numel() * x.element_size(),
        )


def _check(case: str, x: torch.Tensor) -> None:
    want = reference(x.cpu())
    _poison(want, x.device)
    got = batched_transpose(x)
    assert got.is_contiguous() and got.dtype == x.dtype and got.device == x.device, case
    assert torch.equal(got.cpu().view(torch.uint8), want.view(torch.uint8)), f"batched_transpose: {case}"
    if len(x):
        _poison(want[0], x.device)
        assert torch.equal(transpose(x[0]).cpu().view(torch.uint8), want[0].view(torch.uint8)), f"transpose: {case}"


def _check_far_apart(device: torch.device, seed: int) -> None:
    """Elements more than 2**31 from each other: an index of 32 bits would wrap."""
    stride = (1 << 31) + 64
    storage = torch.zeros(stride + 256 * 128, dtype=torch.uint8, device=device)
    x = storage.as_strided((2, 256, 128), (stride, 128, 1))
    x.random_(0, 255)
    _check(f"batches 2**31 elements apart, seed {seed}", x)


def _random(
    batches: int,
    rows: int,
    columns: int,
    gap: int,
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> torch.Tensor:
    size_bytes = torch.empty(0, dtype=dtype).element_size()
    stride = columns + gap
    length = (offset + batches * rows * stride) * size_bytes
    limit = 2 if dtype is torch.bool else 256
    bits = torch.randint(0, limit, (length,), dtype=torch.uint8, generator=generator).to(device)
    return bits.view(dtype)[offset:].view(batches, rows, stride)[:, :, :columns]


def _poison(like: torch.Tensor, device: torch.device) -> None:
    """Leave poison in freed memory, for the operator's output to be allocated from."""
    torch.empty(like.shape, dtype=like.dtype, device=device).view(torch.uint8).fill_(0x7F)


def _peer() -> object:
    """TileKernels, where its transposes are installed: version 1.0.0 alone has them."""
    try:
        from tile_kernels import transpose as peer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tile_kernels":
            raise
        return None
    except ImportError:
        return None
    return peer
