"""What is loaded is what was verified, and stays loaded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from tests.runtime.conftest import CPU, Maker
from tkc.cache import Miss, Store
from tkc.errors import LoadError
from tkc.model import Specialization
from tkc.runtime import dispatch, loader
from tkc.runtime.artifact import LIBRARY, Artifact
from tkc.runtime.table import load_kernel


def artifact_of(maker: Maker, specialization: Specialization) -> Artifact:
    found = dispatch.dispatch(maker.request(specialization), CPU)
    assert isinstance(found, Artifact)
    return found


def blob_of(artifact: Artifact) -> Path:
    return Store(artifact.layer).blob_path(artifact.manifest.file(LIBRARY).digest)


def opened(maker: Maker, specialization: Specialization) -> loader.Library:
    artifact = artifact_of(maker, specialization)
    return loader.open_library(artifact.manifest.file(LIBRARY).digest, artifact.library)


def scaled(launch: loader.Entry, width: int) -> float:
    out = torch.empty(1, width)
    launch(torch.ones(1, width), out, 3.0)
    return float(out.unique().item())


def test_artifact_whose_store_is_removed_after_loading_goes_on_working(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, spec4)
    kernel = load_kernel(maker.entry.spec, spec4, CPU)
    shutil.rmtree(user_store)
    assert scaled(kernel, 4) == 3


def test_blob_that_is_overwritten_in_place_after_loading_changes_nothing(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, spec4)
    blob = blob_of(artifact_of(maker, spec4))
    kernel = load_kernel(maker.entry.spec, spec4, CPU)
    blob.chmod(0o644)
    blob.write_bytes(b"\0" * blob.stat().st_size)
    assert scaled(kernel, 4) == 3


def test_bytes_that_change_between_verifying_and_opening_are_not_the_ones_opened(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, spec4, tail=b"only here")
    found = artifact_of(maker, spec4)
    blob = blob_of(found)
    blob.chmod(0o644)
    blob.write_bytes(b"\0" * blob.stat().st_size)
    assert scaled(loader.open_library(found.manifest.file(LIBRARY).digest, found.library).main, 4) == 3


@pytest.mark.parametrize("damage", [b"", b"\0", None])
def test_damaged_or_missing_library_is_a_miss_with_a_reason_and_is_quarantined(
    maker: Maker, spec4: Specialization, user_store: Path, damage: bytes | None
) -> None:
    maker.put(user_store, spec4)
    blob = blob_of(artifact_of(maker, spec4))
    blob.chmod(0o644)
    if damage is None:
        blob.unlink()
    else:
        blob.write_bytes(damage)
    found = dispatch.dispatch(maker.request(spec4), CPU)
    assert isinstance(found, Miss)
    assert found.reasons[0].startswith(f"{user_store}: ")
    assert not blob.exists()


def test_many_libraries_through_one_reused_descriptor_stay_apart(maker: Maker, user_store: Path) -> None:
    spec = maker.entry.spec
    launches = []
    for number in range(20):
        specialization = spec.bind(columns=4 if number % 2 else 8)
        maker.put(user_store, specialization, tail=number.to_bytes(4, "little"))
        launches.append((opened(maker, specialization).main, specialization.int("width")))
    assert [scaled(launch, width) for launch, width in launches] == [3.0] * 20


def test_same_bytes_are_opened_once(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4)
    assert opened(maker, spec4) is opened(maker, spec4)


def test_without_executable_memory_files_a_temporary_file_serves(
    maker: Maker, spec4: Specialization, user_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object) -> int:
        raise PermissionError("memfd_create is switched off")

    monkeypatch.setattr(os, "memfd_create", refused)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    maker.put(user_store, spec4, tail=b"not opened before")
    before = set(tmp_path.iterdir())
    assert scaled(opened(maker, spec4).main, 4) == 3
    assert set(tmp_path.iterdir()) == before


def test_bytes_that_are_no_library_are_a_load_error(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4, data=b"not an ELF file")
    with pytest.raises(LoadError, match="refuses library"):
        load_kernel(maker.entry.spec, spec4, CPU)


def test_library_without_our_entry_is_a_load_error(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    import _ctypes

    maker.put(user_store, spec4, data=Path(_ctypes.__file__).read_bytes())
    with pytest.raises(LoadError, match="exports no __tvm_ffi_main"):
        load_kernel(maker.entry.spec, spec4, CPU)


def test_opening_leaks_no_descriptor(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4)
    opened(maker, spec4)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(10):
        maker.put(user_store, spec4, tail=b"leak?" + bytes([number]))
        opened(maker, spec4)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
