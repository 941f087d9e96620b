"""Wheels that were made to harm whoever looks at them: one kind of error, bounded memory, nothing outside."""

from __future__ import annotations

import json
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cache.helpers import in_child, tree
from tests.cache_tools.test_faults import json_values
from tests.fuzz.wheels import replaced, zipped
from tkc.cache.sealed import seal
from tkc.errors import TkcError
from tkc.model import Target
from tkc.registry import Catalog, load_catalog
from tkc.wheel.audit import audit
from tkc.wheel.binaries import MAX_DEVICE_BINARIES, library_problems, read_library

MEMORY_BYTES = 1 << 27
"""What an audit may take, above what the process has already."""
INFO = "tkc_kernels_cpu-1.0.dist-info"
RECORD = f"{INFO}/RECORD"
fuzz = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog()


def refusal(path: Path) -> str:
    """What an audit finds, in a process that must do with `MEMORY_BYTES`."""

    def judge() -> str:
        catalog = load_catalog()
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return "; ".join(map(str, audit(path, catalog=catalog).problems))

    return str(in_child(judge))


def write(path: Path, members: dict[str, Callable[[zipfile.ZipFile], object] | bytes], packing: int = 8) -> Path:
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, data in members.items():
            archive.writestr(name, data) if isinstance(data, bytes) else data(archive)
    return path


def zeros(name: str, megabytes: int) -> Callable[[zipfile.ZipFile], None]:
    def add(archive: zipfile.ZipFile) -> None:
        with archive.open(name, "w", force_zip64=True) as member:
            for _ in range(megabytes):
                member.write(bytes(1 << 20))

    return add


def lines(name: str, count: int) -> Callable[[zipfile.ZipFile], None]:
    def add(archive: zipfile.ZipFile) -> None:
        with archive.open(name, "w") as member:
            for start in range(0, count, 100_000):
                member.write(b"".join(b"%d,sha256=A,\n" % number for number in range(start, start + 100_000)))

    return add


@pytest.mark.parametrize(
    ("members", "packing", "said"),
    [
        ({"tkc_kernels_cpu/x": zeros("tkc_kernels_cpu/x", 300), RECORD: b""}, zipfile.ZIP_DEFLATED, "it unpacks to"),
        ({RECORD: zeros(RECORD, 300)}, zipfile.ZIP_DEFLATED, "it unpacks to"),
        ({RECORD: lines(RECORD, 1_000_000), "x": os.urandom(1 << 18)}, zipfile.ZIP_DEFLATED, "RECORD has"),
        ({"tkc_kernels_cpu/x": os.urandom(1 << 16), RECORD: b""}, zipfile.ZIP_LZMA, "packed by method 14"),
        ({"tkc_kernels_cpu/x": os.urandom(1 << 16), RECORD: b""}, zipfile.ZIP_BZIP2, "packed by method 12"),
    ],
    ids=["a bomb", "RECORD is a bomb", "RECORD lists a million names", "lzma", "bzip2"],
)
def test_a_bomb_is_refused_by_what_it_announces_in_bounded_memory(
    wheel: Path, tmp_path: Path, members: dict[str, bytes], packing: int, said: str
) -> None:
    path = write(tmp_path / wheel.name, members, packing)
    assert path.stat().st_size < 20_000_000
    assert said in refusal(path)


def test_members_that_share_their_bytes_are_a_bomb_too(wheel: Path, tmp_path: Path) -> None:
    """One packed megabyte that a thousand names point at."""
    path = write(tmp_path / wheel.name, {"x": bytes(1 << 20)})
    with zipfile.ZipFile(path) as archive:
        (info,) = archive.infolist()
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(1000):
            other = zipfile.ZipInfo(f"x{number}")
            for name in ("header_offset", "file_size", "compress_size", "CRC", "compress_type"):
                setattr(other, name, getattr(info, name))
            archive.filelist.append(other)
        archive.writestr(RECORD, b"")
    assert "it unpacks to" in refusal(path)


def test_a_size_that_no_file_has_allocates_nothing(wheel: Path, tmp_path: Path) -> None:
    path = write(tmp_path / wheel.name, {"x": b"x" * 1000, RECORD: b""}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    start = data.index(b"PK\x01\x02")
    for offset in (20, 24):
        data[start + offset : start + offset + 4] = (0xFFFFFFF0).to_bytes(4, "little")
    path.write_bytes(data)
    assert "it unpacks to" in refusal(path)


def test_a_pipe_or_a_folder_in_place_of_a_wheel_is_refused_at_once(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b" / wheel.name).mkdir(parents=True)
    os.mkfifo(tmp_path / "a" / wheel.name)
    for folder in ("a", "b"):
        assert "no regular file" in refusal(tmp_path / folder / wheel.name)


def test_names_that_no_file_system_takes_are_one_kind_of_error(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    store = "tkc_kernels_cpu/store/blobs-v1"
    for name in (f"{store}/{'a' * 3000}", f"{store}/aa", f"{store}/aa/b/c", "tkc_kernels_cpu/store/blobs-v1/aa/x/y"):
        path = tmp_path / wheel.name
        path.write_bytes(zipped(members | {name: b"x", f"{name}/inside": b"y"}, RECORD))
        said = in_child(lambda path=path: _judged(path))
        assert said, name
    assert tree(tmp_path).keys() == {wheel.name}


def _judged(path: Path) -> str:
    try:
        return "; ".join(map(str, audit(path).problems))
    except TkcError as error:
        return str(error)


@pytest.mark.parametrize(
    "data",
    [b"(" * 150, b"-" * 50_000 + b"1", b"'a'" + b"+'a'" * 5000, b'"""' + b"x" * 100_000 + b'"""', b"\0", b"\xff"],
    ids=["nested", "minus", "sum", "long", "nul", "no text"],
)
def test_source_that_breaks_a_parser_is_code(changed: Callable[..., Path], data: bytes) -> None:
    path = changed(lambda members: members.update({"tkc_kernels_cpu/__init__.py": data}))
    assert "holds code" in refusal(path)


def test_a_bill_of_materials_that_is_nested_without_end_is_none(changed: Callable[..., Path]) -> None:
    path = changed(lambda members: members.update({f"{INFO}/sboms/tkc.cdx.json": b"[" * 100_000}))
    assert "no CycloneDX" in refusal(path)


def test_a_library_that_seems_to_hold_thousands_of_device_binaries_takes_no_memory(cpu_library: bytes) -> None:
    """Each would be a copy of all that follows it."""
    facts = read_library(cpu_library + b"\x7fELF" * 1_000_000)
    assert len(facts.device_binaries) == MAX_DEVICE_BINARIES + 1
    assert any(
        f"more than {MAX_DEVICE_BINARIES}" in said
        for said in library_problems(
            cpu_library + b"\x7fELF" * 1000, host="x86_64", glibc=(2, 28), target=Target.parse("sm90"), kernels=()
        )
    )


@pytest.fixture
def cpu_library(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return min((archive.read(name) for name in archive.namelist() if "/blobs-v1/" in name), key=len)


@pytest.mark.parametrize("value", [None, "x", -1, 10**30, ["a"], [None], {"a": 1}, True], ids=str)
def test_dimensions_that_no_model_has_are_a_problem(
    wheel: Path, tmp_path: Path, catalog: Catalog, value: object
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = "tkc_kernels_cpu/manifest.json"
    for field in ("name", "hidden", "num_topk", "intermediate", "quant", "engram", "unheard_of"):
        body = json.loads(members[name])
        body["models"][0][field] = value
        path = tmp_path / wheel.name
        text = json.dumps(body, indent=1, sort_keys=True) + "\n"
        path.write_bytes(zipped(members | {name: text.encode()}, RECORD))
        found = [one for one in audit(path, catalog=catalog).problems if "model dimensions" in one.what]
        fits = (field, value) in (("name", "x"), ("engram", True))
        assert bool(found) is not (fits or (field == "quant" and value == ["a"])), field


# Anything at all


@fuzz
@given(data=st.data())
def test_a_wheel_with_any_bytes_changed_has_a_problem_or_is_refused(
    wheel: Path, tmp_path: Path, catalog: Catalog, data: st.DataObject
) -> None:
    broken = bytearray(wheel.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / wheel.name
    path.write_bytes(broken)
    try:
        audit(path, catalog=catalog)
    except TkcError as error:
        assert wheel.name in str(error)


@fuzz
@given(data=st.binary(max_size=2000), is_zip=st.booleans())
def test_any_bytes_at_all_are_no_wheel(
    wheel: Path, tmp_path: Path, catalog: Catalog, data: bytes, is_zip: bool
) -> None:
    path = tmp_path / wheel.name
    path.write_bytes(zipped({"x": data}, RECORD) + data if is_zip else data)
    assert not audit(path, catalog=catalog).ok


@fuzz
@given(data=st.data())
def test_a_wheel_whose_records_say_anything_is_judged_to_the_end(
    wheel: Path, tmp_path: Path, catalog: Catalog, data: st.DataObject
) -> None:
    """RECORD is right and every seal fits: only what the records say is odd."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = data.draw(st.sampled_from([name for name in sorted(members) if name.endswith(".json")]))
    own = "/store/" not in name
    body = json.loads(members[name] if own else members[name].split(b"\n")[0])
    body = replaced(body, data.draw(json_values), data.draw(st.integers(0, 10_000)))
    text = json.dumps(body, indent=1, sort_keys=True) + "\n" if own else json.dumps(body)
    path = tmp_path / wheel.name
    path.write_bytes(zipped(members | {name: text.encode() if own else seal(text.encode())}, RECORD))
    audit(path, catalog=catalog)
