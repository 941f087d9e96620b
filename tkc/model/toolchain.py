"""Toolchains: the tools that one compile consumes, each by name, version and digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tkc.model.digest import Digest


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """One installed tool or file tree, and the digest that stands for its content."""

    name: str
    version: str
    digest: Digest

    def fields(self) -> dict[str, Any]:
        return {"version": self.version, "digest": self.digest}


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Named components, ordered by name. Holds no path: the same tools elsewhere are equal."""

    components: tuple[Component, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", tuple(sorted(self.components)))

    def only(self, *names: str) -> Toolchain:
        """The part of the toolchain that one stage consumes."""
        return Toolchain(tuple(c for c in self.components if c.name in names))

    def fields(self) -> Mapping[str, Any]:
        return {component.name: component.fields() for component in self.components}
