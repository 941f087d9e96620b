"""Signatures: what nobody trusted signed is not taken, and no signature can be moved to something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_tools.bundle import export, import_
from cache_tools.remote import Remote
from cache_tools.sign import check, new_key, sign
from cache_tools.sync import pull, push
from tests.cache_tools.conftest import Said
from tests.cache_tools.helpers import make, request_of
from tests.cache_tools.servers import plain_http
from tkc.cache import Layers, Miss, Signature, Signers, Store
from tkc.config import Settings
from tkc.errors import StoreError, TkcError


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "signing.key"


@pytest.fixture
def public(key: Path) -> str:
    return new_key(key)


def resolves(store: Store, name: str, *public: str) -> bool:
    return bool(Store(store.root, signers=Signers(public)).resolve(request_of(name).key))


def test_what_is_signed_is_taken_and_the_rest_is_a_miss_with_the_reason(
    store: Store, key: Path, public: str, tmp_path: Path
) -> None:
    make(store, "one")
    assert not resolves(store, "one", public)
    assert sign(store, key).refs == 1
    assert resolves(store, "one", public)
    found = Store(store.root, signers=Signers([new_key(tmp_path / "other.key")])).find(request_of("one").key)
    assert isinstance(found, Miss) and "whom this user does not trust" in found.reason
    assert check(store, public).skipped == ()
    make(store, "two")
    assert "it is not signed" in check(store, public).skipped[0]


def test_a_signature_covers_every_byte_of_the_artifact(store: Store, key: Path, public: str) -> None:
    """Whoever can write the store changes the library, its digest in the manifest, and the seal."""
    manifest = make(store, "one")
    sign(store, key)
    evil = store.publish_blob(b"evil")
    file = replace(manifest.files[0], digest=evil, size_bytes=4)
    store.remove_manifest(manifest.key)
    store.commit_manifest(replace(manifest, files=(file,)))
    assert store.resolve(request_of("one").key), "without signatures it would be loaded"
    found = Store(store.root, signers=Signers([public])).find(request_of("one").key)
    assert isinstance(found, Miss) and "of something else" in found.reason


def test_a_signed_artifact_answers_no_other_request(store: Store, key: Path, public: str) -> None:
    """Both kernels are signed; whoever can write the store points one's request at the other."""
    make(store, "one"), make(store, "two")
    sign(store, key)
    two = store.read_ref(request_of("two").key)
    assert two
    store.write_ref(request_of("one").key, request_of("one").fields(), two)
    assert resolves(store, "two", public) and not resolves(store, "one", public)
    moved = store.read_signature(request_of("two").key)
    assert isinstance(moved, Signature)
    store.write_signature(replace(moved, request=request_of("one").key))
    assert not resolves(store, "one", public)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300))
def test_any_bytes_in_place_of_a_signature_are_a_miss(store: Store, data: bytes) -> None:
    make(store, "one")
    name = request_of("one").key
    path = store.root / "signatures-v1" / name.hex[:2] / f"{name.hex}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    assert not Store(store.root, signers=Signers(["00" * 32])).resolve(name)


def test_bundles_and_remotes_carry_signatures_and_require_them(
    store: Store, key: Path, public: str, tmp_path: Path
) -> None:
    make(store, "one")
    sign(store, key)
    make(store, "two")
    export(store, tmp_path / "all.tar")
    push(store, str(tmp_path / "www"))
    by_bundle, by_pull, by_fetch = (Store(tmp_path / name, writable=True) for name in ("a", "b", "c"))
    signers = Signers([public])
    assert import_(tmp_path / "all.tar", by_bundle, signers=signers).refs == 1
    with plain_http(tmp_path / "www") as url:
        assert len(pull(Remote(url), by_pull, signers=signers).skipped) == 1
        remote = Remote(url, signers=signers)
        assert remote.fetch(request_of("one").key, by_fetch)
        refused = remote.fetch(request_of("two").key, by_fetch)
        key_of_two = store.read_ref(request_of("two").key)
        assert key_of_two and not remote.fetch_action(key_of_two, request_of("two").key, by_fetch)
    assert isinstance(refused, Miss) and "it is not signed" in refused.reason
    for other in (by_bundle, by_pull, by_fetch):
        assert resolves(other, "one", public)
        assert not other.resolve(request_of("two").key)


def test_shared_layers_must_be_signed_and_the_users_own_need_not(
    store: Store, key: Path, public: str, tmp_path: Path
) -> None:
    shared = Store(tmp_path / "shared", writable=True)
    make(store, "mine"), make(shared, "theirs"), make(shared, "signed")
    sign(shared, key)
    make(shared, "later")
    chosen = Settings.from_env({"TKC_REQUIRE_SIGNATURE": f"{'00' * 32}, {public}"})
    layers = Layers.of_folders([shared.root], store.root, signers=Signers(chosen.signers))
    assert layers.resolve(request_of("mine").key) and layers.resolve(request_of("signed").key)
    assert "not signed" in layers.resolve(request_of("later").key).reason


def test_a_removed_ref_takes_its_signature_along(store: Store, key: Path, public: str) -> None:
    make(store, "one")
    sign(store, key)
    store.remove_ref(request_of("one").key)
    assert isinstance(store.read_signature(request_of("one").key), Miss)


def test_a_key_that_others_can_read_signs_nothing(store: Store, key: Path, public: str) -> None:
    make(store, "one")
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(TkcError, match="chmod 600"):
        sign(store, key)


@pytest.mark.parametrize("content", ["", "hello", "ab" * 31, "zz" * 32])
def test_what_is_no_key_is_refused(store: Store, key: Path, content: str) -> None:
    key.write_text(content)
    key.chmod(0o600)
    with pytest.raises(TkcError, match="is no key"):
        sign(store, key)
    with pytest.raises(TkcError, match="cannot be made"):
        new_key(key)


@pytest.mark.parametrize("public_key", ["hello", "ab" * 31, "é" * 64])
def test_what_is_no_public_key_is_refused(public_key: str) -> None:
    with pytest.raises(StoreError, match="not an Ed25519 public key"):
        Signers([public_key])


def test_the_commands(store: Store, cache: Callable[..., Said], key: Path, tmp_path: Path) -> None:
    make(store, "one")
    public = cache("keygen", str(key)).out.strip()
    assert cache("sign", "--check", public).code == 1
    assert cache("sign", "--key", str(key), "--dry-run").code == 0 and cache("sign", "--check", public).code == 1
    assert cache("sign", "--key", str(key), "--json").json == {"refs": 1, "signer": public, "skipped": []}
    assert cache("sign", "--check", public).code == 0
    cache("export", str(tmp_path / "x.tar"))
    other = str(tmp_path / "other")
    assert cache("import", str(tmp_path / "x.tar"), "--require-signature", "00" * 32, "--store", other).code == 1
    assert cache("import", str(tmp_path / "x.tar"), "--require-signature", public, "--store", other).code == 0
