"""The stores of installed wheels, found without importing the packages that hold them.

Every installed distribution is asked, those too that another version of the same name hides from imports: two
versions in two folders of ``sys.path`` are both found. The newest is asked first; one that does not fit the device or
the loader says so and the next is asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path

STORES_GROUP = "tkc.stores"
"""Entry point group of a wheel that holds a store: ``package[:relative/path]``."""


@dataclass(frozen=True, slots=True)
class InstalledStore:
    """A store that came with an installed distribution.

    Attributes:
        distribution, version: whose it is.
        folder: where it is.
    """

    distribution: str
    version: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def installed_stores(path: list[str] | None = None) -> tuple[InstalledStore, ...]:
    """The stores of the distributions on `path` (default: ``sys.path``), the newest version first.

    Warns about one whose folder is not there. Reads nothing of the stores.
    """
    found: dict[Path, InstalledStore] = {}
    for distribution in distributions() if path is None else distributions(path=path):
        for store in _stores_of(distribution):
            found.setdefault(store.folder, store)
    return tuple(_newest_first(found.values()) if len(found) > 1 else found.values())


def layer_title(root: Path) -> str:
    """A layer as people know it: the wheel that it came with, or its folder."""
    wheels = {store.folder: f"wheel {store}" for store in installed_stores()}
    return f"{wheels[root]} ({root})" if root in wheels else str(root)


def _stores_of(distribution: Distribution) -> list[InstalledStore]:
    """What one distribution brings. Nobody's damaged metadata may stop a load: it is a warning, and brings nothing."""
    try:
        return [store for point in _points(distribution) if (store := _store(distribution, point))]
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # importlib.metadata expects good metadata
        warnings.warn(
            f"a distribution whose entry points name {STORES_GROUP!r} has metadata that cannot be read: {error} "
            f"({distribution.locate_file('')}). Reinstall it",
            RuntimeWarning,
            stacklevel=3,
        )
        return []


def _points(distribution: Distribution) -> Iterator[EntryPoint]:
    text = distribution.read_text("entry_points.txt")
    if text and STORES_GROUP in text:
        yield from distribution.entry_points.select(group=STORES_GROUP)


def _store(distribution: Distribution, point: EntryPoint) -> InstalledStore | None:
    package, _, inside = (part.strip() for part in point.value.partition(":"))
    folder = _package_folder(distribution, package)
    if folder is None:
        warnings.warn(
            f"entry point {point.name!r} of {STORES_GROUP!r} names {point.value!r}, which is not "
            "installed. Reinstall the wheel that it came with",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    return InstalledStore(distribution.name, distribution.version, folder / inside)


def _package_folder(distribution: Distribution, package: str) -> Path | None:
    """Beside the distribution's own metadata; or, for an editable install, where an import would find it."""
    beside = Path(str(distribution.locate_file(package.replace(".", "/"))))
    if beside.is_dir():
        return beside
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def _newest_first(stores: Iterable[InstalledStore]) -> list[InstalledStore]:
    from packaging.version import InvalidVersion, Version

    def age(store: InstalledStore) -> Version:
        try:
            return Version(store.version)
        except InvalidVersion:
            return Version("0.dev0")

    by_name = sorted(stores, key=lambda store: (store.distribution, str(store.folder)))
    return sorted(by_name, key=age, reverse=True)
