"""Ask the installed tools who they are, and where."""

from __future__ import annotations

import atexit
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from tkc.compiler.stages import CompileOptions
from tkc.compiler.trees import Tree, digest_trees
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
    linking = _find_host_compiler(host, stamps_dir)
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
        return _Lowering(missing=_not_installed("tilelang", "lowering kernels", "pip install 'tkc[build]'"))
    skip = frozenset({"src", "3rdparty/cutlass", "3rdparty/tvm/src", "3rdparty/tvm/include"})
    code = (".py", ".so")
    components: tuple[Component, ...] = (
        _component("tilelang", "tilelang", (Tree("tilelang", tilelang, code, skip),), stamps_dir),
        _component("tvm-ffi", "apache-tvm-ffi", (Tree("tvm_ffi", tvm_ffi, code),), stamps_dir),
        _component("z3", "z3-solver", (Tree("z3", z3, code),), stamps_dir),
    )
    if target.backend is Backend.ASCEND:
        components += (_templates_component(tilelang, stamps_dir),)
    return _Lowering(components)


def _templates_component(tilelang: Path, stamps_dir: Path | None) -> Component:
    trees = (
        Tree("tl_templates", tilelang / "src" / "tl_templates"),
        Tree("cutlass", tilelang / "3rdparty" / "cutlass" / "include"),
    )
    return _component("tilelang-templates", "tilelang", trees, stamps_dir)


@dataclass(frozen=True, slots=True)
class _DeviceCompiler:
    assembler: str = "none"
    compiler: Path | None = None
    linker: Path | None = None
    ptxas: Path | None = None
    includes: tuple[Path, ...] = ()
    components: tuple[Component, ...] = ()
    missing: str = ""


def _find_device_compiler(target: Target, options: CompileOptions, stamps_dir: Path | None) -> _DeviceCompiler:
    if target.backend is Backend.CUDA:
        return _find_cuda(options.assembler or "nvrtc", stamps_dir)
    if target.backend is Backend.ASCEND:
        return _find_bisheng(stamps_dir)
    return _DeviceCompiler()


def _find_cuda(assembler: str, stamps_dir: Path | None) -> _DeviceCompiler:
    tilelang = package_folder("tilelang")
    if tilelang is None:
        return _DeviceCompiler(missing=_not_installed("tilelang", "device code's headers", "pip install 'tkc[build]'"))
    roots = _cuda_roots()
    root = next((root for root in roots.values() if _cuda_lacks(root, assembler) is None), None)
    if root is None:
        looked = "; ".join(f"{place}: no {_cuda_lacks(folder, assembler)}" for place, folder in roots.items())
        return _DeviceCompiler(
            missing=f"the CUDA compiler {assembler} is missing, or a part of it. Looked in {looked}. "
            "Install it: pip install 'tkc[build]' (no system CUDA is needed)"
        )
    headers, version = root / "include", _cuda_version(root)
    places = (tilelang / "src", tilelang / "3rdparty" / "cutlass" / "include", headers, headers / "cccl")
    components = (
        Component(assembler, version, digest_trees(_cuda_compiler_trees(root, assembler), stamps_dir)),
        Component("cuda-headers", version, digest_trees((Tree("include", headers),), stamps_dir)),
        _templates_component(tilelang, stamps_dir),
    )
    return _DeviceCompiler(
        assembler=assembler,
        compiler=root / "bin" / "nvcc" if assembler == "nvcc" else _nvrtc_libraries(root)[0],
        ptxas=root / "bin" / "ptxas",
        includes=tuple(place for place in places if place.is_dir()),
        components=components,
    )


def _cuda_roots() -> dict[str, Path]:
    """Where CUDA may be: the PyPI packages first, then toolkits that the environment points to."""
    roots = {f"Python package nvidia ({folder})": folder for folder in _nvidia_folders()}
    roots = roots or {f"Python packages nvidia-cuda-* ({sys.prefix})": Path(sys.prefix)}
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            roots[f"{variable} ({value})"] = Path(value)
    if program := shutil.which("nvcc"):
        roots[f"PATH ({program})"] = Path(program).resolve().parent.parent
    return {**roots, "/usr/local/cuda": Path("/usr/local/cuda")}


def _nvidia_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return sorted((folder for place in places or () for folder in Path(place).glob("cu[0-9]*")), reverse=True)


def _cuda_lacks(root: Path, assembler: str) -> str | None:
    """The first part of a CUDA toolkit that `root` does not have; None if it has all."""
    if assembler == "nvcc" and not (root / "bin" / "nvcc").is_file():
        return "bin/nvcc"
    if assembler == "nvrtc" and not _nvrtc_libraries(root):
        return "lib/libnvrtc.so"
    parts = (
        "bin/ptxas",
        "include/cuda.h",
        "include/cuda_fp16.h",
        "include/crt/host_config.h",
        "include/cccl/cuda",
    )
    return next((part for part in parts if not (root / part).exists()), None)


def _nvrtc_libraries(root: Path) -> list[Path]:
    """NVRTC's library, then those that it loads."""
    folders = [root / "lib", root / "lib64"]
    return [
        path for folder in folders for stem in ("", "-builtins") for path in sorted(folder.glob(f"libnvrtc{stem}.so.*"))
    ]


def _cuda_compiler_trees(root: Path, assembler: str) -> tuple[Tree, ...]:
    if assembler == "nvcc":
        return (
            Tree("bin", root / "bin"),
            *((Tree("nvvm", root / "nvvm"),) if (root / "nvvm").is_dir() else ()),
        )
    files = (*_nvrtc_libraries(root), root / "bin" / "ptxas")
    return tuple(Tree(path.name, path) for path in files)


def _cuda_version(root: Path) -> str:
    """Version of the toolkit at `root`, from the macro in its cuda.h."""
    try:
        text = (root / "include" / "cuda.h").read_text(errors="replace")
    except OSError:
        return "unknown"
    match = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", text)
    return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else "unknown"


def _find_bisheng(stamps_dir: Path | None) -> _DeviceCompiler:
    compiler, looked = _find_program("bisheng")
    linker, looked_for_linker = _find_program("ld.lld", beside=compiler)
    if compiler is None or linker is None:
        name, places = ("bisheng", looked) if compiler is None else ("ld.lld", looked_for_linker)
        return _DeviceCompiler(missing=_cann_missing(name, places))
    trees = (Tree("bisheng", compiler.resolve()), Tree("ld.lld", linker.resolve()))
    component = Component("bisheng", _program_version(compiler), digest_trees(trees, stamps_dir))
    return _DeviceCompiler("bisheng", compiler, linker, components=(component,))


def _find_program(name: str, beside: Path | None = None) -> tuple[Path | None, list[str]]:
    """A program of CANN, and the places that were looked at."""
    places: dict[str, Path] = {}
    for variable in ("BISHENG_HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if root := os.environ.get(variable):
            for below in ("bin", "compiler/ccec_compiler/bin", "."):
                places[f"{variable} ({Path(root) / below})"] = Path(root) / below / name
        else:
            places[f"{variable} (not set)"] = Path()
    if beside is not None:
        places[f"beside bisheng ({beside.parent})"] = beside.with_name(name)
    found = next((path for path in places.values() if path.name == name and os.access(path, os.X_OK)), None)
    on_path = shutil.which(name) if found is None else None
    return found or (Path(on_path) if on_path else None), [*places, "PATH"]


def _cann_missing(name: str, places: list[str]) -> str:
    return (
        f"{name} is missing, which compiles for Ascend. Looked in: {'; '.join(places)}. Two ways on: install CANN "
        "and set ASCEND_HOME_PATH to it; or keep what was lowered (`tkc build --emit source`), carry the store to a "
        "machine that has CANN, and go on there with `tkc build --from-lowered`"
    )


@dataclass(frozen=True, slots=True)
class _HostCompiler:
    command: tuple[str, ...] = ()
    includes: tuple[Path, ...] = ()
    components: tuple[Component, ...] = ()
    missing: str = ""


def _find_host_compiler(host: Host, stamps_dir: Path | None) -> _HostCompiler:
    tvm_ffi = package_folder("tvm_ffi")
    if tvm_ffi is None:
        return _HostCompiler(missing=_not_installed("tvm_ffi", "its C headers", "pip install apache-tvm-ffi"))
    includes = (tvm_ffi / "include",)
    headers = tuple(Tree(name, tvm_ffi / "include" / name) for name in ("tvm/ffi/c_api.h", "dlpack/dlpack.h"))
    components = (_component("tvm-ffi-headers", "apache-tvm-ffi", headers, stamps_dir),)
    if (zig := package_folder("ziglang")) is not None:
        command = (str(zig / "zig"), "cc", "-target", f"{host.arch}-linux-gnu.{host.glibc}", *_ARCH_FLAGS[host.arch])
        return _HostCompiler(command, includes, (*components, _zig_component(zig, host, stamps_dir)))
    if host.arch == Host.this_machine().arch and (gcc := shutil.which("cc") or shutil.which("gcc")):
        return _HostCompiler((gcc, *_ARCH_FLAGS[host.arch]), includes, (*components, _gcc_component(gcc, stamps_dir)))
    return _HostCompiler(
        missing=f"no C compiler for host {host}. Looked for: Python package ziglang, which compiles for every host; "
        f"cc and gcc on PATH, which compile for {Host.this_machine()} alone. Install one: pip install 'tkc[build]'"
    )


# Atomics of aarch64 are otherwise calls into a compiler's library, which is not linked.
_ARCH_FLAGS: Mapping[str, tuple[str, ...]] = {"x86_64": (), "aarch64": ("-mno-outline-atomics",)}


def _zig_component(zig: Path, host: Host, stamps_dir: Path | None) -> Component:
    include = zig / "lib" / "libc" / "include"
    family = "x86" if host.arch == "x86_64" else host.arch
    names = ("generic-glibc", "any-linux-any", f"{family}-linux-any", f"{family}-linux-gnu")
    trees = (
        Tree("zig", zig / "zig"),
        Tree("include", zig / "lib" / "include", (".h",)),
        *(Tree(name, include / name) for name in names if (include / name).is_dir()),
    )
    return _component("cc", "ziglang", trees, stamps_dir)


def _gcc_component(gcc: str, stamps_dir: Path | None) -> Component:
    names = ("cc1", "as", "ld", "collect2")
    programs = [Path(gcc), *(Path(_output(gcc, f"-print-prog-name={name}")) for name in names)]
    found = [Path(path) for program in programs if (path := shutil.which(str(program)))]
    trees = tuple(Tree(path.name, path.resolve()) for path in found)
    version = f"{_output(gcc, '-dumpfullversion')} {_output(gcc, '-dumpmachine')}"
    return Component("cc", f"gcc {version}", digest_trees(trees, stamps_dir))


def _component(name: str, distribution: str, trees: tuple[Tree, ...], stamps_dir: Path | None) -> Component:
    version = f"{distribution} {importlib.metadata.version(distribution)}"
    return Component(name, version, digest_trees(trees, stamps_dir))


def package_folder(name: str) -> Path | None:
    """Where a package is installed, without importing it; None if it is not."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _not_installed(package: str, purpose: str, install: str) -> str:
    return f"Python package {package} is missing, which {purpose} needs. Looked in: {sys.prefix}. Install it: {install}"


def _program_version(program: Path) -> str:
    lines = _output(str(program), "--version").splitlines()
    return lines[0].strip() if lines else "unknown"


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    return done.stdout.strip()


@cache
def _process_scratch() -> Path:
    """A folder for this process, removed when it ends."""
    folder = tempfile.TemporaryDirectory(prefix="tkc-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)
