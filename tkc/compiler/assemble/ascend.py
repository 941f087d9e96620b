"""AscendC source → device binary, by CANN's bisheng and ld.lld. No Ascend device has run these yet."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tkc.compiler.probe import Tools
from tkc.compiler.programs import LOG, run_program
from tkc.compiler.stages import DEVICE_BINARY, DEVICE_SOURCE, StageOutput, Unit
from tkc.model import Backend, Manifest, Stage

_BINARY = DEVICE_BINARY[Backend.ASCEND]
_OBJECT = "kernel.o"


def assemble(unit: Unit, tools: Tools, lowered: Manifest, files: Mapping[str, Path], folder: Path) -> StageOutput:
    """Compile to a relocatable object, then link it to what the Ascend runtime loads.

    Raises CompileError, with the tool's words, if either step fails.
    """
    for entry in lowered.files:
        shutil.copyfile(files[entry.name], folder / entry.name)
    bisheng, linker = str(tools.device_compiler), str(tools.device_linker)
    source = DEVICE_SOURCE[Backend.ASCEND]
    for command in (
        (bisheng, *flags(unit), "-I.", source, "-o", _OBJECT),
        (linker, *LINKER_FLAGS, _OBJECT, "-o", _BINARY),
    ):
        run_program(command, unit=unit, stage=Stage.ASSEMBLE, folder=folder, log=folder / LOG)
    kernels = [{**kernel, "arch": unit.target.arch} for kernel in lowered.facts["kernels"]]
    return StageOutput((_BINARY,), {"kernels": kernels})


def flags(unit: Unit) -> tuple[str, ...]:
    """Options of the first step, without paths."""
    return (*COMPILER_FLAGS, f"--npu-arch={unit.target.arch}", *unit.options.flags, "--cce-aicore-only")


# The same that TileLang gives these tools.
COMPILER_FLAGS = ("-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false")
LINKER_FLAGS = ("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file")
