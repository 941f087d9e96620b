"""``moe.topk_gate`` for CUDA: one warp a token."""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._selection import WARP, Chunks, load_row, pick
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {
    # Warps share nothing; each orders its own accesses to shared memory with sync_warp.
    "tl.disable_thread_storage_sync": True,
    # Every index below is in range as written.
    "tl.disable_safe_memory_legalize": True,
}


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        warps: of a block, each with a token of its own.
    """

    warps: int = 4


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program for up to ``max_experts`` experts."""
    chunks = Chunks(specialization.int("max_experts"))
    warps = config.warps
    pdl = has_pdl(target)
    num_tokens, num_experts = T.dynamic("num_tokens"), T.dynamic("num_experts")
    num_topk, scores_stride = T.dynamic("num_topk"), T.dynamic("scores_stride", "int64")

    @T.prim_func
    def topk_gate(
        scores: T.StridedTensor[(num_tokens, num_experts), (scores_stride, 1), "float32"],
        topk_idx: T.Tensor[(num_tokens, num_topk), "int64"],
    ):
        with T.Kernel(T.ceildiv(num_tokens, warps), threads=warps * WARP) as block:
            thread = T.get_thread_binding()
            warp, lane = thread // WARP, thread % WARP
            keys = T.alloc_shared((warps, chunks.words), "int32")
            # Warps past the end repeat the last token, so that none diverges.
            token = T.alloc_var("int32")
            token = T.min(block * warps + warp, num_tokens - 1)
            if pdl:
                T.pdl_sync()
            load_row(scores, token, num_experts, chunks, keys, warp, lane)
            T.sync_warp()
            picked = pick(chunks, keys, warp, lane, num_topk)
            if lane < num_topk:
                topk_idx[token, lane] = T.cast(picked, "int64")
            if pdl:
                T.pdl_trigger()

    return topk_gate
