"""PyTorch reference of ``moe.moe_topk_gate_forward``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernel_specs.moe._reference import Gate, rank_keys, route, score

__all__ = ["moe_topk_gate", "moe_topk_gate_forward"]

_CLEAR = 1e-5
"""Keys that a device may compute a few units in the last place apart differ by more than this, or not at all."""


def moe_topk_gate_forward(
    logits: torch.Tensor,
    num_topk: int,
    use_shared_as_routed: bool,
    num_shared_experts: int,
    routed_scaling_factor: float,
    ep_rank: int,
    scoring_func: str = "sqrtsoftplus",
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    image_bias: torch.Tensor | None = None,
    image_token_mask: torch.Tensor | None = None,
    fix_routing_mask: torch.Tensor | None = None,
    to_physical_map: torch.Tensor | None = None,
    logical_count: torch.Tensor | None = None,
    unmapped_topk_idx: torch.Tensor | None = None,
    force_random: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    scores: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Route tokens to their best experts: see the operator of the same name for every argument."""
    gate = Gate(
        num_topk=num_topk,
        num_shared=num_shared_experts if use_shared_as_routed else 0,
        scale=routed_scaling_factor,
        ep_rank=ep_rank,
        scoring_func=scoring_func,
        mask=mask,
        bias=bias,
        image_bias=image_bias,
        image_token_mask=image_token_mask,
        fix_routing_mask=fix_routing_mask,
        force_random=force_random,
        to_physical_map=to_physical_map,
        logical_count=logical_count,
        unmapped_topk_idx=unmapped_topk_idx,
    )
    routing = route(logits, gate)
    if unmapped_topk_idx is not None:
        unmapped_topk_idx.copy_(routing.unmapped_topk_idx)
    if scores is not None:
        scores.copy_(routing.scores)
    if out is None:
        return routing.topk_idx, routing.topk_weights
    return out[0].copy_(routing.topk_idx), out[1].copy_(routing.topk_weights)


moe_topk_gate = moe_topk_gate_forward


def samples(specialization: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
    """Give launch arguments that cover the edges of what `specialization` serves; outputs are poisoned."""
    draw = _Samples(specialization["scoring_func"], torch.Generator().manual_seed(seed))
    room = specialization["max_experts"]
    yield draw.launch(5, room, 8)
    yield draw.launch(33, room, 8, bias=True, scores=True, padding=3)
    yield draw.launch(9, room - 1, 6, bias=True, image=True, mask=True, unmapped=True)
    yield draw.launch(7, room, 8, num_shared=1, physical=3, fixed=True, bias=True, scores=True, mask=True)
    yield draw.launch(6, room - 17, 8, num_shared=2, physical=1, random=True, ep_rank=5, unmapped=True)
    yield draw.launch(5, room, 6, random=True, num_shared=2, scores=True)
    yield draw.launch(4, 33, 32, ties=True)
    yield draw.launch(3, 8, 8, ties=True, bias=True)
    yield draw.launch(2, 1, 1, num_shared=1)
    yield draw.launch(6, room, 8, ties=True, scores=True, in_order=1)
    for num_groups, num_topk_groups in ((8, 4), (8, 8), (2, 1), (32, 16), (1, 1)):
        yield draw.launch(7, room, 8, bias=True, in_order=1, num_groups=num_groups, num_topk_groups=num_topk_groups)
    yield draw.launch(5, 60, 6, bias=True, in_order=1, num_groups=5, num_topk_groups=3, ties=True)
    yield draw.launch(9, room, 8, bias=True, tp=(room // 8, 2, 1), in_order=1)
    yield draw.launch(9, room, 8, num_shared=1, physical=2, tp=((room + 8) // 8, 4, 3), in_order=1)
    yield draw.launch(0, room, 8)


def expected(specialization: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The right value of each output of a launch with `args`."""
    given = {name: None if isinstance(x, torch.Tensor) and not x.numel() else x for name, x in args.items()}
    gate = Gate(
        num_topk=args["num_topk"],
        num_shared=args["topk_idx"].shape[1] - args["num_topk"],
        scale=args["routed_scaling_factor"],
        scoring_func=specialization["scoring_func"],
        in_order=bool(args["in_order"]),
        **{name: args[name] for name in ("ep_rank", "num_groups", "num_topk_groups")},
        **{name: args[name] for name in ("experts_per_rank", "num_tp_ranks", "tp_rank")},
        **{name: given[name] for name in _TENSORS},
    )
    routing = route(args["logits"], gate)
    has_unmapped, has_scores = args["unmapped_topk_idx"].numel(), args["scores"].numel()
    return {
        "topk_idx": routing.topk_idx,
        "topk_weights": routing.topk_weights,
        "unmapped_topk_idx": routing.unmapped_topk_idx if has_unmapped else args["unmapped_topk_idx"],
        "scores": routing.scores if has_scores else args["scores"],
    }


_TENSORS = (
    "mask",
    "bias",
    "image_bias",
    "image_token_mask",
    "fix_routing_mask",
    "force_random",
    "to_physical_map",
    "logical_count",
    "unmapped_topk_idx",
)


class _Samples:
    """Draws launches whose picks do not depend on a few units in the last place."""

    def __init__(self, scoring_func: str, generator: torch.Generator) -> None:
        self._scoring_func = scoring_func
        self._generator = generator

    def launch(
        self,
        num_tokens: int,
        num_experts: int,
        num_topk: int,
        *,
        num_shared: int = 0,
        bias: bool = False,
        image: bool = False,
        mask: bool = False,
        fixed: bool = False,
        random: bool = False,
        unmapped: bool = False,
        scores: bool = False,
        physical: int = 0,
        ties: bool = False,
        padding: int = 0,
        num_groups: int = 0,
        num_topk_groups: int = 0,
        ep_rank: int = 0,
        in_order: int = 0,
        tp: tuple[int, int, int] = (0, 1, 0),
    ) -> dict[str, object]:
        num_slots, num_all = num_topk + num_shared, num_experts + num_shared
        biases = torch.randint(-8, 9, (2, num_experts), generator=self._generator) / 8
        args: dict[str, Any] = {
            "bias": biases[0] if bias else torch.empty(0),
            "image_bias": biases[1] if image else torch.empty(0),
            "image_token_mask": self._flags(num_tokens, image),
            "mask": self._flags(num_tokens, mask),
            "fix_routing_mask": self._flags(num_tokens, fixed),
            "force_random": self._flags(num_tokens, random),
            **self._replicas(num_all, physical),
            "unmapped_topk_idx": self._fixed(num_tokens, num_topk, num_experts, fixed or unmapped),
            "scores": _poison(num_tokens, num_experts) if scores else torch.empty(0, 1),
            "topk_idx": torch.full((num_tokens, num_slots), 0x7F7F7F7F7F7F7F7F),
            "topk_weights": _poison(num_tokens, num_slots),
            "num_topk": num_topk,
            "num_groups": num_groups,
            "num_topk_groups": num_topk_groups,
            "ep_rank": ep_rank,
            **dict(zip(("experts_per_rank", "num_tp_ranks", "tp_rank"), tp, strict=True)),
            "in_order": in_order,
            "routed_scaling_factor": 2.5,
        }
        return {"logits": self._logits(num_tokens, num_experts, padding, ties, args), **args}

    def _logits(self, num_tokens: int, num_experts: int, padding: int, ties: bool, args: Any) -> torch.Tensor:
        """Logits of which no two that matter are almost alike; with `ties`, many are quite alike."""
        wide = torch.empty(num_tokens, num_experts + padding)
        pending = torch.ones(num_tokens, dtype=torch.bool)
        while pending.any():
            fresh = torch.randn(int(pending.sum()), num_experts + padding, generator=self._generator) * 4
            wide[pending] = fresh.round() if ties else fresh
            logits = wide[:, padding:]
            pending = self._too_close(logits, args)
        return wide[:, padding:]

    def _too_close(self, logits: torch.Tensor, args: Any) -> torch.Tensor:
        close = torch.zeros(logits.shape[0], dtype=torch.bool)
        for bias in (args["bias"], args["image_bias"]):
            gate = Gate(args["num_topk"], 0, 1.0, 0, self._scoring_func, bias=bias if bias.numel() else None)
            wide = rank_keys(logits.double(), score(logits.double(), self._scoring_func), gate)
            close |= _almost_equal(wide.sort(dim=1, descending=True).values[:, : 4 * gate.num_topk + 8])
            if num_groups := args["num_groups"]:
                best = wide.view(len(wide), num_groups, -1).sort(dim=2, descending=True).values[..., :2].sum(2)
                close |= _almost_equal(best.sort(dim=1, descending=True).values)
        return close

    def _flags(self, num_tokens: int, present: bool) -> torch.Tensor:
        return torch.rand(num_tokens if present else 0, generator=self._generator) < 0.6

    def _replicas(self, num_all: int, room: int) -> dict[str, torch.Tensor]:
        if not room:
            return {
                "to_physical_map": torch.empty(0, 1, dtype=torch.int32),
                "logical_count": torch.empty(0, dtype=torch.int32),
            }
        counts = torch.randint(1, room + 1, (num_all,), generator=self._generator, dtype=torch.int32)
        counts[:: math.ceil(num_all / 3)] = room + 1 if room > 1 else 0  # more than there is room for, or none
        physical = torch.randperm(num_all * room, generator=self._generator).to(torch.int32)
        return {"to_physical_map": physical.view(num_all, room), "logical_count": counts}

    def _fixed(self, num_tokens: int, num_topk: int, num_experts: int, present: bool) -> torch.Tensor:
        if not present:
            return torch.empty(0, 1, dtype=torch.int64)
        shape = (num_tokens, num_topk + 3)
        return torch.randint(-2, num_experts + 2, shape, generator=self._generator)[:, :num_topk]


def _poison(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"))


def _almost_equal(descending: torch.Tensor) -> torch.Tensor:
    """Rows in which neighbours differ by little, but by more than rounding in float64."""
    gaps = -descending.diff(dim=1)
    return ((gaps > 1e-14) & (gaps < _CLEAR * descending[:, 1:].abs().clamp(min=1e-3))).any(1)
