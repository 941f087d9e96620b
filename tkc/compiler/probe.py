"""Ask the installed tools who they are, and where."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from tkc.compiler.finders.cann import find_cann
from tkc.compiler.finders.cuda import find_cuda
from tkc.compiler.finders.device import DeviceCompiler
from tkc.compiler.finders.host import find_host_compiler
from tkc.compiler.finders.packages import component, not_installed, package_folder, templates_component
from tkc.compiler.stages import CompileOptions
from tkc.compiler.trees import Tree
from tkc.errors import ToolchainError
from tkc.model import Backend, Component, Host, Stage, Target, Toolchain


@dataclass(frozen=True)
class Tools:
    """The tools that compile for one target and host: who they are, and where.

    Attributes:
        toolchain: name, version and content digest of each; all that enters a key.
        assembler: nvrtc, nvcc, bisheng, or none.
        device_compiler: NVRTC's library, the nvcc program, or bisheng.
        device_linker: CANN's ld.lld.
        ptxas: the program that turns NVRTC's PTX into a device binary.
        includes: folders of the device compile, in order.
        cc: command of the host C compiler, with the option that names its target.
        cc_includes: folders of the host compile.
        missing: for each stage that cannot run here: what is missing, where it was looked for, how to get it.
        kept: folder that outlives the process, for what can be made again; None if there is none.
    """

    toolchain: Toolchain
    assembler: str = "none"
    device_compiler: Path | None = None
    device_linker: Path | None = None
    ptxas: Path | None = None
    includes: tuple[Path, ...] = ()
    cc: tuple[str, ...] = ()
    cc_includes: tuple[Path, ...] = ()
    missing: Mapping[Stage, str] = field(default_factory=dict)
    kept: Path | None = None

    def require(self, *stages: Stage) -> None:
        """Raise ToolchainError, saying what is missing, unless every stage can run here."""
        for stage in stages:
            if stage in self.missing:
                raise ToolchainError(self.missing[stage])

    @cached_property
    def scratch(self) -> Path:
        """A writable folder for what can be made again: precompiled headers, runtime objects."""
        if self.kept is not None:
            try:
                self.kept.mkdir(parents=True, exist_ok=True)
            except OSError:
                pass
            else:
                if os.access(self.kept, os.W_OK):
                    return self.kept
        return _process_scratch()

    def cc_env(self, folder: Path) -> dict[str, str]:
        """The whole environment of the host C compiler; what it writes by the way goes below `folder`."""
        cache = str(folder / "cache")
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "TMPDIR": str(folder),
            "ZIG_GLOBAL_CACHE_DIR": cache,
            "ZIG_LOCAL_CACHE_DIR": cache,
        }


def probe(target: Target, host: Host, options: CompileOptions, *, stamps_dir: Path | None) -> Tools:
    """Find the tools that compile for `target` and `host`.

    A missing tool is not an error here: `Tools.require` raises for the stages that need it. Content
    digests are remembered in `stamps_dir` (see `digest_trees`). Imports no tool.
    """
    lowering = _find_lowering(target, stamps_dir)
    device = _find_device_compiler(target, options, stamps_dir)
    linking = find_host_compiler(host, stamps_dir)
    missing = {Stage.LOWER: lowering.missing, Stage.ASSEMBLE: device.missing, Stage.LINK: linking.missing}
    return Tools(
        toolchain=Toolchain(lowering.components + device.components + linking.components),
        assembler=device.assembler,
        device_compiler=device.compiler,
        device_linker=device.linker,
        ptxas=device.ptxas,
        includes=device.includes,
        cc=linking.command,
        cc_includes=linking.includes,
        missing={stage: message for stage, message in missing.items() if message},
        kept=stamps_dir / "scratch" if stamps_dir is not None else None,
    )


@dataclass(frozen=True, slots=True)
class _Lowering:
    components: tuple[Component, ...] = ()
    missing: str = ""


def _find_lowering(target: Target, stamps_dir: Path | None) -> _Lowering:
    tilelang, tvm_ffi, z3 = (package_folder(name) for name in ("tilelang", "tvm_ffi", "z3"))
    if tilelang is None or tvm_ffi is None or z3 is None:
        return _Lowering(missing=not_installed("tilelang", "lowering kernels", "pip install 'tilelang-tkc[build]'"))
    skip = frozenset({"src", "3rdparty/cutlass", "3rdparty/tvm/src", "3rdparty/tvm/include"})
    code = (".py", ".so")
    components: tuple[Component, ...] = (
        component("tilelang", "tilelang", (Tree("tilelang", tilelang, code, skip),), stamps_dir),
        component("tvm-ffi", "apache-tvm-ffi", (Tree("tvm_ffi", tvm_ffi, code),), stamps_dir),
        component("z3", "z3-solver", (Tree("z3", z3, code),), stamps_dir),
    )
    if target.backend is Backend.ASCEND:
        components += (templates_component(tilelang, stamps_dir),)
    return _Lowering(components)


def _find_device_compiler(target: Target, options: CompileOptions, stamps_dir: Path | None) -> DeviceCompiler:
    if target.backend is Backend.CUDA:
        return find_cuda(options.assembler or "nvrtc", stamps_dir)
    if target.backend is Backend.ASCEND:
        return find_cann(stamps_dir)
    return DeviceCompiler()


@cache
def _process_scratch() -> Path:
    """A folder for this process, removed when it ends."""
    folder = tempfile.TemporaryDirectory(prefix="tkc-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)
