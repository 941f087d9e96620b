"""What finding a device compiler gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tkc.model import Component


@dataclass(frozen=True, slots=True)
class DeviceCompiler:
    """A device compiler, or what is missing of one. `tkc.compiler.probe.Tools` says what each field is."""

    assembler: str = "none"
    compiler: Path | None = None
    linker: Path | None = None
    ptxas: Path | None = None
    includes: tuple[Path, ...] = ()
    components: tuple[Component, ...] = ()
    missing: str = ""
