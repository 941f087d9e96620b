"""What a CUDA device binary, and the program that made it, say of its kernels."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section, SymbolTableSection

BAD_ELF = (
    ELFError,
    ConstructError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What pyelftools raises on files that were made to break it: it follows offsets wherever they lead."""


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one kernel asks of the device.

    Attributes:
        registers: of a thread.
        stack_bytes: of a thread's local memory: spilled registers, and arrays indexed at run time.
        static_shared_bytes: of a block, before what is asked for at launch, and without what the system reserves.
        code_bytes: machine code.
    """

    registers: int
    stack_bytes: int
    static_shared_bytes: int
    code_bytes: int

    def facts(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CubinInfo:
    """A device binary: the compute capability that it is for, such as 90, and its kernels by symbol."""

    capability: int
    kernels: Mapping[str, KernelResources]


def cubin_capability(data: bytes) -> int:
    """The compute capability that a cubin is for, such as 90 or 103, from the first 64 bytes of it.

    The letter of ``sm_90a`` or ``sm_100f`` is not there. Raises ValueError if `data` is no cubin.
    """
    if len(data) < _ELF_HEADER_BYTES or data[:4] != b"\x7fELF":
        raise ValueError(f"not a CUDA device binary: {len(data)} bytes that do not begin as an ELF file")
    machine, flags = struct.unpack_from("<H", data, 18)[0], struct.unpack_from("<I", data, 48)[0]
    if machine != _EM_CUDA:
        raise ValueError(f"not a CUDA device binary: an ELF file for machine {machine}; expected {_EM_CUDA}")
    abi_version = data[8]
    return int(flags >> 8 & 0xFF if abi_version >= _ABI_OF_CUDA_13 else flags & 0xFF)


def read_cubin(data: bytes) -> CubinInfo:
    """Read a cubin. Raises ValueError if `data` is none, or is cut short."""
    capability = cubin_capability(data)
    try:
        elf = ELFFile(io.BytesIO(data))
        _check_is_whole(elf, len(data))
        return CubinInfo(capability, _kernels(elf, capability))
    except BAD_ELF as error:
        raise ValueError(f"a damaged CUDA device binary: {type(error).__name__} {error}".strip()) from error


def ptxas_spills(words: str) -> Mapping[str, int]:
    """Bytes of registers that each kernel's threads store to memory, from what ``ptxas -v`` says."""
    return {match["kernel"]: int(match["bytes"]) for match in _SPILLS.finditer(words)}


_SPILLS = re.compile(
    r"Function properties for (?P<kernel>\S+)\s+\d+ bytes stack frame, (?P<bytes>\d+) bytes spill stores"
)

_ELF_HEADER_BYTES = 64
_EM_CUDA = 190
_ABI_OF_CUDA_13 = 8  # from it on, the capability is in the second byte of the flags
_TEXT = ".text."

# Attributes of the .nv.info sections that hold a function's symbol index and a number.
_REGISTERS, _FRAME_BYTES = 0x2F, 0x11
_SIZED_ATTRIBUTE = 0x04  # form of an attribute that says how long it is; others hold two bytes
_RESERVED_SHARED_BYTES = 1024  # of every block, on capability 9.0 and later


def _check_is_whole(elf: ELFFile, size_bytes: int) -> None:
    tables = [
        (elf["e_phoff"], elf["e_phnum"] * elf["e_phentsize"]),
        (elf["e_shoff"], elf["e_shnum"] * elf["e_shentsize"]),
    ]
    sections = [(s["sh_offset"], s["sh_size"]) for s in elf.iter_sections() if s["sh_type"] != "SHT_NOBITS"]
    end = max(offset + size for offset, size in (*tables, *sections))
    if end > size_bytes:
        raise ValueError(f"a damaged CUDA device binary: {size_bytes} of {end} bytes")


def _kernels(elf: ELFFile, capability: int) -> dict[str, KernelResources]:
    attributes = _attributes(elf)
    reserved = _RESERVED_SHARED_BYTES if capability >= 90 else 0
    kernels = {}
    for section in elf.iter_sections():
        if section.name.startswith(_TEXT):
            name = section.name.removeprefix(_TEXT)
            kernels[name] = KernelResources(
                registers=attributes.get((_REGISTERS, name), 0),
                stack_bytes=attributes.get((_FRAME_BYTES, name), 0),
                static_shared_bytes=max(_size(elf, f".nv.shared.{name}") - reserved, 0),
                code_bytes=section["sh_size"],
            )
    return kernels


def _attributes(elf: ELFFile) -> dict[tuple[int, str], int]:
    """Numbers by attribute and function."""
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        raise ValueError("a damaged CUDA device binary: it has no symbol table")
    found: dict[tuple[int, str], int] = {}
    for section in elf.iter_sections():
        if section.name.startswith(".nv.info"):
            for attribute, payload in _records(section):
                if attribute in (_REGISTERS, _FRAME_BYTES) and len(payload) == 8:
                    symbol, value = struct.unpack("<II", payload)
                    found[attribute, table.get_symbol(symbol).name] = value
    return found


def _records(section: Section) -> Iterator[tuple[int, bytes]]:
    if section.compressed or section["sh_type"] == "SHT_NOBITS":  # either may say that it is larger than any memory
        raise ValueError(f"section {section.name} holds no plain bytes")
    data, position = section.data(), 0
    while position + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == _SIZED_ATTRIBUTE:
            yield attribute, data[position : position + size]
            position += size


def _size(elf: ELFFile, name: str) -> int:
    section = elf.get_section_by_name(name)
    return int(section["sh_size"]) if section is not None else 0
