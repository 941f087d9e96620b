"""Published model configurations, with their real dimensions: what `--model` derives, and that it is covered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tkc.coverage import cover
from tkc.grids import load_grid, load_model
from tkc.model import Host, ModelDims, Target
from tkc.registry import load_catalog

MODELS = {path.stem: path for path in sorted((Path(__file__).parent / "models").glob("*.json"))}


def dims(name: str) -> ModelDims:
    return load_model(MODELS[name])


def test_the_configuration_of_deepseek_v3_gives_the_grid_of_that_name() -> None:
    (grid,) = load_grid("deepseek-v3")
    assert replace(dims("deepseek-v3"), name=grid.name) == grid


def test_newer_ones_scale_by_powers_of_two() -> None:
    assert dims("deepseek-v3.2").quant == ("e4m3:128:ue8m0",)
    v4 = dims("deepseek-v4-style")
    assert v4.quant == ("e4m3:128:ue8m0", "e2m1:32:ue8m0")
    assert (v4.hyper_connections, v4.scoring_funcs, v4.num_groups) == (4, ("sqrtsoftplus",), 0)


@pytest.mark.parametrize(
    ("name", "experts", "topk", "scoring", "rope", "quant"),
    [
        ("qwen3-235b-a22b", 128, 8, "softmax", 128, ()),
        ("kimi-k2", 384, 8, "sigmoid", 64, ("e4m3:128:float32",)),
        ("glm-4.5", 160, 8, "sigmoid", 64, ()),
        ("gpt-oss-120b", 128, 4, "softmax", 64, ("e2m1:32:ue8m0",)),
    ],
)
def test_what_each_model_needs_is_read_from_its_configuration(
    name: str, experts: int, topk: int, scoring: str, rope: int, quant: tuple[str, ...]
) -> None:
    found = dims(name)
    assert (found.num_experts, found.num_topk, found.scoring_funcs) == (experts, topk, (scoring,))
    assert (found.rope_dims, found.quant) == ((rope,), quant)
    assert found.dtypes == ("bfloat16", "float32")


def test_engram_layers_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hidden_size": 256, "engram_layer_ids": [1, 14]}))
    assert load_model(path).engram
    path.write_text(json.dumps({"text_config": {"hidden_size": 256, "engram_layer_ids": []}}))
    assert not load_model(path).engram


@pytest.mark.parametrize("name", MODELS)
def test_a_model_needs_a_few_hundred_artifacts_at_most(name: str) -> None:
    assert 20 <= sum(len(entry.spec.specializations([dims(name)])) for entry in load_catalog()) <= 400


@pytest.mark.level1
@pytest.mark.parametrize("name", ["qwen3-235b-a22b", "glm-4.5", "gpt-oss-120b", "deepseek-v4-style"])
def test_no_legal_call_of_a_published_model_misses(name: str) -> None:
    found = cover([dims(name)], Target.parse("sm90"), Host.parse("x86_64"))
    assert [str(hole) for hole in found.holes] == []


def test_the_page_on_grids_names_every_model_and_grid_and_no_kernel_that_is_not_there() -> None:
    import re

    from tkc.grids import grid_names

    page = (Path(__file__).parents[1] / "docs" / "grids.md").read_text()
    assert [name for name in (*MODELS, *grid_names()) if name not in page] == []
    listed = set(re.findall(r"^\| `(\w+\.\w+)`", page, re.MULTILINE))
    assert listed
    assert listed <= {entry.spec.name for entry in load_catalog()}
