from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.wheel.conftest import packing_of
from tkc.cache import Store
from tkc.errors import TkcError
from tkc.model import Backend, ModelDims, Target
from tkc.wheel.audit import audit
from tkc.wheel.contents import WheelContents
from tkc.wheel.licences import PARTS, texts_of
from tkc.wheel.names import WheelName
from tkc.wheel.pack import pack

ROOT = Path(__file__).parents[2]


def member(wheel: Path, ending: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(ending)]
        return archive.read(name)


def test_a_wheel_has_a_store_one_manifest_licences_a_bill_of_materials_and_an_entry_point(wheel: Path) -> None:
    assert audit(wheel).problems == ()
    names = zipfile.ZipFile(wheel).namelist()
    shelves = {name.split("/")[2] for name in names if "/store/" in name}
    assert shelves == {"blobs-v1", "actions-v1", "refs-v1"}
    assert member(wheel, "entry_points.txt").startswith(b"[tkc.stores]\n")
    texts = {Path(name).name for name in names if "/licenses/" in name}
    assert texts == set(texts_of(Backend.CPU))
    contents = WheelContents.from_bytes(member(wheel, "manifest.json"))
    assert {item.fields["spec"] for item in contents.items} == set(contents.specs)
    assert contents.provenance["commit"] == "0" * 40
    assert contents.toolchain["tilelang"]["version"]


def test_the_bill_of_materials_is_valid_cyclonedx(wheel: Path) -> None:
    text = member(wheel, ".cdx.json").decode()
    errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert errors is None
    listed = [one["name"] for one in json.loads(text)["components"] if one["type"] == "library"]
    assert listed == [part.name for part in PARTS if Backend.CPU in part.backends]


def test_metadata_requires_no_package_that_an_index_could_bring(wheel: Path) -> None:
    """Not torch, which pip must never replace; nor tkc, of which an index may have somebody else's."""
    metadata = email.message_from_bytes(member(wheel, "METADATA"))
    assert metadata.get_all("Requires-Dist") is None
    assert metadata["Requires-Python"] == ">=3.11"


def test_packing_again_in_another_folder_at_another_time_gives_the_same_bytes(
    wheel: Path, cpu_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr("time.time", lambda: 1800000000.0)
    old = os.umask(0o077)
    try:
        again = pack(packing_of(cpu_store), cpu_store, tmp_path / "deep" / "er")
    finally:
        os.umask(old)
    assert again.read_bytes() == wheel.read_bytes()
    assert [path.name for path in again.parent.iterdir()] == [again.name]


def test_nothing_to_pack_is_an_error(cpu_store: Store, tmp_path: Path) -> None:
    with pytest.raises(TkcError, match="nothing to pack for cpu"):
        pack(packing_of(cpu_store, artifacts=[]), cpu_store, tmp_path)


def test_artifacts_of_two_toolchains_are_not_mixed(cpu_store: Store, tmp_path: Path) -> None:
    (request, manifest), *rest = packing_of(cpu_store).artifacts
    tools = {**manifest.action["toolchain"], "tilelang": {"version": "tilelang 9", "digest": "sha256:" + "0" * 64}}
    other = type(manifest)(
        manifest.key, manifest.stage, {**manifest.action, "toolchain": tools}, manifest.files, manifest.facts
    )
    with pytest.raises(TkcError, match="two versions of tilelang: tilelang 9 and"):
        pack(packing_of(cpu_store, artifacts=[(request, other), *rest]), cpu_store, tmp_path)


@pytest.mark.parametrize("version", ["", "one", "1.0 beta 2 x"])
def test_a_version_that_pip_would_refuse_is_refused_at_once(version: str, cpu_store: Store, tmp_path: Path) -> None:
    with pytest.raises(TkcError, match="is no version of a package"):
        pack(packing_of(cpu_store, version=version), cpu_store, tmp_path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tkc_kernels_cpu-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "not py3-none-manylinux"),
        ("tkc_kernels_cpu-1.0-py3-none-any.whl", "not py3-none-manylinux"),
        ("tkc_kernels_cpu-1.0-py3-none-linux_x86_64.whl", "not py3-none-manylinux"),
        ("tkc_kernels_cpu-1.0-py2.py3-none-manylinux_2_28_x86_64.whl", "2 tags"),
        ("tkc-kernels-cpu.whl", "no wheel's name"),
        ("tkc_kernels_cpu-1.0.0-1-py3-none-manylinux_2_28_x86_64.whl", "build number"),
    ],
)
def test_other_tags_are_not_a_wheel_of_artifacts(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        WheelName.parse(name)


def test_names_come_back_as_they_were_written() -> None:
    from tkc.model import Host

    name = WheelName.of(Target.parse("sm90"), Host.parse("aarch64"), "1.2.0+a1b2")
    assert name.filename == "tkc_kernels_sm90-1.2.0+a1b2-py3-none-manylinux_2_28_aarch64.whl"
    assert WheelName.parse(name.filename) == name
    assert (name.host, name.glibc) == ("aarch64", (2, 28))


def test_the_licence_in_the_package_is_the_projects(wheel: Path) -> None:
    assert member(wheel, "licenses/tkc-MIT.txt") == (ROOT / "LICENSE").read_bytes()


def test_every_part_of_which_code_is_inside_brings_its_licence() -> None:
    from tkc.model import Backend
    from tkc.wheel.licences import PARTS, texts_of

    assert [part.name for part in PARTS if not part.texts] == []
    assert all(len(text) > 100 for backend in Backend for text in texts_of(backend).values())
    assert "nvidia-cuda-EULA.txt" in texts_of(Backend.CUDA)


def test_model_dimensions_come_back_as_they_were_packed(wheel: Path, cpu_store: Store) -> None:
    contents = WheelContents.from_bytes(member(wheel, "manifest.json"))
    assert contents.dims() == packing_of(cpu_store).dims
    assert all(isinstance(one, ModelDims) for one in contents.dims())


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "tkc", "wheel", "transpose", "--target", "sm90", "--grid", "smoke"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "file" / "dist")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/file/dist cannot be written: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


_BISHENG = """#!/bin/sh
[ "$1" = --version ] && { echo "bisheng stand-in 9.1"; exit; }
for last; do :; done
echo "made by ${0##*/}" > "$last"
"""


@pytest.mark.level1
def test_a_wheel_for_ascend_is_lowered_linked_packed_and_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is ours of it; what CANN's compiler writes is a stand-in's here."""
    for name in ("bisheng", "ld.lld"):
        program = tmp_path / "cann" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(_BISHENG)
        program.chmod(0o755)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))
    command = [sys.executable, "-m", "tkc", "wheel", "transpose", "--target", "ascend950", "--grid", "smoke", "--json"]
    done = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["problems"] == []
    assert told["contents"]["target"] == "ascend950"
    assert Path(told["wheel"]).name.startswith("tkc_kernels_ascend950-")
    items = json.loads(member(Path(told["wheel"]), "manifest.json"))["artifacts"]
    assert {kernel["arch"] for item in items for kernel in item["kernels"]} == {"dav-3510"}


@pytest.mark.level2
@pytest.mark.parametrize("target", ["cpu", "sm90", "sm100"])
def test_two_clones_of_one_commit_give_the_same_wheel(target: str, tmp_path: Path) -> None:
    """Cloned, compiled from nothing and packed in two folders, with two stores."""
    wheels = []
    for name in ("a", "another-folder"):
        clone = tmp_path / name
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        env = {**os.environ, "TKC_CACHE_DIR": str(tmp_path / f"store-{name}"), "PYTHONPATH": str(clone)}
        command = [sys.executable, "-m", "tkc", "wheel", "transpose", "--target", target, "--grid", "smoke"]
        subprocess.run([*command, "--output", "out"], cwd=clone, env=env, check=True)
        wheels += sorted((clone / "out").iterdir())
    first, second = wheels
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
