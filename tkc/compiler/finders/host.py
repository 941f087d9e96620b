"""Find a C compiler for a host."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tkc.compiler.finders.packages import component, not_installed, output_of, package_folder
from tkc.compiler.trees import Tree, digest_trees
from tkc.model import Component, Host


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A C compiler, or what is missing. `tkc.compiler.probe.Tools` says what each field is."""

    command: tuple[str, ...] = ()
    includes: tuple[Path, ...] = ()
    components: tuple[Component, ...] = ()
    missing: str = ""


def find_host_compiler(host: Host, stamps_dir: Path | None) -> HostCompiler:
    tvm_ffi = package_folder("tvm_ffi")
    if tvm_ffi is None:
        return HostCompiler(missing=not_installed("tvm_ffi", "its C headers", "pip install apache-tvm-ffi"))
    includes = (tvm_ffi / "include",)
    headers = tuple(Tree(name, tvm_ffi / "include" / name) for name in ("tvm/ffi/c_api.h", "dlpack/dlpack.h"))
    components = (component("tvm-ffi-headers", "apache-tvm-ffi", headers, stamps_dir),)
    if (zig := package_folder("ziglang")) is not None:
        command = (str(zig / "zig"), "cc", "-target", f"{host.arch}-linux-gnu.{host.glibc}", *_ARCH_FLAGS[host.arch])
        return HostCompiler(command, includes, (*components, _zig_component(zig, host, stamps_dir)))
    if host.arch == Host.this_machine().arch and (gcc := shutil.which("cc") or shutil.which("gcc")):
        return HostCompiler((gcc, *_ARCH_FLAGS[host.arch]), includes, (*components, _gcc_component(gcc, stamps_dir)))
    return HostCompiler(
        missing=f"no C compiler for host {host}. Looked for: Python package ziglang, which compiles for every host; "
        f"cc and gcc on PATH, which compile for {Host.this_machine()} alone. "
        "Install one: pip install 'tilelang-tkc[build]'"
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
    return component("cc", "ziglang", trees, stamps_dir)


def _gcc_component(gcc: str, stamps_dir: Path | None) -> Component:
    names = ("cc1", "as", "ld", "collect2")
    programs = [Path(gcc), *(Path(output_of(gcc, f"-print-prog-name={name}")) for name in names)]
    found = [Path(path) for program in programs if (path := shutil.which(str(program)))]
    trees = tuple(Tree(path.name, path.resolve()) for path in found)
    version = f"{output_of(gcc, '-dumpfullversion')} {output_of(gcc, '-dumpmachine')}"
    return Component("cc", f"gcc {version}", digest_trees(trees, stamps_dir))
