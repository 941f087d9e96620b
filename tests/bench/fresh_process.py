"""Start `wheel_cold_start` as a job starts: a fresh process, with nothing of this one's settings, stores or home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("wheel_cold_start.py")


@dataclass(frozen=True)
class InstalledWheel:
    """A wheel that pip installed into a folder of its own.

    Attributes:
        folder: to put on PYTHONPATH.
        store: where its artifacts are.
        grid, target: what it was built for.
    """

    folder: Path
    store: Path
    grid: str
    target: str

    @property
    def device(self) -> str:
        """PyTorch's name of the device that it serves."""
        return "cpu" if self.target == "cpu" else "cuda"


def install(wheel: Path, folder: Path) -> InstalledWheel:
    """`pip install` a wheel of kernels, from its file alone, into an empty folder."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), str(wheel.absolute())], check=True)
    (manifest,) = folder.glob("tkc_kernels_*/manifest.json")
    about = json.loads(manifest.read_text())
    return InstalledWheel(folder, manifest.parent / "store", about["grid"], about["target"])


def start(*arguments: object, home: Path, path: Path | None = None, timeout_s: float = 300.0, **env: str) -> Any:
    """What one fresh process reports; what it prints meanwhile goes to standard error.

    Args:
        arguments: of `wheel_cold_start`.
        home: HOME of the process; a user store would be made there.
        path: a folder to put first on PYTHONPATH.
        env: more environment variables.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TKC_", "XDG_"))}
    paths = [str(path)] if path else []
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    environment = {**kept, "HOME": str(home), "PYTHONPATH": os.pathsep.join(paths), **env}
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    command[2:2] = ["--started", repr(time.monotonic())]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}; see its messages above")
    return json.loads(done.stdout.splitlines()[-1])
