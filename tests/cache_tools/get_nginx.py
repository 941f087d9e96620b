"""Get nginx for the tests of remotes, without root: ``python -m tests.cache_tools.get_nginx FOLDER``.

Where there is none, the distribution's own package is fetched by apt, signatures checked as always, and unpacked below
FOLDER: nothing is installed, and apt's own lists stay as they are. It ends with 0 whatever happens: without nginx
some tests are skipped, and the line printed here says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(sys.prefix) / "nginx"
"""Where `make test` unpacks it."""

_TIMEOUT_S = 120
_NEEDED = "http_dav_module"
_APT = (
    "apt-get -q -y -o Debug::NoLocking=1 -o APT::Sandbox::User= -o APT::Update::Error-Mode=any "
    "-o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Dir::State={aside}/state "
    "-o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache={aside}/cache"
)


class NotHereError(Exception):
    """Why nginx cannot be had."""


def nginx_command(folder: Path = FOLDER) -> tuple[str, dict[str, str]] | None:
    """The nginx that was unpacked to `folder`, or the system's, and the environment it needs; None without one."""
    unpacked = folder / "usr/sbin/nginx"
    if unpacked.is_file():
        libraries = ":".join(map(str, sorted(folder.glob("usr/lib/*-linux-gnu"))))
        return str(unpacked), {"LD_LIBRARY_PATH": libraries} if libraries else {}
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    return (found, {}) if found else None


def get_nginx(folder: Path) -> None:
    """Unpack nginx, and the libraries that it lacks here, to `folder`. Raises NotHereError, saying why, if it fails."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NotHereError("this system has no apt: install nginx by its own means")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".nginx-") as aside:
        for package in _downloaded(Path(aside)):
            _run(["dpkg-deb", "-x", str(package), f"{aside}/root"])
        _require_working(Path(aside) / "root")
        Path(aside, "root").replace(folder)


def _downloaded(aside: Path) -> list[Path]:
    archives = aside / "cache/archives"
    for place in (aside / "state/lists", archives):
        (place / "partial").mkdir(parents=True)
    apt = _APT.format(aside=aside).split()
    _run([*apt, "update"])
    _run([*apt, "--download-only", "--reinstall", "--no-install-recommends", "install", "nginx"])
    return sorted(archives.glob("*.deb"))


def _require_working(folder: Path) -> None:
    command, environment = nginx_command(folder) or ("", {})
    if not command.startswith(str(folder)):
        raise NotHereError("the package brought no usr/sbin/nginx")
    if _NEEDED not in (said := _run([command, "-V"], **environment)):
        raise NotHereError(f"the package's nginx lacks {_NEEDED}: {said[:200]}")


def _run(command: list[str], **environment: str) -> str:
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHereError(str(error)) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotHereError(f"`{Path(command[0]).name} … {command[-1]}` ended with {done.returncode}: {last}")
    return done.stdout + done.stderr


def main(folder: Path) -> None:
    """Get it unless it is here, and say what came of it."""
    if nginx_command(folder):
        return
    try:
        get_nginx(folder)
        print(f"nginx for the tests of remotes: unpacked to {folder}")
    except (NotHereError, OSError) as error:
        print(f"nginx for the tests of remotes: not here, so those are skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
