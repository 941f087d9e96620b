"""What a shared library asks of the machine that loads it, and what is wrong with that."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from tkc.compiler.resources import BAD_ELF, read_cubin
from tkc.model import Backend, Target

NEEDED = frozenset(
    {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
)
"""Libraries that an artifact may need: all of them glibc's."""

ENTRY = "__tvm_ffi_main"
_OF_TVM_FFI = "TVMFFI"
_OF_CPYTHON = re.compile(r"_?Py[A-Z_]")
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_ELF_MAGIC = b"\x7fELF"

MAX_DEVICE_BINARIES = 64
"""No artifact has more; four bytes are enough to look like another."""

_PATH = re.compile(rb"(?<![\w.\-/:])/(?:[\w.+\-]+/)+[\w.+\-]+")
_BUILD_ROOTS = re.compile(rb"/(?:home|root|tmp|work|build|mnt|opt|srv|data|Users|usr|var|private|github|__w)/")
_NEVER_A_BUILD_PATH = (b"/proc/", b"/dev/", b"/sys/", b"/lib/ld-", b"/lib64/ld-")
_LEAST_BYTES = 16
"""Shorter runs of bytes look like paths by chance, unless they begin as one that builders use."""


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """A shared library, as its file says.

    Attributes:
        host: CPU architecture; the machine's own name if tkc has none.
        is_library: whether it is one.
        needed: libraries that it names.
        run_paths: folders in which it wants them looked for.
        versions: versions of symbols that it needs, such as ``GLIBC_2.17``.
        undefined: symbols that somebody must bring and that have no version.
        exported: symbols that it brings.
        device_binaries: binaries for a device that are embedded in it, each up to the end of the file.
    """

    host: str
    is_library: bool
    needed: tuple[str, ...]
    run_paths: tuple[str, ...]
    versions: tuple[str, ...]
    undefined: tuple[str, ...]
    exported: tuple[str, ...]
    device_binaries: tuple[memoryview, ...]


def read_library(data: bytes) -> LibraryFacts:
    """Read a shared library. Raises ValueError if it is none, or is cut short."""
    try:
        elf = ELFFile(io.BytesIO(data))
        machine = elf.header["e_machine"]
        tags = list(_dynamic(elf))
        symbols = list(_symbols(elf))
        return LibraryFacts(
            host=_MACHINES.get(machine, str(machine)),
            is_library=elf.header["e_type"] == "ET_DYN",
            needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
            run_paths=tuple(
                str(getattr(tag, tag.entry.d_tag[3:].lower()))
                for tag in tags
                if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
            ),
            versions=tuple(sorted(set(_versions(elf)))),
            undefined=tuple(name for name, defined, versioned in symbols if not defined and not versioned),
            exported=tuple(name for name, defined, _ in symbols if defined),
            device_binaries=tuple(islice(_embedded(data), MAX_DEVICE_BINARIES + 1)),
        )
    except BAD_ELF as error:
        raise ValueError(f"not a shared library, or a damaged one: {type(error).__name__} {error}".strip()) from error


def library_problems(
    data: bytes, *, host: str, glibc: tuple[int, int], target: Target, kernels: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """What is wrong with an artifact's library for this host, C library level and target.

    `kernels` is what its manifest says of the kernels inside.
    """
    try:
        facts = read_library(data)
    except ValueError as error:
        yield str(error)
        return
    if facts.host != host:
        yield f"is for host {facts.host}; the wheel is for {host}"
    if not facts.is_library:
        yield "is an ELF file but no shared library"
    yield from _linking_problems(facts, glibc)
    yield from _device_problems(facts, target, kernels)
    yield from (f"holds the absolute path {path!r}" for path in absolute_paths(data))


def absolute_paths(data: bytes) -> tuple[str, ...]:
    """Strings that look like paths of the machine that built this."""
    found = dict.fromkeys(match[0] for match in _PATH.finditer(data))
    return tuple(
        path.decode("ascii", "replace")
        for path in found
        if not path.startswith(_NEVER_A_BUILD_PATH) and (len(path) >= _LEAST_BYTES or _BUILD_ROOTS.match(path))
    )


def _linking_problems(facts: LibraryFacts, glibc: tuple[int, int]) -> Iterator[str]:
    for name in sorted(set(facts.needed) - NEEDED):
        yield f"needs {name}, which is not part of the C library"
    for path in facts.run_paths:
        yield f"looks for libraries in {path!r}"
    for version in facts.versions:
        if problem := _version_problem(version, glibc):
            yield problem
    for symbol in facts.undefined:
        if _OF_CPYTHON.match(symbol):
            yield f"needs CPython's {symbol}; the wheel is tagged py3-none"
        elif not symbol.startswith(_OF_TVM_FFI):
            yield f"needs {symbol}, which neither the C library nor tvm-ffi's C interface has"
    if ENTRY not in facts.exported:
        yield f"exports no {ENTRY}: it was not linked by tkc"


def _version_problem(version: str, glibc: tuple[int, int]) -> str | None:
    match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
    if match is None:
        return f"needs symbols of version {version}, which is not the C library's"
    asked = int(match[1]), int(match[2])
    return f"needs {version}; the wheel promises glibc {glibc[0]}.{glibc[1]}" if asked > glibc else None


def _device_problems(facts: LibraryFacts, target: Target, kernels: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for kernel in kernels:
        if target.backend is not Backend.CPU and kernel.get("arch") != target.arch:
            yield f"kernel {kernel.get('symbol')} is for {kernel.get('arch')}; {target} is {target.arch}"
    if target.backend is Backend.CUDA:
        yield from _cuda_problems(facts.device_binaries, target, {str(kernel.get("symbol")) for kernel in kernels})
    elif target.backend is Backend.CPU and facts.device_binaries:
        yield f"holds {len(facts.device_binaries)} device binaries; an artifact for the CPU has none"


def _cuda_problems(binaries: Sequence[memoryview], target: Target, symbols: set[str]) -> Iterator[str]:
    if len(binaries) > MAX_DEVICE_BINARIES:
        yield f"holds more than {MAX_DEVICE_BINARIES} device binaries"
        return
    inside = set[str]()
    wanted = int(re.sub(r"\D", "", target.arch))
    for data in binaries:
        try:
            cubin = read_cubin(bytes(data))
        except ValueError as error:
            yield f"holds {error}"
            continue
        inside |= set(cubin.kernels)
        if cubin.capability != wanted:
            yield f"holds code for compute capability {cubin.capability}; {target} is {wanted}"
    if inside != symbols:
        differ = ", ".join(sorted(inside ^ symbols)) or "none"
        yield f"its device binaries and its manifest differ in kernels: {differ}"


def _dynamic(elf: ELFFile) -> Iterator[Any]:
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            yield from section.iter_tags()


def _symbols(elf: ELFFile) -> Iterator[tuple[str, bool, bool]]:
    """Global dynamic symbols: name, whether it is defined here, whether it is bound to a version."""
    table, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
    if not isinstance(table, SymbolTableSection):
        return
    for index, symbol in enumerate(table.iter_symbols()):
        if not symbol.name or symbol["st_info"]["bind"] == "STB_LOCAL":
            continue
        version = versions.get_symbol(index)["ndx"] if versions is not None else "VER_NDX_GLOBAL"
        yield symbol.name, symbol["st_shndx"] != "SHN_UNDEF", isinstance(version, int)


def _versions(elf: ELFFile) -> Iterator[str]:
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, needed in section.iter_versions():
                yield from (version.name for version in needed)


def _embedded(data: bytes) -> Iterator[memoryview]:
    """Every ELF file inside this one, from its first byte to the end of the data."""
    position, view = data.find(_ELF_MAGIC, 1), memoryview(data)
    while position > 0:
        yield view[position:]
        position = data.find(_ELF_MAGIC, position + 1)
