"""Find CUDA: NVRTC or nvcc, ptxas, and the headers that device code includes."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

from tkc.compiler.finders.device import DeviceCompiler
from tkc.compiler.finders.packages import not_installed, package_folder, templates_component
from tkc.compiler.trees import Tree, digest_trees
from tkc.model import Component


def find_cuda(assembler: str, stamps_dir: Path | None) -> DeviceCompiler:
    tilelang = package_folder("tilelang")
    if tilelang is None:
        install = "pip install 'tilelang-tkc[build]'"
        return DeviceCompiler(missing=not_installed("tilelang", "device code's headers", install))
    roots = _cuda_roots()
    root = next((root for root in roots.values() if _cuda_lacks(root, assembler) is None), None)
    if root is None:
        looked = "; ".join(f"{place}: no {_cuda_lacks(folder, assembler)}" for place, folder in roots.items())
        return DeviceCompiler(
            missing=f"the CUDA compiler {assembler} is missing, or a part of it. Looked in {looked}. "
            "Install it: pip install 'tilelang-tkc[build]' (no system CUDA is needed)"
        )
    headers, version = root / "include", _cuda_version(root)
    places = (tilelang / "src", tilelang / "3rdparty" / "cutlass" / "include", headers, headers / "cccl")
    components = (
        Component(assembler, version, digest_trees(_cuda_compiler_trees(root, assembler), stamps_dir)),
        Component("cuda-headers", version, digest_trees((Tree("include", headers),), stamps_dir)),
        templates_component(tilelang, stamps_dir),
    )
    return DeviceCompiler(
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
