"""Wheels made by hand: what no packer would write."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Mapping
from typing import Any


def zipped(members: Mapping[str, bytes], record: str) -> bytes:
    """A wheel of these members with the RECORD that they deserve."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, data in members.items():
        if name != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            writer.writerow((name, f"sha256={digest}", len(data)))
    writer.writerow((record, "", ""))
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in (*((name, members[name]) for name in members if name != record), (record, b"")):
            archive.writestr(name, data if name != record else text.getvalue().encode())
    return whole.getvalue()


def replaced(body: Any, value: Any, which: int) -> Any:
    """`body` with one of the values in it, the `which`-th from the top, replaced."""
    places = list(_places(body))
    way = places[which % len(places)]
    return _with(body, way, value)


def _places(body: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(body) if isinstance(body, dict) else range(len(body)) if isinstance(body, list) else ()
    return [way, *(place for key in keys for place in _places(body[key], (*way, key)))]


def _with(body: Any, way: tuple[Any, ...], value: Any) -> Any:
    if not way:
        return value
    changed = dict(body) if isinstance(body, dict) else list(body)
    changed[way[0]] = _with(body[way[0]], way[1:], value)
    return changed
