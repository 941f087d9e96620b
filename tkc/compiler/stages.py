"""What one compile is: the unit, what a stage gives, and the action that names each stage's inputs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tkc.compiler import device_runtime
from tkc.errors import SpecError
from tkc.model import (
    Action,
    Backend,
    Digest,
    Host,
    Manifest,
    Specialization,
    Stage,
    Target,
    Toolchain,
    canonical,
)
from tkc.registry import CatalogEntry

Assembler: TypeAlias = Literal["nvrtc", "nvcc"]
"""Programs that turn CUDA source into a device binary."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What a user may choose about a compile.

    Attributes:
        assembler: None takes the default; see `tkc.compiler.probe`.
        flags: extra arguments for the device compiler.
    """

    assembler: Assembler | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unit:
    """One artifact to compile."""

    entry: CatalogEntry
    specialization: Specialization
    target: Target
    host: Host
    options: CompileOptions = CompileOptions()

    def __str__(self) -> str:
        return f"{self.specialization} --target {self.target} --host {self.host}"


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What a stage wrote into its folder, and what it says of it, as JSON values."""

    files: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def compile_action(unit: Unit, toolchain: Toolchain) -> Action:
    """Name every input of the whole compile; all are known before any tool runs."""
    fields = {
        **_lowered_from(unit),
        "host": _host_fields(unit.host),
        "flags": device_flags(unit),
        "assembler": assembler_of(toolchain),
        "toolchain": toolchain.fields(),
        "device_runtime": device_runtime_digest(unit.target.backend),
        "tkc": _implementation(*_LOWER_FILES, *_ASSEMBLE_FILES, *_LINK_FILES),
    }
    return Action(Stage.COMPILE, fields)


def lower_action(unit: Unit, toolchain: Toolchain) -> Action:
    """Name the inputs of lowering: sources, specialization, target, and tilelang. The host is not one."""
    fields = {
        **_lowered_from(unit),
        "toolchain": toolchain.only(*LOWER_TOOLS[unit.target.backend]).fields(),
        "tkc": _implementation(*_LOWER_FILES),
    }
    return Action(Stage.LOWER, fields)


def assemble_action(unit: Unit, lowered: Manifest, toolchain: Toolchain) -> Action:
    """Name the inputs of assembling: the device source, whoever wrote it, and the device compiler."""
    name = DEVICE_SOURCE[unit.target.backend]
    fields = {
        "source": lowered.file(name).digest,
        "kernels": lowered.facts["kernels"],
        "arch": unit.target.arch,
        "flags": device_flags(unit),
        "assembler": assembler_of(toolchain),
        "toolchain": toolchain.only(*ASSEMBLE_TOOLS).fields(),
        "tkc": _implementation(*_ASSEMBLE_FILES),
    }
    return Action(Stage.ASSEMBLE, fields)


def link_action(unit: Unit, lowered: Manifest, assembled: Manifest | None, toolchain: Toolchain) -> Action:
    """Name the inputs of linking: host C, device binary, the device runtime, the host and its compiler."""
    manifests = [manifest for manifest in (lowered, assembled) if manifest is not None]
    fields = {
        "files": {file.name: file.digest for manifest in manifests for file in manifest.files},
        "facts": merged_facts(lowered, assembled),
        "backend": unit.target.backend.value,
        "host": _host_fields(unit.host),
        "device_runtime": device_runtime_digest(unit.target.backend),
        "toolchain": toolchain.only(*LINK_TOOLS).fields(),
        "tkc": _implementation(*_LINK_FILES),
    }
    return Action(Stage.LINK, fields)


def merged_facts(lowered: Manifest, assembled: Manifest | None) -> dict[str, Any]:
    """The facts of a whole artifact: what assembling says replaces what lowering said."""
    return {**lowered.facts, **(assembled.facts if assembled is not None else {})}


def assembler_of(toolchain: Toolchain) -> str:
    """The device compiler among `toolchain`'s components; ``none`` where there is none to run."""
    names = {component.name for component in toolchain.components}
    return next((name for name in ("nvrtc", "nvcc", "bisheng") if name in names), "none")


@cache
def device_runtime_digest(backend: Backend) -> Digest:
    """One digest for the sources of a backend's device runtime."""
    sources = device_runtime.sources(backend)
    return Digest.of_fields(
        "tkc.device_runtime/1", {name: Digest.of_bytes(text.encode()) for name, text in sources.items()}
    )


def device_flags(unit: Unit) -> tuple[str, ...]:
    """Every option of the device compile that can change its output; no paths."""
    from tkc.compiler.assemble import flags

    return flags(unit)


def pass_configs(entry: CatalogEntry, backend: Backend) -> Mapping[str, Any]:
    """Read a variant's ``PASS_CONFIGS`` without importing it.

    It must be a literal: names of pass options mapped to plain values. Raises SpecError if it is not.
    """
    entry.require(backend)
    return _pass_configs(entry.folder / f"{backend.value}.py", entry.spec.name)


DEVICE_SOURCE = {Backend.CUDA: "device.cu", Backend.ASCEND: "device.asc", Backend.CPU: "device.cpp"}
"""What lowering calls the device source."""

HOST_SOURCE = "host.c"
DEVICE_BINARY = {Backend.CUDA: "kernel.cubin", Backend.ASCEND: "kernel.aibin"}
LIBRARY = "kernel.so"

LOWER_TOOLS = {
    Backend.CUDA: ("tilelang", "tvm-ffi", "z3"),
    Backend.ASCEND: ("tilelang", "tilelang-templates", "tvm-ffi", "z3"),
    Backend.CPU: ("tilelang", "tvm-ffi", "z3"),
}
ASSEMBLE_TOOLS = ("nvrtc", "nvcc", "cuda-headers", "bisheng", "tilelang-templates")
LINK_TOOLS = ("cc", "tvm-ffi-headers")

# tkc's own files that decide what a stage gives, as patterns.
_LOWER_FILES = ("cpu_program.py", "host_c.py", "lower.py")
_ASSEMBLE_FILES = ("assemble/**/*", "programs.py", "resources.py")
_LINK_FILES = ("host_libraries.py", "link.py", "link_headers/**/*", "programs.py")


def _lowered_from(unit: Unit) -> dict[str, Any]:
    backend = unit.target.backend
    return {
        "spec": unit.entry.spec.name,
        "specialization": dict(unit.specialization),
        "sources": unit.entry.sources(backend),
        "target": {"name": unit.target.name, "arch": unit.target.arch},
        "pass_configs": pass_configs(unit.entry, backend),
    }


def _host_fields(host: Host) -> dict[str, str]:
    return {"arch": host.arch, "glibc": host.glibc}


@cache
def _implementation(*patterns: str) -> Digest:
    folder = Path(__file__).parent
    found = (path for pattern in patterns for path in folder.glob(pattern))
    paths = sorted(path for path in found if path.is_file() and path.suffix != ".pyc")
    return Digest.of_fields(
        "tkc.implementation/1", {path.relative_to(folder).as_posix(): Digest.of_file(path) for path in paths}
    )


@cache
def _pass_configs(path: Path, spec: str) -> Mapping[str, Any]:
    for node in ast.parse(path.read_bytes(), filename=str(path)).body:
        names, value = _assigned(node)
        if "PASS_CONFIGS" in names and value is not None:
            try:
                found = ast.literal_eval(value)
                canonical(found)
            except (ValueError, TypeError) as error:
                raise SpecError(
                    f"{spec}: PASS_CONFIGS in {path.name} is not a literal of names and plain values ({error}); "
                    'write it as {"tl.option": value}, so that a key can be made without importing tilelang'
                ) from error
            return dict(found)
    return {}


def _assigned(node: ast.stmt) -> tuple[tuple[str, ...], ast.expr | None]:
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name)), node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,), node.value
    return (), None
