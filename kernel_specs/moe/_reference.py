"""What the references of the gates share: scores, groups, picks, weights, replicas, random experts. torch only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernel_specs.moe.topk_gate.reference import stable_topk

_EPSILON = 1e-20
_REPLICA_STRIDE = 23333
_HALVES = (16, 8, 4, 2, 1)
_WARP = 32


@dataclass(frozen=True)
class Gate:
    """What a call of a gate asks for; tensors as in `moe_topk_gate_forward`, None for what is left out."""

    num_topk: int
    num_shared: int
    scale: float
    ep_rank: int
    scoring_func: str
    num_groups: int = 0
    num_topk_groups: int = 0
    in_order: bool = False
    experts_per_rank: int = 0
    num_tp_ranks: int = 1
    tp_rank: int = 0
    mask: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    image_bias: torch.Tensor | None = None
    image_token_mask: torch.Tensor | None = None
    fix_routing_mask: torch.Tensor | None = None
    force_random: torch.Tensor | None = None
    to_physical_map: torch.Tensor | None = None
    logical_count: torch.Tensor | None = None
    unmapped_topk_idx: torch.Tensor | None = None


@dataclass(frozen=True)
class Routing:
    """Results of a gate: physical experts and weights of all slots, logical picks, scores of all experts."""

    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    unmapped_topk_idx: torch.Tensor
    scores: torch.Tensor


def route(logits: torch.Tensor, gate: Gate) -> Routing:
    """Route every token of ``logits``, ``[num_tokens, num_experts]``, as `gate` says."""
    num_tokens, num_experts = logits.shape
    nobody = torch.zeros(num_tokens, dtype=torch.bool)
    routed = ~nobody if gate.mask is None else gate.mask
    random = routed & (nobody if gate.force_random is None else gate.force_random)
    scores = score(logits, gate.scoring_func)
    picked = _fixed(pick(rank_keys(logits, scores, gate), gate), gate, num_experts)
    weights = _weigh(scores, picked, gate)
    shared = torch.arange(num_experts, num_experts + gate.num_shared).expand(num_tokens, -1)
    slots = _to_tp_rank(_to_physical(torch.cat([picked, shared], 1), gate), gate)
    weights = torch.cat([weights, torch.ones(num_tokens, gate.num_shared)], 1)
    by_scores = (routed & ~random)[:, None]
    slots, weights = slots.masked_fill(~by_scores, -1), weights.masked_fill(~by_scores, 0)
    for token in random.nonzero().flatten().tolist():
        slots[token], weights[token] = _draw(token, num_experts, gate)
    return Routing(slots, weights, picked.masked_fill(~by_scores, -1), scores.masked_fill(~by_scores, 0))


def score(logits: torch.Tensor, scoring_func: str) -> torch.Tensor:
    """Scores of all experts, in float32."""
    if scoring_func == "sigmoid":
        return 1 / (1 + torch.exp(-logits))
    if scoring_func == "softmax":
        exponentials = torch.exp(logits - logits.amax(1, keepdim=True)) if logits.numel() else logits
        return exponentials / exponentials.sum(1, keepdim=True)
    return torch.where(logits > 20, logits, torch.log1p(torch.exp(logits))).sqrt()


def rank_keys(logits: torch.Tensor, scores: torch.Tensor, gate: Gate) -> torch.Tensor:
    """What experts are ranked by: scores, for softmax logits, plus the bias of the token's kind."""
    keys = logits if gate.scoring_func == "softmax" else scores
    biased = keys if gate.bias is None else keys + gate.bias
    if gate.image_token_mask is None or gate.image_bias is None:
        return biased
    return torch.where(gate.image_token_mask[:, None], keys + gate.image_bias, biased)


def pick(keys: torch.Tensor, gate: Gate) -> torch.Tensor:
    """The best experts by `keys`, of the best groups."""
    if not gate.num_groups:
        return stable_topk(keys, gate.num_topk)
    num_tokens, num_experts = keys.shape
    grouped = keys.masked_fill(keys.isnan(), -torch.inf).view(
        num_tokens, gate.num_groups, num_experts // gate.num_groups
    )
    values = grouped.sort(dim=2, descending=True).values[..., :2].sum(2)
    chosen = torch.zeros(num_tokens, gate.num_groups, dtype=torch.bool)
    chosen.scatter_(1, stable_topk(values, gate.num_topk_groups), True)
    candidates = chosen.repeat_interleave(num_experts // gate.num_groups, 1)
    order = stable_topk(keys, num_experts)
    first = order.gather(1, (~candidates.gather(1, order)).long().sort(dim=1, stable=True).indices)
    return first[:, : gate.num_topk].contiguous()


def _fixed(picked: torch.Tensor, gate: Gate, num_experts: int) -> torch.Tensor:
    if gate.fix_routing_mask is None or gate.unmapped_topk_idx is None:
        return picked
    given = gate.unmapped_topk_idx
    legal = (given >= 0) & (given < num_experts)
    return torch.where(gate.fix_routing_mask[:, None], given.masked_fill(~legal, -1), picked)


def _weigh(scores: torch.Tensor, picked: torch.Tensor, gate: Gate) -> torch.Tensor:
    values = scores.gather(1, picked.clamp(min=0)).masked_fill(picked < 0, 0)
    if gate.in_order:
        total = torch.full(values.shape[:1], _EPSILON)
        for column in values.unbind(1):
            total = total + column
    else:
        lanes = torch.zeros(values.shape[0], _WARP)
        lanes[:, : values.shape[1]] = values
        for half in _HALVES:
            lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        total = lanes[:, 0] + _EPSILON
    return values / total[:, None] * torch.tensor(gate.scale)


def _to_physical(logical: torch.Tensor, gate: Gate) -> torch.Tensor:
    if gate.to_physical_map is None or gate.logical_count is None:
        return logical
    tokens = torch.arange(logical.shape[0])[:, None]
    counts = gate.logical_count.long()[logical.clamp(min=0)]
    replicas = (gate.ep_rank + tokens * _REPLICA_STRIDE) % counts.clamp(min=1)
    legal = (logical >= 0) & (counts > 0) & (replicas < gate.to_physical_map.shape[1])
    found = gate.to_physical_map.long()[logical.clamp(min=0), replicas.masked_fill(~legal, 0)]
    return found.masked_fill(~legal, -1)


def _to_tp_rank(experts: torch.Tensor, gate: Gate) -> torch.Tensor:
    """Keep the experts of ranks with this tp rank, and number them without the others."""
    if not gate.experts_per_rank:
        return experts
    here = (experts >= 0) & (experts // gate.experts_per_rank % gate.num_tp_ranks == gate.tp_rank)
    moved = experts - gate.tp_rank * gate.experts_per_rank
    rows = moved // (gate.experts_per_rank * gate.num_tp_ranks)
    return (moved - rows * gate.experts_per_rank * (gate.num_tp_ranks - 1)).masked_fill(~here, -1)


def _draw(token: int, num_experts: int, gate: Gate) -> tuple[torch.Tensor, torch.Tensor]:
    """Random experts of a token, no two alike, and random weights."""
    num_slots = gate.num_topk + gate.num_shared
    population = num_experts + gate.num_shared
    if gate.logical_count is not None:
        population = int(gate.logical_count.clamp(min=0).sum())
    draws = [philox(gate.ep_rank, token * _WARP + lane) for lane in range(num_slots)]
    candidates = [words[1] % max(population - lane, 1) for lane, words in enumerate(draws)]
    experts, weights = torch.full((num_slots,), -1), torch.zeros(num_slots)
    pending = list(range(min(num_slots, population)))
    while pending:
        owner = min(pending, key=lambda lane: (candidates[lane], lane))
        pending.remove(owner)
        experts[owner] = candidates[owner]
        weights[owner] = torch.tensor(float(draws[owner][0])) * 2.0**-32 + 2.0**-33
        for lane in pending:
            candidates[lane] += lane > owner
    return experts, weights


def philox(seed: int, sequence: int) -> tuple[int, int, int, int]:
    """The first four draws of cuRAND's Philox4x32-10 generator."""
    low = 0xFFFFFFFF
    x, y, z, w = 0, 0, sequence & low, sequence >> 32 & low
    key0, key1 = seed & low, seed >> 32 & low
    for _ in range(10):
        first, second = 0xD2511F53 * x, 0xCD9E8D57 * z
        x, y, z, w = second >> 32 ^ y ^ key0, second & low, first >> 32 ^ w ^ key1, first & low
        key0, key1 = (key0 + 0x9E3779B9) & low, (key1 + 0xBB67AE85) & low
    return x, y, z, w
