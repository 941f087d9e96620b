"""Several wheels side by side: all are found, the newest is asked first, none hides what another has."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.conftest import announce
from tests.wheel.conftest import packing_of
from tkc import runtime
from tkc.cache import Hit, Store
from tkc.registry import find_entry
from tkc.runtime import dispatch
from tkc.runtime.device import device_info
from tkc.wheel.discover import installed_stores
from tkc.wheel.pack import pack


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    runtime.reset()
    yield
    runtime.reset()


def install(site: Path, wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


@pytest.fixture
def two_versions(cpu_store: Store, tmp_path: Path) -> list[Path]:
    """Version 1.9 with every artifact, and in another folder version 1.10 without the transposes."""
    plain = packing_of(cpu_store)
    few = [pair for pair in plain.artifacts if pair[0].specialization.spec.startswith("moe")]
    old = pack(packing_of(cpu_store, version="1.9"), cpu_store, tmp_path / "wheels")
    new = pack(packing_of(cpu_store, version="1.10", artifacts=few), cpu_store, tmp_path / "wheels")
    return [install(tmp_path / "old", old), install(tmp_path / "new", new)]


def test_two_versions_are_found_and_the_newest_is_first(two_versions: list[Path]) -> None:
    for path in (two_versions, two_versions[::-1]):
        assert [str(one) for one in installed_stores(list(map(str, path)))] == [
            "tkc-kernels-cpu 1.10",
            "tkc-kernels-cpu 1.9",
        ]


def test_the_newest_version_that_has_an_artifact_serves(
    two_versions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two_versions
    for site in two_versions:
        monkeypatch.syspath_prepend(site)
    cpu = device_info("cpu")
    served = {}
    for name, params in (("moe.normalize_weight", {"num_topk": 8}), ("transpose.batched_transpose", {"size_bytes": 4})):
        entry = find_entry(name)
        request = dispatch.request_for(entry, entry.spec.bind(**params), cpu)
        found = dispatch.dispatch(request, cpu)
        assert found, found
        served[name] = found.layer
    assert served == {
        "moe.normalize_weight": new / "tkc_kernels_cpu" / "store",
        "transpose.batched_transpose": old / "tkc_kernels_cpu" / "store",
    }


@pytest.mark.level1
def test_doctor_and_explain_say_which_of_two_versions_serves_and_why_the_newer_does_not(
    two_versions: list[Path],
) -> None:
    old, new = (site / "tkc_kernels_cpu" / "store" for site in two_versions)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, two_versions))}

    def tkc(*arguments: str) -> str:
        command = [sys.executable, "-m", "tkc", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout

    listed = [line.split()[2:4] for line in tkc("doctor").splitlines() if line.startswith("ok      wheel ")]
    assert listed == [["tkc-kernels-cpu", "1.10"], ["tkc-kernels-cpu", "1.9"]]
    told = tkc("explain", "transpose.batched_transpose", "size_bytes=4", "--target", "cpu")
    assert f"passed over {new}: ref " in told
    assert f"hit in wheel tkc-kernels-cpu 1.9 ({old})" in told
    assert f"hit in wheel tkc-kernels-cpu 1.10 ({new})" in tkc(
        "explain", "moe.normalize_weight", "num_topk=8", "--target", "cpu"
    )


def test_a_wheel_for_another_target_and_another_packages_store_stand_beside(
    cpu_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install(tmp_path / "site", pack(packing_of(cpu_store, version="1.0"), cpu_store, tmp_path / "wheels"))
    for package in ("tkc_kernels_sm90", "somebody_elses_kernels"):
        (site / package / "store").mkdir(parents=True)
        announce(site, package, "tkc.stores", f"{package}:store")
    monkeypatch.syspath_prepend(site)
    names = [store.distribution for store in installed_stores([str(site)])]
    assert names == ["somebody_elses_kernels", "tkc-kernels-cpu", "tkc_kernels_sm90"]
    request = packing_of(cpu_store).artifacts[0][0]
    found = runtime.layers().resolve(request.key)
    assert isinstance(found, Hit)
    assert found.store.root == site / "tkc_kernels_cpu" / "store"
    assert found.skipped == (
        f"{site}/somebody_elses_kernels/store: ref {request.key.short} is not there: "
        f"no folder {site}/somebody_elses_kernels/store/refs-v1",
    )


def test_a_damaged_newest_version_is_passed_over_and_the_older_one_serves(
    cpu_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = [
        install(tmp_path / version, pack(packing_of(cpu_store, version=version), cpu_store, tmp_path / "wheels"))
        for version in ("1.0", "2.0")
    ]
    for site in sites:
        monkeypatch.syspath_prepend(site)
    for blob in (sites[1] / "tkc_kernels_cpu/store/blobs-v1").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"damaged")
    entry, cpu = find_entry("moe.normalize_weight"), device_info("cpu")
    found = dispatch.dispatch(dispatch.request_for(entry, entry.spec.bind(num_topk=8), cpu), cpu)
    assert found
    assert found.layer == sites[0] / "tkc_kernels_cpu" / "store"


def test_a_wheel_whose_folder_is_gone_is_said_and_skipped(tmp_path: Path) -> None:
    announce(tmp_path, "gone_kernels", "tkc.stores", "gone_kernels:store")
    with pytest.warns(RuntimeWarning, match="Reinstall the wheel"):
        assert installed_stores([str(tmp_path)]) == ()


def test_a_version_that_is_none_comes_last(tmp_path: Path) -> None:
    for package, version in (("a_kernels", "not a version"), ("b_kernels", "0.1")):
        (tmp_path / package).mkdir()
        announce(tmp_path, package, "tkc.stores", package)
        metadata = tmp_path / f"{package}-1.0.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text().replace("Version: 1.0", f"Version: {version}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [store.distribution for store in installed_stores([str(tmp_path)])] == ["b_kernels", "a_kernels"]


def test_discovery_imports_none_of_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud_kernels").mkdir()
    (tmp_path / "loud_kernels" / "__init__.py").write_text("raise SystemExit('imported')")
    announce(tmp_path, "loud_kernels", "tkc.stores", "loud_kernels")
    assert len(installed_stores([str(tmp_path)])) == 1
    assert "loud_kernels" not in sys.modules


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("entry_points.txt", b"[tkc.stores]\nno value here\n"),
        ("entry_points.txt", b"[tkc.stores]\nodd = .relative:store\n"),
        ("entry_points.txt", b"[tkc.stores]\nodd = \n"),
        ("entry_points.txt", b"[tkc.stores]\n\xff\xfe = \x00\n"),
        ("METADATA", b"Name: \xff\xfe\n"),
    ],
    ids=range(5),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_damaged_metadata_of_one_package_hides_no_other_and_stops_no_load(
    tmp_path: Path, file: str, data: bytes
) -> None:
    for package in ("bad_kernels", "good_kernels"):
        (tmp_path / package).mkdir()
        announce(tmp_path, package, "tkc.stores", package)
    (tmp_path / "bad_kernels-1.0.dist-info" / file).write_bytes(data)
    assert "good_kernels" in [store.distribution for store in installed_stores([str(tmp_path)])]
