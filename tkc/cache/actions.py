"""The action cache: action key → manifest."""

from __future__ import annotations

from collections.abc import Callable

from tkc.cache.bucket import Bucket, Content, Miss
from tkc.cache.sealed import seal, unseal
from tkc.model import Digest, Manifest


class Actions:
    """The manifests of one store. A manifest says nothing about whether its blobs are there."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, key: Digest) -> Manifest | Miss:
        """The manifest of the action with this key, or why there is none."""
        return self._parse(key, self._bucket.read(key))

    def use(self, key: Digest) -> Manifest | Miss:
        """As `read`, and note that it is in use."""
        return self._parse(key, self._bucket.use(key))

    def publish(self, manifest: Manifest, is_good: Callable[[], bool]) -> None:
        """Show `manifest`, unless the one that is there `is_good`. Raises OSError."""
        self._bucket.publish(manifest.key, seal(manifest.to_bytes()), is_good)

    def _parse(self, key: Digest, content: Content | Miss) -> Manifest | Miss:
        if isinstance(content, Miss):
            return content
        try:
            manifest = Manifest.from_bytes(unseal(content.data))
        except ValueError as error:
            return self._bucket.damaged(key, content, str(error))
        if manifest.key != key:
            return self._bucket.damaged(key, content, f"it is the manifest of {manifest.key.short}")
        return manifest
