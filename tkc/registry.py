"""Find kernels: a package's folders are its catalogue.

``<package>/<family>/<kernel>/spec.py`` defines one kernel; the files beside it say which backends it
supports. Packages announce themselves by an entry point of the group ``tkc.catalogs`` whose value is
the package's name. Nothing here imports torch or tilelang.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tkc.errors import SpecError, unknown_name
from tkc.imports import imported_modules
from tkc.model import Backend, Digest, KernelSpec, ModelDims

if TYPE_CHECKING:
    from tkc.model import Calls

ENTRY_POINT_GROUP = "tkc.catalogs"


@dataclass(frozen=True)
class CatalogEntry:
    """One kernel: its spec, and where its files are."""

    spec: KernelSpec
    package: str
    folder: Path

    @property
    def module(self) -> str:
        """Dotted name of the kernel's folder."""
        return f"{self.package}.{self.spec.name}"

    @cached_property
    def backends(self) -> tuple[Backend, ...]:
        """The backends that have a variant, read from which files exist."""
        return tuple(b for b in Backend if (self.folder / f"{b.value}.py").is_file())

    def variant(self, backend: Backend) -> ModuleType:
        """Import the variant for `backend`; needs tilelang. Raises SpecError if there is none."""
        self.require(backend)
        return importlib.import_module(f"{self.module}.{backend.value}")

    def reference(self) -> ModuleType:
        """Import the PyTorch reference; needs torch."""
        return importlib.import_module(f"{self.module}.reference")

    def require(self, backend: Backend) -> None:
        """Raise SpecError unless there is a variant for `backend`."""
        if backend not in self.backends:
            have = ", ".join(b.value for b in self.backends) or "none"
            raise SpecError(
                f"{self.spec.name} has no variant for backend {backend.value!r}; it has: {have}. "
                f"A variant is a file {backend.value}.py beside its spec.py"
            )

    def sources(self, backend: Backend) -> Mapping[str, Digest]:
        """Digests of the files that the variant is made of: itself, the spec, and the helpers both import.

        Keys are paths relative to the package, so they are equal wherever it is installed.
        """
        return self._sources(backend).files

    def source_digest(self, backend: Backend) -> Digest:
        """One digest for `sources`; part of every request."""
        return self._sources(backend).digest

    def _sources(self, backend: Backend) -> _Sources:
        known = _read_once.get()
        if known is None:
            return self._read_sources(backend)
        if (key := (self.folder, backend)) not in known:
            known[key] = self._read_sources(backend)
        return known[key]

    def _read_sources(self, backend: Backend) -> _Sources:
        self.require(backend)
        roots = (self.folder / f"{backend.value}.py", self.folder / "spec.py")
        package_folder = self.folder.parent.parent
        found = _import_closure(roots, self.package, package_folder)
        files = {path.relative_to(package_folder).as_posix(): Digest.of_file(path) for path in sorted(found)}
        return _Sources(files, Digest.of_fields("tkc.sources/1", {"files": files}))


@dataclass(frozen=True, slots=True)
class _Sources:
    """The files of a variant, and one digest for all of them."""

    files: Mapping[str, Digest]
    digest: Digest


_read_once: ContextVar[dict[tuple[Path, Backend], _Sources] | None] = ContextVar("read_once", default=None)


@contextmanager
def sources_read_once() -> Iterator[None]:
    """Within the block the files of each variant are read once, for many specializations of few kernels."""
    token = _read_once.set({})
    try:
        yield
    finally:
        _read_once.reset(token)


@dataclass(frozen=True)
class Catalog:
    """Every kernel found, by name."""

    entries: Mapping[str, CatalogEntry]

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, name: str) -> CatalogEntry:
        """The kernel called `name`. Raises SpecError, with the nearest name, if there is none."""
        if name not in self.entries:
            raise SpecError(unknown_name("spec", name, self.entries, hint="`tkc list` shows them."))
        return self.entries[name]

    def select(self, names: tuple[str, ...]) -> tuple[CatalogEntry, ...]:
        """The kernels named, a family's name standing for all of it; no names means all."""
        if not names:
            return tuple(self)
        chosen: dict[str, CatalogEntry] = {}
        for name in names:
            family = [entry for entry in self if entry.spec.family == name]
            for entry in family or [self.find(name)]:
                chosen[entry.spec.name] = entry
        return tuple(chosen.values())


@cache
def load_catalog(*packages: str) -> Catalog:
    """Find every kernel of `packages`, or of all packages that announce a catalogue.

    Raises SpecError for a folder whose spec is missing, misnamed or incomplete.
    """
    names = packages or installed_packages()
    entries = {entry.spec.name: entry for package in names for entry in _walk(package)}
    return Catalog(dict(sorted(entries.items())))


@cache
def find_entry(name: str) -> CatalogEntry:
    """The kernel called `name`, importing nothing but its own spec.

    Raises SpecError, with the nearest name, if no catalogue has it.
    """
    family, _, kernel = name.partition(".")
    for package in installed_packages():
        folder = _package_folder(package) / family / kernel
        if family.isidentifier() and kernel.isidentifier() and (folder / "spec.py").is_file():
            return _entry(package, folder)
    return load_catalog().find(name)


def entry_of(spec: KernelSpec) -> CatalogEntry:
    """The entry of a spec, found from the module that defines it: unlike `find_entry`, looks at no other package."""
    package, is_kernel, _ = f"{spec.specialize.__module__}.".rpartition(f".{spec.name}.spec.")
    return _entry_in(package, spec.name) if is_kernel else find_entry(spec.name)


@cache
def _entry_in(package: str, name: str) -> CatalogEntry:
    return _entry(package, _package_folder(package).joinpath(*name.split(".")))


@cache
def installed_packages() -> tuple[str, ...]:
    """The packages that announce a catalogue; asked once, as it means a look at every installed distribution."""
    return tuple(sorted({point.value for point in entry_points(group=ENTRY_POINT_GROUP)}))


def _walk(package: str) -> Iterator[CatalogEntry]:
    for spec_file in sorted(_package_folder(package).glob("*/*/spec.py")):
        yield _entry(package, spec_file.parent)


def _entry(package: str, folder: Path) -> CatalogEntry:
    name = f"{folder.parent.name}.{folder.name}"
    module = importlib.import_module(f"{package}.{name}.spec")
    spec = getattr(module, "SPEC", None)
    if not isinstance(spec, KernelSpec):
        raise SpecError(f"{folder / 'spec.py'} defines no SPEC; expected SPEC = KernelSpec(name={name!r}, …)")
    if spec.name != name:
        raise SpecError(f"{folder / 'spec.py'} calls itself {spec.name!r}; its folders say {name!r}")
    if not (folder / "reference.py").is_file():
        raise SpecError(f"{name} has no reference.py; a spec is incomplete without its PyTorch reference")
    return CatalogEntry(spec, package, folder)


@dataclass(frozen=True)
class Operator:
    """A folder with an ``op.py``: public functions, which need not have a kernel of their own.

    Attributes:
        name: ``<family>.<folder>``.
        package, folder: where it is.
    """

    name: str
    package: str
    folder: Path

    @property
    def has_calls(self) -> bool:
        """Whether a ``calls.py`` says which calls a model makes of it."""
        return (self.folder / "calls.py").is_file()

    def calls(self) -> Callable[[ModelDims], Iterable[Calls]]:
        """The function ``calls`` of its ``calls.py``; needs torch. Raises SpecError if there is none."""
        module = importlib.import_module(f"{self.package}.{self.name}.calls")
        found: Callable[[ModelDims], Iterable[Calls]] | None = getattr(module, "calls", None)
        if found is None:
            raise SpecError(f"{self.folder / 'calls.py'} defines no function calls(dims)")
        return found

    def uses(self) -> frozenset[str]:
        """Names of the kernels whose specs its ``op.py`` imports, itself or through helpers."""
        package_folder = self.folder.parent.parent
        found = _import_closure((self.folder / "op.py",), self.package, package_folder)
        return frozenset(
            ".".join(path.parent.relative_to(package_folder).parts) for path in found if path.name == "spec.py"
        )


def operators(*packages: str) -> tuple[Operator, ...]:
    """Every operator of these packages, by default of all that announce a catalogue."""
    found = []
    for package in packages or installed_packages():
        for file in sorted(_package_folder(package).glob("*/*/op.py")):
            found.append(Operator(f"{file.parent.parent.name}.{file.parent.name}", package, file.parent))
    return tuple(found)


def _package_folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SpecError(f"catalogue package {package!r} cannot be found; is it installed here?")
    return Path(found.submodule_search_locations[0])


def _import_closure(roots: tuple[Path, ...], package: str, package_folder: Path) -> set[Path]:
    pending, seen = list(roots), set[Path]()
    while pending:
        path = pending.pop()
        if path not in seen:
            seen.add(path)
            pending += _imports_within(path, package, package_folder)
    return seen


@cache
def _imports_within(path: Path, package: str, package_folder: Path) -> tuple[Path, ...]:
    here = (package, *path.relative_to(package_folder).parent.parts)
    modules = imported_modules(path.read_text(encoding="utf-8"), here)
    return tuple(file for module in modules if (file := _module_file(module, package, package_folder)))


def _module_file(module: tuple[str, ...], package: str, package_folder: Path) -> Path | None:
    if module[0] != package or len(module) < 2:
        return None
    stem = package_folder.joinpath(*module[1:])
    return next((file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()), None)
