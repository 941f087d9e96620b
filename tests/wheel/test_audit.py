"""Every fault that a wheel of artifacts can have, made in a real wheel, is found and named."""

from __future__ import annotations

import json
import stat
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.wheel.conftest import DIMS, artifacts_of, packing_of
from tkc.cache import Store
from tkc.errors import TkcError
from tkc.model import Digest, Host, Target
from tkc.registry import Catalog, load_catalog
from tkc.wheel.audit import audit
from tkc.wheel.binaries import absolute_paths, library_problems, read_library
from tkc.wheel.licences import verbatim
from tkc.wheel.pack import pack

Changed = Callable[..., Path]


def problems(path: Path, **options: object) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for problem in audit(path, **options).problems:  # type: ignore[arg-type]
        found.setdefault(problem.check, []).append(f"{problem.where}: {problem.what}")
    return found


def one(members: dict[str, bytes], part: str) -> str:
    return next(name for name in members if part in name)


def test_a_good_wheel_has_no_problem(wheel: Path) -> None:
    assert problems(wheel) == {}


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path, wheel: Path) -> None:
    path = tmp_path / wheel.name
    path.write_bytes(b"PK nothing")
    assert "zip" in problems(path)["archive"][0].lower()


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
def test_a_wheel_that_was_cut_short_is_refused(tmp_path: Path, wheel: Path, keep: float) -> None:
    path, data = tmp_path / wheel.name, wheel.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    assert "archive" in problems(path)


def test_a_byte_that_was_flipped_is_refused(tmp_path: Path, wheel: Path) -> None:
    path, data = tmp_path / wheel.name, bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        blob = max(archive.infolist(), key=lambda info: info.compress_size)
    data[blob.header_offset + 200] ^= 1
    path.write_bytes(data)
    assert "archive" in problems(path)


def test_a_wheel_that_is_not_there_is_an_error_of_the_caller(tmp_path: Path, wheel: Path) -> None:
    with pytest.raises(TkcError, match="cannot be read"):
        audit(tmp_path / wheel.name)


@pytest.mark.parametrize(
    "name", ["../../etc/cron.d/x", "/etc/passwd", "tkc_kernels_cpu/../../x", "a\\..\\b", "c:/x", "tkc_kernels_cpu//x"]
)
def test_a_member_that_leads_outside_is_refused(changed: Changed, name: str) -> None:
    def plant(members: dict[str, bytes]) -> None:
        members[name] = b"x"

    (problem,) = problems(changed(plant))["archive"]
    assert "name" in problem


def test_a_link_is_refused(changed: Changed) -> None:
    info = zipfile.ZipInfo("tkc_kernels_cpu/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "no regular file" in problems(changed(lambda members: None, extra={info: b"/etc"}))["archive"][0]


def test_two_members_of_one_name_are_refused(changed: Changed) -> None:
    info = zipfile.ZipInfo("tkc_kernels_cpu/Manifest.json")
    assert "there 2 times" in problems(changed(lambda members: None, extra={info: b"{}"}))["archive"][0]


def test_a_member_that_record_does_not_list_is_refused(changed: Changed) -> None:
    info = zipfile.ZipInfo("tkc_kernels_cpu/store/blobs-v1/00/" + "0" * 64)
    assert "No hash found" in problems(changed(lambda members: None, extra={info: b"x"}))["archive"][0]


def test_code_in_a_wheel_of_artifacts_is_refused(changed: Changed) -> None:
    def plant(members: dict[str, bytes]) -> None:
        members["tkc_kernels_cpu/__init__.py"] += b"import os\n"
        members["evil.pth"] = b"import os"
        members["tkc_kernels_cpu-1.0.data/scripts/evil"] = b"#!/bin/sh\n"
        members["tkc_kernels_cpu/hook.py"] = b""

    found = problems(changed(plant))["files"]
    assert len([text for text in found if "has no place" in text]) == 3
    assert any("holds code" in text for text in found)


def test_an_entry_point_of_another_group_is_refused(changed: Changed) -> None:
    def plant(members: dict[str, bytes]) -> None:
        members[one(members, "entry_points")] += b"[console_scripts]\nls = os:system\n"

    assert "console_scripts" in problems(changed(plant))["metadata"][0]


def test_tags_that_contradict_the_file_name_are_found(changed: Changed) -> None:
    def retag(members: dict[str, bytes]) -> None:
        name = one(members, "dist-info/WHEEL")
        members[name] = members[name].replace(b"py3-none", b"cp311-abi3")

    assert "cp311-abi3" in problems(changed(retag))["tags"][0]


def test_a_wheel_renamed_for_another_host_is_found(changed: Changed, wheel: Path) -> None:
    other = next(name for name in ("x86_64", "aarch64") if name not in wheel.name)
    here = Host.this_machine().arch

    def retag(members: dict[str, bytes]) -> None:
        name = one(members, "dist-info/WHEEL")
        members[name] = members[name].replace(here.encode(), other.encode())

    found = problems(changed(retag, name=wheel.name.replace(here, other)))
    assert any(f"is for host {here}" in text for text in found["tags"])
    assert all(f"is for host {here}; the wheel is for {other}" in text for text in found["binaries"])


def test_a_glibc_older_than_the_binaries_need_is_found(cpu_store: Store) -> None:
    (_, manifest), *_ = artifacts_of(cpu_store)
    data = cpu_store.read_blob(manifest.file("kernel.so").digest)
    said = {"host": Host.this_machine().arch, "target": Target.parse("cpu"), "kernels": []}
    assert list(library_problems(data, glibc=(2, 28), **said)) == []  # type: ignore[arg-type]
    assert any("needs GLIBC_2." in text for text in library_problems(data, glibc=(2, 1), **said))  # type: ignore[arg-type]


def test_a_library_that_needs_cpython_or_another_library_is_found() -> None:
    """A real extension module of this interpreter, which is no artifact."""
    import _ctypes

    library = Path(_ctypes.__file__)
    found = list(
        library_problems(
            library.read_bytes(),
            host=Host.this_machine().arch,
            glibc=(2, 28),
            target=Target.parse("cpu"),
            kernels=[],
        )
    )
    assert any("CPython's Py" in text for text in found)
    assert any("is not part of the C library" in text for text in found)
    assert any("exports no __tvm_ffi_main" in text for text in found)


def test_a_library_that_looks_into_folders_of_its_own_is_found() -> None:
    import torch

    library = next(Path(torch.__file__).parent.glob("_C*.so"))
    assert read_library(library.read_bytes()).run_paths
    host, target = Host.this_machine().arch, Target.parse("cpu")
    found = library_problems(library.read_bytes(), host=host, glibc=(2, 28), target=target, kernels=[])
    assert any("looks for libraries in '$ORIGIN" in text for text in found)


def test_a_program_and_rubbish_are_no_libraries(cpu_store: Store) -> None:
    with pytest.raises(ValueError, match="not a shared library"):
        read_library(b"\x7fELF rubbish")
    (_, manifest), *_ = artifacts_of(cpu_store)
    data = bytearray(cpu_store.read_blob(manifest.file("kernel.so").digest))
    struct.pack_into("<H", data, 16, 1)  # e_type: an object file
    assert not read_library(bytes(data)).is_library


def test_a_damaged_blob_is_found_though_record_agrees(changed: Changed) -> None:
    def flip(members: dict[str, bytes]) -> None:
        name = one(members, "store/blobs-v1")
        members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])

    found = problems(changed(flip))["store"]
    assert any("another digest" in text for text in found)


def test_a_missing_blob_is_found(changed: Changed) -> None:
    assert "is not there" in problems(changed(lambda m: m.pop(one(m, "store/blobs-v1"))))["store"][0]


def test_a_missing_ref_leaves_an_artifact_that_nothing_reaches(changed: Changed) -> None:
    found = problems(changed(lambda m: m.pop(one(m, "store/refs-v1"))))
    assert any("no ref leads to" in text for text in found["reachable"])


def test_a_blob_that_nothing_names_is_dead_weight(changed: Changed) -> None:
    def plant(members: dict[str, bytes]) -> None:
        digest = Digest.of_bytes(b"dead")
        members[f"tkc_kernels_cpu/store/blobs-v1/{digest.hex[:2]}/{digest.hex}"] = b"dead"

    assert "no manifest names" in problems(changed(plant))["reachable"][0]


def test_an_artifact_that_no_call_of_the_models_leads_to_is_found(cpu_store: Store, tmp_path: Path) -> None:
    """The same artifacts, said to be for a model without quantisation: it never transposes single bytes."""
    dims = tuple(replace(dims, quant=()) for dims in DIMS)
    path = pack(packing_of(cpu_store, dims=dims), cpu_store, tmp_path)
    (problem,) = problems(path)["reachable"]
    assert problem == "transpose.batched_transpose size_bytes=1: no call of smoke leads to it"


def test_an_artifact_of_sources_that_have_changed_since_is_found(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tkc.registry import CatalogEntry

    monkeypatch.setattr(CatalogEntry, "source_digest", lambda entry, backend: Digest("0" * 64))
    assert all("source changed" in text for text in problems(wheel)["reachable"])


def test_an_artifact_of_a_kernel_that_is_not_here_is_found(wheel: Path) -> None:
    entries = {entry.spec.name: entry for entry in load_catalog() if entry.spec.family != "transpose"}
    found = problems(wheel, catalog=Catalog(entries))["reachable"]
    assert len(found) == 3
    assert all("unknown" in text for text in found)


def test_a_manifest_that_describes_other_artifacts_is_found(changed: Changed) -> None:
    def swap(members: dict[str, bytes]) -> None:
        body = json.loads(members["tkc_kernels_cpu/manifest.json"])
        body["artifacts"][0]["size_bytes"] += 1
        members["tkc_kernels_cpu/manifest.json"] = (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()

    assert "is not the artifact" in problems(changed(swap))["manifest"][0]


def test_an_artifact_that_the_manifest_hides_is_found(changed: Changed) -> None:
    def hide(members: dict[str, bytes]) -> None:
        body = json.loads(members["tkc_kernels_cpu/manifest.json"])
        del body["artifacts"][0]
        members["tkc_kernels_cpu/manifest.json"] = (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()

    assert "not in the wheel's manifest" in problems(changed(hide))["manifest"][0]


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b'{"schema": "tkc.wheel/9"}', b"\xff\xfe", b"[" * 10000])
def test_a_manifest_that_is_none_is_found(changed: Changed, text: bytes) -> None:
    def garble(members: dict[str, bytes]) -> None:
        members["tkc_kernels_cpu/manifest.json"] = text

    assert problems(changed(garble))["manifest"]


def test_paths_of_the_builder_are_found_and_paths_of_every_machine_are_not() -> None:
    assert absolute_paths(b"\0/home/ci/build/kernel.cu\0 and /tmp/x7\0") == ("/home/ci/build/kernel.cu", "/tmp/x7")
    assert absolute_paths(b"see https://example.org/a/b/c/d, /proc/self/maps, 3/4 and and/or/not") == ()


def test_a_path_in_metadata_is_found(changed: Changed) -> None:
    def plant(members: dict[str, bytes]) -> None:
        members[one(members, "METADATA")] += b"built in /home/ci/agent7/checkout\n"

    assert "/home/ci/agent7/checkout" in problems(changed(plant))["paths"][0]


def test_a_licence_text_may_name_paths_and_only_as_it_was_written(changed: Changed) -> None:
    """NVIDIA's names where its own files are installed; a text that was added to is judged as any other file."""
    (text,) = (data for data in verbatim() if b"/Developer/NVIDIA" in data)

    def with_text(data: bytes) -> dict[str, list[str]]:
        def add(members: dict[str, bytes]) -> None:
            members[one(members, "licenses/tilelang").replace("tilelang-MIT", "nvidia-cuda-EULA")] = data

        return problems(changed(add))

    assert with_text(text) == {}
    longer = with_text(text + b"\nat /home/builder/src/kernel.cu")["paths"]
    assert any("'/home/builder/src/kernel.cu'" in problem for problem in longer)


def test_a_missing_licence_text_is_found(changed: Changed) -> None:
    found = problems(changed(lambda m: m.pop(one(m, "licenses/tilelang"))))["metadata"]
    assert any("tilelang-MIT.txt" in text for text in found)


def test_a_wheel_over_its_budget_is_found(wheel: Path) -> None:
    assert problems(wheel, max_bytes=1000) == {
        "size": [f"{wheel.name}: weighs {wheel.stat().st_size} bytes; the budget is 1000"]
    }


@pytest.mark.level1
def test_device_code_for_another_architecture_is_found(tmp_path: Path) -> None:
    """A real artifact for sm90, compiled here, judged for what it is not."""
    from tkc.build import build, plan
    from tkc.compiler.stages import Unit
    from tkc.registry import find_entry

    store, sm90, here = Store(tmp_path / "store", writable=True), Target.parse("sm90"), Host.this_machine()
    entry = find_entry("moe.normalize_weight")
    (outcome,) = build(plan([Unit(entry, entry.spec.bind(num_topk=8), sm90, here)], store), store)
    assert outcome.manifest is not None, outcome.error
    data = store.read_blob(outcome.manifest.file("kernel.so").digest)
    kernels = outcome.manifest.facts["kernels"]

    def judged(target: str, kernels: list[dict] = kernels) -> list[str]:
        said = {"host": here.arch, "glibc": (2, 28), "kernels": kernels}
        return list(library_problems(data, target=Target.parse(target), **said))  # type: ignore[arg-type]

    symbol = kernels[0]["symbol"]
    assert judged("sm90") == []
    assert judged("sm100") == [
        f"kernel {symbol} is for sm_90a; sm100 is sm_100f",
        "holds code for compute capability 90; sm100 is 100",
    ]
    assert judged("cpu") == ["holds 1 device binaries; an artifact for the CPU has none"]
    assert judged("sm90", []) == [f"its device binaries and its manifest differ in kernels: {symbol}"]
