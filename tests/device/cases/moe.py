"""The MoE operators on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import torch

from kernel_specs.moe import normalize_weight, topk_gate
from kernel_specs.torch import normalize_weight as reference_normalize_weight
from kernel_specs.torch import topk_gate as reference_topk_gate

Benchmark = tuple[str, Callable[[], object], Callable[[], object] | None, int]
"""Name, ours, the peer's if it is installed, and the fewest bytes that the operator must move."""

_TOKENS = (0, 1, 7, 130, 4001)
_WEIGHTS = (1, 2, 3, 6, 8, 9, 16, 31, 32)


def correctness(device: torch.device, buckets: Sequence[int] = (256,)) -> None:
    """Compare every operator with its reference, bit for bit, on fresh random inputs.

    Args:
        buckets: of experts, those that artifacts were built for.
    """
    seed = int.from_bytes(os.urandom(4), "little")
    generator = torch.Generator().manual_seed(seed)
    for bucket in buckets:
        _check_topk_gate(device, bucket, generator, seed)
    _check_normalize_weight(device, generator, seed)


def benchmarks(device: torch.device) -> Iterator[Benchmark]:
    """Give what is measured: 8192 tokens, 256 experts, 8 picks."""
    num_tokens, num_experts, num_topk = 8192, 256, 8
    peer = _peer()
    scores = torch.randn(num_tokens, num_experts, device=device)
    yield (
        "moe.topk_gate",
        lambda: topk_gate(scores, num_topk),
        peer and (lambda: peer.topk_gate(scores, num_topk)),
        num_tokens * (num_experts * 4 + num_topk * 8),
    )
    weights = torch.rand(num_tokens, num_topk, device=device)
    yield (
        "moe.normalize_weight",
        lambda: normalize_weight(weights),
        peer and (lambda: peer.normalize_weight(weights)),
        num_tokens * (num_topk * 8 + 4),
    )


def _check_topk_gate(device: torch.device, bucket: int, generator: torch.Generator, seed: int) -> None:
    for num_tokens in _TOKENS:
        for num_experts in (bucket, bucket - 1, bucket - bucket // 8 - 3):
            for kind, scores in _scores(num_tokens, num_experts, generator):
                for num_topk in (1, 6, 8, 32):
                    _poison(device, (num_tokens, num_topk), torch.int64)
                    got = topk_gate(scores.to(device), num_topk).cpu()
                    want = reference_topk_gate(scores, num_topk)
                    case = f"{kind}, {num_tokens} tokens, {num_experts} experts, top {num_topk}, seed {seed}"
                    assert torch.equal(got, want), f"topk_gate: {case}"
            wide = torch.randn(num_tokens, num_experts + 7, generator=generator)
            got = topk_gate(wide.to(device)[:, 3 : 3 + num_experts], 8).cpu()
            want = reference_topk_gate(wide[:, 3 : 3 + num_experts], 8)
            assert torch.equal(got, want), f"topk_gate: strided, {num_tokens}, {num_experts}, seed {seed}"


def _scores(num_tokens: int, num_experts: int, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    shape = (num_tokens, num_experts)
    normal = torch.randn(shape, generator=generator)
    yield "random", normal
    yield "sigmoid of bfloat16", normal.to(torch.bfloat16).to(torch.float32).sigmoid()
    yield "ties", torch.randint(-2, 3, shape, generator=generator).to(torch.float32)
    yield "all equal", torch.zeros(shape)
    yield "ascending", torch.arange(num_experts, dtype=torch.float32).expand(shape).contiguous()
    bits = torch.randint(-(2**31), 2**31, shape, generator=generator)
    yield "random bits", bits.to(torch.int32).view(torch.float32)
    infinite = torch.tensor([float("-inf"), float("nan"), float("inf"), -0.0, 0.0])
    yield "infinities, NaN and zeros", infinite[torch.randint(5, shape, generator=generator)]


def _check_normalize_weight(device: torch.device, generator: torch.Generator, seed: int) -> None:
    for num_tokens in _TOKENS:
        for num_topk in _WEIGHTS:
            wide = torch.rand(num_tokens, num_topk + 5, generator=generator)
            exponents = torch.randint(-140, 100, (num_tokens, num_topk), generator=generator)
            plain, spread = wide[:, :num_topk].contiguous(), _spread(wide, exponents)
            for weights, there in (
                (plain, plain.to(device)),
                (wide[:, 3 : 3 + num_topk], wide.to(device)[:, 3 : 3 + num_topk]),
                (spread, spread.to(device)),
            ):
                _poison(device, (num_tokens, num_topk), torch.float32)
                got = normalize_weight(there)
                want = reference_normalize_weight(weights)
                for ours, theirs in zip(got, want, strict=True):
                    same = torch.equal(ours.cpu().view(torch.int32), theirs.view(torch.int32))
                    assert same, f"normalize_weight: {num_tokens} tokens, {num_topk} weights, seed {seed}"
    zeros = normalize_weight(torch.zeros(3, 8, device=device))
    assert bool((zeros[1] == 0).all()), "a row of zeros gives zeros"


def _spread(weights: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Magnitudes so different that the order of a sum shows."""
    return torch.ldexp(weights[:, : exponents.shape[1]], exponents).contiguous()


def _poison(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Leave poison in freed memory, for the operator's outputs to be allocated from."""
    del_me = torch.full(shape, 0x7F if dtype is torch.int64 else float("nan"), dtype=dtype, device=device)
    del del_me


def _peer() -> object:
    try:
        from tile_kernels import moe
    except ModuleNotFoundError as error:
        if error.name != "tile_kernels":
            raise
        return None
    return moe
