"""``moe.inplace_unique_group_indices`` for CUDA: one index a lane, as many whole tokens a warp as fit.

The lanes of a warp compare their indices, tagged with the token, all at once.
"""

from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._selection import WARP
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_WARPS = 4


def build(specialization: Specialization, target: Target) -> Any:
    """Give the program for up to 32 indices a token."""
    pdl = has_pdl(target)
    num_tokens, num_topk = T.dynamic("num_tokens"), T.dynamic("num_topk")
    indices_stride = T.dynamic("indices_stride", "int64")

    @T.prim_func
    def inplace_unique_group_indices(
        group_indices: T.StridedTensor[(num_tokens, num_topk), (indices_stride, 1), "int64"],
        num_groups: T.int32,
    ):
        with T.Kernel(T.ceildiv(num_tokens, _WARPS * (WARP // num_topk)), threads=_WARPS * WARP) as block:
            thread = T.get_thread_binding()
            lane, per_warp, row, column, token = (T.alloc_var("int32") for _ in range(5))
            lane = thread % WARP
            per_warp = T.truncdiv(WARP, num_topk)
            row = T.truncdiv(lane, num_topk)
            column = lane - row * num_topk
            token = (block * _WARPS + thread // WARP) * per_warp + row
            if pdl:
                T.pdl_sync()
            tagged = T.alloc_var("int32")
            tagged = -1 - lane  # what no other lane has
            if row < per_warp and token < num_tokens:
                given = T.alloc_var("int64")
                given = group_indices[token, column]
                if given >= T.int64(0) and given < T.cast(num_groups, "int64"):
                    tagged = T.cast(given, "int32") * WARP + row
            first = T.alloc_var("int32")
            first = T.__ffs(T.cast(T.match_any_sync(tagged), "int32")) - 1
            if first != lane:
                group_indices[token, column] = T.int64(-1)
            if pdl:
                T.pdl_trigger()

    return inplace_unique_group_indices
