"""``moe.topk_sum_and_topk_group_idx`` for CUDA: one warp a token."""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._groups import lane_bits, rank_of_group
from kernel_specs.moe._selection import WARP, Chunks, load_row
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {
    # Warps share nothing; each orders its own accesses to shared memory with sync_warp.
    "tl.disable_thread_storage_sync": True,
    # Every index below is in range as written.
    "tl.disable_safe_memory_legalize": True,
}

_WARPS = 4


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program for up to ``max_experts`` experts."""
    chunks, pdl = Chunks(specialization.int("max_experts")), has_pdl(target)
    num_tokens, num_groups, group_size = T.dynamic("num_tokens"), T.dynamic("num_groups"), T.dynamic("group_size")
    num_topk_groups = T.dynamic("num_topk_groups")

    @T.prim_func
    def topk_sum_and_topk_group_idx(
        scores: T.Tensor[(num_tokens, num_groups, group_size), "float32"],
        group_idx: T.Tensor[(num_tokens, num_topk_groups), "int64"],
        num_topk_sum: T.int32,
    ):
        with T.Kernel(T.ceildiv(num_tokens, _WARPS), threads=_WARPS * WARP) as block:
            thread = T.get_thread_binding()
            warp, lane = thread // WARP, thread % WARP
            keys = T.alloc_shared((_WARPS, chunks.words), "int32")
            # Warps past the end repeat the last token, so that none diverges.
            token, place, bits = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            token = T.min(block * _WARPS + warp, num_tokens - 1)
            if pdl:
                T.pdl_sync()
            rows = T.view(scores, (num_tokens, num_groups * group_size))
            load_row(rows, token, num_groups * group_size, chunks, keys, warp, lane)
            T.sync_warp()
            place = rank_of_group(chunks, keys, warp, lane, num_groups * group_size, num_groups, num_topk_sum - 1)
            bits = lane_bits(num_groups)
            if lane & ((1 << bits) - 1) == 0 and lane >> bits < num_groups and place < num_topk_groups:
                group_idx[token, place] = T.cast(lane >> bits, "int64")
            if pdl:
                T.pdl_trigger()

    return topk_sum_and_topk_group_idx
