"""The bill of materials of a wheel, as CycloneDX JSON: what is inside, and what it was made with.

It holds no time and no random serial number, so that equal wheels stay equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tkc.model import Backend
from tkc.wheel.contents import Item, WheelContents
from tkc.wheel.licences import Part, parts_of
from tkc.wheel.names import WheelName

SPEC_VERSION = "1.6"


def sbom(name: WheelName, contents: WheelContents, backend: Backend) -> bytes:
    """Give the document. Equal contents give equal bytes."""
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "component": _subject(name, contents),
            "tools": {"components": [_tool(tool, facts) for tool, facts in sorted(contents.toolchain.items())]},
        },
        "components": [
            *(_part(part, contents) for part in parts_of(backend)),
            *(_artifact(item) for item in contents.items),
        ],
    }
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()


def _subject(name: WheelName, contents: WheelContents) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": name.distribution,
        "name": name.distribution,
        "version": name.version,
        "purl": f"pkg:pypi/{name.distribution}@{name.version}",
        "properties": [_property(f"tkc:{key}", value) for key, value in sorted(contents.provenance.items())],
    }


def _tool(name: str, facts: Mapping[str, str]) -> dict[str, Any]:
    return {"type": "application", "name": name, "version": facts["version"], "hashes": [_hash(facts["digest"])]}


def _part(part: Part, contents: WheelContents) -> dict[str, Any]:
    version = contents.toolchain.get(part.component, {}).get("version") or contents.provenance.get("tkc", "")
    return {
        "type": "library",
        "bom-ref": f"part:{part.name}",
        "name": part.name,
        "version": version.rpartition(" ")[2],
        "description": part.what,
        "licenses": [{"license": _licence(part.licence)}],
    }


def _artifact(item: Item) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"artifact:{item.request.hex}",
        "name": item.title,
        "hashes": [_hash(str(item.library))],
        "properties": [_property("tkc:request", str(item.request)), _property("tkc:action", str(item.key))],
    }


def _licence(spdx: str) -> dict[str, str]:
    return {"name": spdx.removeprefix("LicenseRef-")} if spdx.startswith("LicenseRef-") else {"id": spdx}


def _hash(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest.removeprefix("sha256:")}


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}
