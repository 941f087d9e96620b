"""The command as a user meets it: real processes, a store of their own, the real catalogue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ONE = ("moe.normalize_weight", "--target", "cpu", "--grid", "smoke")


def tkc(*arguments: str, store: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tkc", *arguments],
        env={**os.environ, "TKC_CACHE_DIR": str(store), **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one kernel for the CPU."""
    store = tmp_path_factory.mktemp("built") / "store"
    done = tkc("build", *ONE, store=store)
    assert done.returncode == 0, done.stderr
    assert "1 built, 0 failed" in done.stderr
    return store


def _json(*arguments: str, store: Path) -> Any:
    done = tkc(*arguments, "--json", store=store)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("build", "moe.topk_gat", "--target", "cpu"), 1, "Did you mean 'moe.topk_gate'"),
        (("build", "--target", "sm9O"), 2, "Did you mean 'sm90'"),
        (("build", "--target", "cpu", "--host", "x86"), 2, "Did you mean 'x86_64'"),
        (("build", "--target", "cpu", "--grid", "deepseek-v33"), 1, "Did you mean 'deepseek-v3'"),
        (("build", "moe.topk_gate", "num_expert=256", "num_topk=8", "--target", "cpu"), 1, "'num_experts'"),
        (("build", "moe.topk_gate", "num_experts=256", "--target", "cpu"), 1, "'num_topk' is missing"),
        (("build", "moe.topk_gate", "num_experts=8", "num_topk=9", "--target", "cpu"), 1, "num_topk"),
        (("build", "moe.topk_gate", "--target", "ascend950"), 1, "no variant for backend 'ascend'"),
        (("build", "moe", "num_experts=8", "--target", "cpu"), 2, "exactly one SPEC"),
        (("biuld",), 2, "Did you mean 'build'"),
        (("show", "quant.csat"), 1, "Did you mean 'quant.cast'"),
        (("check", "quant.csat"), 1, "Did you mean 'quant.cast'"),
    ],
)
def test_what_is_unknown_is_named_with_the_nearest(
    arguments: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    done = tkc(*arguments, store=tmp_path / "store")
    assert done.returncode == status, done.stderr
    assert said in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists(), "bad input wrote something"


def test_model_configuration_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1, 2]")
    done = tkc("build", "--target", "cpu", "--model", str(tmp_path / "config.json"), store=tmp_path / "store")
    assert done.returncode == 1 and "expected a JSON object" in done.stderr


def test_unset_home_says_what_to_set(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in {"HOME", "XDG_CACHE_HOME", "TKC_CACHE_DIR"}}
    command = [sys.executable, "-m", "tkc", "build", *ONE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "TKC_CACHE_DIR" in done.stderr


def test_nothing_to_do_is_a_hit_and_imports_no_tilelang(built: Path) -> None:
    code = (
        "import sys\nfrom tkc.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n    status = end.code\n"
        "assert not {'torch', 'tilelang', 'tvm'} & set(sys.modules)\nsys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "build", *ONE],
        env={**os.environ, "TKC_CACHE_DIR": str(built)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 hit, 0 built, 0 failed" in done.stderr


def test_dry_run_says_what_would_be_compiled_and_writes_nothing(tmp_path: Path) -> None:
    (row,) = _json("build", *ONE, "--dry-run", store=tmp_path / "store")["plan"]
    assert row["state"] == "missing"
    assert not list((tmp_path / "store").glob("actions-*"))


def test_explain_exits_0_on_a_hit_and_names_the_layer(built: Path) -> None:
    done = tkc("explain", "moe.normalize_weight", "--target", "cpu", store=built)
    assert done.returncode == 0 and f"hit in {built}" in done.stdout


def test_explain_exits_1_on_a_miss_with_a_field_by_field_diff(built: Path) -> None:
    done = tkc("explain", "moe.normalize_weight", "--target", "sm90", "--json", store=built)
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["hit"]
    (near,) = found["nearest"]
    assert {one["field"] for one in near["diff"]} == {"source", "target"}
    text = tkc("explain", "moe.normalize_weight", "--target", "sm90", store=built).stdout
    assert "to build it: tkc build moe.normalize_weight --target sm90" in text


def test_show_prints_the_contract_and_what_was_built(built: Path) -> None:
    done = tkc("show", "moe.normalize_weight", "--grid", "smoke", store=built)
    assert done.returncode == 0
    assert (
        "at launch" in done.stdout and "topk_weights" in done.stdout and "cpu" in done.stdout.split("in the store:")[1]
    )


def test_list_names_every_kernel_with_its_backends(built: Path) -> None:
    listed = {entry["spec"]: entry["backends"] for entry in _json("list", store=built)}
    assert {"moe.topk_gate", "quant.cast", "transpose.batched_transpose"} <= set(listed)
    assert all({"cuda"} <= set(backends) for backends in listed.values())


def test_doctor_says_what_is_here_and_what_is_not(built: Path) -> None:
    findings = {finding["what"]: finding for finding in _json("doctor", store=built)}
    assert findings["build for sm90"]["state"] == findings["build for cpu"]["state"] == "ok"
    assert findings["user store"]["state"] == "ok" and str(built) in findings["user store"]["detail"]


def test_doctor_fails_on_a_store_that_others_can_write(tmp_path: Path) -> None:
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    done = tkc("doctor", store=root)
    assert done.returncode == 1 and "broken" in done.stdout and "chmod" in done.stdout


def test_cache_dir_and_usage(built: Path) -> None:
    assert tkc("cache", "dir", store=built).stdout.strip() == str(built)
    assert _json("cache", "usage", store=built)


@pytest.mark.level1
def test_ascend_without_cann_keeps_what_it_lowered_and_says_both_ways_on(tmp_path: Path) -> None:
    arguments = ("build", "transpose.batched_transpose", "size_bytes=4", "--target", "ascend950")
    done = tkc(*arguments, store=tmp_path / "store")
    said = " ".join(done.stderr.split())
    assert done.returncode == 1 and "ToolchainError" in said and "bisheng is missing" in said
    assert "Looked in" in said and "install CANN" in said and "--emit source" in said and "--from-lowered" in said
    again = tkc(*arguments, "--emit", "source", "--json", store=tmp_path / "store")
    assert again.returncode == 0 and json.loads(again.stdout)["hit"] == 1


@pytest.mark.level1
def test_call_that_a_target_cannot_do_is_refused_and_fails_only_alone(tmp_path: Path) -> None:
    arguments = ("quant.cast", "x_dtype=float32", "y_dtype=bfloat16", "--target", "ascend950", "--emit", "source")
    alone = tkc("build", *arguments, "stochastic=true", store=tmp_path / "store")
    assert alone.returncode == 1 and "no stochastic rounding" in alone.stderr and "1 refused" in alone.stderr
    together = tkc("build", "quant.cast", *arguments[3:], "--grid", "smoke", "--json", store=tmp_path / "store")
    counts = json.loads(together.stdout)
    assert together.returncode == 0 and counts["failed"] == 0 and counts["built"] > 0 and counts["refused"] > 0


@pytest.mark.level1
def test_going_on_from_what_was_lowered_gives_the_same_artifact(built: Path, tmp_path: Path) -> None:
    lowered = tmp_path / "lowered"
    assert tkc("build", *ONE, "--emit", "source", "--output", str(lowered), store=tmp_path / "a").returncode == 0
    done = tkc("build", "--from-lowered", str(lowered), "--json", store=tmp_path / "b")
    (made,) = json.loads(done.stdout)["artifacts"]
    (whole,) = _json("build", *ONE, store=built)["artifacts"]
    assert (made["status"], made["key"]) == ("built", whole["key"])
    assert tkc("explain", "moe.normalize_weight", "--target", "cpu", store=tmp_path / "b").returncode == 0


def test_several_targets_and_another_host_in_one_build(tmp_path: Path) -> None:
    arguments = ("moe.normalize_weight", "--target", "cpu", "--target", "sm90", "--host", "aarch64", "--grid", "smoke")
    built = _json("build", *arguments, store=tmp_path / "store")
    assert [(one["target"], one["host"], one["status"]) for one in built["artifacts"]] == [
        ("cpu", "aarch64", "built"),
        ("sm90", "aarch64", "built"),
    ]
    (kernel,) = next(one for one in built["artifacts"] if one["target"] == "sm90")["kernels"]
    assert kernel["registers"] > 0 and kernel["code_bytes"] > 0 and kernel["spill_bytes"] == 0


def test_help_of_every_command_has_an_example() -> None:
    from tkc.cli import cli

    done = subprocess.run([sys.executable, "-m", "tkc", "--help"], capture_output=True, text=True, check=True)
    for name in cli.list_commands(None):
        assert name in done.stdout
        text = subprocess.run(
            [sys.executable, "-m", "tkc", name, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert name == "cache" or f"tkc {name}" in text.split("\n", 2)[2], name


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tkc.cli import cli\ncli.main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'tilelang', 'tvm', 'tvm_ffi', 'rich', 'numpy'} & set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
