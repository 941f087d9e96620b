"""What a device binary says of its kernels: registers, spills, stack, shared memory, code size."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section, SymbolTableSection

_TEXT = ".text."

# Attributes of the .nv.info sections, each with a function's symbol index and a number.
_REGISTERS, _FRAME_BYTES, _STACK_BYTES = 0x2F, 0x11, 0x23
_SIZED_ATTRIBUTE = 0x04  # format of an attribute that says how long it is


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one kernel asks of the device.

    Attributes:
        registers: of a thread.
        spill_bytes: of a thread's local memory: registers that did not fit, and arrays indexed at run time.
        stack_bytes: of a thread at most, calls included.
        static_shared_bytes: of a block, before what is asked for at launch.
        code_bytes: machine code.
    """

    registers: int
    spill_bytes: int
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


def read_cubin(data: bytes) -> CubinInfo:
    """Read a cubin. Raises ValueError if `data` is none."""
    if data[:4] != b"\x7fELF":
        raise ValueError("not a device binary: it does not start as an ELF file")
    elf = ELFFile(io.BytesIO(data))
    names = [symbol.name for symbol in _symbols(elf).iter_symbols()]
    values = _attributes(elf, names)
    kernels = {
        section.name.removeprefix(_TEXT): KernelResources(
            registers=values.get((_REGISTERS, section.name.removeprefix(_TEXT)), 0),
            spill_bytes=values.get((_FRAME_BYTES, section.name.removeprefix(_TEXT)), 0),
            stack_bytes=values.get((_STACK_BYTES, section.name.removeprefix(_TEXT)), 0),
            static_shared_bytes=_size(elf, f".nv.shared.{section.name.removeprefix(_TEXT)}"),
            code_bytes=section["sh_size"],
        )
        for section in elf.iter_sections()
        if section.name.startswith(_TEXT)
    }
    return CubinInfo(cubin_capability(data), kernels)


def cubin_capability(data: bytes) -> int:
    """The compute capability that a cubin is for, such as 90 or 103, from its ELF header alone."""
    flags: int = struct.unpack_from("<I", data, 48)[0]
    abi_version = data[8]
    return (flags >> 8) & 0xFF if abi_version >= 8 else flags & 0xFF


def _symbols(elf: ELFFile) -> SymbolTableSection:
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        raise ValueError("not a device binary: it has no symbol table")
    return table


def _size(elf: ELFFile, name: str) -> int:
    section = elf.get_section_by_name(name)
    return section["sh_size"] if section is not None else 0


def _attributes(elf: ELFFile, names: list[str]) -> dict[tuple[int, str], int]:
    """Numbers by attribute and function."""
    found: dict[tuple[int, str], int] = {}
    for section in elf.iter_sections():
        if section.name.startswith(".nv.info"):
            for attribute, payload in _records(section):
                if attribute in (_REGISTERS, _FRAME_BYTES, _STACK_BYTES) and len(payload) == 8:
                    symbol, value = struct.unpack("<II", payload)
                    found[attribute, names[symbol]] = value
    return found


def _records(section: Section) -> Iterator[tuple[int, bytes]]:
    data, position = section.data(), 0
    while position + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == _SIZED_ATTRIBUTE:
            yield attribute, data[position : position + size]
            position += size
