"""Host C, device runtime and device binary → one shared library.

The library's exported symbols are the entries of the device runtime; its undefined ones are libc's and
tvm-ffi's C ABI. Nothing in it depends on where or when it was linked: compilers run in the folder of
their sources, name them relatively, and write neither debug information nor build ids.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tkc.compiler import device_runtime
from tkc.compiler.probe import Tools
from tkc.compiler.stages import (
    DEVICE_BINARY,
    DEVICE_SOURCE,
    HOST_SOURCE,
    LIBRARY,
    StageOutput,
    Unit,
    device_runtime_digest,
    merged_facts,
)
from tkc.errors import CompileError
from tkc.model import Backend, Digest, Manifest, Stage

LOG = "log.txt"


def link(
    unit: Unit, tools: Tools, lowered: Manifest, assembled: Manifest | None, files: Mapping[str, Path], folder: Path
) -> StageOutput:
    """Link the artifact of `unit` into `folder`.

    Args:
        lowered, assembled: what the stages before gave; `assembled` is None where nothing is assembled.
        files: the files of both, by name; they may lie anywhere.

    Raises ToolchainError if no C compiler for the host is here, CompileError if it fails.
    """
    tools.require(Stage.LINK)
    facts = merged_facts(lowered, assembled)
    compiler = _Compiler(unit, tools, folder / LOG)
    runtime = _runtime_objects(unit, tools, compiler)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        for source in (HOST_SOURCE, DEVICE_SOURCE[unit.target.backend], DEVICE_BINARY.get(unit.target.backend)):
            if source is not None and source in files:
                shutil.copyfile(files[source], work / source)
        (work / "kernel_table.c").write_text(device_runtime.kernel_table_c(facts))
        (work / "artifact.c").write_text(_artifact_c(unit, lowered, assembled))
        sources = ["artifact.c"]
        if unit.target.backend is Backend.CPU:
            compiler.run(work, *_CXX_FLAGS, "-c", DEVICE_SOURCE[Backend.CPU], "-o", "device.o")
            sources.append("device.o")
        compiler.run(work, *_C_FLAGS, *sources, *map(str, runtime), *_LINK_FLAGS, "-o", LIBRARY)
        (work / LIBRARY).replace(folder / LIBRARY)
    return StageOutput((LIBRARY,), facts)


_COMMON_FLAGS = ("-fPIC", "-g0", "-w", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off")
_C_FLAGS = ("-std=gnu11", "-O1", *_COMMON_FLAGS)
_RUNTIME_FLAGS = ("-std=gnu11", "-O2", *_COMMON_FLAGS)
_CXX_FLAGS = ("-x", "c++", "-nostdinc++", "-fno-exceptions", "-fno-rtti", "-O2", *_COMMON_FLAGS)
_LINK_FLAGS = (
    "-shared",
    "-s",
    f"-Wl,-soname,{LIBRARY}",
    "-Wl,--build-id=none",
    "-Wl,-z,relro,-z,now",
    "-Wl,--as-needed",
    "-ldl",
    "-lpthread",
    "-lm",
)

_EMBEDDED = """
__asm__(
    ".pushsection .rodata.tkc_device_binary,\\"a\\",%progbits\\n"
    ".balign 64\\n"
    ".globl tkc_device_binary\\n"
    ".hidden tkc_device_binary\\n"
    ".type tkc_device_binary, %object\\n"
    "tkc_device_binary:\\n"
    ".incbin \\"{name}\\"\\n"
    ".size tkc_device_binary, {size}\\n"
    ".popsection\\n");
const uint64_t tkc_device_binary_size = {size};
/* {digest} */
"""


def _artifact_c(unit: Unit, lowered: Manifest, assembled: Manifest | None) -> str:
    """One translation unit for all that is the artifact's own.

    It names its inputs' digests, so that a compiler which remembers results by source text alone
    cannot take one artifact for another.
    """
    lines = [
        f"/* {lowered.file(HOST_SOURCE).digest} */",
        *(['#include "tkc_cpu.h"'] if unit.target.backend is Backend.CPU else []),
        "#define __tvm_ffi_main tkc_host_main",
        f'#include "{HOST_SOURCE}"',
        "#undef __tvm_ffi_main",
        '#include "kernel_table.c"',
    ]
    if assembled is not None:
        binary = assembled.file(DEVICE_BINARY[unit.target.backend])
        lines.append(_EMBEDDED.format(name=binary.name, size=binary.size_bytes, digest=binary.digest))
    return "\n".join(lines) + "\n"


class _Compiler:
    """Runs the host C compiler, and keeps what it prints."""

    def __init__(self, unit: Unit, tools: Tools, log: Path) -> None:
        self._unit, self._tools, self._log = unit, tools, log

    def run(self, folder: Path, *arguments: str) -> None:
        """Run in `folder`. Raises CompileError, with the compiler's words, unless it succeeds."""
        headers = Path(__file__).parent / "link_headers"
        includes = [f"-I{path}" for path in (headers, *self._tools.cc_includes)]
        sanitizers = ("-fno-sanitize=all",)
        command = (*self._tools.cc, *sanitizers, *arguments, *includes)
        environment = {**self._tools.cc_env, "ZIG_LOCAL_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            self._log.write_text(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
            words = "\n".join(done.stderr.strip().splitlines()[:12])
            raise CompileError(
                f"{self._unit}: the C compiler failed with status {done.returncode}:\n{words}",
                action=str(self._unit),
                stage=Stage.LINK.value,
                log_path=self._log,
            )


def _runtime_objects(unit: Unit, tools: Tools, compiler: _Compiler) -> list[Path]:
    """Objects of the device runtime, compiled once for each version of it, host and compiler."""
    backend = unit.target.backend
    sources = device_runtime.sources(backend)
    fields = {
        "sources": device_runtime_digest(backend),
        "cc": tools.toolchain.only("cc", "tvm-ffi-headers").fields(),
        "host": [unit.host.arch, unit.host.glibc],
        "flags": _RUNTIME_FLAGS,
    }
    ready = tools.scratch / "device_runtime" / Digest.of_fields("tkc.runtime_objects/1", fields).hex
    names = sorted(name for name in sources if name.endswith(".c"))
    if not ready.is_dir():
        _compile_runtime(sources, names, ready, compiler)
    return [ready / f"{name}.o" for name in names]


def _compile_runtime(sources: Mapping[str, str], names: list[str], ready: Path, compiler: _Compiler) -> None:
    ready.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ready.parent) as name:
        work, objects = Path(name), Path(name) / "objects"
        objects.mkdir()
        for source, text in sources.items():
            (work / source).write_text(text)
        for source in names:
            compiler.run(work, *_RUNTIME_FLAGS, "-c", source, "-o", f"objects/{source}.o")
        try:
            os.rename(objects, ready)
        except OSError:
            if not ready.is_dir():  # somebody else was first otherwise, and theirs is as good
                raise
