"""Python packages and programs: where, which version, and the digest of what is in them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from tkc.compiler.trees import Tree, digest_trees
from tkc.model import Component


def component(name: str, distribution: str, trees: tuple[Tree, ...], stamps_dir: Path | None) -> Component:
    version = f"{distribution} {importlib.metadata.version(distribution)}"
    return Component(name, version, digest_trees(trees, stamps_dir))


def package_folder(name: str) -> Path | None:
    """Where a package is installed, without importing it; None if it is not."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def not_installed(package: str, purpose: str, install: str) -> str:
    return f"Python package {package} is missing, which {purpose} needs. Looked in: {sys.prefix}. Install it: {install}"


def program_version(program: Path) -> str:
    lines = output_of(str(program), "--version").splitlines()
    return lines[0].strip() if lines else "unknown"


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    return done.stdout.strip()


def templates_component(tilelang: Path, stamps_dir: Path | None) -> Component:
    trees = (
        Tree("tl_templates", tilelang / "src" / "tl_templates"),
        Tree("cutlass", tilelang / "3rdparty" / "cutlass" / "include"),
    )
    return component("tilelang-templates", "tilelang", trees, stamps_dir)
