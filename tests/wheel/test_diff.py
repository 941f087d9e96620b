from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.wheel.conftest import artifacts_of, packing_of
from tkc.cache import Store
from tkc.wheel.diff import Change, diff_stores
from tkc.wheel.pack import pack
from tkc.wheel.reading import open_store


@pytest.fixture
def changed_store(cpu_store: Store, tmp_path: Path) -> Store:
    """As `cpu_store`, with the code of one artifact changed, one more of it, and one artifact less.

    What the first is said to use has changed too, as it would be for a CUDA kernel that now spills.
    """
    store = Store(tmp_path / "changed", writable=True)
    (request, manifest), (code_request, code_manifest), _, *rest = artifacts_of(cpu_store)
    for kept_request, kept in rest:
        for file in kept.files:
            store.publish_blob(cpu_store.read_blob(file.digest))
        store.commit_manifest(kept)
        store.write_ref(kept_request.key, kept_request.fields(), kept.key)
    for other_request, other, registers in ((request, manifest, 32), (code_request, code_manifest, None)):
        digest = store.publish_blob(b"other code of " + str(other_request).encode())
        kernels = [{"symbol": "k", "registers": registers, "spill_bytes": 8}] if registers else []
        made = replace(
            other,
            files=(replace(other.file("kernel.so"), digest=digest, size_bytes=1),),
            facts={**other.facts, "kernels": kernels or other.facts["kernels"]},
            action={**other.action, "flags": ["-O1"]},
        )
        store.commit_manifest(made)
        store.write_ref(other_request.key, other_request.fields(), made.key)
    return store


def test_what_changed_between_two_stores_is_told_apart(cpu_store: Store, changed_store: Store) -> None:
    found = {one.change: one for one in diff_stores(cpu_store, changed_store)}
    assert set(found) == {Change.RESOURCES, Change.CODE, Change.ONLY_A, Change.SAME}
    facts = dict(found[Change.RESOURCES].kernels)["k"]
    assert facts["registers"] == (None, 32)
    assert facts["spill_bytes"] == (None, 8)
    assert "flags" in {field.field for field in found[Change.CODE].inputs}
    backwards = [one.change for one in diff_stores(changed_store, cpu_store)]
    assert Change.ONLY_B in backwards
    assert Change.ONLY_A not in backwards


def test_a_store_and_the_wheel_made_of_it_are_the_same(cpu_store: Store, wheel: Path) -> None:
    with open_store(wheel) as inside:
        assert {one.change for one in diff_stores(cpu_store, inside)} == {Change.SAME}


def test_artifacts_from_other_sources_are_compared_by_what_they_answer(cpu_store: Store, tmp_path: Path) -> None:
    """Another version of a kernel has another request; the newest of a store counts."""
    store = Store(tmp_path / "other", writable=True)
    for request, manifest in artifacts_of(cpu_store):
        for file in manifest.files:
            store.publish_blob(cpu_store.read_blob(file.digest))
        store.commit_manifest(manifest)
        changed = replace(request, source=manifest.key)
        store.write_ref(changed.key, changed.fields(), manifest.key)
    assert {one.change for one in diff_stores(cpu_store, store)} == {Change.SAME}


def _tkc(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tkc", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_tells_wheels_apart_and_exits_with_1(
    cpu_store: Store, changed_store: Store, wheel: Path, tmp_path: Path
) -> None:
    fewer = pack(packing_of(cpu_store, artifacts=artifacts_of(cpu_store)[1:]), cpu_store, tmp_path)
    same, less = _tkc("diff", wheel, cpu_store.root), _tkc("diff", wheel, fewer, "--json")
    assert (same.returncode, less.returncode) == (0, 1)
    assert json.loads(less.stdout)["counts"]["only in A"] == 1
    told = _tkc("diff", wheel, changed_store.root, "--why").stdout
    assert "registers - → 32" in told
    assert "flags:" in told


@pytest.mark.level1
def test_artifacts_compiled_again_have_the_same_bytes(wheel: Path) -> None:
    done = _tkc("verify", wheel, "--rebuild", 2, "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [one["verdict"] for one in told["rebuilt"]] == ["same", "same"]
    assert told["damaged"] == []


@pytest.mark.level1
def test_an_artifact_that_is_not_what_its_inputs_give_is_found(cpu_store: Store, tmp_path: Path) -> None:
    """A store in which somebody put other bytes, with digests that agree: only compiling again shows it."""
    store = Store(tmp_path / "forged", writable=True)
    (request, manifest), *_ = artifacts_of(cpu_store)
    digest = store.publish_blob(b"planted")
    forged = replace(manifest, files=(replace(manifest.file("kernel.so"), digest=digest, size_bytes=7),))
    store.commit_manifest(forged)
    store.write_ref(request.key, request.fields(), forged.key)
    assert _tkc("verify", store.root).returncode == 0
    done = _tkc("verify", store.root, "--rebuild", 1)
    assert done.returncode == 1
    assert f"differs       {request.specialization}" in done.stdout
    assert str(digest) in done.stdout


def test_inputs_that_have_changed_since_prove_nothing_and_are_named(cpu_store: Store, tmp_path: Path) -> None:
    store = Store(tmp_path / "older", writable=True)
    (request, manifest), *_ = artifacts_of(cpu_store)
    for file in manifest.files:
        store.publish_blob(cpu_store.read_blob(file.digest))
    older = replace(manifest, key=request.key, action={**manifest.action, "flags": ["-O7"]})
    store.commit_manifest(older)
    store.write_ref(request.key, request.fields(), older.key)
    done = _tkc("verify", store.root, "--rebuild", 1)
    assert done.returncode == 1
    assert "other inputs" in done.stdout
    assert "flags is" in done.stdout


def test_a_damaged_artifact_is_found_without_compiling(cpu_store: Store, tmp_path: Path, wheel: Path) -> None:
    import shutil

    copied = Path(shutil.copytree(cpu_store.root, tmp_path / "copy"))
    store = Store(copied)
    (_, manifest), *_ = artifacts_of(store)
    blob = store.blob_path(manifest.file("kernel.so").digest)
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1])
    done = _tkc("verify", copied)
    assert done.returncode == 1
    assert "damaged" in done.stdout


def test_a_folder_of_wheels_is_no_store_of_which_nothing_is_damaged(wheel: Path) -> None:
    done = _tkc("verify", wheel.parent)
    assert done.returncode == 1
    assert f"{wheel.parent} holds no store" in done.stderr


def test_what_is_neither_a_store_nor_a_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing")
    done = _tkc("verify", path)
    assert done.returncode == 1
    assert "neither a store nor a wheel" in done.stderr
