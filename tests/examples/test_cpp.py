"""The C++ example, as its README says, run for real; on a GPU by tests/device/test_cpp.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.cpp_program import README, needed_libraries, shell_block


@pytest.fixture
def in_checkout(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Give a function that runs shell commands in a folder that has the examples and the store to itself."""
    (tmp_path / "examples").symlink_to(README.parents[1])
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(commands: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=env,
        )

    return run


@pytest.mark.level1
def test_the_readmes_commands_build_and_run_the_program(
    in_checkout: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = in_checkout(shell_block())
    assert done.returncode == 0, done.stderr
    assert "333 x 129 elements transposed, 0 wrong" in done.stdout
    needed = needed_libraries(tmp_path / "transpose")
    assert "libtvm_ffi.so" in needed
    assert not [name for name in needed if re.search("python|torch|tilelang", name)]

    missing = in_checkout("./transpose ./nothing.so cpu")
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: ")


def test_explain_gives_the_path_of_each_file(tmp_path: Path) -> None:
    """What the README reads from it."""
    command = [sys.executable, "-m", "tkc", "explain", "transpose.batched_transpose", "size_bytes=4"]
    done = subprocess.run([*command, "--target", "cpu", "--json"], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["files"]) == (1, {})
