"""Choose the artifact for a request: ask the layers in order, take the first that this device can run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.cache import Hit, Layers, Miss, Store, Upstream
from tkc.config import Settings
from tkc.errors import StoreError
from tkc.model import LOADER_ABI, Backend, Digest, Host, Manifest, Request, Specialization
from tkc.registry import CatalogEntry, find_entry
from tkc.runtime.artifact import LIBRARY, Artifact
from tkc.runtime.device import DeviceInfo
from tkc.wheel.discover import installed_stores

if TYPE_CHECKING:
    from tkc.cache import Signers


@dataclass(frozen=True, slots=True)
class Accepted:
    """The artifact can run on the device."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The artifact must not be loaded for the device.

    Attributes:
        reason: what it was built for, and what is there.
    """

    reason: str


@cache
def settings() -> Settings:
    """The process's settings, read from the environment once."""
    return Settings.from_env()


@cache
def layers() -> Layers:
    """The stores of this process, in the order they are asked: wheels, ``TKC_STORES``, the user store.

    Made once a process, from the environment; creates nothing. A remote is known to them if one is configured;
    only `fallback` asks it.
    """
    chosen = settings()
    return Layers.of_folders(
        chosen.stores,
        chosen.cache_dir,
        installed=tuple(store.folder for store in installed_stores()),
        upstream=_upstream(chosen),
        signers=_signers(chosen),
    )


def _signers(chosen: Settings) -> Signers | None:
    if not chosen.signers:
        return None
    from tkc.cache import Signers

    return Signers(chosen.signers)


def _upstream(chosen: Settings) -> Upstream | None:
    if not chosen.remote:
        return None
    from cache_tools.remote import remote_from

    return remote_from(chosen)


def forget_settings() -> None:
    """Read the environment again at the next use. For tests."""
    settings.cache_clear()
    layers.cache_clear()
    _source.cache_clear()
    _neighbours.cache_clear()


def request_for(entry: CatalogEntry, specialization: Specialization, device: DeviceInfo) -> Request:
    """What to ask the stores for. Raises SpecError if the kernel has no variant for the device's backend."""
    target = device.target
    source = _source(entry.spec.name, target.backend)
    return Request(specialization, source, target.name, Host.this_machine().arch)


def dispatch(request: Request, device: DeviceInfo) -> Artifact | Miss:
    """The first layer's artifact that answers `request` and can run on `device`, verified.

    A miss has one reason for each layer. Never raises for a layer that cannot be used. Of an artifact only
    what is loaded is read and verified, once.
    """
    reasons = []
    for store in layers().stores:
        found = _ask(store, request, device)
        if isinstance(found, Artifact):
            return found
        reasons.append(f"{store.root}: {found}")
    return Miss("\n".join(reasons)) if reasons else Miss("there is no store: set TKC_STORES or TKC_CACHE_DIR, or HOME")


def _ask(store: Store, request: Request, device: DeviceInfo) -> Artifact | str:
    """What one layer has for `request`, or why it has nothing."""
    try:
        manifest = store.find(request.key)
        if isinstance(manifest, Miss):
            return manifest.reason
        if isinstance(verdict := judge(manifest, device, request.host), Rejected):
            return verdict.reason
        return Artifact.of(Hit(manifest, store))
    except StoreError as error:  # untrusted, unreadable, or damaged and now in quarantine
        return str(error)


def judge(manifest: Manifest, device: DeviceInfo, host: str) -> Accepted | Rejected:
    """Whether an artifact can run on `device`, with a CPU of architecture `host`; asked before loading."""
    facts, action = manifest.facts, manifest.action
    if not any(file.name == LIBRARY for file in manifest.files):
        return Rejected(f"artifact {manifest.key.short} holds no {LIBRARY}")
    if (abi := facts.get("abi", LOADER_ABI)) != LOADER_ABI:
        return Rejected(f"artifact {manifest.key.short} is for loader ABI {abi}; this loader has {LOADER_ABI}")
    if (built_for := action.get("host", {}).get("arch", host)) != host:
        return Rejected(f"artifact {manifest.key.short} is for host {built_for}; this machine is {host}")
    for kernel in facts.get("kernels", ()):
        arch = kernel.get("arch")
        if arch is not None and not runs_on(arch, device):
            return Rejected(f"artifact {manifest.key.short} holds code for {arch}; the device is {device}")
    return Accepted()


def runs_on(arch: str, device: DeviceInfo) -> bool:
    """Whether a device binary for `arch` runs on `device`.

    ``sm_90a`` runs on 9.0 alone; ``sm_100f`` on its family, 10.0 and 10.3; a plain ``sm_80`` on every
    8.x that is not older. Other backends run what their target names.
    """
    if device.capability is None:
        return device.target.backend is Backend.CPU or arch == device.target.arch
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    if match is None:
        return False
    built = int(match[1]), int(match[2])
    if match[3] == "a":
        return built == device.capability
    return built[0] == device.capability[0] and built[1] <= device.capability[1]


def why_not_found(request: Request, miss: Miss) -> tuple[str, ...]:
    """The reasons of a miss, and whether the layers hold the same artifact from other sources.

    Reads the refs of every layer once a process, so what was built since may not be seen.
    """
    reasons = miss.reasons
    for fields, where in _neighbours().get(_neighbourhood(request.fields()), ()):
        if fields.get("source") != str(request.source):
            reasons += (f"{where}: source changed: it holds this kernel, built from other source files",)
        elif fields.get("abi") != request.abi:
            reasons += (f"{where}: it holds this kernel for loader ABI {fields.get('abi')}, not {request.abi}",)
    return reasons


@cache
def _source(name: str, backend: Backend) -> Digest:
    return find_entry(name).source_digest(backend)


_Neighbours = Mapping[tuple[str, ...], tuple[tuple[Mapping[str, Any], Path], ...]]


@cache
def _neighbours() -> _Neighbours:
    found: dict[tuple[str, ...], tuple[tuple[Mapping[str, Any], Path], ...]] = {}
    for store in layers().stores:
        with suppress(StoreError):  # a layer that cannot be used has said so already
            for ref in store.refs():
                name = _neighbourhood(ref.fields)
                found[name] = (*found.get(name, ()), (ref.fields, store.root))
    return found


def _neighbourhood(fields: Mapping[str, Any]) -> tuple[str, ...]:
    values = fields.get("specialization") or {}
    pairs = sorted(f"{name}={value!r}" for name, value in values.items())
    return (str(fields.get("spec")), str(fields.get("target")), str(fields.get("host")), *pairs)
