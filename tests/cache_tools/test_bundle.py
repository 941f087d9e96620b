"""A bundle carries artifacts whole, and a hostile one gets nowhere."""

from __future__ import annotations

import gzip
import io
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_tools import bundle
from cache_tools.bundle import export, import_
from cache_tools.selection import Selection
from tests.cache.helpers import in_child, tree
from tests.cache_tools.conftest import Said
from tests.cache_tools.helpers import library, make, overwrite, request_of
from tkc.cache import Hit, Store
from tkc.cache.sealed import seal
from tkc.errors import StoreDamagedError, TkcError
from tkc.model import Digest, canonical


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """The store of another machine."""
    return Store(tmp_path / "other", writable=True)


@pytest.fixture
def packed(store: Store, tmp_path: Path) -> Path:
    make(store, "one")
    export(store, tmp_path / "one.tar")
    return tmp_path / "one.tar"


@pytest.mark.parametrize("name", ["all.tar", "all.tar.gz", "all.tgz"])
def test_what_is_exported_is_hit_after_an_import_elsewhere(
    store: Store, other: Store, tmp_path: Path, name: str
) -> None:
    for kernel in ("one", "two"):
        make(store, kernel)
    done = export(store, tmp_path / name)
    assert (done.refs, done.manifests, done.blobs) == (2, 2, 2)
    assert import_(tmp_path / name, other) == done
    for kernel in ("one", "two"):
        found = other.resolve(request_of(kernel).key)
        assert isinstance(found, Hit) and found.path("kernel.so").read_bytes() == library(f"{kernel} cpu")
    assert import_(tmp_path / name, other) == done
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_equal_artifacts_give_equal_bundles(store: Store, other: Store, tmp_path: Path) -> None:
    for name in ("one", "two"):
        make(store, name)
    for name in ("two", "one"):
        make(other, name)
    export(store, tmp_path / "a.tar.gz"), export(other, tmp_path / "b.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_only_what_is_selected_goes_and_stages_only_if_asked_for(store: Store, other: Store, tmp_path: Path) -> None:
    make(store, "one"), make(store, "two", target="sm90")
    done = export(store, tmp_path / "sm90.tar", Selection(targets=("sm90",)), stages=True)
    assert (done.refs, done.manifests, done.blobs) == (1, 4, 3)
    import_(tmp_path / "sm90.tar", other)
    assert len(list(other.refs())) == 1 and len(list(other.keys())) == 4
    with pytest.raises(TkcError, match="nothing to export"):
        export(store, tmp_path / "none.tar", Selection(targets=("ascend950",)))
    assert not (tmp_path / "none.tar").exists()


def test_a_damaged_artifact_is_left_out_and_reported(store: Store, tmp_path: Path) -> None:
    make(store, "one"), make(store, "two")
    overwrite(store.blob_path(Digest.of_bytes(library("one cpu"))), b"junk")
    done = export(Store(store.root), tmp_path / "rest.tar")
    assert done.refs == 1 and len(done.skipped) == 1 and "damaged" in done.skipped[0]


def test_a_dry_run_of_an_import_verifies_everything_and_writes_nothing(packed: Path, tmp_path: Path) -> None:
    target = Store(tmp_path / "none", writable=True)
    assert import_(packed, target, dry_run=True).refs == 1
    assert not target.root.exists()


# Hostile bundles


def members_of(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as archive:
        return [(member, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]


def write(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], **options: Any) -> Path:
    with tarfile.open(path, "w", **{"format": tarfile.USTAR_FORMAT, **options}) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return path


def info(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = size, kind, link
    return member


def listing(*members: tuple[str, int], schema: str = "tkc.bundle/1") -> tuple[tarfile.TarInfo, bytes]:
    plain = [{"name": name, "size_bytes": size} for name, size in members]
    data = seal(canonical({"schema": schema, "members": plain}))
    return info("bundle.json", len(data)), data


NAME = "blobs/" + "0" * 64
HOSTILE: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "a list with a name that leaves the store": [listing(("../../etc/passwd", 1))],
    "a list with an absolute name": [listing(("/etc/passwd", 1))],
    "a list with .. inside a name of the right form": [listing(("blobs/" + "../" * 21 + "x", 1))],
    "a list with a name in a bucket of its own": [listing(("locks/" + "0" * 64, 1))],
    "a list with a name that a newline ends": [listing((NAME + "\n", 1))],
    "a list that announces too much": [listing((NAME, 10**9), *((f"blobs/{n:064x}", 10**9) for n in range(1, 20)))],
    "a list with one enormous blob": [listing((NAME, 10**10))],
    "a list with a negative size": [listing((NAME, -1))],
    "a list that names a member twice": [listing((NAME, 1), (NAME, 1))],
    "a list with refs before blobs": [listing(("refs/" + "0" * 64, 1), (NAME, 1))],
    "a list of another schema": [listing(schema="tkc.bundle/9")],
    "a member outside the store": [listing((NAME, 1)), (info("../../evil", 1), b"x")],
    "an absolute member": [listing((NAME, 1)), (info("/evil", 1), b"x")],
    "a symbolic link": [listing((NAME, 0)), (info(NAME, 0, tarfile.SYMTYPE, "/etc/passwd"), b"")],
    "a hard link": [listing((NAME, 0)), (info(NAME, 0, tarfile.LNKTYPE, "/etc/passwd"), b"")],
    "a character device": [listing((NAME, 0)), (info(NAME, 0, tarfile.CHRTYPE), b"")],
    "a block device": [listing((NAME, 0)), (info(NAME, 0, tarfile.BLKTYPE), b"")],
    "a pipe": [listing((NAME, 0)), (info(NAME, 0, tarfile.FIFOTYPE), b"")],
    "a folder": [listing((NAME, 0)), (info(NAME, 0, tarfile.DIRTYPE), b"")],
    "a sparse file": [listing((NAME, 0)), (info(NAME, 0, tarfile.GNUTYPE_SPARSE), b"")],
    "a long name": [listing((NAME, 1)), (info("././@LongLink", 9, tarfile.GNUTYPE_LONGNAME), b"../../evil")],
    "an extended header": [listing((NAME, 1)), (info("pax", 20, tarfile.XHDTYPE), b"20 path=../../../ev\n")],
    "another size than announced": [listing((NAME, 1)), (info(NAME, 2), b"xx")],
    "other bytes than the name says": [listing((NAME, 1)), (info(NAME, 1), b"x")],
    "a member that is missing": [listing((NAME, 1))],
    "a member that nobody announced": [listing(), (info(NAME, 1), b"x")],
    "a list that is not sealed": [(info("bundle.json", 2), b"{}")],
    "a list that is nested without end": [(info("bundle.json", 72000 + 75), seal(b"[" * 72000))],
    "no list": [(info(NAME, 1), b"x")],
    "nothing": [],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_bundle_is_refused_and_leaves_nothing_outside_and_no_ref_inside(
    tmp_path: Path, other: Store, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    path = write(tmp_path / "evil.tar", members)
    around = {name: data for name, data in tree(tmp_path).items() if not name.startswith("other/")}
    with pytest.raises(StoreDamagedError):
        import_(path, other)
    assert {name: data for name, data in tree(tmp_path).items() if not name.startswith("other/")} == around
    assert not list(other.refs()) and not list(other.keys())


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_names_hidden_in_extension_headers_are_refused(tmp_path: Path, other: Store, format_: int) -> None:
    path = write(tmp_path / "evil.tar", [listing((NAME, 1)), (info("../" * 60 + "evil", 1), b"x")], format=format_)
    with pytest.raises(StoreDamagedError, match="only plain files"):
        import_(path, other)


def test_a_bomb_is_refused_without_unpacking_it(tmp_path: Path, other: Store) -> None:
    """Two gigabytes of zeros in two megabytes: memory stays bounded, and nothing is written."""
    path = tmp_path / "bomb.tar.gz"
    header = info("bundle.json", 2 * 10**9).tobuf(tarfile.USTAR_FORMAT)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header)
        for _ in range(200):
            file.write(bytes(1 << 20))

    def refuse() -> str:
        resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
        try:
            import_(path, other)
        except StoreDamagedError as error:
            return str(error)
        return ""

    assert "2000000000 bytes instead of a list" in in_child(refuse)
    assert not other.root.exists()


def test_an_announced_bomb_ends_at_what_is_really_there(tmp_path: Path, other: Store) -> None:
    path = write(tmp_path / "b.tar", [listing((NAME, 10**9))])
    with path.open("r+b") as file:
        file.seek(-tarfile.RECORDSIZE + 1024, 2)
        size = file.tell()
    data = path.read_bytes()[: size // 512 * 512].rstrip(b"\0")
    data += bytes(-len(data) % 512) + info(NAME, 10**9).tobuf(tarfile.USTAR_FORMAT) + b"x" * 1000
    path.write_bytes(data)
    with pytest.raises(StoreDamagedError, match="ends inside"):
        import_(path, other)


def test_the_sum_of_sizes_is_limited_by_the_caller(packed: Path, other: Store) -> None:
    with pytest.raises(StoreDamagedError, match="--max-size"):
        import_(packed, other, max_bytes=100)


def test_a_bundle_cut_anywhere_is_refused_and_leaves_no_ref(packed: Path, other: Store, tmp_path: Path) -> None:
    whole = packed.read_bytes().rstrip(b"\0")
    for size in range(0, len(whole), 257):
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        with pytest.raises(StoreDamagedError):
            import_(tmp_path / "cut.tar", other)
    assert not list(other.refs()) and not list(other.keys())
    assert import_(packed, other).refs == 1


def test_an_artifact_that_is_not_closed_is_refused(packed: Path, other: Store, tmp_path: Path) -> None:
    """pytorch #144859: a bundle without its cubins looked fine until it was used."""
    members = members_of(packed)[1:]
    for kind in ("blobs/", "actions/"):
        rest = [(member, data) for member, data in members if not member.name.startswith(kind)]
        path = write(tmp_path / "open.tar", [listing(*((one.name, one.size) for one, _ in rest)), *rest])
        with pytest.raises(StoreDamagedError, match="did not come along"):
            import_(path, other)
    assert not list(other.refs())


def test_a_record_under_another_name_is_refused(packed: Path, other: Store, tmp_path: Path) -> None:
    members = members_of(packed)[1:]
    for number, (member, data) in enumerate(members):
        renamed = info(f"{member.name.partition('/')[0]}/{'f' * 64}", len(data))
        changed = [*members[:number], (renamed, data), *members[number + 1 :]]
        path = write(tmp_path / "renamed.tar", [listing(*((one.name, one.size) for one, _ in changed)), *changed])
        with pytest.raises(StoreDamagedError):
            import_(path, other)
    assert not list(other.refs())


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bundle_with_any_bytes_changed_is_taken_whole_or_refused(
    packed: Path, tmp_path: Path, data: st.DataObject
) -> None:
    good = packed.read_bytes().rstrip(b"\0") + bytes(1024)
    broken = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    store = Store(tmp_path / "fuzzed", writable=True)
    (tmp_path / "broken.tar").write_bytes(broken)
    try:
        done = import_(tmp_path / "broken.tar", store)
    except StoreDamagedError:
        return
    assert done.refs == 1
    found = store.resolve(request_of("one").key)
    assert isinstance(found, Hit) and found.path("kernel.so").read_bytes() == library("one cpu")


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=3000), compressed=st.booleans())
def test_any_bytes_at_all_are_refused_with_one_kind_of_error(tmp_path: Path, data: bytes, compressed: bool) -> None:
    (tmp_path / "any").write_bytes(gzip.compress(data, 1) if compressed else data)
    with pytest.raises(StoreDamagedError):
        import_(tmp_path / "any", Store(tmp_path / "fuzzed", writable=True))


def test_a_path_that_cannot_be_read_is_a_plain_error(tmp_path: Path, other: Store) -> None:
    for path in (tmp_path / "none.tar", tmp_path):
        with pytest.raises(TkcError, match="cannot be read"):
            import_(path, other)


def test_an_export_that_cannot_be_written_leaves_nothing(store: Store, tmp_path: Path) -> None:
    make(store, "one")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TkcError, match="cannot be written"):
        export(store, tmp_path / "file" / "x.tar")


def test_the_size_limits_are_ordered() -> None:
    assert bundle.MAX_RECORD_BYTES < bundle.MAX_LIST_BYTES < bundle.MAX_BLOB_BYTES < bundle.MAX_BYTES


def test_the_commands_carry_artifacts(store: Store, cache: Callable[..., Said], tmp_path: Path) -> None:
    make(store, "one"), make(store, "two", target="sm90")
    path = tmp_path / "x.tar.gz"
    assert cache("export", str(path), "--dry-run").code == 0 and not path.exists()
    assert cache("export", str(path), "moe", "--target", "sm90", "--json").json["refs"] == 1
    assert cache("import", str(path), "--store", str(tmp_path / "other"), "--json").json["blobs"] == 1
    assert Store(tmp_path / "other").resolve(request_of("two", target="sm90").key)
    path.write_bytes(b"junk")
    said = cache("import", str(path))
    assert said.code == 1 and "bundle" in said.err
