"""AscendC source → device binary, by CANN's bisheng and ld.lld. No Ascend device has run these yet."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tkc.compiler.probe import Tools
from tkc.compiler.stages import DEVICE_BINARY, DEVICE_SOURCE, StageOutput, Unit
from tkc.errors import CompileError
from tkc.model import Backend, Manifest, Stage

LOG = "log.txt"
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
    _run(unit, folder, bisheng, *flags(unit), "-I.", source, "-o", _OBJECT)
    _run(unit, folder, linker, *LINKER_FLAGS, _OBJECT, "-o", _BINARY)
    kernels = [{**kernel, "arch": unit.target.arch} for kernel in lowered.facts["kernels"]]
    return StageOutput((_BINARY,), {"kernels": kernels})


def flags(unit: Unit) -> tuple[str, ...]:
    """Options of the first step, without paths."""
    return (*COMPILER_FLAGS, f"--npu-arch={unit.target.arch}", *unit.options.flags, "--cce-aicore-only")


# The same that TileLang gives these tools.
COMPILER_FLAGS = ("-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false")
LINKER_FLAGS = ("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file")


def _run(unit: Unit, folder: Path, *command: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0 and (folder / command[-1]).is_file():
        return
    log = folder / LOG
    log.write_text(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    words = "\n".join((done.stderr or done.stdout).strip().splitlines()[:12])
    raise CompileError(
        f"{unit}: {Path(command[0]).name} failed with status {done.returncode}: {words or 'it wrote no output'}",
        action=str(unit),
        stage=Stage.ASSEMBLE.value,
        log_path=log,
    )
