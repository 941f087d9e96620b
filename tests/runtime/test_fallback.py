"""On a miss the policy decides, aloud, and the miss is logged."""

from __future__ import annotations

import re
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import tkc
from tests.runtime.conftest import CPU, H200, Maker
from tkc.cache import Hit, Store
from tkc.errors import ArgumentError, ArtifactMissingError, LoadError, StoreReadOnlyError, ToolchainError
from tkc.model import Digest, Host, Specialization
from tkc.runtime import LoadedKernel, converted, fallback
from tkc.runtime.fallback import ReferenceKernel
from tkc.runtime.table import load_kernel


def misses(user_store: Path) -> list[dict[str, object]]:
    return [dict(miss.entry) for miss in Store(user_store).miss_log.read()]


def compile_instead(monkeypatch: pytest.MonkeyPatch, compile_into: object) -> None:
    monkeypatch.setattr(fallback, "_compile_into", compile_into)


def test_policy_error_names_the_command_and_a_reason_for_each_layer(
    maker: Maker, user_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "error")
    monkeypatch.setenv("TKC_STORES", str(tmp_path / "shared"))
    with pytest.raises(ArtifactMissingError) as caught:
        tkc.kernel("demo.scale", "cpu", columns=3)
    assert "tkc build demo.scale columns=3 --target cpu" in str(caught.value)
    assert [reason.split(": ")[0] for reason in caught.value.reasons] == [str(tmp_path / "shared"), str(user_store)]
    assert caught.value.request == "demo.scale width=4 --target cpu"


def test_sealing_makes_a_later_miss_an_error_and_keeps_what_is_loaded(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, spec4)
    kernel = tkc.kernel("demo.scale", "cpu", columns=4)
    tkc.seal()
    with pytest.raises(ArtifactMissingError):
        tkc.kernel("demo.scale", "cpu", columns=8)
    assert tkc.kernel("demo.scale", "cpu", columns=4) is kernel


def test_policy_reference_computes_and_warns_once(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "reference")
    with pytest.warns(RuntimeWarning, match="running its PyTorch reference") as caught:
        kernel = tkc.kernel("demo.scale", "cpu", columns=4)
    assert len(caught) == 1
    assert isinstance(kernel, ReferenceKernel)
    x, out = torch.randn(3, 4), torch.full((3, 4), float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tkc.kernel("demo.scale", "cpu", columns=4)(x, out, 3.0)
    torch.testing.assert_close(out, x * 3)
    with pytest.raises(ArgumentError, match="`x` has dtype float64"):
        kernel(x.double(), out, 3.0)
    kernel(converted(x), out, 4.0)
    torch.testing.assert_close(out, x * 4)


def test_miss_is_logged_with_what_a_build_needs(
    maker: Maker, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "error")
    with pytest.raises(ArtifactMissingError):
        tkc.kernel("demo.scale", "cpu", columns=3)
    (entry,) = misses(user_store)
    assert entry["spec"] == "demo.scale"
    assert entry["specialization"] == {"width": 4}
    assert entry["params"] == {"columns": 3}
    assert (entry["target"], entry["host"]) == ("cpu", Host.this_machine().arch)
    assert entry["policy"] == "error"
    assert entry["reasons"]


def test_miss_log_that_cannot_be_written_stops_nobody(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "reference")
    monkeypatch.setenv("TKC_CACHE_DIR", "/proc/no-such-place")
    with pytest.warns(RuntimeWarning):
        tkc.kernel("demo.scale", "cpu", columns=3)


def test_source_edited_after_building_is_said_in_the_error(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "error")
    maker.put(user_store, spec4, source=Digest.of_bytes(b"before the edit"))
    with pytest.raises(ArtifactMissingError, match="source changed"):
        tkc.kernel("demo.scale", "cpu", columns=4)


def test_compiling_on_a_miss_is_announced_at_once_and_again(
    maker: Maker, spec4: Specialization, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fallback, "ANNOUNCE_EVERY_S", 0.02)
    said_first = []

    def compile_into(store: Store, missing: fallback.Missing, announce: fallback._Announcement) -> Hit:
        said_first.append(capsys.readouterr().err)
        announce.at("assemble")
        time.sleep(0.2)
        return _put(maker, store, spec4)

    compile_instead(monkeypatch, compile_into)
    assert isinstance(load_kernel(maker.entry.spec, spec4, CPU), LoadedKernel)
    assert re.search(r"^tkc: compiling demo.scale width=4 --target cpu for cpu since \d\d:\d\d:\d\d", said_first[0])
    later = capsys.readouterr().err
    assert "still compiling demo.scale width=4 --target cpu: assemble, 0 s" in later
    assert "tkc: compiled demo.scale width=4 --target cpu after" in later


def test_without_a_user_store_what_is_compiled_goes_to_a_temporary_one(
    maker: Maker, spec4: Specialization, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TKC_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    compile_instead(monkeypatch, lambda store, missing, announce: _put(maker, store, spec4))
    with pytest.warns(RuntimeWarning, match="until this process ends"):
        kernel = load_kernel(maker.entry.spec, spec4, CPU)
    assert isinstance(kernel, LoadedKernel)


def test_read_only_user_store_does_not_stop_a_compile(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_into(store: Store, missing: object, announce: object) -> Hit:
        if store.root == user_store:
            raise StoreReadOnlyError(f"store {store.root} is on a read-only file system")
        return _put(maker, store, spec4)

    compile_instead(monkeypatch, compile_into)
    with pytest.warns(RuntimeWarning, match="read-only file system; what is compiled is kept in"):
        assert isinstance(load_kernel(maker.entry.spec, spec4, CPU), LoadedKernel)


def test_what_was_compiled_for_another_device_is_not_loaded(
    maker: Maker, spec4: Specialization, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_into(store: Store, missing: object, announce: object) -> Hit:
        return _put(maker, store, spec4, H200, facts={"kernels": [{"symbol": "scale", "arch": "sm_100a"}]})

    compile_instead(monkeypatch, compile_into)
    with pytest.raises(LoadError, match=r"just compiled cannot run here: .* holds code for sm_100a"):
        load_kernel(maker.entry.spec, spec4, H200)


def test_machine_that_cannot_compile_says_how_to_get_what_is_missing(
    maker: Maker, spec4: Specialization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tkc.build", None)
    with pytest.raises(ToolchainError) as caught:
        load_kernel(maker.entry.spec, spec4, CPU, {"columns": 4})
    assert "pip install 'tilelang-tkc[build]'" in str(caught.value)
    assert "tkc build demo.scale columns=4 --target cpu" in str(caught.value)


def _put(maker: Maker, store: Store, specialization: Specialization, *args: object, **kwargs: object) -> Hit:
    maker.put(store.root, specialization, *args, **kwargs)  # type: ignore[arg-type]
    device = args[0] if args else CPU
    found = store.resolve(maker.request(specialization, device).key)  # type: ignore[arg-type]
    assert isinstance(found, Hit)
    return found
