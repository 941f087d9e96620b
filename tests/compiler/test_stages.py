"""Keys name everything that is consumed, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tkc.compiler import CompileOptions, Tools, Unit, assemble_action, compile_action, link_action, lower_action, stages
from tkc.compiler.stages import pass_configs
from tkc.errors import SpecError
from tkc.model import Action, Backend, Component, Digest, FileEntry, Manifest, Stage, Toolchain, manifest_of
from tkc.registry import load_catalog

SAMPLES = Path(__file__).parent / "sample_kernels"

MakeUnit = Callable[..., Unit]


def toolchain(**changed: str) -> Toolchain:
    names = ("tilelang", "tvm-ffi", "z3", "nvrtc", "cuda-headers", "tilelang-templates", "cc", "tvm-ffi-headers")
    contents = dict.fromkeys(names, "1") | {name.replace("_", "-"): text for name, text in changed.items()}
    return Toolchain(tuple(Component(name, "1.0", Digest.of_bytes(text.encode())) for name, text in contents.items()))


def lowered_manifest(source: bytes = b"source", host: bytes = b"host") -> Manifest:
    files = tuple(
        FileEntry(name, Digest.of_bytes(data), len(data)) for name, data in (("device.cu", source), ("host.c", host))
    )
    facts = {"entry": "__tvm_ffi_main", "kernels": [{"symbol": "k"}]}
    return manifest_of(Action(Stage.LOWER, {"spec": "any"}), files, facts=facts)


PRINT_KEY = """
import sys
sys.path.insert(0, sys.argv[1])
from tkc.compiler import CompileOptions, Unit, compile_action, probe
from tkc.model import Host, Target
from tkc.registry import load_catalog
entry = load_catalog("sample_kernels").find("elementwise.scale")
unit = Unit(entry, entry.spec.bind(), Target.parse("sm90"), Host.parse("aarch64"))
print(compile_action(unit, probe(unit.target, unit.host, unit.options, stamps_dir=None).toolchain).key)
assert not {"tilelang", "torch", "tvm"} & set(sys.modules), "making a key imported a heavy module"
"""


def key_in_process(folder: Path, catalogue: Path, **environment: str) -> str:
    folder.mkdir()
    command = [sys.executable, "-c", PRINT_KEY, str(catalogue)]
    env = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.level1
def test_a_key_is_a_pure_function_of_contents(tmp_path: Path) -> None:
    """Another process, folder, HOME, hash seed and place of the catalogue give the same key, importing no tool."""
    shutil.copytree(SAMPLES, tmp_path / "copy" / "sample_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    here = key_in_process(tmp_path / "a", SAMPLES.parent, HOME="/nonexistent", PYTHONHASHSEED="1")
    there = key_in_process(tmp_path / "b", tmp_path / "copy", USER="somebody", PYTHONHASHSEED="2", TZ="Asia/Tokyo")
    assert here == there and here.startswith("sha256:")


def test_every_input_of_a_compile_changes_its_key(unit: MakeUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    base = compile_action(unit("sm90"), toolchain()).key
    keys = [
        compile_action(unit("sm90", dtype="float16"), toolchain()).key,
        compile_action(unit("sm100"), toolchain()).key,
        compile_action(unit("cpu"), toolchain()).key,
        compile_action(unit("sm90", "aarch64" if unit().host.arch == "x86_64" else "x86_64"), toolchain()).key,
        compile_action(unit("sm90", options=CompileOptions(flags=("-lineinfo",))), toolchain()).key,
        *(
            compile_action(unit("sm90"), toolchain(**{component.name.replace("-", "_"): "2"})).key
            for component in toolchain().components
        ),
    ]
    for name, value in {
        "device_runtime_digest": lambda backend: Digest.of_bytes(b"another runtime"),
        "_implementation": lambda *patterns: Digest.of_bytes(b"another tkc"),
        "pass_configs": lambda entry, backend: {"tl.enable_fast_math": True},
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(stages, name, value)
            keys.append(compile_action(unit("sm90"), toolchain()).key)
    assert len({base, *keys}) == len(keys) + 1


def test_the_assembler_is_in_the_key(unit: MakeUnit) -> None:
    """Two compilers of one version and, were it possible, one content are still two compilers."""
    renamed = tuple(replace(c, name="nvcc") if c.name == "nvrtc" else c for c in toolchain().components)
    keys = [compile_action(unit("sm90"), t) for t in (toolchain(), Toolchain(renamed))]
    assert [key.fields["assembler"] for key in keys] == ["nvrtc", "nvcc"]
    assert keys[0].key != keys[1].key


@pytest.mark.parametrize("file", ["elementwise/scale/cuda.py", "elementwise/scale/spec.py", "elementwise/_helpers.py"])
def test_an_edited_source_or_imported_helper_changes_the_key(
    unit: MakeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    package = tmp_path / "edited_kernels"
    shutil.copytree(SAMPLES, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in package.rglob("*.py"):
        path.write_text(path.read_text().replace("sample_kernels", "edited_kernels"))
    entry = replace(unit().entry, package="edited_kernels", folder=package / "elementwise" / "scale")
    before = compile_action(replace(unit("sm90"), entry=entry), toolchain()).key
    with (package / file).open("a") as source:
        source.write("\n# edited\n")
    assert compile_action(replace(unit("sm90"), entry=entry), toolchain()).key != before


def test_a_stage_is_keyed_by_what_it_consumes_alone(unit: MakeUnit) -> None:
    """A new C compiler lowers and assembles nothing again; a new device compiler links nothing again."""
    here, there = (unit("sm90", host) for host in ("x86_64", "aarch64"))
    assert lower_action(here, toolchain()).key == lower_action(there, toolchain(cc="2", nvrtc="2")).key
    assert lower_action(here, toolchain()).key != lower_action(here, toolchain(tilelang="2")).key

    lowered = lowered_manifest()
    assert (
        assemble_action(here, lowered, toolchain()).key
        == assemble_action(there, lowered, toolchain(cc="2", tilelang="2")).key
    )
    for changed in ("nvrtc", "cuda_headers", "tilelang_templates"):
        assert (
            assemble_action(here, lowered, toolchain()).key
            != assemble_action(here, lowered, toolchain(**{changed: "2"})).key
        )
    assert (
        assemble_action(here, lowered, toolchain()).key
        != assemble_action(here, lowered_manifest(b"other"), toolchain()).key
    )
    assert (
        assemble_action(here, lowered, toolchain()).key
        == assemble_action(here, lowered_manifest(host=b"other"), toolchain()).key
    )

    assert (
        link_action(here, lowered, None, toolchain()).key == link_action(here, lowered, None, toolchain(nvrtc="2")).key
    )
    assert link_action(here, lowered, None, toolchain()).key != link_action(there, lowered, None, toolchain()).key
    assert link_action(here, lowered, None, toolchain()).key != link_action(here, lowered, None, toolchain(cc="2")).key
    assert (
        link_action(here, lowered, None, toolchain()).key
        != link_action(here, lowered_manifest(host=b"other"), None, toolchain()).key
    )


def test_pass_configs_are_read_without_importing_the_variant(unit: MakeUnit) -> None:
    assert pass_configs(unit().entry, Backend.CUDA) == {"tl.disable_warp_specialized": True}
    assert pass_configs(unit().entry, Backend.CPU) == {}


def test_pass_configs_that_are_computed_are_refused(unit: MakeUnit, tmp_path: Path) -> None:
    (tmp_path / "cuda.py").write_text("PASS_CONFIGS: dict[str, object] = {'tl.a': compute()}\n")
    with pytest.raises(SpecError, match=r"elementwise\.scale: PASS_CONFIGS in cuda\.py is not a literal"):
        pass_configs(replace(unit().entry, folder=tmp_path), Backend.CUDA)


def test_no_path_of_this_machine_is_in_a_key(unit: MakeUnit, tools: Callable[[Unit], Tools]) -> None:
    for target in ("sm90", "cpu", "ascend950"):
        text = str(compile_action(unit(target), tools(unit(target)).toolchain).plain_fields())
        for place in (sys.prefix, str(Path.home()), str(SAMPLES.parent)):
            assert place not in text


def test_a_catalogue_is_found_by_name() -> None:
    assert [entry.spec.name for entry in load_catalog("sample_kernels")] == ["elementwise.convert", "elementwise.scale"]
