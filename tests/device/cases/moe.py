"""The MoE operators on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import torch

from kernel_specs import moe
from kernel_specs import torch as reference
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
    _check_gates(device, generator, seed)
    _check_backward(device, generator, seed)
    _check_counting(device, generator, seed)
    _check_laying_out(device, generator, seed)


def benchmarks(device: torch.device, num_tokens: int = 8192) -> Iterator[Benchmark]:
    """Give what is measured: 256 experts, 8 picks, hidden size 7168.

    What the installed release of the peer lacks is measured without it.
    """
    num_experts, num_topk = 256, 8
    scores = torch.randn(num_tokens, num_experts, device=device)
    picks, row = num_tokens * num_topk, num_tokens * num_experts * 4

    def both(name: str, *args: object, bytes_moved: int, **kwargs: object) -> Benchmark:
        ours, theirs = getattr(moe, name), getattr(_peer(), name, None)
        return (
            f"moe.{name}",
            lambda: ours(*args, **kwargs),
            theirs and (lambda: theirs(*args, **kwargs)),
            bytes_moved,
        )

    yield both("topk_gate", scores, num_topk, bytes_moved=row + picks * 8)
    yield both(
        "normalize_weight", torch.rand(num_tokens, num_topk, device=device), bytes_moved=picks * 8 + num_tokens * 4
    )
    bias = torch.randn(num_experts, device=device) / 8
    gate = (scores, num_topk, False, 0, 2.5, 0)
    yield both("moe_topk_gate_forward", *gate, bias=bias, bytes_moved=row + picks * 12)
    topk_idx, weights = moe.moe_topk_gate_forward(*gate, bias=bias)
    positive = torch.rand_like(scores) + 0.1
    grads = torch.randn_like(weights)
    yield both("moe_topk_gate_backward", positive, topk_idx, weights, grads, 2.5, bytes_moved=2 * row + picks * 16)
    grouped = (scores, bias, num_topk, 4, 8, False, 0, 2.5, 0, 1, 0, 1, "sigmoid")
    yield both("top2_sum_gate", *grouped, bytes_moved=row + picks * 12)
    values = scores.view(num_tokens, 8, -1)
    yield both("topk_sum_and_topk_group_idx", values, 2, 4, bytes_moved=row + num_tokens * 32)
    yield both("group_count", topk_idx, num_experts, bytes_moved=picks * 8)
    yield both("aux_fi", topk_idx, num_experts, num_topk, bytes_moved=picks * 8)
    yield both("mask_indices_by_tp", topk_idx, num_experts, 8, 1, 2, bytes_moved=picks * 16)
    yield both("inplace_unique_group_indices", topk_idx // 32, 8, bytes_moved=picks * 16)
    room = picks + 127 * num_experts // 128 * 128
    mapping = moe.get_fused_mapping(topk_idx, num_experts, room, 128)
    yield both("get_fused_mapping", topk_idx, num_experts, room, 128, bytes_moved=picks * 24 + room * 12)
    experts, positions = mapping[0], mapping[3]
    x = torch.randn(num_tokens, 7168, device=device).bfloat16()
    yield both("expand_to_fused", x, positions, experts, bytes_moved=(num_tokens + room) * 7168 * 2)
    e4m3, sf = x.to(torch.float8_e4m3fn), torch.rand(num_tokens, 56, device=device)
    yield both(
        "expand_to_fused_with_sf",
        (e4m3, sf),
        128,
        positions,
        experts,
        bytes_moved=(num_tokens + room) * (7168 + 56 * 4),
    )
    expanded = moe.expand_to_fused(x, positions, experts)
    yield both("reduce_fused", expanded, weights, positions, bytes_moved=(picks + num_tokens) * 7168 * 2)


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


def _check_gates(device: torch.device, generator: torch.Generator, seed: int) -> None:
    """Both signatures; values of float32 that a device rounds otherwise may only change weights a little."""
    for num_tokens in _TOKENS:
        logits = _apart(num_tokens, 256, generator)
        bias = torch.randint(-8, 9, (256,), generator=generator) / 8
        mask = torch.rand(num_tokens, generator=generator) < 0.8
        counts = torch.randint(1, 4, (257,), generator=generator, dtype=torch.int32)
        table = torch.randperm(257 * 3, generator=generator).to(torch.int32).view(257, 3)
        replicas = {"to_physical_map": table, "logical_count": counts}
        for kwargs in ({}, {"mask": mask}, replicas, {"mask": mask, "force_random": mask.flip(0), **replicas}):
            args = (logits, 8, True, 1, 2.5, 3, "sigmoid")
            _compare_gate(device, moe.moe_topk_gate, reference.moe_topk_gate, args, kwargs, seed)
            args = (logits, bias.mul(0), 8, 8, 8, True, 1, 2.5, 0, 8, 1, 4, "sigmoid")
            kwargs = {name: value for name, value in kwargs.items() if name != "force_random"}
            _compare_gate(device, moe.top2_sum_gate, reference.top2_sum_gate, args, kwargs, seed)
        grouped = torch.randint(-60, 61, (num_tokens, 8, 32), generator=generator) / 8
        for num_sum, num_groups in ((1, 3), (2, 4), (2, 8)):
            got = moe.topk_sum_and_topk_group_idx(grouped.to(device), num_sum, num_groups).cpu()
            want = reference.topk_sum_and_topk_group_idx(grouped, num_sum, num_groups)
            assert torch.equal(got, want), f"topk_sum_and_topk_group_idx: {num_tokens} tokens, seed {seed}"


def _apart(num_tokens: int, num_experts: int, generator: torch.Generator) -> torch.Tensor:
    """Logits that are equal, or so far apart that their scores are in the same order on every device."""
    return torch.randint(-300, 301, (num_tokens, num_experts), generator=generator) / 64


def _compare_gate(
    device: torch.device,
    ours: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    theirs: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    args: tuple[object, ...],
    kwargs: dict[str, torch.Tensor],
    seed: int,
) -> None:
    there = [arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args]
    got = ours(*there, **{name: value.to(device) for name, value in kwargs.items()})
    want = theirs(*args, **kwargs)
    case = f"{ours.__name__}: {list(want[0].shape)}, {sorted(kwargs)}, seed {seed}"
    assert torch.equal(got[0].cpu(), want[0]), case
    assert torch.allclose(got[1].cpu(), want[1], rtol=4e-6, atol=1e-12), case


def _check_backward(device: torch.device, generator: torch.Generator, seed: int) -> None:
    for num_tokens in _TOKENS:
        scores = torch.rand(num_tokens, 256, generator=generator) * 0.9 + 0.05
        index = torch.randint(-1, 256, (num_tokens, 8), generator=generator)
        index[:, 3] = index[:, 0]
        weights, grads = (torch.rand(num_tokens, 8, generator=generator) for _ in range(2))
        aux = (torch.rand(num_tokens, generator=generator) < 0.5, torch.randn(1, 256, generator=generator))
        for extra in ((), aux):
            args = (scores, index, weights, grads, 2.5, "sigmoid", *extra)
            there = [arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args]
            got = moe.moe_topk_gate_backward(*there)
            want = reference.moe_topk_gate_backward(*args)
            case = f"moe_topk_gate_backward: {num_tokens} tokens, seed {seed}"
            assert torch.allclose(got.cpu(), want, rtol=1e-4, atol=1e-5), case
            assert torch.equal(got, moe.moe_topk_gate_backward(*there)), f"two runs differ: {case}"


def _check_counting(device: torch.device, generator: torch.Generator, seed: int) -> None:
    for num_tokens in _TOKENS:
        index = torch.randint(-1, 256, (num_tokens, 8), generator=generator)
        there = index.to(device)
        case = f"{num_tokens} tokens, seed {seed}"
        assert torch.equal(moe.group_count(there, 256).cpu(), reference.group_count(index.flatten(), 256)), case
        if num_tokens:
            assert torch.equal(moe.aux_fi(there, 256, 8).cpu(), reference.aux_fi(index, 256, 8)), case
        for dtype in (torch.int64, torch.int32):
            got = moe.mask_indices_by_tp(there.to(dtype), 256, 8, 1, 2).cpu()
            assert torch.equal(got, reference.mask_indices_by_tp(index.to(dtype), 256, 8, 1, 2)), case
        for num_topk in (1, 6, 8, 31, 32):
            groups = torch.randint(-1, 9, (num_tokens, num_topk), generator=generator)
            got = groups.to(device)
            moe.inplace_unique_group_indices(got, 9)
            reference.inplace_unique_group_indices(groups, 9)
            assert torch.equal(got.cpu(), groups), f"inplace_unique_group_indices: {num_topk} a token, {case}"


def _check_laying_out(device: torch.device, generator: torch.Generator, seed: int) -> None:
    for num_tokens in _TOKENS:
        for num_topk, num_experts, alignment in ((8, 256, 128), (6, 32, 64), (9, 1024, 8)):
            case = f"{num_tokens} tokens, top {num_topk} of {num_experts}, seed {seed}"
            index = torch.randint(-1, num_experts, (num_tokens, num_topk), generator=generator)
            got = moe.get_fused_mapping(index.to(device), num_experts, 0, alignment)
            want = reference.get_fused_mapping(index, num_experts, 0, alignment)
            assert got[-1] == want[-1], case
            for ours, theirs in zip(got[:-1], want[:-1], strict=True):
                assert torch.equal(ours.cpu(), theirs), f"get_fused_mapping: {case}"
            _check_moving(device, want[0], want[3], generator, case)


def _check_moving(
    device: torch.device, experts: torch.Tensor, positions: torch.Tensor, generator: torch.Generator, case: str
) -> None:
    """Rows there, with and without scale factors, and weighted rows back; wide, odd and misaligned ones."""
    where = (positions.to(device), experts.to(device))
    for hidden, offset in ((576, 0), (77, 0), (256, 3)):
        wide = torch.randint(-64, 65, (positions.shape[0], hidden + offset), generator=generator) / 8
        x = wide.bfloat16()[:, offset:]
        moved = wide.bfloat16().to(device)[:, offset:]
        _poison(device, (experts.numel(), hidden), torch.bfloat16)
        expanded = moe.expand_to_fused(moved, *where)
        assert torch.equal(expanded.cpu(), reference.expand_to_fused(x, positions, experts)), f"{hidden}: {case}"
        weights = torch.randint(0, 9, tuple(positions.shape), generator=generator) / 8
        reduced = moe.reduce_fused(expanded, weights.to(device), where[0]).cpu()
        assert torch.equal(reduced, reference.reduce_fused(expanded.cpu(), weights, positions)), f"{hidden}: {case}"
    data = (torch.randint(-64, 65, (positions.shape[0], 512), generator=generator) / 8).to(torch.float8_e4m3fn)
    sf = torch.rand(positions.shape[0], 4, generator=generator)
    for by_columns in (False, True):
        got = moe.expand_to_fused_with_sf((data.to(device), sf.to(device)), 128, *where, by_columns)
        want = reference.expand_to_fused_with_sf((data, sf), 128, positions, experts, by_columns)
        assert torch.equal(got[0].cpu().view(torch.uint8), want[0].view(torch.uint8)), f"expanded e4m3: {case}"
        assert torch.equal(got[1].cpu(), want[1]), f"expanded scale factors, by columns: {by_columns}, {case}"


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
