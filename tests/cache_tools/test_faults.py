"""Disks that fail while artifacts are imported, pulled, collected and repaired: whole or absent, and said so."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_tools.bundle import export, import_
from cache_tools.fsck import fsck
from cache_tools.gc import gc
from cache_tools.sync import pull
from cache_tools.usage import usage
from tests.cache.helpers import before_each_operation, steps_of, stopping_at
from tests.cache_tools.helpers import DAY, age, make, manifest_path, overwrite, ref_path, request_of
from tests.conftest import LEVEL
from tkc.cache import RefEntry, Store
from tkc.cache.sealed import seal
from tkc.errors import StoreError, TkcError
from tkc.model import Manifest, canonical

# At level 2 each error is tried at every operation; below it at one of 25, all errors together at one of five.
Act = Callable[[Store, Path], object]
ACTS: dict[str, Act] = {
    "import": lambda store, folder: import_(folder / "one.tar", store),
    "pull": lambda store, folder: pull(Store(folder / "source"), store, jobs=1),
    "gc": lambda store, folder: gc(store),
    "fsck": lambda store, folder: fsck(store, repair_from={"source": Store(folder / "source")}),
}
CODES = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.ESTALE]


@pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_an_error_at_any_step_leaves_each_entry_whole_or_absent(tmp_path: Path, act: Act, code: int) -> None:
    source = Store(tmp_path / "source", writable=True)
    make(source, "one")
    export(source, tmp_path / "one.tar")

    def prepared(name: str) -> Store:
        store = Store(tmp_path / name, writable=True)
        make(store, "neighbour"), make(store, "gone")
        store.remove_ref(request_of("gone").key)
        age(store, DAY)
        key = store.read_ref(request_of("neighbour").key)
        assert key
        return store

    counted = prepared("counted")
    steps = steps_of(lambda: act(counted, tmp_path), before_each_operation)
    for number in range(len(steps)) if LEVEL > 1 else range(CODES.index(code), len(steps), 5 * len(CODES)):
        store, where = prepared(str(number)), f"{errno.errorcode[code]} at step {number}, {steps[number]}"

        def fail() -> None:
            raise OSError(code, os.strerror(code))

        with before_each_operation(stopping_at(number, fail)):
            try:
                act(store, tmp_path)
            except TkcError as error:
                assert isinstance(error, StoreError) or "cannot be read" in str(error), where
        report = fsck(Store(store.root))
        assert report.problems == (), (where, report.problems)
        assert store.resolve(request_of("neighbour").key), where
        act(store, tmp_path)
        make(store, "one")
        assert store.resolve(request_of("one").key), where


# Records of any content

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
fuzz = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@fuzz
@given(data=st.binary(max_size=400) | json_values.map(lambda value: repr(value).encode()))
def test_parsers_of_records_raise_value_error_alone(data: bytes) -> None:
    for parse in (Manifest.from_bytes, RefEntry.from_bytes):
        with pytest.raises(ValueError):
            parse(data)


@fuzz
@given(data=st.data())
def test_a_manifest_with_any_field_changed_is_read_the_same_or_refused(store: Store, data: st.DataObject) -> None:
    """And whatever it says, every tool goes on: no crash, no path outside the store."""
    manifest = make(store, "one")
    body = json.loads(manifest.to_bytes())
    field = data.draw(st.sampled_from([*body, "files.name", "files.digest", "files.size_bytes", "action.target"]))
    value = data.draw(json_values | st.sampled_from(["../../etc/passwd", "/etc/passwd", "a\0b", "..", "sha256:zz"]))
    outer, _, inner = field.partition(".")
    if outer == "files" and inner:
        body["files"][0][inner] = value
    elif inner:
        body[outer][inner] = value
    else:
        body[outer] = value
    try:
        written = seal(canonical(body))
    except TypeError:
        return
    path = manifest_path(store, manifest.key)
    overwrite(path, written)
    reader = Store(store.root)
    found = reader.resolve(request_of("one").key)
    if found:
        assert all(found.path(entry.name).is_relative_to(store.root) for entry in found.manifest.files)
    usage(reader, now_s=0.0)
    fsck(reader)
    gc(reader, dry_run=True)
    path.unlink()


@fuzz
@given(value=json_values, field=st.sampled_from(["schema", "request", "key", "fields"]))
def test_a_ref_with_any_field_changed_is_a_miss_or_the_same(store: Store, value: object, field: str) -> None:
    manifest = make(store, "one")
    path = ref_path(store, request_of("one").key)
    ref = store.read_ref_entry(request_of("one").key)
    assert isinstance(ref, RefEntry)
    body = json.loads(ref.to_bytes()) | {field: value}
    try:
        written = seal(canonical(body))
    except TypeError:
        return
    overwrite(path, written)
    reader = Store(store.root)
    found = reader.resolve(request_of("one").key)
    assert not found or found.manifest == manifest
    usage(reader, now_s=0.0)
    fsck(reader)
    gc(reader, dry_run=True)
    path.unlink()
