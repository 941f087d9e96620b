"""What the routing kernels agree on: how many experts and picks they take, and how calls are bucketed."""

from __future__ import annotations

from tkc.errors import SpecError

MAX_TOPK = 32
"""Most picks a token: one lane of a warp holds each."""

EXPERT_BUCKETS = (64, 128, 256, 384, 512, 1024)
"""Experts that a kernel has room for; a call takes the smallest that holds its own."""

MAX_EXPERTS = EXPERT_BUCKETS[-1]

MAX_GROUPS = 32
"""Most groups of experts: one lane of a warp has at most one of them."""

SCORING_FUNCS = ("sqrtsoftplus", "sigmoid", "softmax")
"""How logits become scores."""

REPLICA_STRIDE = 23333
"""Token t takes replica ``(ep_rank + t * REPLICA_STRIDE) mod count`` of an expert that has several."""

EXPERT_BUCKET_WHY = (
    "each lane of a warp loads max_experts / 32 scores in an unrolled loop, and their keys fill shared "
    "memory of that size; any number of experts up to it is served, so six values cover every model"
)

BUCKET_OF = tuple(next(b for b in EXPERT_BUCKETS if b >= n) for n in range(MAX_EXPERTS + 1))
"""``BUCKET_OF[num_experts]``, for call paths that cannot afford a search."""


def expert_bucket(num_experts: int) -> int:
    """The bucket that serves `num_experts`. Raises SpecError unless it is between 1 and `MAX_EXPERTS`."""
    if not 1 <= num_experts <= MAX_EXPERTS:
        raise SpecError(f"num_experts is {num_experts}; expected 1 to {MAX_EXPERTS}")
    return BUCKET_OF[num_experts]


def check_topk(num_topk: int, num_experts: int = MAX_TOPK) -> None:
    """Raise SpecError unless `num_topk` picks can be made among `num_experts`."""
    most = min(num_experts, MAX_TOPK)
    if not 1 <= num_topk <= most:
        raise SpecError(f"num_topk is {num_topk}; expected 1 to {most} (the experts there are, at most {MAX_TOPK})")
