from __future__ import annotations

from pathlib import Path

from tests.cache.helpers import build, request
from tkc.cache import Hit, Layers, Miss, Store
from tkc.config import Settings


def stores(tmp_path: Path, *names: str) -> list[Store]:
    return [Store(tmp_path / name, writable=True) for name in names]


def test_the_first_layer_that_has_it_answers(tmp_path: Path) -> None:
    first, second, third = stores(tmp_path, "first", "second", "third")
    build(second), build(third)
    found = Layers([first, second, third]).resolve(request())
    assert isinstance(found, Hit) and found.store is second
    assert len(found.skipped) == 1 and found.skipped[0].startswith(str(first.root))


def test_a_miss_gives_one_reason_a_layer(tmp_path: Path) -> None:
    """D4: which layers were consulted, and why none answered."""
    first, second = stores(tmp_path, "first", "second")
    build(first), build(second)
    (blob,) = [p for p in (second.root / "blobs-v1").glob("*/*") if p.stat().st_size > 100]
    blob.unlink()
    for ref in (first.root / "refs-v1").glob("*/*"):
        ref.chmod(0o644)
        ref.write_bytes(b"junk")
        ref.chmod(0o444)
    missed = Layers([Store(first.root), second]).resolve(request())
    assert isinstance(missed, Miss) and missed.damaged
    one, two = missed.reasons
    assert one.startswith(f"{first.root}: ref ") and "is damaged" in one
    assert two.startswith(f"{second.root}: kernel.so of ") and "is not there" in two


def test_a_damaged_layer_does_not_hide_the_next(tmp_path: Path) -> None:
    first, second = stores(tmp_path, "first", "second")
    build(first), build(second)
    for path in (first.root / "actions-v1").glob("*/*"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:100])
        path.chmod(0o444)
    found = Layers([Store(first.root), second]).resolve(request())
    assert isinstance(found, Hit) and found.store is second and "is damaged" in found.skipped[0]


def test_without_home_there_is_no_writable_store_and_layers_still_serve(tmp_path: Path) -> None:
    (shared,) = stores(tmp_path, "shared")
    build(shared)
    settings = Settings.from_env({"TKC_STORES": str(shared.root)})
    assert settings.cache_dir is None
    layers = Layers.of_folders(settings.stores, settings.cache_dir)
    assert layers.writable is None
    assert layers.resolve(request())
    nothing = Layers.of_folders((), None).resolve(request())
    assert isinstance(nothing, Miss) and "TKC_CACHE_DIR" in nothing.reason


def test_installed_then_shared_then_the_users_own(tmp_path: Path) -> None:
    layers = Layers.of_folders([tmp_path / "shared"], tmp_path / "user", installed=[tmp_path / "wheel"])
    assert [store.root.name for store in layers.stores] == ["wheel", "shared", "user"]
    assert layers.writable is layers.stores[2]
    assert not layers.resolve(request())
    assert list(tmp_path.iterdir()) == []
