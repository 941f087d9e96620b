"""Artifacts as `tkc.build` makes them: three stages, the compile that names the last, and a ref."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tkc.cache import Hit, Store
from tkc.model import Action, Digest, Manifest, Request, Specialization, Stage

SPEC = "moe.topk_gate"
DAY = 24 * 3600.0
HOUR = 3600.0


def specialization(name: str, spec: str = SPEC) -> Specialization:
    return Specialization(spec, (("name", name),))


def request_of(name: str, *, spec: str = SPEC, target: str = "cpu", host: str = "x86_64") -> Request:
    return Request(specialization(name, spec), Digest.of_bytes(b"sources"), target, host)


def library(name: str) -> bytes:
    return f"library of {name}\n".encode() * 400


def make(
    store: Store,
    name: str,
    *,
    spec: str = SPEC,
    target: str = "cpu",
    host: str = "x86_64",
    tilelang: str = "0.1.15",
    library_bytes: bytes | None = None,
) -> Manifest:
    """Build one artifact, stages and all."""
    common: dict[str, Any] = {
        "spec": spec,
        "specialization": {"name": name},
        "target": {"name": target},
        "toolchain": {
            "tilelang": {"version": f"tilelang {tilelang}", "digest": str(Digest.of_bytes(tilelang.encode()))}
        },
    }
    request = request_of(name, spec=spec, target=target, host=host)
    lowered = _stage(store, Action(Stage.LOWER, common), {"device.cu": f"source of {name} {target}".encode()})
    assemble = Action(Stage.ASSEMBLE, {"source": lowered.files[0].digest, "toolchain": common["toolchain"]})
    assembled = _stage(store, assemble, {"kernel.cubin": f"cubin of {name} {target}".encode()}, lowered.key)
    link = Action(Stage.LINK, {"cubin": assembled.files[0].digest, "host": host, "name": name})
    linked = _stage(
        store, link, {"kernel.so": library_bytes or library(f"{name} {target}")}, lowered.key, assembled.key
    )
    compiled = Action(Stage.COMPILE, {**common, "host": {"arch": host}})
    manifest = store.commit_manifest(
        replace(linked, key=compiled.key, stage=Stage.COMPILE, action=compiled.plain_fields(), inputs=(linked.key,))
    )
    store.write_ref(request.key, request.fields(), manifest.key)
    return manifest


def _stage(store: Store, action: Action, files: dict[str, bytes], *inputs: Digest) -> Manifest:
    if isinstance(found := store.lookup(action.key), Hit):
        return found.manifest
    with store.stage() as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return store.commit(action, folder, tuple(files), facts={"entry": "main"}, inputs=inputs)


def age(store: Store, seconds: float, *names: str) -> None:
    """Let everything, or the manifests and refs of these artifacts, be as if last used so long ago."""
    then = time.time() - seconds
    if names:
        paths = []
        for name in names:
            request = request_of(name).key
            key = store.read_ref(request)
            assert key is not None
            paths += [manifest_path(store, key), ref_path(store, request)]
    else:
        paths = [path for kind in ("blobs", "actions", "refs") for path in store.root.glob(f"{kind}-v1/*/*")]
    for path in paths:
        os.utime(path, (then, then))


def manifest_path(store: Store, key: Digest) -> Path:
    return store.root / "actions-v1" / key.hex[:2] / f"{key.hex}.json"


def ref_path(store: Store, request: Digest) -> Path:
    return store.root / "refs-v1" / request.hex[:2] / f"{request.hex}.json"


def overwrite(path: Path, data: bytes) -> None:
    """Damage a published file in place, as a failing disk would."""
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def blob_digests(store: Store) -> set[Digest]:
    return {status.name for status in store.iter_blobs()}
