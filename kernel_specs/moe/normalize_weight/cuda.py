"""``moe.normalize_weight`` for CUDA: a group of lanes a token, one weight a lane."""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from kernel_specs._cuda import has_pdl
from kernel_specs.moe._weights import EPSILON, HALVES
from tkc.model import Specialization, Target

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


@dataclass(frozen=True)
class Config:
    """Tuning choices.

    Attributes:
        threads: of a block, a multiple of 32.
    """

    threads: int = 128


DEFAULT = Config()


def build(specialization: Specialization, target: Target, config: Config = DEFAULT) -> Any:
    """Give the program, which serves any number of weights up to 32.

    A token's lanes are the smallest power of two that holds its weights. Lanes without a weight add zeros,
    which changes no bit of the denominator: x + 0 is x, and 1e-20 - 0 is 1e-20.
    """
    threads = config.threads
    pdl = has_pdl(target)
    num_tokens, num_topk = T.dynamic("num_tokens"), T.dynamic("num_topk")
    weights_stride = T.dynamic("weights_stride", "int64")
    group_bits = sum(T.cast(num_topk > half, "int32") for half in HALVES)

    @T.prim_func
    def normalize_weight(
        topk_weights: T.StridedTensor[(num_tokens, num_topk), (weights_stride, 1), "float32"],
        denominator: T.Tensor[(num_tokens,), "float32"],
        normalized_weights: T.Tensor[(num_tokens, num_topk), "float32"],
    ):
        with T.Kernel(T.ceildiv(num_tokens, threads >> group_bits), threads=threads) as block:
            thread = T.get_thread_binding()
            bits = T.alloc_var("int32")
            bits = group_bits
            token = T.alloc_var("int32")
            token = block * (threads >> bits) + (thread >> bits)
            lane = T.alloc_var("int32")
            lane = thread & ((1 << bits) - 1)
            weight = T.alloc_var("float32")
            weight = 0
            total = T.alloc_var("float32")
            if pdl:
                T.pdl_sync()
            if token < num_tokens and lane < num_topk:
                weight = topk_weights[token, lane]
            total = weight
            for half in HALVES:
                if half < num_topk:
                    total += T.shfl_xor(total, half)
            total = T.float32(EPSILON) + total
            if token < num_tokens and lane < num_topk:
                normalized_weights[token, lane] = weight / total
                if lane == 0:
                    denominator[token] = total
            if pdl:
                T.pdl_trigger()

    return normalize_weight
