"""Layers answer in order, and nothing is accepted that the device cannot run."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.conftest import CPU, H200, Maker, announce
from tkc.cache import Hit, Miss
from tkc.model import Digest, Host, Specialization, Target
from tkc.runtime.artifact import Artifact
from tkc.runtime.device import DeviceInfo
from tkc.runtime.dispatch import Accepted, Rejected, dispatch, judge, layers, runs_on, why_not_found

OTHER_HOST = next(host for host in ("x86_64", "aarch64") if host != Host.this_machine().arch)


def cuda(major: int, minor: int) -> DeviceInfo:
    return DeviceInfo(Target.parse("sm90"), "cuda", 0, "", (major, minor))


@pytest.mark.parametrize(
    ("arch", "runs", "refused"),
    [
        ("sm_90a", [(9, 0)], [(8, 9), (10, 0), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(9, 0), (11, 0), (12, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3)]),
        ("sm_103a", [(10, 3)], [(10, 0)]),
        ("sm_103f", [(10, 3)], [(10, 0)]),
        ("sm_120a", [(12, 0)], [(12, 1), (10, 0)]),
        ("sm_80", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0)]),
        ("sm_89", [(8, 9)], [(8, 6), (9, 0)]),
        ("dav-3510", [], [(9, 0)]),
    ],
)
def test_device_binary_runs_only_where_its_architecture_says(
    arch: str, runs: list[tuple[int, int]], refused: list[tuple[int, int]]
) -> None:
    assert [capability for capability in runs if not runs_on(arch, cuda(*capability))] == []
    assert [capability for capability in refused if runs_on(arch, cuda(*capability))] == []


def test_artifact_for_another_architecture_is_rejected_and_named(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, spec4, H200, facts={"kernels": [{"symbol": "scale", "arch": "sm_100f"}]})
    found = dispatch(maker.request(spec4, H200), H200)
    assert isinstance(found, Miss)
    assert "holds code for sm_100f; the device is cuda:0 (NVIDIA H200, sm90)" in found.reason


def test_artifact_for_another_host_or_loader_is_rejected_and_named(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    store = maker.put(user_store, spec4)
    found = store.resolve(maker.request(spec4).key)
    assert isinstance(found, Hit)
    assert judge(found.manifest, CPU, Host.this_machine().arch) == Accepted()
    other = judge(found.manifest, CPU, OTHER_HOST)
    assert isinstance(other, Rejected)
    assert f"this machine is {OTHER_HOST}" in other.reason
    newer = judge(replace(found.manifest, facts={"abi": 99}), CPU, Host.this_machine().arch)
    assert isinstance(newer, Rejected)
    assert "loader ABI 99" in newer.reason


def test_layer_with_a_wrong_artifact_does_not_hide_the_next_layer(
    maker: Maker, spec4: Specialization, user_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.put(tmp_path / "shared", spec4, H200, facts={"kernels": [{"symbol": "scale", "arch": "sm_80"}]})
    maker.put(user_store, spec4, H200)
    monkeypatch.setenv("TKC_STORES", str(tmp_path / "shared"))
    found = dispatch(maker.request(spec4, H200), H200)
    assert isinstance(found, Artifact)
    assert found.layer == user_store


def test_layers_are_asked_in_order_wheels_then_shared_then_user(
    maker: Maker, spec4: Specialization, site: Path, user_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = site / "demo_prebuilt_sm90"
    wheel.mkdir()
    (wheel / "__init__.py").write_text("raise SystemExit('a store is found without importing its package')")
    announce(site, "demo_prebuilt_sm90", "tkc.stores", "demo_prebuilt_sm90:data/store")
    importlib.invalidate_caches()
    shared = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setenv("TKC_STORES", os.pathsep.join(map(str, shared)))
    expected = [wheel / "data/store", *shared, user_store]
    assert [store.root for store in layers().stores] == expected
    assert [store.writable for store in layers().stores] == [False, False, False, True]
    assert "demo_prebuilt_sm90" not in sys.modules

    for root in reversed(expected):
        maker.put(root, spec4)
        found = dispatch(maker.request(spec4), CPU)
        assert isinstance(found, Artifact)
        assert found.layer == root


def test_wheel_that_is_gone_is_a_warning_and_the_others_are_asked(
    maker: Maker, spec4: Specialization, site: Path, user_store: Path
) -> None:
    announce(site, "demo_gone", "tkc.stores", "demo_gone_package:store")
    importlib.invalidate_caches()
    maker.put(user_store, spec4)
    with pytest.warns(RuntimeWarning, match="'demo_gone_package:store', which is not installed"):
        found = dispatch(maker.request(spec4), CPU)
    assert isinstance(found, Artifact)


def test_miss_has_a_reason_for_each_layer_and_creates_nothing(
    maker: Maker, spec4: Specialization, user_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TKC_STORES", str(tmp_path / "absent"))
    found = dispatch(maker.request(spec4), CPU)
    assert isinstance(found, Miss)
    assert len(found.reasons) == 2
    assert found.reasons[0].startswith(f"{tmp_path / 'absent'}: ")
    assert not user_store.exists()
    assert not (tmp_path / "absent").exists()


def test_no_store_at_all_is_a_miss_that_says_so(
    maker: Maker, spec4: Specialization, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TKC_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    found = dispatch(maker.request(spec4), CPU)
    assert isinstance(found, Miss)
    assert "TKC_CACHE_DIR" in found.reason


def test_miss_after_an_edit_says_that_the_source_changed(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4, source=Digest.of_bytes(b"before the edit"))
    request = maker.request(spec4)
    found = dispatch(request, CPU)
    assert isinstance(found, Miss)
    assert any("source changed" in reason for reason in why_not_found(request, found))


def test_miss_of_something_never_built_does_not_blame_an_edit(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, maker.entry.spec.bind(columns=8), source=Digest.of_bytes(b"before the edit"))
    request = maker.request(spec4)
    found = dispatch(request, CPU)
    assert isinstance(found, Miss)
    assert not any("source changed" in reason for reason in why_not_found(request, found))


def test_layer_that_others_may_write_to_is_passed_over_and_said(
    maker: Maker, spec4: Specialization, user_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.put(tmp_path / "shared", spec4)
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv("TKC_STORES", str(tmp_path / "shared"))
    request = maker.request(spec4)
    found = dispatch(request, CPU)
    assert isinstance(found, Miss)
    assert why_not_found(request, found) == found.reasons
    assert "chmod" in found.reasons[0]
    maker.put(user_store, spec4)
    assert isinstance(dispatch(request, CPU), Artifact)
