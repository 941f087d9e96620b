"""The two steps of CANN, with stand-ins that record how they are called."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import compile_in

from tkc.compiler import CompileOptions, Tools, Unit, assemble, lower, lower_action, probe
from tkc.errors import CompileError, ToolchainError
from tkc.model import Digest, FileEntry, Manifest, Stage, manifest_of

MakeUnit = Callable[..., Unit]

STAND_IN = """#!{python}
import json, pathlib, sys
if sys.argv[1:] == ["--version"]:
    print("bisheng stand-in 9.1")
    raise SystemExit
calls = pathlib.Path({calls!r})
with calls.open("a") as file:
    file.write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + "\\n")
if pathlib.Path({failure!r}).exists():
    print("error: no such instruction", file=sys.stderr)
    raise SystemExit(3)
pathlib.Path(sys.argv[-1]).write_bytes(b"made by " + pathlib.Path(sys.argv[0]).name.encode())
"""


@pytest.fixture
def cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like CANN's, found by ASCEND_HOME_PATH."""
    root = tmp_path / "cann"
    (root / "bin").mkdir(parents=True)
    for name in ("bisheng", "ld.lld"):
        program = root / "bin" / name
        program.write_text(
            STAND_IN.format(python=sys.executable, calls=str(root / "calls"), failure=str(root / "fail"))
        )
        program.chmod(0o755)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(root))
    return root


@pytest.fixture(autouse=True)
def no_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BISHENG_HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)


def lowered(unit: Unit, tools: Tools, folder: Path) -> tuple[Manifest, dict[str, Path]]:
    """Lower, and put the files where a store would: under names that say nothing."""
    folder.mkdir()
    output = lower(unit, folder)
    entries, files = [], {}
    for number, name in enumerate(output.files):
        blob = folder / f"blob-{number}"
        (folder / name).rename(blob)
        entries.append(FileEntry(name, Digest.of_file(blob), blob.stat().st_size))
        files[name] = blob
    return manifest_of(lower_action(unit, tools.toolchain), tuple(entries), facts=output.facts), files


def test_the_two_steps_are_called_as_tilelang_calls_them(
    cann: Path, unit: MakeUnit, tmp_path: Path, stamps_dir: Path
) -> None:
    made = unit("ascend950", options=CompileOptions(flags=("-DX=1",)))
    tools = probe(made.target, made.host, made.options, stamps_dir=stamps_dir)
    assert tools.toolchain.only("bisheng").components[0].version == "bisheng stand-in 9.1"
    manifest, files = lowered(made, tools, tmp_path / "lower")
    out = tmp_path / "out"
    out.mkdir()
    output = assemble(made, tools, manifest, files, out)

    assert output.files == ("kernel.aibin",)
    assert (out / "kernel.aibin").read_bytes() == b"made by ld.lld"
    assert [kernel["arch"] for kernel in output.facts["kernels"]] == ["dav-3510"]
    compile_call, link_call = (json.loads(line) for line in (cann / "calls").read_text().splitlines())
    assert compile_call == [
        *("bisheng", "-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false"),
        *("--npu-arch=dav-3510", "-DX=1", "--cce-aicore-only", "-I.", "device.asc", "-o", "kernel.o"),
    ]
    assert link_call == [
        *("ld.lld", "-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", "kernel.o", "-o", "kernel.aibin")
    ]


def test_a_failed_step_is_an_error_with_its_words_and_a_log(
    cann: Path, unit: MakeUnit, tmp_path: Path, stamps_dir: Path
) -> None:
    made = unit("ascend950")
    tools = probe(made.target, made.host, made.options, stamps_dir=stamps_dir)
    manifest, files = lowered(made, tools, tmp_path / "lower")
    (cann / "fail").touch()
    with pytest.raises(CompileError, match="bisheng failed with status 3: error: no such instruction") as caught:
        assemble(made, tools, manifest, files, tmp_path)
    assert caught.value.stage == "assemble"
    assert caught.value.log_path is not None and "--cce-aicore-only" in caught.value.log_path.read_text()


def test_without_cann_lowering_works_and_the_error_names_both_ways_on(
    unit: MakeUnit, tmp_path: Path, stamps_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = unit("ascend950")
    tools = probe(made.target, made.host, made.options, stamps_dir=stamps_dir)
    manifest, files = lowered(made, tools, tmp_path / "lower")
    tools.require(Stage.LOWER)
    with pytest.raises(ToolchainError) as caught:
        assemble(made, tools, manifest, files, tmp_path)
    for words in (
        "bisheng is missing",
        "ASCEND_HOME_PATH (not set)",
        "PATH",
        "install CANN",
        "--emit source",
        "--from-lowered",
    ):
        assert words in str(caught.value)


def test_a_cann_without_its_linker_says_so(
    cann: Path, unit: MakeUnit, stamps_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cann / "bin" / "ld.lld").unlink()
    monkeypatch.setenv("PATH", str(cann / "empty"))
    made = unit("ascend950")
    tools = probe(made.target, made.host, made.options, stamps_dir=stamps_dir)
    with pytest.raises(ToolchainError, match=r"ld\.lld is missing, which compiles for Ascend"):
        tools.require(Stage.ASSEMBLE)


def test_another_bisheng_is_another_toolchain(cann: Path, unit: MakeUnit, stamps_dir: Path) -> None:
    made = unit("ascend950")
    before = probe(made.target, made.host, made.options, stamps_dir=stamps_dir).toolchain
    with (cann / "bin" / "bisheng").open("a") as program:
        program.write("# changed\n")
    assert probe(made.target, made.host, made.options, stamps_dir=stamps_dir).toolchain != before


@pytest.mark.level1
@pytest.mark.usefixtures("cann")
@pytest.mark.parametrize("host", ["x86_64", "aarch64"])
def test_the_binary_is_embedded_in_a_library_for_either_host(
    unit: MakeUnit, stamps_dir: Path, tmp_path: Path, host: str
) -> None:
    made = unit("ascend950", host)
    tools = probe(made.target, made.host, made.options, stamps_dir=stamps_dir)
    library = compile_in(made, tools, tmp_path / "out").library.read_bytes()
    assert library.startswith(b"\x7fELF") and b"made by ld.lld" in library
