"""CUDA binaries are those that nvcc makes, hold nothing but kernels, and are the same bytes wherever they are made."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import HOST
from elftools.elf.elffile import ELFFile

from tkc.compiler import CompileOptions, Tools, Unit, lower, lower_action, probe
from tkc.compiler.assemble import cuda, nvrtc
from tkc.compiler.stages import StageOutput
from tkc.errors import CompileError
from tkc.model import Digest, FileEntry, Manifest, Stage, Target, manifest_of
from tkc.registry import load_catalog

pytestmark = pytest.mark.level1

EMPTY = Digest.of_bytes(b"")
PROGRAMS = ("row_sums", "matmul", "histogram", "maxima", "two_passes", "clustered", "dependent", "convolution")


def program(name: str = "row_sums", target: str = "sm90", **options: object) -> Unit:
    entry = load_catalog("device_kernels").find("samples.programs")
    return Unit(entry, entry.spec.bind(program=name), Target.parse(target), HOST, CompileOptions(**options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tools_for(stamps_dir: Path) -> Callable[[Unit], Tools]:
    return lambda unit: probe(unit.target, unit.host, unit.options, stamps_dir=stamps_dir)


@pytest.fixture(scope="module")
def lowered(tools_for: Callable[[Unit], Tools], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Unit], Lowered]:
    """The device source of a sample program, and its manifest; lowered once."""
    made: dict[str, Lowered] = {}

    def lower_once(unit: Unit) -> Lowered:
        key = f"{unit.specialization} {unit.target}"
        if key not in made:
            folder = tmp_path_factory.mktemp("lowered")
            output = lower(unit, folder)
            action = lower_action(unit, tools_for(unit).toolchain)
            made[key] = manifest_of(action, (), facts=output.facts), folder
        return made[key]

    return lower_once


Lowered = tuple[Manifest, Path]
Assemble = Callable[..., tuple[bytes, StageOutput]]


@pytest.fixture
def assemble(tools_for: Callable[[Unit], Tools], lowered: Callable[[Unit], Lowered], tmp_path: Path) -> Assemble:
    """Assemble a unit; give the binary, and what the stage says."""

    def run(unit: Unit, tools: Tools | None = None) -> tuple[bytes, StageOutput]:
        manifest, folder = lowered(unit)
        work = tmp_path / f"work{len(list(tmp_path.iterdir()))}"
        work.mkdir()
        output = cuda.assemble(unit, tools or tools_for(unit), manifest, {cuda.SOURCE: folder / cuda.SOURCE}, work)
        return (work / cuda.BINARY).read_bytes(), output

    return run


@pytest.fixture
def assemble_source(tools_for: Callable[[Unit], Tools], tmp_path: Path) -> Assemble:
    """Assemble a source of the test's own, with one kernel ``k``."""

    def run(source: str, unit: Unit, configs: dict[str, object] | None = None) -> tuple[bytes, StageOutput]:
        (tmp_path / "given.cu").write_text(source)
        facts = {"kernels": [{"symbol": "k"}], "pass_configs": configs or {}}
        manifest = Manifest(EMPTY, Stage.LOWER, {}, (FileEntry(cuda.SOURCE, EMPTY, 0),), facts)
        work = tmp_path / f"work{len(list(tmp_path.iterdir()))}"
        work.mkdir()
        output = cuda.assemble(unit, tools_for(unit), manifest, {cuda.SOURCE: tmp_path / "given.cu"}, work)
        return (work / cuda.BINARY).read_bytes(), output

    return run


def symbols(binary: bytes) -> set[str]:
    table = ELFFile(io.BytesIO(binary)).get_section_by_name(".symtab")
    return {symbol.name for symbol in table.iter_symbols() if symbol["st_info"]["type"] in ("STT_OBJECT", "STT_FUNC")}


def of_headers(binary: bytes) -> set[str]:
    """Symbols that no kernel is: what the toolchain itself puts into each binary is not counted."""
    return {name for name in symbols(binary) if name.startswith("_Z") or "cuda" in name or "cutlass" in name}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_binary_holds_its_kernel_and_nothing_of_the_headers(assemble: Assemble, name: str) -> None:
    binary, output = assemble(program(name))
    assert f"{name}_kernel" in symbols(binary)
    assert not of_headers(binary)
    assert [kernel["arch"] for kernel in output.facts["kernels"]] == ["sm_90a"]
    assert all(kernel["registers"] > 0 and kernel["code_bytes"] > 0 for kernel in output.facts["kernels"])


@pytest.mark.skipif(shutil.which("g++") is None, reason="nvcc runs g++")
@pytest.mark.parametrize(
    ("target", "name"),
    # TileLang writes no valid source for the first with the wider loads of sm100.
    [("sm90", name) for name in PROGRAMS] + [("sm100", name) for name in PROGRAMS[1:]],
)
def test_nvrtc_with_our_headers_makes_what_nvcc_makes_with_cudas(assemble: Assemble, target: str, name: str) -> None:
    ours, _ = assemble(program(name, target))
    theirs, _ = assemble(program(name, target, assembler="nvcc"))
    assert ours == theirs


def test_a_precompiled_header_is_used_and_changes_nothing(
    tools_for: Callable[[Unit], Tools], lowered: Callable[[Unit], Lowered], tmp_path: Path
) -> None:
    unit = program()
    tools = tools_for(unit)
    assert tools.device_compiler is not None
    compiler = nvrtc.Nvrtc(tools.device_compiler)
    source = (lowered(unit)[1] / cuda.SOURCE).read_text()
    options = (
        "-arch=compute_90a",
        "-std=c++20",
        "--pre-include=tkc_device.h",
        "-default-device",
        "-w",
        "-pch-messages=true",
    )
    done = [compiler.compile(source, options, (cuda.HEADERS, *tools.includes), scratch=tmp_path) for _ in range(3)]
    assert [("creating" in d.log, "using" in d.log) for d in done] == [(False, False), (True, False), (False, True)]
    assert done[0].ptx == done[1].ptx == done[2].ptx is not None
    other = source.replace("row_sums", "other_sums")
    assert "using" in compiler.compile(other, options, (cuda.HEADERS, *tools.includes), scratch=tmp_path).log


def test_processes_that_precompile_at_once_keep_apart_and_leave_nothing(
    lowered: Callable[[Unit], Lowered], tools_for: Callable[[Unit], Tools], tmp_path: Path
) -> None:
    unit = program()
    tools = tools_for(unit)
    script = f"""
import sys
from pathlib import Path
from tkc.compiler.assemble import cuda, nvrtc
from tkc.model import Digest
source = Path({str(lowered(unit)[1] / cuda.SOURCE)!r}).read_text()
includes = (cuda.HEADERS, *map(Path, {[str(path) for path in tools.includes]!r}))
options = ("-arch=compute_90a", "-std=c++20", "--pre-include=tkc_device.h", "-default-device", "-w")
compiler = nvrtc.load(Path({str(tools.device_compiler)!r}))
made = {{compiler.compile(source, options, includes, scratch=Path(sys.argv[1])).ptx for _ in range(3)}}
assert len(made) == 1
print(Digest.of_bytes(made.pop().encode()), len(list(Path(sys.argv[1]).iterdir())) >= 1)
"""
    command = (sys.executable, "-c", script, str(tmp_path))
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [process.communicate(timeout=100)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert len({digest for digest, _ in printed}) == 1
    assert {kept for _, kept in printed} == {"True"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("assembler", ["nvrtc", "nvcc"])
def test_the_same_bytes_in_another_place_for_another_user_on_another_day(
    lowered: Callable[[Unit], Lowered],
    tools_for: Callable[[Unit], Tools],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assembler: str,
) -> None:
    unit = program("matmul", assembler=assembler)
    tools = tools_for(unit)
    manifest, source = lowered(unit)
    made = []
    for place in ("here", "there/deeper"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        moved = folder / "moved"
        moved.mkdir()
        for index, path in enumerate(tools.includes):
            (moved / str(index)).symlink_to(path)
        shutil.copyfile(source / cuda.SOURCE, folder / "source")
        os.utime(folder / "source", (len(place) * 10**8,) * 2)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("USER", place)
        work = folder / "work"
        work.mkdir()
        elsewhere = replace(tools, includes=tuple(moved / str(index) for index in range(len(tools.includes))))
        cuda.assemble(unit, elsewhere, manifest, {cuda.SOURCE: folder / "source"}, work)
        made.append((work / cuda.BINARY).read_bytes())
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


ASSERTING = """
#include <cute/arch/mma_sm89.hpp>
extern "C" __global__ void k(float* x) { assert(x[0] > 0); x[0] = 1; }
"""


def test_an_assertion_names_no_path(assemble_source: Assemble) -> None:
    binary, _ = assemble_source(ASSERTING, program())
    assert b"x[0] > 0" in binary and b"device.cu" in binary
    assert b"site-packages" not in binary and b"/tmp" not in binary


def test_atomics_of_cudas_library_are_the_real_ones(assemble: Assemble, lowered: Callable[[Unit], Lowered]) -> None:
    """Our headers only name them; a template that TileLang has for unknown compilers would stop the device."""
    unit = program("maxima")
    assert "AtomicMax" in (lowered(unit)[1] / cuda.SOURCE).read_text()
    binary, _ = assemble(unit)
    assert b"not implemented" not in binary


BROKEN = """
#include <tl_templates/cuda/reduce.h>
extern "C" __global__ void k(float* x) { x[0] = undeclared_name; }
"""


@pytest.mark.parametrize("assembler", ["nvrtc", "nvcc"])
def test_an_error_quotes_the_source_and_keeps_the_log(assemble_source: Assemble, assembler: str) -> None:
    with pytest.raises(CompileError) as caught:
        assemble_source(BROKEN, program(assembler=assembler))
    message = str(caught.value)
    assert message.startswith("samples.programs program=row_sums --target sm90")
    assert "device.cu(3): error" in message and "undeclared_name" in message
    assert caught.value.stage == "assemble"
    assert caught.value.log_path is not None and "undeclared_name" in caught.value.log_path.read_text()


FOR_ONE_MEMBER = """
extern "C" __global__ void k(unsigned* x) {
  unsigned a = x[0];
  asm volatile("mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0 "
               "{%0,%0,%0,%0},{%1,%1,%1,%1},{%1,%1},{%0,%0,%0,%0},%1,{0,0},%1,{0,0};" : "+f"(*(float*)x) : "r"(a));
}
"""


def test_a_feature_outside_of_the_family_is_said_to_be(assemble_source: Assemble) -> None:
    with pytest.raises(CompileError, match="sm_100f is what a whole family of devices has in common"):
        assemble_source(FOR_ONE_MEMBER, program(target="sm100"))


DIVIDES = """
extern "C" __global__ void k(float* x) { x[threadIdx.x] = x[threadIdx.x] / x[threadIdx.x + 32] + sqrtf(x[0]); }
"""


def test_division_is_ieees_unless_a_variant_asks_for_a_fast_one(assemble_source: Assemble) -> None:
    exact, facts = assemble_source(DIVIDES, program())
    fast, fast_facts = assemble_source(DIVIDES, program(), {"tl.enable_fast_math": True})
    asked, _ = assemble_source(DIVIDES, program(flags=("--use_fast_math",)))
    size, fast_size = (output.facts["kernels"][0]["code_bytes"] for output in (facts, fast_facts))
    assert fast_size < size and fast == asked != exact


MANY_REGISTERS = """
extern "C" __global__ void k(float* x) {
  float a[96];
  #pragma unroll
  for (int i = 0; i < 96; ++i) a[i] = x[i * 32 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 96; ++i) x[(95 - i) * 32 + threadIdx.x] = a[i] * a[(i * 7) % 96];
}
"""


@pytest.mark.parametrize("flag", ["--maxrregcount=32", "-Xptxas=-maxrregcount=32", "-Xptxas -maxrregcount=32"])
def test_flags_reach_whoever_takes_them_and_spills_are_counted(assemble_source: Assemble, flag: str) -> None:
    _, output = assemble_source(MANY_REGISTERS, program())
    _, limited = assemble_source(MANY_REGISTERS, program(), {"tl.device_compile_flags": flag})
    (kernel,), (spilled,) = output.facts["kernels"], limited.facts["kernels"]
    assert kernel["spill_bytes"] == kernel["stack_bytes"] == 0 and kernel["registers"] > 64
    assert spilled["registers"] == 32 and spilled["spill_bytes"] > 0 and spilled["stack_bytes"] > 0


def test_every_flag_that_can_change_the_binary_is_listed_without_paths() -> None:
    unit = program(flags=("-DX=1",))
    configs = {"tl.enable_fast_math": True, "tl.ptxas_register_usage_level": 7}
    listed = cuda.flags(unit, configs)
    assert {"-arch=compute_90a", "-arch=sm_90a", "--use_fast_math", "--register-usage-level=7", "-DX=1"} <= set(listed)
    assert not [flag for flag in listed if "/" in flag]


PTX = """.version 9.0
.target sm_90a
.visible .entry k();
.global .align 4 .u32 _ZN3one5valueE = 1;
.global .align 1 .b8 used[16] = {1, 2, 3};
.global .align 8 .u64 points_to[2] = {used, 0};
.const .align 4 .f32 constant = 0f3F800000;
.visible .global .align 4 .u32 others_see;
	ld.global.u32 %r1, [points_to];
"""


def test_only_variables_that_nothing_names_are_dropped() -> None:
    kept = cuda.without_unused_variables(PTX)
    assert "_ZN3one5valueE" not in kept and "constant" not in kept
    assert "used[16]" in kept and "points_to[2]" in kept and "others_see" in kept
    assert len(kept.splitlines()) == len(PTX.splitlines()) - 2
