"""Device source → device binary, by backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tkc.compiler.assemble import ascend, cuda
from tkc.compiler.probe import Tools
from tkc.compiler.stages import StageOutput, Unit, pass_configs
from tkc.model import Backend, Manifest, Stage

__all__ = ["assemble", "flags"]


def assemble(unit: Unit, tools: Tools, lowered: Manifest, files: Mapping[str, Path], folder: Path) -> StageOutput:
    """Compile the device source of `unit` into `folder`.

    Raises ToolchainError if the device compiler is not here, CompileError if it fails. There is
    nothing to assemble for the CPU: its device source is compiled by the link.
    """
    tools.require(Stage.ASSEMBLE)
    if unit.target.backend is Backend.CUDA:
        return cuda.assemble(unit, tools, lowered, files, folder)
    if unit.target.backend is Backend.ASCEND:
        return ascend.assemble(unit, tools, lowered, files, folder)
    raise ValueError(f"nothing to assemble for {unit.target}")


def flags(unit: Unit) -> tuple[str, ...]:
    """Every option of the device compile that can change its output; no paths."""
    if unit.target.backend is Backend.CUDA:
        return cuda.flags(unit, pass_configs(unit.entry, Backend.CUDA))
    if unit.target.backend is Backend.ASCEND:
        return ascend.flags(unit)
    return unit.options.flags
