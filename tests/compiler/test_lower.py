"""Lowering gives the same bytes wherever and whenever, and says what is wrong with a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tkc.compiler import Unit, lower
from tkc.compiler.stages import DEVICE_SOURCE
from tkc.errors import CompileError, SpecError
from tkc.model import Specialization, Target
from tkc.registry import CatalogEntry

MakeUnit = Callable[..., Unit]

TARGETS = ("sm90", "sm100", "cpu", "ascend950")


def lowered(unit: Unit, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    return {name: (folder / name).read_bytes() for name in lower(unit, folder).files}


@pytest.fixture
def with_variant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace what the catalogue's variants build."""

    def replace(build: Callable[..., object]) -> None:
        monkeypatch.setattr(CatalogEntry, "variant", lambda self, backend: SimpleNamespace(build=build))

    return replace


LOWER_ELSEWHERE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tkc.compiler import Unit, lower
from tkc.model import Host, Target
from tkc.registry import load_catalog
entry = load_catalog("sample_kernels").find("elementwise.scale")
for target in sys.argv[2:]:
    folder = Path(target)
    folder.mkdir()
    lower(Unit(entry, entry.spec.bind(), Target.parse(target), Host.parse("x86_64")), folder)
"""


@pytest.mark.level1
def test_lowering_again_anywhere_gives_the_same_bytes(unit: MakeUnit, tmp_path: Path) -> None:
    """After other kernels in one process, and in another process with another environment, in another order."""
    here = {target: lowered(unit(target), tmp_path / f"{target}-1") for target in TARGETS}
    for dtype in ("float16", "bfloat16"):
        lowered(unit("sm90", dtype=dtype), tmp_path / dtype)
    again = {target: lowered(unit(target), tmp_path / f"{target}-2") for target in TARGETS}
    assert again == here

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {"PATH": os.environ["PATH"], "TILELANG_ENABLE_DATA_RACE_CHECK": "1", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", LOWER_ELSEWHERE, str(Path(__file__).parent), *reversed(TARGETS)]
    subprocess.run(command, cwd=elsewhere, env=environment, check=True, capture_output=True)
    for target, files in here.items():
        assert {name: (elsewhere / target / name).read_bytes() for name in files} == files


def test_an_assertion_names_its_file_relative_to_the_package(unit: MakeUnit, tmp_path: Path) -> None:
    files = lowered(unit("sm90"), tmp_path / "out")
    assert b"at sample_kernels/elementwise/scale/cuda.py:" in files["device.cu"]
    for name, data in files.items():
        assert str(Path(__file__).parent).replace("/", "\\/").encode() not in data, name
        assert str(Path(__file__).parent).encode() not in data, name


def test_facts_say_how_to_launch(unit: MakeUnit, tmp_path: Path) -> None:
    facts = lower(unit("sm90"), tmp_path).facts
    assert facts["function"] == "scale"
    assert facts["parameters"] == ["x", "out", "factor", "bias"]
    assert facts["pass_configs"] == {"tl.disable_warp_specialized": True}
    (kernel,) = facts["kernels"]
    assert kernel["symbol"] == "scale_kernel"
    assert kernel["launch_params"] == ["blockIdx.x", "threadIdx.x", "threadIdx.y", "threadIdx.z"]
    assert (kernel["block"], kernel["cluster"], kernel["cooperative"], kernel["pdl"]) == (
        [128, 1, 1],
        None,
        False,
        True,
    )
    kinds = {argument["name"]: (argument["kind"], argument["alignment_bytes"]) for argument in kernel["args"]}
    assert kinds["x"] == kinds["out"] == ("pointer", 16)
    assert kinds["factor"] == ("float32", 1)
    assert kinds["bias"] == kinds["num_rows"] == kinds["stride_x"] == ("int32", 1)


def copy_by_views(specialization: Specialization, target: Target) -> object:
    """As `scale`, but the element at hand is taken from views of one name."""
    import tilelang.language as T

    width, dtype = specialization.int("width"), specialization.str("dtype")
    rows = T.dynamic("num_rows")

    @T.macro
    def at(tensor: object, place: object) -> object:
        flat = T.Tensor((rows * width,), dtype, data=tensor.data)  # type: ignore[attr-defined]
        return flat[place]

    @T.prim_func
    def scale(
        x: T.Tensor[(rows, width), dtype],
        out: T.Tensor[(rows, width), dtype],
        factor: T.float32,
        bias: T.int32,
    ):
        with T.Kernel(rows, threads=width) as row:
            place = row * width + T.get_thread_binding()
            flat = T.view(out, (rows * width,))
            flat[place] = at(x, place) + at(out, place) + T.cast(factor + bias, dtype)

    return scale


def test_the_address_of_a_viewed_tensor_keeps_its_name_and_alignment(
    unit: MakeUnit, with_variant: Callable[..., None], tmp_path: Path
) -> None:
    with_variant(copy_by_views)
    output = lower(unit("sm90"), tmp_path)
    (kernel,) = output.facts["kernels"]
    alignments = {argument["name"]: argument["alignment_bytes"] for argument in kernel["args"]}
    assert alignments["x"] == alignments["out"] == 16 and "flat" not in alignments
    host = (tmp_path / "host.c").read_text()
    assert "flat" not in host
    for name in ("x", "out"):
        assert f"input {name} data pointer is misaligned; expected: a multiple of 16 bytes" in host


@pytest.mark.parametrize("target", TARGETS)
def test_each_backend_lowers_with_no_device_and_no_vendor_compiler(
    unit: MakeUnit, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_HOME", "ASCEND_HOME_PATH", "BISHENG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    files = lowered(unit(target), tmp_path / "out")
    assert b"scale_kernel" in files[DEVICE_SOURCE[unit(target).target.backend]]
    assert b"int32_t __tvm_ffi_main(" in files["host.c"]


def test_ascend_source_brings_every_header_of_tilelang_that_it_includes(unit: MakeUnit, tmp_path: Path) -> None:
    files = lowered(unit("ascend950"), tmp_path / "out")
    assert {"common.h", "debug.h"} <= set(files)
    for name, data in files.items():
        assert b"tl_templates" not in b"\n".join(line for line in data.splitlines() if line.startswith(b"#include")), (
            name
        )


def test_parameters_other_than_the_spec_says_are_refused(
    unit: MakeUnit, tmp_path: Path, with_variant: Callable[..., None]
) -> None:
    import tilelang.language as T

    @T.prim_func
    def swapped(out: T.Tensor[(4, 256), T.float32], x: T.Tensor[(4, 256), T.float32], factor: T.float32, bias: T.int32):
        with T.Kernel(1, threads=128):
            T.fill(out, 0)

    with_variant(lambda specialization, target: swapped)
    with pytest.raises(
        SpecError, match=r"cuda\.py takes \(out, x, .*the spec's arguments are \(x, out, factor, bias\)"
    ):
        lower(unit("sm90"), tmp_path)


def test_a_parameter_of_another_type_is_refused(
    unit: MakeUnit, tmp_path: Path, with_variant: Callable[..., None]
) -> None:
    import tilelang.language as T

    @T.prim_func
    def other(x: T.Tensor[(4, 256), T.float16], out: T.Tensor[(4, 256), T.float32], factor: T.float32, bias: T.int32):
        with T.Kernel(1, threads=128):
            T.fill(out, 0)

    with_variant(lambda specialization, target: other)
    with pytest.raises(SpecError, match=r"`x` as a tensor of rank 2, float16; the spec says tensor of rank 2, float32"):
        lower(unit("sm90"), tmp_path)


def test_a_program_that_tilelang_refuses_is_an_error_with_its_reason_and_a_log(
    unit: MakeUnit, tmp_path: Path, with_variant: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    def build(specialization: object, target: object) -> object:
        print("chatter")
        os.write(2, b"more chatter\n")
        raise RuntimeError("layouts do not fit")

    with_variant(build)
    with pytest.raises(CompileError, match=r"elementwise\.scale .*refused the program: layouts do not fit") as caught:
        lower(unit("sm90"), tmp_path)
    assert caught.value.stage == "lower" and caught.value.log_path is not None
    log = caught.value.log_path.read_text()
    assert "chatter" in log and "more chatter" in log and "Traceback" in log
    assert capfd.readouterr() == ("", "")


def test_lowering_leaves_standard_output_as_it_was(
    unit: MakeUnit, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lower(unit("sm90"), tmp_path)
    print("after", flush=True)
    assert capfd.readouterr() == ("after\n", "")
