"""CUDA source → device binary.

The compiler, NVRTC or nvcc, gives PTX, and ptxas the binary; between them, variables that nothing refers to
are dropped. NVRTC would otherwise leave every constant of every header in the binary, ten times its size.
Both compilers give the same binary, bit for bit. NVRTC takes a seventh of the time, because it starts no
process, sees small headers of our own where CUDA's standard library would be, and precompiles what it sees
again; it is the default.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tkc.compiler.assemble import nvrtc
from tkc.compiler.probe import Tools
from tkc.compiler.programs import LOG, failed, run_program
from tkc.compiler.stages import DEVICE_BINARY, DEVICE_SOURCE, StageOutput, Unit
from tkc.errors import CompileError
from tkc.model import Backend, Manifest, Stage

SOURCE, BINARY = DEVICE_SOURCE[Backend.CUDA], DEVICE_BINARY[Backend.CUDA]
HEADERS = Path(__file__).parent / "cuda_headers"

_PTX = "kernel.ptx"
_ERRORS_SHOWN = 12


def assemble(unit: Unit, tools: Tools, lowered: Manifest, files: Mapping[str, Path], folder: Path) -> StageOutput:
    """Compile the device source into `folder`; the facts gain what the binary says of each kernel.

    Raises CompileError with the first errors, and the whole log in ``log.txt``, if it does not compile.
    """
    shutil.copyfile(files[SOURCE], folder / SOURCE)
    configs = lowered.facts.get("pass_configs", {})
    to_ptx = _with_nvcc if tools.assembler == "nvcc" else _with_nvrtc
    (folder / _PTX).write_text(without_unused_variables(to_ptx(unit, tools, configs, folder)))
    words = _with_ptxas(unit, tools, configs, folder)
    return StageOutput((BINARY,), {"kernels": _kernel_facts(unit, lowered, folder / BINARY, words)})


def flags(unit: Unit, pass_configs: Mapping[str, Any]) -> tuple[str, ...]:
    """Every option that can change the binary; no paths."""
    return (*_compiler_flags(unit, pass_configs), *_ptxas_flags(unit, pass_configs))


def _compiler_flags(unit: Unit, configs: Mapping[str, Any]) -> tuple[str, ...]:
    """What NVRTC and nvcc both take. Division and roots are IEEE's unless a variant asks for fast ones."""
    fast = ("--use_fast_math",) if configs.get("tl.enable_fast_math") else ()
    extra, _ = _extra_flags(unit, configs)
    return (f"-arch={unit.target.arch.replace('sm_', 'compute_')}", "-std=c++20", *fast, *extra)


def _ptxas_flags(unit: Unit, configs: Mapping[str, Any]) -> tuple[str, ...]:
    level = configs.get("tl.ptxas_register_usage_level")
    usage = (f"--register-usage-level={int(level)}",) if level is not None else ()
    _, extra = _extra_flags(unit, configs)
    return (f"-arch={unit.target.arch}", "-O3", *usage, *extra)


_FOR_PTXAS = re.compile(r"(?:-Xptxas|--ptxas-options)=?")
_FOR_BOTH = re.compile(r"--?(?:maxrregcount=\d+|lineinfo|generate-line-info)")


def _extra_flags(unit: Unit, configs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What a variant or a user adds, as nvcc would take it: for the compiler, and for ptxas."""
    given = configs.get("tl.device_compile_flags") or ()
    given = (given,) if isinstance(given, str) else given
    words = iter([word for flag in (*given, *unit.options.flags) for word in shlex.split(flag)])
    compiler: list[str] = []
    ptxas: list[str] = []
    for word in words:
        if match := _FOR_PTXAS.match(word):
            ptxas += (word[match.end() :] or next(words, "")).split(",")
            continue
        compiler.append(word)
        if _FOR_BOTH.fullmatch(word):
            ptxas.append(word)
    return compiler, ptxas


def _with_nvrtc(unit: Unit, tools: Tools, configs: Mapping[str, Any], folder: Path) -> str:
    assert tools.device_compiler is not None, "checked by Tools.require"
    compiler = nvrtc.load(tools.device_compiler)
    source = (folder / SOURCE).read_text()
    options = (*_compiler_flags(unit, configs), "--pre-include=tkc_device.h", "-default-device", "-w")
    done = compiler.compile(source, options, (HEADERS, *tools.includes), scratch=tools.scratch)
    if done.ptx is None:  # it may need more of the standard library than our headers have
        done = compiler.compile(source, options, (*tools.includes, HEADERS))
    if done.ptx is None:
        (folder / LOG).write_text(done.log)
        raise failed(unit, Stage.ASSEMBLE, f"NVRTC refuses the device source:\n{_errors(done.log)}", folder / LOG)
    return done.ptx


def _with_nvcc(unit: Unit, tools: Tools, configs: Mapping[str, Any], folder: Path) -> str:
    """Headers are reached through links beside the source: nvcc writes into the binary where some lie."""
    links = []
    for index, path in enumerate(tools.includes):
        links.append(folder / f"include{index}")
        links[-1].symlink_to(path)
    includes = (f"-I{link.name}" for link in links)
    command = (str(tools.device_compiler), "-ptx", "-w", *_compiler_flags(unit, configs), *includes, SOURCE, "-o", _PTX)
    try:
        _run(unit, command, folder)
    finally:
        for link in links:
            link.unlink()
    return (folder / _PTX).read_text()


_VARIABLE = re.compile(r"^\.(?:global|const) [^\n]*? ([\w$]+)(?:\[\d*\])*(?: = [^\n]*)?;\n", re.MULTILINE)


def without_unused_variables(ptx: str) -> str:
    """Drop the module's variables that are named nowhere but where they are declared.

    Those that others could see (``.visible``, ``.extern``, ``.weak``) stay.
    """
    uses = Counter(re.findall(r"[\w$]+", ptx))
    return _VARIABLE.sub(lambda match: match[0] if uses[match[1]] > 1 else "", ptx)


def _with_ptxas(unit: Unit, tools: Tools, configs: Mapping[str, Any], folder: Path) -> str:
    """Make the binary; give what ptxas says of it."""
    try:
        return _run(unit, (str(tools.ptxas), "-v", *_ptxas_flags(unit, configs), _PTX, "-o", BINARY), folder)
    except CompileError as error:
        hint = _family_hint(unit.target.arch, str(error))
        raise CompileError(f"{error}{hint}", action=error.action, stage=error.stage, log_path=error.log_path) from error


def _family_hint(arch: str, message: str) -> str:
    if not arch.endswith("f") or not re.search(r"\.target|not supported", message):
        return ""
    return (
        f"\n{arch} is what a whole family of devices has in common, and the program uses something outside of it. "
        "Leave that out, or build for one member of the family alone, such as --target sm103"
    )


def _run(unit: Unit, command: tuple[str, ...], folder: Path) -> str:
    return run_program(command, unit=unit, stage=Stage.ASSEMBLE, folder=folder, log=folder / LOG)


def _kernel_facts(unit: Unit, lowered: Manifest, binary: Path, ptxas_words: str) -> list[dict[str, Any]]:
    from tkc.compiler.resources import ptxas_spills, read_cubin  # slow to import; a build of nothing needs neither

    found = read_cubin(binary.read_bytes())
    spills = ptxas_spills(ptxas_words)
    return [
        {
            **kernel,
            **found.kernels[kernel["symbol"]].facts(),
            "spill_bytes": spills.get(kernel["symbol"], 0),
            "arch": unit.target.arch,
        }
        for kernel in lowered.facts["kernels"]
    ]


def _errors(log: str) -> str:
    """The first errors of a log, each with the source line that it quotes; headers by their names."""
    lines = [re.sub(r"^/\S*/(?=[\w.]+\(\d+\): )", "", line) for line in log.strip().splitlines()]
    first = next((number for number, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[first : first + _ERRORS_SHOWN])
