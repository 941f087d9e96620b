"""Warming up loads everything before it is needed, and says what it could not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import tkc
from tests.runtime.conftest import Maker
from tkc.errors import ArtifactMissingError, CompileError, SpecError, TkcError
from tkc.model import ModelDims, Specialization
from tkc.runtime import fallback, table, warmup

MODEL = ModelDims("demo", hidden=64)


def test_every_artifact_of_a_model_is_loaded(maker: Maker, user_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = maker.entry.spec
    for columns in (4, 8):
        maker.put(user_store, spec.bind(columns=columns))
    monkeypatch.setattr("tkc.runtime.warmup.load_catalog", lambda: [maker.entry])
    report = tkc.warmup([MODEL], "cpu")
    assert [str(kernel.specialization) for kernel in report.loaded] == ["demo.scale width=4", "demo.scale width=8"]
    assert not report.missed
    monkeypatch.setattr(table, "_open", lambda *args: pytest.fail("loaded twice"))
    assert tkc.kernel("demo.scale", "cpu", columns=7) is report.loaded[1]


def test_calls_and_specializations_are_loaded_each_once(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4)
    report = tkc.warmup([("demo.scale", {"columns": 1}), spec4, ("demo.scale", {"width": 4})], "cpu")
    assert [kernel.specialization for kernel in report.loaded] == [spec4]


def test_sealed_warm_up_lists_every_miss_after_loading_the_rest(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, spec4)
    tkc.seal()
    with pytest.raises(ArtifactMissingError) as caught:
        tkc.warmup([("demo.scale", {"columns": 8}), ("demo.scale", {"columns": 4})], "cpu")
    assert "tkc build demo.scale columns=8 --target cpu" in str(caught.value)
    assert tkc.kernel("demo.scale", "cpu", columns=4)


def test_several_misses_are_one_error(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "error")
    with pytest.raises(ArtifactMissingError, match="2 artifacts are missing") as caught:
        tkc.warmup([("demo.scale", {"columns": columns}) for columns in (4, 8)], "cpu")
    for columns in (4, 8):
        assert f"tkc build demo.scale columns={columns} --target cpu" in str(caught.value)
    assert len(caught.value.reasons) == 2


def test_policy_reference_counts_as_missed(
    maker: Maker, spec4: Specialization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "reference")
    with pytest.warns(RuntimeWarning):
        report = tkc.warmup([spec4], "cpu")
    assert not report.loaded
    assert list(report.missed) == ["demo.scale width=4"]


def test_unknown_grid_and_malformed_calls_are_named_before_anything_loads(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, spec4)
    with pytest.raises(TkcError, match=r"unknown grid 'smok'. Did you mean 'smoke'"):
        tkc.warmup("smok", "cpu")
    with pytest.raises(SpecError, match="cannot warm up 3"):
        tkc.warmup([spec4, 3], "cpu")  # type: ignore[list-item]
    assert len(table._loaded) == 0


def test_compile_that_fails_is_raised_after_the_rest_is_loaded(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.put(user_store, spec4)

    def fail(missing: list[fallback.Missing]) -> Mapping[object, TkcError]:
        return {one.request.key: CompileError("ptxas stumbled", action=one.title, stage="") for one in missing}

    monkeypatch.setattr(warmup, "answer_all", fail)
    with pytest.raises(CompileError, match="ptxas stumbled"):
        tkc.warmup([("demo.scale", {"columns": 8}), spec4], "cpu")
    assert len(table._loaded) == 1


def test_bar_shows_on_a_terminal_once_it_takes_long_and_leaves_no_trace_of_failure(
    maker: Maker, user_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [maker.entry.spec.bind(columns=columns) for columns in (4, 8)]
    for specialization in calls:
        maker.put(user_store, specialization)
    monkeypatch.setattr(warmup, "_SHOW_AFTER_S", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert len(tkc.warmup(calls, "cpu").loaded) == 2
    assert "loading kernels" in capsys.readouterr().err
    table.reset()
    assert len(tkc.warmup(calls, "cpu", progress=False).loaded) == 2
    assert capsys.readouterr().err == ""
