"""Compile the C++ example as its README says, and look at the program."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

README = Path(__file__).parents[2] / "examples" / "cpp" / "README.md"
SOURCE = README.with_name("transpose.cc")


def shell_block() -> str:
    """The commands of the README."""
    (block,) = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    return block


def compile_program(folder: Path) -> Path:
    """The README's line that compiles, run for a program in `folder`; needs g++."""
    (command,) = re.findall(r"^g\+\+ (?:.*\\\n)*.*$", shell_block(), re.MULTILINE)
    command = command.replace("tvm-ffi-config", f"{sys.executable} -m tvm_ffi.config")
    command = command.replace("examples/cpp/transpose.cc", str(SOURCE))
    done = subprocess.run(["bash", "-euc", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "transpose"


def library_folder() -> Path:
    """Where tvm-ffi's library is."""
    from tvm_ffi.libinfo import find_libtvm_ffi

    return Path(find_libtvm_ffi()).parent


def needed_libraries(program: Path, env: Mapping[str, str] | None = None) -> list[str]:
    """Every shared library that the program loads when it starts."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, env=env).stdout
    return [line.split()[0] for line in told.splitlines()]
