"""Grids: named sets of model dimensions, and dimensions read from a model's published configuration.

A grid is a JSON file in this folder: a list of objects with the fields of `ModelDims`. A grid may
name others to include: ``{"include": ["deepseek-v3"]}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tkc.errors import TkcError, unknown_name
from tkc.model import ModelDims

_FOLDER = Path(__file__).parent


def grid_names() -> tuple[str, ...]:
    """The named grids."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load_grid(name: str) -> tuple[ModelDims, ...]:
    """The model dimensions of the grid called `name`. Raises TkcError, with the nearest name, if there is none."""
    if name not in grid_names():
        raise TkcError(unknown_name("grid", name, grid_names(), hint="Or derive one: --model config.json."))
    found: dict[ModelDims, None] = {}
    for entry in json.loads((_FOLDER / f"{name}.json").read_text()):
        if "include" in entry:
            found |= dict.fromkeys(dims for included in entry["include"] for dims in load_grid(included))
        else:
            found[_dims(entry)] = None
    return tuple(found)


def load_model(path: Path) -> ModelDims:
    """Derive dimensions from a model's published configuration file (the ``config.json`` beside its weights).

    Raises TkcError if the file cannot be read, is not a JSON object, or lacks ``hidden_size``.
    """
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TkcError(f"cannot read the model configuration {path}: {error}") from error
    if not isinstance(config, dict):
        raise TkcError(f"{path} holds a {type(config).__name__}; expected a JSON object as published with a model")
    config = config.get("text_config", config)
    if type(config.get("hidden_size")) is not int:
        raise TkcError(f"{path} has no integer 'hidden_size'; is it a model's config.json?")
    return _from_config(config, path.stem)


def _dims(entry: Mapping[str, Any]) -> ModelDims:
    known = {field.name for field in fields(ModelDims)}
    if unknown := set(entry) - known:
        raise TkcError(unknown_name("field of a grid entry", min(unknown), known))
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    return ModelDims(**values)


def _from_config(config: Mapping[str, Any], fallback_name: str) -> ModelDims:
    def first(*names: str, default: int = 0) -> int:
        return next((config[name] for name in names if isinstance(config.get(name), int)), default)

    heads, rope = first("num_attention_heads"), first("qk_rope_head_dim")
    head_dim = first("head_dim", "v_head_dim") or (config["hidden_size"] // heads if heads else 0)
    rotated = rope or int(head_dim * float(config.get("partial_rotary_factor") or 1))
    widths = (
        first("moe_intermediate_size"),
        first("shared_expert_intermediate_size"),
        first("intermediate_size"),
    )
    latent = first("kv_lora_rank")
    attention = (first("q_lora_rank"), latent, latent and latent + rope, first("o_lora_rank"), heads * head_dim)
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    return ModelDims(
        name=str(config.get("model_type", fallback_name)),
        hidden=config["hidden_size"],
        intermediate=tuple(sorted({width for width in widths if width})),
        num_experts=first("n_routed_experts", "num_experts", "num_local_experts"),
        num_topk=first("num_experts_per_tok", "experts_per_token", "moe_topk"),
        num_groups=first("n_group") if first("n_group") > 1 else 0,
        num_topk_groups=first("topk_group") if first("n_group") > 1 else 0,
        num_shared_experts=first("n_shared_experts", "num_shared_experts"),
        scoring_funcs=(
            str(config.get("scoring_func") or _SCORING_FUNCS.get(str(config.get("model_type")), "softmax")),
        ),
        rope_dims=(rotated,) if rotated else (),
        attention_dims=tuple(sorted({width for width in attention if width})),
        hyper_connections=first("hc_mult", "mhc_mult"),
        engram=bool(config.get("engram") or config.get("engram_layer_ids")),
        quant=_quant_recipes(config),
        # Gradients, router scores and what is accumulated are float32 in every model.
        dtypes=tuple(dict.fromkeys((dtype, "float32"))),
    )


def _quant_recipes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The recipe of the weights, and that of the experts if it is another."""
    quantization = config.get("quantization_config") or {}
    method = str(quantization.get("quant_method", ""))
    if method == "mxfp4":
        return (_MXFP4,)
    block = quantization.get("weight_block_size")
    if method != "fp8" or not isinstance(block, list) or not block:
        return ()
    scale = "ue8m0" if quantization.get("scale_fmt") == "ue8m0" else "float32"
    recipe = f"e4m3:{block[-1]}:{scale}"
    return (recipe, _MXFP4) if config.get("expert_dtype") == "fp4" else (recipe,)


_MXFP4 = "e2m1:32:ue8m0"
_SCORING_FUNCS = {"glm4_moe": "sigmoid"}
"""Of architectures whose configuration leaves them to the code."""
