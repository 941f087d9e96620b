"""How logits become scores, for kernels; the device's own float32 functions, in the order written here."""

from typing import Any

import tilelang.language as T

LINEAR_ABOVE = 20.0
"""Where ``log(1 + exp(x))`` is x in float32."""


@T.macro
def score(logit: Any, scoring: str, sums: Any) -> Any:
    """The score of one expert. `sums` matters to softmax alone: see `softmax_sums`."""
    result = T.alloc_var("float32")
    if scoring == "sqrtsoftplus":
        result = T.sqrt(T.if_then_else(logit > T.float32(LINEAR_ABOVE), logit, T.log1p(T.exp(logit))))
    elif scoring == "sigmoid":
        result = T.float32(1) / (T.float32(1) + T.exp(-logit))
    else:
        result = T.exp(logit - sums[0]) / sums[1]
    return result


@T.macro
def softmax_sums(row: Any, size: int, sums: Any) -> None:
    """Put a token's largest logit, and the sum of the exponentials of all relative to it, into `sums`.

    A warp's lanes hold `size` logits each in `row`, minus infinity where there is none.
    """
    sums[0] = row[0]
    for i in T.unroll(1, size):
        sums[0] = T.max(sums[0], row[i])
    sums[0] = T.warp_reduce_max(sums[0])
    sums[1] = 0
    for i in T.unroll(size):
        sums[1] += T.exp(row[i] - sums[0])
    sums[1] = T.warp_reduce_sum(sums[1])
