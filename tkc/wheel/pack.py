"""Pack built artifacts into a wheel. Equal artifacts and provenance give equal bytes, wherever they are packed."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipInfo

from wheel.wheelfile import WheelFile

from tkc.cache import Store
from tkc.errors import TkcError
from tkc.model import LOADER_ABI, Host, Manifest, ModelDims, Request, Target
from tkc.version import __version__
from tkc.wheel.contents import Item, WheelContents, model_fields
from tkc.wheel.discover import STORES_GROUP
from tkc.wheel.licences import expression_of, texts_of
from tkc.wheel.names import MANIFEST, SBOM, STORE, WheelName
from tkc.wheel.sbom import sbom

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every member: the oldest that the format has."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What goes into a wheel.

    Attributes:
        target, host: whom it serves.
        version: of the wheel.
        grid: name of the grid or configuration that was built.
        specs: the kernels or families that the build was limited to; empty for all.
        dims: the dimensions that the grid stands for.
        artifacts: each request, and the manifest of what answers it.
        provenance: commit of the sources, and whether they were changed since.
    """

    target: Target
    host: Host
    version: str
    grid: str
    specs: tuple[str, ...]
    dims: tuple[ModelDims, ...]
    artifacts: Sequence[tuple[Request, Manifest]]
    provenance: Mapping[str, str]


def pack(packing: Packing, store: Store, folder: Path) -> Path:
    """Write the wheel of artifacts that are in `store` into `folder`, aside first, and give its path.

    Raises TkcError if there is nothing to pack, the artifacts were not made with one toolchain, or the file cannot
    be written; StoreDamagedError if a blob is gone.
    """
    name, contents = WheelName.of(packing.target, packing.host, packing.version), contents_of(packing)
    path = folder / name.filename
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tkc-wheel-") as aside:
            members = dict(_members(name, contents, packing, store, Path(aside)))
            _write(Path(aside) / name.filename, members)
            (Path(aside) / name.filename).replace(path)
    except OSError as error:
        raise TkcError(f"wheel {path} cannot be written: {error.strerror or error}") from error
    return path


def contents_of(packing: Packing) -> WheelContents:
    """Describe what would be packed. Raises TkcError if that is nothing, or a mixture of toolchains."""
    if not packing.artifacts:
        raise TkcError(f"nothing to pack for {packing.target}: no artifact was built. `tkc list` shows what there is")
    items = [Item.of(request.key, request.fields(), manifest) for request, manifest in packing.artifacts]
    return WheelContents(
        target=packing.target.name,
        host=packing.host.arch,
        abi=LOADER_ABI,
        grid=packing.grid,
        specs=packing.specs,
        models=model_fields(packing.dims),
        items=tuple(sorted(items, key=lambda item: item.title)),
        toolchain=_one_toolchain([manifest for _, manifest in packing.artifacts]),
        provenance={"tkc": __version__, **packing.provenance},
    )


def _one_toolchain(manifests: Sequence[Manifest]) -> Mapping[str, Mapping[str, str]]:
    found: dict[str, Mapping[str, str]] = {}
    for manifest in manifests:
        for name, facts in manifest.action.get("toolchain", {}).items():
            if found.setdefault(name, facts) != facts:
                raise TkcError(
                    f"the artifacts were made with two versions of {name}: {found[name]['version']} and "
                    f"{facts['version']}. Build all of them with one toolchain"
                )
    return dict(sorted(found.items()))


def _members(
    name: WheelName, contents: WheelContents, packing: Packing, store: Store, aside: Path
) -> Iterator[tuple[str, bytes]]:
    """Every member but RECORD, by its path in the wheel."""
    yield f"{name.package}/__init__.py", _init(contents).encode()
    yield f"{name.package}/{MANIFEST}", contents.to_bytes()
    for path, data in _store_files(packing, store, aside / STORE):
        yield f"{name.package}/{STORE}/{path}", data
    backend = packing.target.backend
    for licence, text in texts_of(backend).items():
        yield f"{name.dist_info}/licenses/{licence}", text
    yield f"{name.dist_info}/sboms/{SBOM}", sbom(name, contents, backend)
    entry = f"[{STORES_GROUP}]\n{packing.target.name}-{packing.host.arch} = {name.package}:{STORE}\n"
    yield f"{name.dist_info}/entry_points.txt", entry.encode()
    yield f"{name.dist_info}/METADATA", _metadata(name, contents, packing).encode()
    yield f"{name.dist_info}/WHEEL", _wheel(name).encode()


def _store_files(packing: Packing, source: Store, root: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a store with exactly these artifacts.

    Manifests leave behind what is true of the build and not of the artifact: which commit it was first compiled at,
    and the keys of stage outputs, which stay at home.
    """
    store = Store(root, writable=True)
    for request, manifest in packing.artifacts:
        for file in manifest.files:
            store.publish_blob(source.read_blob(file.digest))
        store.commit_manifest(replace(manifest, inputs=(), provenance={}))
        store.write_ref(request.key, request.fields(), manifest.key)
    folders = (path for path in root.iterdir() if path.name.split("-")[0] in ("blobs", "actions", "refs"))
    for path in sorted(file for folder in folders for file in folder.rglob("*") if file.is_file()):
        yield path.relative_to(root).as_posix(), path.read_bytes()


def _write(path: Path, members: Mapping[str, bytes]) -> None:
    with _ReproducibleWheel(path, "w", ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


class _ReproducibleWheel(WheelFile):  # type: ignore[misc]
    """Gives every member, RECORD too, the same time and mode."""

    def writestr(self, name: str | ZipInfo, data: Any, compress_type: int | None = None) -> None:
        super().writestr(_entry(name) if isinstance(name, str) else name, data, compress_type)


def _entry(name: str) -> ZipInfo:
    entry = ZipInfo(name, _EPOCH)
    entry.compress_type = ZIP_DEFLATED
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.create_system = 3
    return entry


def _init(contents: WheelContents) -> str:
    what = f"Kernels for {contents.target}, compiled ahead of time."
    return f'"""{what} Nothing to import: the loader of tkc finds them."""\n'


def _metadata(name: WheelName, contents: WheelContents, packing: Packing) -> str:
    """METADATA. It requires nothing: whether a loader can use an artifact is asked for each, by the loader's ABI.

    A requirement by name would let pip fetch whatever an index has under that name.
    """
    licences = "".join(f"License-File: {text}\n" for text in texts_of(packing.target.backend))
    models = ", ".join(dims.name for dims in packing.dims)
    return (
        "Metadata-Version: 2.4\n"
        f"Name: {name.distribution}\n"
        f"Version: {name.version}\n"
        f"Summary: TileLang kernels for {contents.target}, compiled ahead of time\n"
        f"License-Expression: {expression_of(packing.target.backend)}\n"
        f"{licences}"
        "Requires-Python: >=3.11\n"
        "\n"
        f"{len(contents.items)} kernels for {models}, grid {contents.grid}. The loader of tkc finds them here and\n"
        "reads them in place. manifest.json lists them; the bill of materials is in this folder, under sboms.\n"
    )


def _wheel(name: WheelName) -> str:
    return f"Wheel-Version: 1.0\nGenerator: tkc\nRoot-Is-Purelib: false\nTag: {name.tag}\n"
