"""CUDA source → device binary, by NVRTC and ptxas, or by nvcc.

NVRTC leaves every constant of every header in its binary. So it is asked for PTX; what nothing refers to is
dropped from that; and ptxas makes the binary, a tenth of the size, with the same code.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tkc.compiler.probe import Tools
from tkc.compiler.programs import LOG, failed, run_program
from tkc.compiler.resources import read_cubin
from tkc.compiler.stages import DEVICE_BINARY, DEVICE_SOURCE, StageOutput, Unit
from tkc.model import Backend, Manifest, Stage

_SOURCE, _BINARY, _PTX = DEVICE_SOURCE[Backend.CUDA], DEVICE_BINARY[Backend.CUDA], "kernel.ptx"

# Small stand-ins for the parts of CUDA's C++ standard library that TileLang's templates use: nearly all of
# the time that a compile took went into parsing the real ones.
_HEADERS = Path(__file__).parent / "cuda_headers"
# nvcc knows the device runtime's functions without being told; of those, programs use the two of dependent launches.
_PREAMBLE = """#include <tl_templates/cuda/nvrtc_std.h>
static __device__ __forceinline__ void cudaGridDependencySynchronize() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
static __device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
"""

_ERRORS_SHOWN = 12


def assemble(unit: Unit, tools: Tools, lowered: Manifest, files: Mapping[str, Path], folder: Path) -> StageOutput:
    """Compile the device source; the facts gain what the binary says of each kernel.

    Raises CompileError with the first errors and the whole log if it cannot be compiled.
    """
    shutil.copyfile(files[_SOURCE], folder / _SOURCE)
    configs = lowered.facts.get("pass_configs", {})
    if tools.assembler == "nvcc":
        _with_nvcc(unit, tools, configs, folder)
    else:
        _with_nvrtc(unit, tools, configs, folder)
    info = read_cubin((folder / _BINARY).read_bytes())
    kernels = [
        {**kernel, "arch": unit.target.arch, **info.kernels[kernel["symbol"]].facts()}
        for kernel in lowered.facts["kernels"]
    ]
    return StageOutput((_BINARY,), {"kernels": kernels})


def flags(unit: Unit, pass_configs: Mapping[str, Any]) -> tuple[str, ...]:
    """Every option that can change the binary; no paths."""
    return (*_compiler_flags(unit, pass_configs), *_ptxas_flags(unit, pass_configs))


def _compiler_flags(unit: Unit, configs: Mapping[str, Any]) -> tuple[str, ...]:
    fast = ("--use_fast_math",) if configs.get("tl.enable_fast_math") else ()
    extra = configs.get("tl.device_compile_flags") or ()
    extra = tuple(extra.split()) if isinstance(extra, str) else tuple(extra)
    virtual = unit.target.arch.replace("sm_", "compute_")
    return (f"-arch={virtual}", "-std=c++20", *fast, *extra, *unit.options.flags)


def _ptxas_flags(unit: Unit, configs: Mapping[str, Any]) -> tuple[str, ...]:
    level = configs.get("tl.ptxas_register_usage_level")
    return (f"-arch={unit.target.arch}", *((f"--register-usage-level={level}",) if level is not None else ()))


def _with_nvcc(unit: Unit, tools: Tools, configs: Mapping[str, Any], folder: Path) -> None:
    includes = [f"-I{path}" for path in tools.includes]
    command = (str(tools.device_compiler), "-ptx", "-w", *_compiler_flags(unit, configs), *includes)
    _run(unit, (*command, _SOURCE, "-o", _PTX), folder)
    _finish(unit, tools, configs, (folder / _PTX).read_text(), folder)


def _with_nvrtc(unit: Unit, tools: Tools, configs: Mapping[str, Any], folder: Path) -> None:
    nvrtc = _nvrtc(str(tools.device_compiler))
    source = _PREAMBLE + (folder / _SOURCE).read_text()
    options = (*_compiler_flags(unit, configs), "-default-device", "-w")
    ptx, log = nvrtc.compile(source, options, (_HEADERS, *tools.includes))
    if ptx is None:  # perhaps a part of the standard library that the stand-ins lack
        ptx, log = nvrtc.compile(source, options, tools.includes)
    if ptx is None:
        (folder / LOG).write_text(log)
        raise failed(unit, Stage.ASSEMBLE, f"NVRTC refused the device source:\n{_first_errors(log)}", folder / LOG)
    _finish(unit, tools, configs, ptx, folder)


def _finish(unit: Unit, tools: Tools, configs: Mapping[str, Any], ptx: str, folder: Path) -> None:
    (folder / _PTX).write_text(without_unused_globals(ptx))
    _run(unit, (str(tools.ptxas), *_ptxas_flags(unit, configs), _PTX, "-o", _BINARY), folder)


def _run(unit: Unit, command: tuple[str, ...], folder: Path) -> None:
    run_program(command, unit=unit, stage=Stage.ASSEMBLE, folder=folder, log=folder / LOG)


_GLOBAL = re.compile(r"^\.(?:global|const) [^\n]*? ([\w$]+)(?:\[\d+\])*(?: = [^\n]*)?;\n", re.MULTILINE)


def without_unused_globals(ptx: str) -> str:
    """Drop the module's variables that are named nowhere but in their own declaration."""
    uses = Counter(re.findall(r"[\w$]+", ptx))
    return _GLOBAL.sub(lambda match: match[0] if uses[match[1]] > 1 else "", ptx)


def _first_errors(log: str) -> str:
    """The first errors of a log, each with the source line that it quotes."""
    lines = log.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[first : first + _ERRORS_SHOWN])


class _Nvrtc:
    """NVRTC's C interface."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def compile(self, source: str, options: Sequence[str], includes: Sequence[Path]) -> tuple[str | None, str]:
        """Give the PTX, or None if there were errors; and the log. Safe to call from several threads."""
        program = ctypes.c_void_p()
        self._must("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"device.cu", 0, None, None)
        try:
            words = [option.encode() for option in (*options, *(f"-I{path}" for path in includes))]
            status = self._library.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
            log = self._text(program, "ProgramLog")
            return (None if status else self._text(program, "PTX")), log
        finally:
            self._must("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        self._must(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._must(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode(errors="replace")

    def _must(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            words = self._library.nvrtcGetErrorString(status).decode()
            raise RuntimeError(f"{function} failed: {words}")


@cache
def _nvrtc(path: str) -> _Nvrtc:
    return _Nvrtc(path)
