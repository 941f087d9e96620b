"""Fuzz one target: ``python -m tests.fuzz.run [MODULE:]TARGET FOLDER WHEEL [libFuzzer options]``.

Ends with 0 after ``-runs=N`` inputs. An input that raises what it must not, runs for more than ``-timeout`` seconds,
takes more memory than ``-rss_limit_mb`` or changes a file outside FOLDER ends it with another code, and is kept there.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

from tests.fuzz.mutate import mutate
from tests.fuzz.sandbox import Sandbox, limit_memory

INSTRUMENTED = ["tkc", "cache_tools", "wheel", "tarfile", "importlib.metadata", "tests.fuzz.planted"]
MEMORY_MB = 2048


def main(target: str, folder: Path, wheel: Path, options: list[str]) -> None:
    """Never returns: libFuzzer ends the process."""
    module, name = target.split(":") if ":" in target else ("tests.fuzz.targets", target)
    with atheris.instrument_imports(include=[*INSTRUMENTED, *(["elftools"] if name == "library" else [])]):
        targets: Any = importlib.import_module(module)
    for part in ("work", "corpus"):
        (folder / part).mkdir(parents=True)
    tempfile.tempdir = str(folder / "work")
    os.chdir(folder)
    fuzzed = targets.TARGETS[name](folder / "work", wheel)
    for number, seed in enumerate(fuzzed.seeds):
        (folder / "corpus" / f"seed{number}").write_bytes(seed)
    sandbox = Sandbox(folder)
    os.fsync = lambda _descriptor: None  # no power cut here, and thousands of inputs

    def one_input(data: bytes) -> None:
        fuzzed.try_one(data)
        sandbox.require_no_escape()

    limit_memory(MEMORY_MB)
    sandbox.close()
    limits = [f"-artifact_prefix={folder}/", f"-rss_limit_mb={MEMORY_MB}", "-timeout=20", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *limits, *options, str(folder / "corpus")], one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute(), Path(sys.argv[3]).absolute(), sys.argv[4:])
