"""``tkc doctor``: what this machine can do, what it lacks, and how to get it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from tkc.cli._shared import json_option, print_json
from tkc.config import Settings
from tkc.errors import TkcError
from tkc.model import TARGET_NAMES, Host, Stage, Target


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `state` is ``ok``, ``absent`` (something optional) or ``broken``."""

    what: str
    state: str
    detail: str
    advice: str = ""


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Look at devices, driver, packages, toolchains, stores and permissions.

    Exits with 1 if something that is configured cannot be used.

    \b
    Examples:
      tkc doctor
      tkc doctor --json
    """
    findings = list(_examine())
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            click.echo(f"{finding.state:7} {finding.what:{width}}  {finding.detail}")
            if finding.advice:
                click.echo(f"{'':7} {'':{width}}  → {finding.advice}")
    return 1 if any(finding.state == "broken" for finding in findings) else 0


def _examine() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}")
    yield from _packages()
    yield from _devices()
    for target in TARGET_NAMES:
        yield _toolchain(Target.parse(target))
    yield from _stores()


def _packages() -> Iterator[Finding]:
    needs = {
        "torch": "operators and the loader need it: install the build that fits your device",
        "apache-tvm-ffi": "the loader needs it: pip install apache-tvm-ffi",
        "tilelang": "only compiling needs it: pip install 'tilelang-tkc[build]'",
    }
    for name, advice in needs.items():
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "absent" if name != "apache-tvm-ffi" else "broken", "not installed", advice)


def _devices() -> Iterator[Finding]:
    from tkc.hardware import cuda_devices, driver_version

    driver = driver_version()
    if driver is None:
        yield Finding(
            "CUDA driver",
            "absent",
            "libcuda.so.1 is not here",
            "only running on a GPU needs it, not building",
        )
        return
    yield Finding("CUDA driver", "ok", f"supports CUDA {driver}")
    for device in cuda_devices():
        major, minor = device.capability
        yield Finding(f"device {device.index}", "ok", f"{device.name}, {major}.{minor}, target {device.target}")


def _toolchain(target: Target) -> Finding:
    what = f"build for {target}"
    return _attempt(what, lambda: _toolchain_text(target), failed="absent")


def _toolchain_text(target: Target) -> str:
    from tkc.compiler import CompileOptions, probe

    tools = probe(target, Host.this_machine(), CompileOptions(), stamps_dir=_stamps_dir())
    tools.require(Stage.LOWER, Stage.ASSEMBLE, Stage.LINK)
    return ", ".join(f"{component.name} {component.version}" for component in tools.toolchain.components)


def _stamps_dir() -> Path | None:
    from tkc.cache import Store

    settings = Settings.from_env()
    return Store(settings.cache_dir, writable=True).stamps_dir if settings.cache_dir else None


def _stores() -> Iterator[Finding]:
    from tkc.runtime import layers
    from tkc.wheel.discover import installed_stores

    wheels = {store.folder: f"wheel {store}" for store in installed_stores()}
    settings = Settings.from_env()
    if settings.cache_dir is None:
        yield Finding("user store", "absent", "HOME and XDG_CACHE_HOME are unset", "set TKC_CACHE_DIR to a folder")
    for store in layers().stores:
        what = "user store" if store.root == settings.cache_dir else wheels.get(store.root, "layer")
        yield _attempt(what, store.describe, failed="broken")
    yield Finding("policy on a miss", "ok", settings.on_miss.value)


def _attempt(what: str, look: Callable[[], str], *, failed: str) -> Finding:
    try:
        return Finding(what, "ok", look())
    except TkcError as error:
        first, _, rest = str(error).partition(". ")
        return Finding(what, failed, first, rest)
