"""Host C, device runtime and device binary → one shared library.

The library's exported symbols are the entries of the device runtime; its undefined ones are libc's and
tvm-ffi's C ABI. Nothing in it depends on where or when it was linked: the compiler runs in the folder of
its sources, names them relatively, and writes neither debug information nor build ids.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tkc.compiler import device_runtime
from tkc.compiler.host_libraries import HostLibrary, host_libraries
from tkc.compiler.probe import Tools
from tkc.compiler.programs import LOG, failed, run_program
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
from tkc.model import Backend, Digest, Manifest, Stage


def link(
    unit: Unit,
    tools: Tools,
    lowered: Manifest,
    assembled: Manifest | None,
    files: Mapping[str, Path],
    folder: Path,
) -> StageOutput:
    """Link the artifact of `unit` into `folder`.

    Args:
        lowered, assembled: what the stages before gave; `assembled` is None where nothing is assembled.
        files: the files of both, by name; they may lie anywhere.

    Raises ToolchainError if no C compiler for the host is here, CompileError if it fails or if the
    library would need a symbol that neither libc nor tvm-ffi has.
    """
    tools.require(Stage.LINK)
    compiler = _Compiler(unit, tools, folder / LOG)
    libraries, runtime = _host_libraries(unit, tools, compiler), _runtime_objects(unit, tools, compiler)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        _gather(unit, lowered, assembled, files, work)
        compiler.run(work, *_C_FLAGS, "-c", "artifact.c", "-o", "artifact.o")
        objects = ["artifact.o", *runtime]
        if unit.target.backend is Backend.CPU:
            compiler.run(work, *_CXX_FLAGS, "-c", DEVICE_SOURCE[Backend.CPU], "-o", "device.o")
            objects.append("device.o")
        compiler.run(work, *_LINK_FLAGS, *objects, *libraries, "-o", LIBRARY)
        _check_symbols(unit, work / LIBRARY)
        (work / LIBRARY).replace(folder / LIBRARY)
    return StageOutput((LIBRARY,), merged_facts(lowered, assembled))


def _gather(unit: Unit, lowered: Manifest, assembled: Manifest | None, files: Mapping[str, Path], work: Path) -> None:
    """Put everything that is the artifact's own into one folder, under the names that sources use."""
    for manifest in filter(None, (lowered, assembled)):
        for entry in manifest.files:
            shutil.copyfile(files[entry.name], work / entry.name)
    for name, text in device_runtime.sources(unit.target.backend).items():
        if name.endswith(".h"):
            (work / name).write_text(text)
    (work / "kernel_table.c").write_text(device_runtime.kernel_table_c(merged_facts(lowered, assembled)))
    (work / "artifact.c").write_text(_artifact_c(unit, lowered, assembled))


# Generated code reinterprets numbers through pointers; and a product added to something is rounded
# twice on every host, so that a kernel gives the same bits on each.
_COMMON_FLAGS = (
    *("-fPIC", "-g0", "-w", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off"),
    *("-fno-stack-protector", "-fno-sanitize=all", "-U_FORTIFY_SOURCE"),
)
_C_FLAGS = ("-std=gnu11", "-O1", *_COMMON_FLAGS)
_RUNTIME_FLAGS = ("-std=gnu11", "-O2", *_COMMON_FLAGS)
_CXX_FLAGS = ("-x", "c++", "-std=gnu++17", "-nostdinc++", "-fno-exceptions", "-fno-rtti", "-O2", *_COMMON_FLAGS)
_LINK_FLAGS = (
    *("-shared", "-nostdlib", "-s", f"-Wl,-soname,{LIBRARY}", "-Wl,--build-id=none", "-Wl,-z,relro", "-Wl,-z,now"),
    "-Wl,--as-needed",
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
        '#include "tkc_cpu.h"' if unit.target.backend is Backend.CPU else "",
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
    """Runs the host C compiler for one link."""

    def __init__(self, unit: Unit, tools: Tools, log: Path) -> None:
        self._unit, self._tools, self._log = unit, tools, log

    def run(self, folder: Path, *arguments: str) -> None:
        """Run in `folder`. Raises CompileError, with the compiler's words, unless it succeeds."""
        headers = Path(__file__).parent / "link_headers"
        includes = (f"-I{path}" for path in (headers, *self._tools.cc_includes))
        run_program(
            (*self._tools.cc, *arguments, *includes),
            unit=self._unit,
            stage=Stage.LINK,
            folder=folder,
            log=self._log,
            environment=self._tools.cc_env(folder),
        )


def _runtime_objects(unit: Unit, tools: Tools, compiler: _Compiler) -> list[str]:
    """Objects of the device runtime, compiled once for each version of it, host and compiler."""
    backend = unit.target.backend
    sources = device_runtime.sources(backend)
    names = sorted(name for name in sources if name.endswith(".c"))

    def compile_all(work: Path, made: Path) -> None:
        for name, text in sources.items():
            (work / name).write_text(text)
        for name in names:
            compiler.run(work, *_RUNTIME_FLAGS, "-c", name, "-o", str(made / f"{name}.o"))

    inputs = {"sources": device_runtime_digest(backend), "flags": _RUNTIME_FLAGS}
    made = _made_once("device_runtime", inputs, unit, tools, compile_all)
    return [str(made / f"{name}.o") for name in names]


def _host_libraries(unit: Unit, tools: Tools, compiler: _Compiler) -> list[str]:
    """Stand-ins for the host's C library, linked once for each host and compiler."""
    libraries = host_libraries(unit.host.arch)

    def link_all(work: Path, made: Path) -> None:
        for library in libraries:
            (work / "library.c").write_text(library.source())
            (work / "library.map").write_text(library.version_script())
            compiler.run(work, *_stand_in_flags(library), "library.c", "-o", str(made / library.link_name))

    inputs = {"libraries": [[library.source(), library.version_script()] for library in libraries]}
    made = _made_once("host_libraries", inputs, unit, tools, link_all)
    return [str(made / library.link_name) for library in libraries]


def _stand_in_flags(library: HostLibrary) -> tuple[str, ...]:
    return (
        *("-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-w", "-fno-sanitize=all", "-Wl,--build-id=none"),
        *(f"-Wl,-soname,{library.soname}", "-Wl,--version-script=library.map"),
    )


def _made_once(
    what: str, inputs: Mapping[str, object], unit: Unit, tools: Tools, make: Callable[[Path, Path], None]
) -> Path:
    """A folder of the scratch folder that `make` fills, once for each value of `inputs`.

    `make` gets a folder to work in, and the one to fill, which becomes visible when it is whole.
    """
    fields = {
        **inputs,
        "cc": tools.toolchain.only("cc", "tvm-ffi-headers").fields(),
        "host": [unit.host.arch, unit.host.glibc],
    }
    ready = tools.scratch / what / Digest.of_fields(f"tkc.{what}/1", fields).hex
    if not ready.is_dir():
        ready.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ready.parent) as name:
            work, made = Path(name), Path(name) / "made"
            made.mkdir()
            make(work, made)
            try:
                made.rename(ready)
            except OSError:
                if not ready.is_dir():
                    raise  # otherwise another process was first, and what it made is the same
    return ready


def _check_symbols(unit: Unit, library: Path) -> None:
    """Refuse a library that could not be loaded anywhere: one that needs more than libc and tvm-ffi."""
    from elftools.elf.elffile import ELFFile

    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        undefined = {symbol.name for symbol in symbols if symbol.name and symbol["st_shndx"] == "SHN_UNDEF"}
    known = {name for library_ in host_libraries(unit.host.arch) for name in library_.symbols}
    if strangers := sorted(name for name in undefined - known if not name.startswith("TVMFFI")):
        why = f"the kernel calls {', '.join(strangers)}, which neither libc nor tvm-ffi has"
        raise failed(unit, Stage.LINK, why)
