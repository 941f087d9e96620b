"""The action cache: action key → manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tkc.cache.bucket import Bucket, Miss
from tkc.cache.sealed import seal, unseal
from tkc.model import Digest, Manifest


class Actions:
    """The manifests of one store. A manifest says nothing about whether its blobs are there."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, key: Digest) -> Manifest | Miss:
        """The manifest of the action with this key, or why there is none."""
        content = self._bucket.read(key)
        if isinstance(content, Miss):
            return content
        try:
            manifest = Manifest.from_bytes(unseal(content.data))
        except ValueError as error:
            return self._bucket.damaged(key, content, str(error))
        if manifest.key != key:
            return self._bucket.damaged(key, content, f"it is the manifest of {manifest.key.short}")
        return manifest

    def publish(self, manifest: Manifest, is_good: Callable[[], bool]) -> None:
        """Show `manifest`, unless the one that is there `is_good`. Raises OSError."""
        self._bucket.publish(manifest.key, seal(manifest.to_bytes()), is_good)

    def keys(self) -> Iterator[Digest]:
        """The key of every manifest, lazily, readable or not."""
        return (key for key, _ in self._bucket.entries())
