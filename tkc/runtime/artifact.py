"""An artifact on its way from a store into the process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tkc.cache import Hit
from tkc.model import Manifest

LIBRARY = "kernel.so"
"""Name of the shared library among an artifact's files."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """What is loaded: the verified bytes themselves, so that nothing can change between verifying and loading.

    Attributes:
        manifest: what it is.
        layer: folder of the store that it came from.
        library: bytes of its shared library, verified.
    """

    manifest: Manifest
    layer: Path
    library: bytes

    @classmethod
    def of(cls, hit: Hit) -> Self:
        """Read the library of an artifact in a store. Raises StoreDamagedError if it is gone or changed."""
        return cls(hit.manifest, hit.store.root, hit.store.read_blob(hit.manifest.file(LIBRARY).digest))
