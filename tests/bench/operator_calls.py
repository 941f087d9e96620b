"""The calls that ours and the peer have in common: one for each artifact of grid deepseek-v3 that the peer has too.

Both libraries have one Python interface, so a call is a function of the library. The peer rounds by chance on sm_100
only, and its gate knows one scoring function, which the caller names.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import torch

TOKENS, HIDDEN, EXPERTS, TOPK = 128, 7168, 256, 8
_E4M3 = torch.float8_e4m3fn

Call = Callable[[Any], Any]
"""Takes the library, gives what the operator gave."""


def calls(device: torch.device, *, scoring_func: str) -> dict[str, Call]:
    """Every call by name, with its inputs made; the same inputs on every run of one device."""
    torch.manual_seed(0)
    return {**_moe(device, scoring_func), **_casts(device), **_casts_in_blocks(device), **_rotary(device)}


def digest(output: Any) -> str:
    """A digest over the bytes of what a call gave, to compare those of two libraries."""
    found = hashlib.sha256()
    for tensor in output if isinstance(output, tuple | list) else (output,):
        if isinstance(tensor, torch.Tensor):
            found.update(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def _moe(device: torch.device, scoring_func: str) -> dict[str, Call]:
    scores = torch.rand(TOKENS, EXPERTS, device=device) + 0.1
    weights, grads = (torch.rand(TOKENS, TOPK, device=device) for _ in range(2))
    picks = torch.rand(TOKENS, EXPERTS, device=device).topk(TOPK).indices
    return {
        "moe.topk_gate": lambda library: library.moe.topk_gate(scores, TOPK),
        "moe.normalize_weight": lambda library: library.moe.normalize_weight(weights),
        "moe.moe_topk_gate_forward": lambda library: library.moe.moe_topk_gate_forward(
            scores, TOPK, False, 0, 2.5, 0, scoring_func
        ),
        "moe.moe_topk_gate_backward": lambda library: library.moe.moe_topk_gate_backward(
            scores, picks, weights, grads, 2.5, scoring_func
        ),
    }


def _casts(device: torch.device) -> dict[str, Call]:
    x = torch.randn(TOKENS, HIDDEN, device=device)
    inputs = {dtype: x.to(dtype) for dtype in (torch.float32, torch.bfloat16, _E4M3)}
    return {
        f"quant.cast {_word(source)} to {_word(to)}": lambda library, source=source, to=to: library.quant.cast(
            inputs[source], to
        )
        for source, to in itertools.permutations(inputs, 2)
    }


def _casts_in_blocks(device: torch.device) -> dict[str, Call]:
    found: dict[str, Call] = {}
    for dtype in (torch.bfloat16, torch.float32):
        x, sf = torch.randn(TOKENS, HIDDEN, device=device).to(dtype), _factors(device)
        found |= {
            f"quant.per_token_cast {_word(dtype)}": lambda library, x=x: library.quant.per_token_cast(x, "e4m3", 128),
            f"quant.per_token_cast_with_sf_only {_word(dtype)}": lambda library, x=x: (
                library.quant.per_token_cast_with_sf_only(x, "e4m3", 128)
            ),
            f"quant.per_token_cast_with_precomputed_sf {_word(dtype)}": lambda library, x=x, sf=sf: (
                library.quant.per_token_cast_with_precomputed_sf(x, "e4m3", 128, sf)
            ),
        }
    scaled = torch.randn(TOKENS, HIDDEN, device=device).to(_E4M3), _factors(device)
    found["quant.per_token_cast of e4m3"] = lambda library: library.quant.per_token_cast(scaled, "e4m3", 128, (1, 128))
    return found


def _factors(device: torch.device) -> torch.Tensor:
    return torch.rand(TOKENS, HIDDEN // 128, device=device) + 0.1


def _rotary(device: torch.device) -> dict[str, Call]:
    angles = torch.rand(TOKENS, 32, device=device) * 6.28
    cache = torch.cat((angles.cos(), angles.sin()), dim=1)
    found: dict[str, Call] = {}
    for dtype, interleaved, index in itertools.product(
        (torch.bfloat16, torch.float32), (False, True), (None, torch.int32, torch.int64)
    ):
        query = torch.randn(TOKENS, 128, 192, device=device).to(dtype)[..., 128:]
        positions = None if index is None else torch.randperm(TOKENS, device=device).to(index)

        def call(library: Any, query: Any = query, positions: Any = positions, interleaved: bool = interleaved) -> Any:
            library.transform.apply_rotary(query, cache, positions=positions, interleaved=interleaved)
            return query

        found[f"transform.apply_rotary {_word(dtype)} interleaved={interleaved} positions={_word(index)}"] = call
    return found


def _word(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
