"""Real environments: a Python, pip, and nothing else until a test installs it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def interpreter(version: str) -> str | None:
    """An interpreter of this version, such as ``3.12``; None if this machine has none."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    candidates = [sys.executable, shutil.which(f"python{version}"), *map(str, installed)]
    return next((one for one in candidates if one and _version_of(one) == version), None)


def _version_of(python: str) -> str:
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, version: str) -> Environment:
        python = interpreter(version)
        assert python is not None, f"no Python {version}"
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        return cls(folder)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages"))

    def install(self, *what: str | Path, options: tuple[str, ...] = ()) -> None:
        """`pip install`, of wheels alone."""
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([*command, "--only-binary", ":all:", *options, *map(str, what)], check=True, cwd=self.folder)

    def run(self, *arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python there, with no HOME, no store of its own, and the policy `error`."""
        clean = {"PATH": os.environ["PATH"], "TKC_ON_MISS": "error", "PYTHONWARNINGS": "ignore", **(env or {})}
        command = [str(self.python), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=clean, cwd=self.folder)

    def output(self, *arguments: str | Path, env: dict[str, str] | None = None) -> str:
        """What `run` prints; fails the test if it fails."""
        done = self.run(*arguments, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
