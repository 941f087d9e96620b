"""The wheel's own manifest: what is in it, for which models, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, get_args, get_origin, get_type_hints

from tkc.model import Digest, Manifest, ModelDims, canonical

SCHEMA = "tkc.wheel/1"
LIBRARY = "kernel.so"
"""Name of the shared library among an artifact's files."""


@dataclass(frozen=True, slots=True)
class Item:
    """One artifact of a wheel.

    Attributes:
        request: digest of the request that it answers.
        fields: of that request, as JSON values.
        key: of its action.
        library: digest of its shared library.
        size_bytes: of that library.
        kernels: what is known of each kernel in it: architecture, registers, spills, shared memory, code.
    """

    request: Digest
    fields: Mapping[str, Any]
    key: Digest
    library: Digest
    size_bytes: int
    kernels: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, request: Digest, fields: Mapping[str, Any], manifest: Manifest) -> Self:
        """Describe the artifact that answers a request. Raises KeyError if it holds no shared library."""
        entry = manifest.file(LIBRARY)
        kernels = tuple(_kernel(kernel) for kernel in manifest.facts.get("kernels", ()))
        plain = json.loads(canonical(fields))
        return cls(request, plain, manifest.key, entry.digest, entry.size_bytes, kernels)

    @property
    def title(self) -> str:
        """The artifact for people."""
        values = (f"{name}={value}" for name, value in self.fields["specialization"].items())
        return " ".join((self.fields["spec"], *values))


_KERNEL_FACTS = ("symbol", "arch", "registers", "spill_bytes", "stack_bytes", "static_shared_bytes", "code_bytes")


def _kernel(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in _KERNEL_FACTS if name in facts}


@dataclass(frozen=True, slots=True)
class WheelContents:
    """Everything that a wheel says of itself.

    Attributes:
        target, host, abi: whom its artifacts serve.
        grid: name of the grid, or of the model's configuration file.
        specs: the kernels or families that it was limited to; empty for all.
        models: the dimensions that it covers, as JSON values.
        items: its artifacts, ordered by title.
        toolchain: what compiled them: name → version and digest.
        provenance: commit of the kernels' sources, whether they were changed since, version of tkc.
    """

    target: str
    host: str
    abi: int
    grid: str
    specs: tuple[str, ...]
    models: tuple[Mapping[str, Any], ...]
    items: tuple[Item, ...]
    toolchain: Mapping[str, Mapping[str, str]]
    provenance: Mapping[str, str]

    def dims(self) -> tuple[ModelDims, ...]:
        """The models' dimensions. Raises ValueError if a field of them is not known here."""
        try:
            return tuple(_dims(model) for model in self.models)
        except TypeError as error:
            raise ValueError(f"model dimensions are not those of this version of tkc: {error}") from error

    def to_bytes(self) -> bytes:
        """Write it, for people too; equal contents give equal bytes."""
        body = {
            "schema": SCHEMA,
            "target": self.target,
            "host": self.host,
            "abi": self.abi,
            "grid": self.grid,
            "specs": self.specs,
            "models": self.models,
            "toolchain": self.toolchain,
            "provenance": self.provenance,
            "artifacts": [_item_body(item) for item in self.items],
        }
        return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read it back. Raises ValueError for anything that `to_bytes` did not write."""
        try:
            body = json.loads(data)
            if body["schema"] != SCHEMA:
                raise ValueError(f"its schema is {body['schema']!r}; expected {SCHEMA!r}")
            contents = cls(
                target=body["target"],
                host=body["host"],
                abi=body["abi"],
                grid=body["grid"],
                specs=tuple(body["specs"]),
                models=tuple(body["models"]),
                items=tuple(_item(one) for one in body["artifacts"]),
                toolchain=body["toolchain"],
                provenance=body["provenance"],
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is not a wheel's manifest: {type(error).__name__}: {error}") from error
        if contents.to_bytes() != data:
            raise ValueError("it is not written the one way that tkc writes it")
        return contents


def model_fields(dims: Iterable[ModelDims]) -> tuple[Mapping[str, Any], ...]:
    """Model dimensions as JSON values."""
    return tuple(json.loads(json.dumps(asdict(one))) for one in dims)


def _dims(model: Mapping[str, Any]) -> ModelDims:
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in model.items()}
    dims, kinds = ModelDims(**values), get_type_hints(ModelDims)
    for name, value in asdict(dims).items():
        if not _is_of(kinds[name], value):
            raise TypeError(f"{name} is {value!r:.60}")
    return dims


def _is_of(kind: Any, value: Any) -> bool:
    if get_origin(kind) is tuple:
        return type(value) is tuple and all(_is_of(get_args(kind)[0], item) for item in value)
    return type(value) is kind and (kind is not int or 0 <= value < 1 << 31)


def _item_body(item: Item) -> dict[str, Any]:
    return {
        "request": str(item.request),
        "fields": item.fields,
        "key": str(item.key),
        "library": str(item.library),
        "size_bytes": item.size_bytes,
        "kernels": item.kernels,
    }


def _item(body: Any) -> Item:
    fields = body["fields"]
    if not isinstance(fields["spec"], str) or not isinstance(fields["specialization"], dict):
        raise TypeError("an artifact's fields name no spec and specialization")
    return Item(
        Digest.parse(body["request"]),
        fields,
        Digest.parse(body["key"]),
        Digest.parse(body["library"]),
        int(body["size_bytes"]),
        tuple(dict(kernel) for kernel in body["kernels"]),
    )
