"""A job that misses, the log of it on two nodes, and a second run that misses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_JOB = """
import torch
from kernel_specs.moe import normalize_weight, topk_gate

normalize_weight(torch.rand(3, 8))
topk_gate(torch.rand(3, 64), 2)
"""


def _run(*command: object, **env: object) -> subprocess.CompletedProcess[str]:
    full = {**os.environ, **{name: str(value) for name, value in env.items()}}
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, env=full)


@pytest.mark.level1
def test_what_a_job_missed_on_two_nodes_is_built_and_a_second_run_misses_nothing(tmp_path: Path) -> None:
    nodes = [tmp_path / "node-a", tmp_path / "node-b"]
    for node in nodes:
        assert _run("-c", _JOB, TKC_CACHE_DIR=node, TKC_ON_MISS="reference").returncode == 0
    told = json.loads(_run("-m", "tkc", "misses", *nodes, "--json").stdout)
    assert {(one["spec"], one["count"]) for one in told["misses"]} == {
        ("moe.normalize_weight", 2),
        ("moe.topk_gate", 2),
    }
    assert all(one["where"] and one["reasons"] for one in told["misses"])

    merged, built = tmp_path / "all.jsonl", tmp_path / "built"
    assert _run("-m", "tkc", "misses", *nodes, "--output", merged).returncode == 0
    done = _run("-m", "tkc", "build", "--from-misses", merged, TKC_CACHE_DIR=built)
    assert done.returncode == 0, done.stderr
    assert _run("-c", _JOB, TKC_CACHE_DIR=built, TKC_ON_MISS="error").returncode == 0
    again = _run("-m", "tkc", "misses", TKC_CACHE_DIR=built)
    assert (again.stdout, "0 artifacts missed" in again.stderr) == ("", True)


def test_the_list_says_what_where_how_often_and_what_it_cost(tmp_path: Path) -> None:
    log = tmp_path / "misses.jsonl"
    entry = {"spec": "moe.topk_gate", "specialization": {"max_experts": 256}, "target": "sm90", "host": "x86_64"}
    lines = [
        {"schema": "tkc.miss/1", "time_s": 1000 + at, "entry": {**entry, "machine": f"n{at}", "device": "H200", **cost}}
        for at, cost in enumerate([{"cost_s": 7}] * 5)
    ]
    log.write_text("\n".join([*map(json.dumps, lines), "torn {"]) + "\n")
    done = _run("-m", "tkc", "misses", log)
    first, where, *_ = done.stdout.splitlines()
    assert first.split()[:4] == ["5", "times", "35", "s"]
    assert "tkc build moe.topk_gate max_experts=256 --target sm90 --host x86_64" in first
    assert where.strip() == "on n0 (H200), n1 (H200), n2 (H200) and 2 more"
    assert "1 artifacts missed, 5 times, 35 s waited; 1 lines could not be read" in done.stderr


def test_a_merged_log_never_replaces_a_file(tmp_path: Path) -> None:
    log = tmp_path / "misses.jsonl"
    log.write_text("")
    done = _run("-m", "tkc", "misses", log, "--output", log)
    assert done.returncode == 1
    assert "is there already" in done.stderr
