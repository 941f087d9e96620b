"""Which artifacts a command is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tkc.cache import RefEntry
from tkc.model import Manifest


@dataclass(frozen=True, slots=True)
class Selection:
    """Every criterion that is given must hold; a criterion with several values holds for any of them.

    Attributes:
        specs: names of kernels, or of families, which stand for all their kernels.
        targets, hosts: names.
        toolchains: ``tilelang``, ``tilelang=0.1.15``, or a component's digest, or the start of one.
        keys: action keys, or how they start.
    """

    specs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    toolchains: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything was asked for."""
        return any((self.specs, self.targets, self.hosts, self.toolchains, self.keys))

    def matches(self, manifest: Manifest) -> bool:
        """Whether it is about this manifest. One without the field that is asked for does not match."""
        return (
            self._by_spec(manifest.action.get("spec"))
            and _among(self.targets, target_name(manifest))
            and _among(self.hosts, host_name(manifest))
            and _any(self.keys, lambda key: manifest.key.hex.startswith(key.removeprefix("sha256:")))
            and _any(self.toolchains, lambda text: _has_component(manifest.action.get("toolchain"), text))
        )

    def matches_ref(self, ref: RefEntry) -> bool:
        """Whether it is about a ref whose artifact cannot be read; a toolchain is unknown there."""
        return (
            not self.toolchains
            and self._by_spec(ref.fields.get("spec"))
            and _among(self.targets, ref.fields.get("target"))
            and _among(self.hosts, ref.fields.get("host"))
            and _any(self.keys, lambda key: ref.key.hex.startswith(key.removeprefix("sha256:")))
        )

    def _by_spec(self, spec: Any) -> bool:
        return not self.specs or (isinstance(spec, str) and bool({spec, family_of(spec)} & set(self.specs)))


def family_of(spec: str) -> str:
    """The family that a kernel's full name begins with."""
    return spec.partition(".")[0]


def spec_name(manifest: Manifest) -> str:
    """The kernel of a manifest; ``?`` for one that names none, such as the output of a link."""
    return str(manifest.action.get("spec", "?"))


def target_name(manifest: Manifest) -> str:
    """The target of a manifest; ``?`` for one that names none."""
    return _name(manifest.action.get("target"), "name")


def host_name(manifest: Manifest) -> str:
    """The host of a manifest; ``?`` for one that names none."""
    return _name(manifest.action.get("host"), "arch")


def title_of(fields: Mapping[str, Any]) -> str:
    """A ref's request, for people, the way `tkc build` takes it."""
    values = fields.get("specialization")
    pairs = [f"{name}={_word(value)}" for name, value in values.items()] if isinstance(values, dict) else []
    where = (f"--target {fields.get('target', '?')}", f"--host {fields.get('host', '?')}")
    return " ".join((str(fields.get("spec", "?")), *pairs, *where))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def _name(value: Any, field: str) -> str:
    return str(value.get(field, "?") if isinstance(value, dict) else value or "?")


def _among(wanted: tuple[str, ...], value: Any) -> bool:
    return not wanted or value in wanted


def _any(wanted: tuple[str, ...], holds: Any) -> bool:
    return not wanted or any(holds(one) for one in wanted)


def _has_component(toolchain: Any, text: str) -> bool:
    if not isinstance(toolchain, dict):
        return False
    if text.startswith("sha256:"):
        return any(str(part.get("digest", "")).startswith(text) for part in toolchain.values())
    name, _, version = text.partition("=")
    return name in toolchain and (not version or version in _spellings(toolchain[name].get("version")))


def _spellings(version: Any) -> tuple[str, ...]:
    """A component's version as it is written, such as ``apache-tvm-ffi 0.1.12``, and its number alone."""
    return (str(version), str(version).rpartition(" ")[2])
