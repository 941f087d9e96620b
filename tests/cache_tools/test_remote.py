"""push, pull and read-through against real servers, over lines that break, and what a hostile remote can do."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cache_tools import remote as remote_module
from cache_tools.remote import Remote, RemoteUnreachableError, open_source
from cache_tools.selection import Selection
from cache_tools.sync import pull, push
from tests.cache.helpers import in_child
from tests.cache_tools.conftest import Said
from tests.cache_tools.helpers import library, make, overwrite, request_of
from tests.cache_tools.servers import NGINX, breaking, nginx, plain_http
from tkc.cache import Hit, Miss, Store
from tkc.errors import ArtifactMissingError, StoreError
from tkc.model import Digest, Host, Manifest, Target
from tkc.registry import find_entry
from tkc.runtime import fallback
from tkc.runtime.device import DeviceInfo
from tkc.runtime.dispatch import forget_settings
from tkc.runtime.fallback import Missing

BIG = 300_000
needs_nginx = pytest.mark.skipif(
    NGINX is None, reason="no nginx: neither installed nor fetched; `make test` says why, and needs apt or nginx itself"
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "FIRST_PAUSE_S", 0.01)


@pytest.fixture(autouse=True)
def fresh_runtime() -> Iterator[None]:
    yield
    fallback.unseal()
    forget_settings()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty bucket."""
    use_endpoint(monkeypatch, s3_server)
    bucket = f"tkc-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/kernels"


def use_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    values = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["folder", "s3", pytest.param("nginx", marks=needs_nginx)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place to push to and pull from."""
    if request.param == "s3":
        yield request.getfixturevalue("s3")
    elif request.param == "folder":
        yield str(tmp_path / "shared")
    else:
        (tmp_path / "www").mkdir()
        with nginx(tmp_path / "www", tmp_path / "nginx", dav=True) as url:
            yield f"{url}/kernels"


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """The store of another machine."""
    return Store(tmp_path / "other", writable=True)


def hit(store: Store, name: str, data: bytes | None = None) -> bool:
    found = store.resolve(request_of(name).key)
    return isinstance(found, Hit) and found.path("kernel.so").read_bytes() == (data or library(f"{name} cpu"))


def make_big(store: Store, *names: str) -> dict[str, bytes]:
    contents = {name: os.urandom(BIG) for name in names}
    for name, data in contents.items():
        make(store, name, library_bytes=data)
    return contents


# Round trips


def test_what_is_pushed_is_pulled_elsewhere_and_nothing_is_copied_twice(
    store: Store, other: Store, address: str
) -> None:
    for name in ("one", "two", "three"):
        make(store, name)
    assert push(store, address).blobs == 3
    done = pull(open_source(address), other)
    assert (done.refs, done.blobs, done.skipped) == (3, 3, ())
    assert all(hit(other, name) for name in ("one", "two", "three"))
    assert push(store, address).blobs == 0
    assert pull(open_source(address), other).blobs == 0
    make(store, "four")
    assert push(store, address).blobs == 1
    assert pull(open_source(address), other).blobs == 1 and hit(other, "four")


def test_a_selection_and_stages(store: Store, other: Store, address: str) -> None:
    make(store, "one"), make(store, "two", target="sm90"), make(store, "three", target="sm90", tilelang="0.1.14")
    push(store, address, stages=True)
    pull(open_source(address), other, Selection(targets=("sm90",), toolchains=("tilelang=0.1.15",)))
    assert [ref.fields["specialization"]["name"] for ref in other.refs()] == ["two"]


def test_a_dry_run_says_what_would_be_copied_and_copies_nothing(store: Store, other: Store, address: str) -> None:
    make(store, "one")
    assert push(store, address, dry_run=True).blobs == 1
    push(store, address)
    planned = pull(open_source(address), other, dry_run=True)
    assert not other.root.exists()
    done = pull(open_source(address), other)
    assert planned == done and (done.refs, done.blobs, done.blob_bytes) == (1, 1, len(library("one cpu")))
    assert pull(open_source(address), other, dry_run=True).refs == 0


@pytest.mark.parametrize("server", [plain_http, pytest.param(nginx, marks=needs_nginx)])
def test_a_web_server_that_shows_a_folder_is_a_remote(
    store: Store, other: Store, tmp_path: Path, server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ranges (nginx) and without (Python's server), blobs larger than a piece included."""
    monkeypatch.setattr(remote_module, "CHUNK_BYTES", 70_000)
    contents = make_big(store, "one", "two")
    push(store, str(tmp_path / "www"))
    with server(tmp_path / "www", *([tmp_path / "run"] if server is nginx else [])) as url:
        assert pull(Remote(url), other).refs == 2
    assert all(hit(other, name, data) for name, data in contents.items())


def test_a_web_server_without_an_index_is_an_error_that_says_what_to_do(
    store: Store, other: Store, tmp_path: Path
) -> None:
    make(store, "one")
    with plain_http(store.root) as url, pytest.raises(StoreError, match="tkc cache push"):
        pull(Remote(url), other)


# Lines that break


@pytest.mark.parametrize("kind", ["s3", pytest.param("nginx", marks=needs_nginx), "plain"])
def test_connections_cut_in_the_middle_are_taken_up_again(
    kind: str, store: Store, other: Store, tmp_path: Path, s3_server: str, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "CHUNK_BYTES", 100_000)
    contents = make_big(store, "one", "two", "three")
    if kind == "s3":
        push(store, s3)
        with breaking(s3_server, cuts=6, after_bytes=60_000) as line:
            use_endpoint(monkeypatch, line.address)
            done = pull(Remote(s3), other, jobs=2)
    else:
        push(store, str(tmp_path / "www"))
        serve = nginx(tmp_path / "www", tmp_path / "run") if kind == "nginx" else plain_http(tmp_path / "www")
        with serve as url, breaking(url, cuts=3, after_bytes=60_000) as line:
            done = pull(Remote(line.address), other, jobs=2)
    assert line.done == line.cuts, "the line did break"
    assert done.skipped == () and all(hit(other, name, data) for name, data in contents.items())


@needs_nginx
def test_a_pull_that_fails_goes_on_where_it_ended(store: Store, other: Store, tmp_path: Path) -> None:
    contents = make_big(store, *(f"kernel{number}" for number in range(6)))
    push(store, str(tmp_path / "www"))
    with nginx(tmp_path / "www", tmp_path / "run") as url:
        with breaking(url, cuts=10**6, after_bytes=700_000) as line, pytest.raises(RemoteUnreachableError):
            line_pull = Remote(line.address)
            for _ in range(10):
                pull(line_pull, other, jobs=1)
                line.after_bytes = 1000
        there = sum(hit(other, name, data) for name, data in contents.items())
        rest = pull(Remote(url), other)
    assert rest.refs == 6 and rest.blobs <= 6 - there
    assert all(hit(other, name, data) for name, data in contents.items())


@pytest.mark.parametrize("fails_at", range(0, 9, 2))
def test_a_push_that_fails_at_any_write_shows_nothing_half_and_goes_on_later(
    store: Store, other: Store, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        make(store, name)
    address = f"memory://{uuid.uuid4().hex}"
    left = [fails_at]
    real = Remote._write

    def failing(self: Remote, path: str, data: bytes) -> None:
        if left[0] == 0:
            raise RemoteUnreachableError("the line is dead")
        left[0] -= 1
        real(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "_write", failing)
        if fails_at < 7:
            with pytest.raises(RemoteUnreachableError):
                push(store, address, jobs=1)
        else:
            push(store, address, jobs=1)
    seen = pull(Remote(address), other)
    assert seen.skipped == () and all(hit(other, ref.fields["specialization"]["name"]) for ref in other.refs())
    push(store, address)
    assert pull(Remote(address), other).refs == 2 and hit(other, "one") and hit(other, "two")


def test_a_remote_that_is_not_there_is_an_error_with_its_address(store: Store, other: Store) -> None:
    make(store, "one")
    with pytest.raises(RemoteUnreachableError, match=r"http://127\.0\.0\.1:9 does not answer"):
        pull(Remote("http://127.0.0.1:9"), other)
    with pytest.raises(RemoteUnreachableError, match="does not answer"):
        push(store, "http://127.0.0.1:9/x")


def test_a_bucket_that_is_not_there_is_an_error_with_its_address(
    store: Store, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, "one")
    with pytest.raises(RemoteUnreachableError, match="s3://no-such-bucket-tkc"):
        push(store, "s3://no-such-bucket-tkc/x")


# What arrives is verified


def hurt_blob(root: Path, manifest: Manifest, data: bytes) -> None:
    overwrite(Store(root).blob_path(manifest.file("kernel.so").digest), data)


@pytest.mark.parametrize(
    "data", [b"", b"evil", library("two cpu"), library("one cpu") + b"x", library("one cpu")[:-1]], ids=len
)
def test_other_bytes_than_the_digest_says_never_arrive(store: Store, other: Store, tmp_path: Path, data: bytes) -> None:
    manifest = make(store, "one")
    make(store, "two")
    push(store, str(tmp_path / "www"))
    hurt_blob(tmp_path / "www", manifest, data)
    with plain_http(tmp_path / "www") as url:
        done = pull(Remote(url), other)
        assert done.refs == 1 and len(done.skipped) == 1 and "damaged" in done.skipped[0]
        found = Remote(url).fetch(request_of("one").key, other)
        assert isinstance(found, Miss) and found.damaged
    assert hit(other, "two") and not other.resolve(request_of("one").key)
    assert all(Digest.of_file(other.blob_path(one.name)) == one.name for one in other.iter_blobs())


@pytest.mark.parametrize("kind", ["refs", "actions", "index"])
@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 5000, b"\xff" * 100, None], ids=str)
def test_records_that_make_no_sense_are_misses_or_errors_and_never_a_crash(
    store: Store, other: Store, tmp_path: Path, kind: str, data: bytes | None
) -> None:
    make(store, "one")
    push(store, str(tmp_path / "www"))
    paths = list((tmp_path / "www").glob(f"{kind}-v1/**/*.json"))
    for path in paths:
        overwrite(path, path.read_bytes()[:-1] if data is None else data)
    with plain_http(tmp_path / "www") as url:
        if kind == "index":
            with pytest.raises(StoreError, match="index is damaged"):
                pull(Remote(url), other)
        else:
            assert len(pull(Remote(url), other).skipped) == 1
            assert not Remote(url).fetch(request_of("one").key, other)
    assert not list(other.refs())


def test_a_record_filed_under_another_name_is_refused(store: Store, other: Store, tmp_path: Path) -> None:
    """A remote that answers one request with what belongs to another."""
    make(store, "one"), make(store, "two")
    push(store, str(tmp_path / "www"))
    one, two = (
        tmp_path / "www" / "refs-v1" / key.hex[:2] / f"{key.hex}.json"
        for key in (request_of("one").key, request_of("two").key)
    )
    overwrite(one, two.read_bytes())
    with plain_http(tmp_path / "www") as url:
        found = Remote(url).fetch(request_of("one").key, other)
    assert isinstance(found, Miss) and "record of" in found.reason


# Several at once


def test_two_pushes_at_once_are_both_in_the_index(s3: str, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    stores = [Store(tmp_path / f"store{number}", writable=True) for number in range(3)]
    for number, store in enumerate(stores):
        make(store, f"kernel{number}")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda store: push(store, s3), stores))
    names = {ref.fields["specialization"]["name"] for ref in Remote(s3).refs()}
    assert names == {"kernel0", "kernel1", "kernel2"}


def test_a_remote_opened_before_a_fork_works_in_the_child(store: Store, other: Store, tmp_path: Path) -> None:
    make(store, "one"), make(store, "two")
    push(store, str(tmp_path / "www"))
    with plain_http(tmp_path / "www") as url:
        remote = Remote(url)
        assert remote.fetch(request_of("one").key, other)
        assert in_child(lambda: bool(remote.fetch(request_of("two").key, other)))


# Read-through


def test_a_miss_asks_the_remote_once_and_then_the_store_has_it(store: Store, other: Store, tmp_path: Path) -> None:
    make(store, "one")
    push(store, str(tmp_path / "www"))
    with plain_http(tmp_path / "www") as url:
        found = Remote(url).fetch(request_of("one").key, other)
        assert isinstance(found, Hit) and found.store is other
        absent = Remote(url).fetch(request_of("two").key, other)
        assert isinstance(absent, Miss) and url in absent.reason
    assert hit(other, "one")


def test_a_remote_that_does_not_answer_is_left_alone_for_a_while(other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote("http://127.0.0.1:9")
    first = remote.fetch(request_of("one").key, other)
    assert isinstance(first, Miss) and "does not answer" in first.reason
    monkeypatch.setattr(Remote, "_system", property(lambda self: pytest.fail("asked again")))
    second = remote.fetch(request_of("one").key, other)
    assert isinstance(second, Miss) and "a moment ago" in second.reason


_JOB = """
import sys
import torch, tkc
from tkc.errors import ArtifactMissingError

def kernel():
    return tkc.kernel("moe.normalize_weight", device="cpu", num_topk=6)

if "sealed" in sys.argv:
    tkc.seal()
try:
    print("got", kernel().layer)
except ArtifactMissingError as error:
    print("missing")
"""


@pytest.mark.level2
def test_a_job_takes_from_the_remote_what_its_layers_lack_if_and_only_if_one_is_configured(
    tmp_path: Path, cache: Callable[..., Said]
) -> None:
    """And `tkc build` elsewhere compiles nothing that the remote has."""
    env = {**os.environ, "TKC_ON_MISS": "error"}

    def run(words: list[str], name: str, **more: str) -> subprocess.CompletedProcess[str]:
        full = {**env, "TKC_CACHE_DIR": str(tmp_path / name), **more}
        return subprocess.run([sys.executable, *words], env=full, capture_output=True, text=True, check=False)

    build = ["-m", "tkc", "build", "moe.normalize_weight", "num_topk=6", "--target", "cpu", "--json"]
    assert '"built": 1' in run(build, "builder").stdout
    push(Store(tmp_path / "builder"), str(tmp_path / "www"))
    job = ["-c", _JOB]
    with plain_http(tmp_path / "www") as url:
        fetched = run(job, "job", TKC_REMOTE=url)
        assert fetched.stdout.startswith(f"got {tmp_path / 'job'}") and f"from {url}" in fetched.stderr
        assert run(job, "unconfigured").stdout.startswith("missing")
        assert run([*job, "sealed"], "sealed", TKC_REMOTE=url).stdout.startswith("missing")
        built = run(build, "second-builder", TKC_REMOTE=url)
        assert '"hit": 1' in built.stdout and '"built": 0' in built.stdout
    assert run(job, "job", TKC_REMOTE="http://127.0.0.1:9").stdout.startswith("got"), "a hit never asks"


def missing(name: str) -> Missing:
    entry, host = find_entry("moe.topk_gate"), Host.this_machine().arch
    device = DeviceInfo(Target.parse("cpu"), "cpu", 0)
    return Missing(entry, request_of(name, host=host), device, ("not there",))


def test_the_runtime_asks_the_remote_before_its_policy_and_never_when_sealed_or_unconfigured(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, host = Store(tmp_path / "builder", writable=True), Host.this_machine().arch
    for name in ("one", "two", "three"):
        make(builder, name, host=host)
    push(builder, str(tmp_path / "www"))
    monkeypatch.setenv("TKC_ON_MISS", "error")
    forget_settings()
    with pytest.raises(ArtifactMissingError):
        fallback.answer(missing("one"))
    with plain_http(tmp_path / "www") as url:
        monkeypatch.setenv("TKC_REMOTE", url)
        forget_settings()
        assert fallback.answer(missing("one")).library == library("one cpu")
        many = fallback.answer_all([missing(name) for name in ("two", "three", "four")])
        assert sorted(type(answer).__name__ for answer in many.values()) == [*["Artifact"] * 2, "ArtifactMissingError"]
        assert len(list(store.refs())) == 3, "what was fetched is in the user store"
        fallback.seal()
        store.remove_ref(request_of("one", host=host).key)
        with pytest.raises(ArtifactMissingError):
            fallback.answer(missing("one"))
        assert store.read_ref(request_of("one", host=host).key) is None


def test_a_remote_that_is_down_leaves_the_policy_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "error")
    monkeypatch.setenv("TKC_REMOTE", "http://127.0.0.1:9")
    forget_settings()
    with pytest.raises(ArtifactMissingError):
        fallback.answer(missing("one"))


def test_the_commands_push_and_pull(store: Store, cache: Callable[..., Said], tmp_path: Path, s3: str) -> None:
    make(store, "one"), make(store, "two", target="sm90")
    assert cache("push", s3, "--target", "sm90", "--json").json["refs"] == 1
    assert cache("push", s3, "--json").json["refs"] == 2
    said = cache("pull", s3, "--store", str(tmp_path / "other"), "--target", "sm90", "--json")
    assert said.json["refs"] == 1 and said.code == 0
    said = cache("pull", s3, "--store", str(tmp_path / "other"), "--dry-run")
    assert said.code == 0 and "1 artifacts would be copied" in said.out
    assert cache("pull", "http://127.0.0.1:9").code == 1
    said = cache("pull", str(tmp_path / "nowhere"))
    assert said.code == 1 and "there is no store at" in said.err
