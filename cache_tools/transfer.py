"""Copy artifacts from one place to a store, verified on arrival: blobs, then the manifest, then the ref."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tkc.cache import Hit, Miss, RefEntry, Signature, Store, Verifier
from tkc.model import Digest, Manifest


class Source(Protocol):
    """Where artifacts can be read from: a store, or a remote. What it returns was verified."""

    def read_ref_entry(self, request: Digest) -> RefEntry | Miss:
        """The ref that answers `request`, or why there is none."""

    def read_manifest(self, key: Digest) -> Manifest | Miss:
        """The manifest of the action with this key, or why there is none."""

    def read_signature(self, request: Digest) -> Signature | Miss:
        """The signature of what answers `request`, unverified, or why there is none."""

    def read_blob(self, digest: Digest, size_bytes: int | None = None) -> bytes:
        """The blob, whose size is known or not. Raises StoreDamagedError if it is not there or not right."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied for one manifest."""

    manifest: Manifest
    blobs: int = 0
    blob_bytes: int = 0


def copy_manifest(source: Source, key: Digest, destination: Store) -> Copied | Miss:
    """Copy one manifest and the blobs that the destination lacks; blobs that are there already are not read.

    Raises StoreError if a blob cannot be had or nothing can be written; then no manifest is visible.
    """
    if isinstance(found := destination.lookup(key), Hit):
        return Copied(found.manifest)
    manifest = source.read_manifest(key)
    return manifest if isinstance(manifest, Miss) else copy_files(source, manifest, destination)


def copy_files(source: Source, manifest: Manifest, destination: Store) -> Copied:
    """Copy the blobs of `manifest` that the destination lacks, then the manifest; otherwise as `copy_manifest`."""
    count = size_bytes = 0
    for entry in manifest.files:
        if destination.blob_flaw(entry.digest) is not None:
            destination.publish_blob(source.read_blob(entry.digest, entry.size_bytes))
            count, size_bytes = count + 1, size_bytes + entry.size_bytes
    return Copied(destination.commit_manifest(manifest), count, size_bytes)


def copy_request(
    source: Source, request: Digest, destination: Store, *, signers: Verifier | None = None
) -> Copied | Miss:
    """Copy what answers `request`: its artifact, its signature if it has one, and at last the ref.

    With `signers`, what none of them signed is a miss and nothing is copied. Raises as `copy_manifest`.
    """
    ref = source.read_ref_entry(request)
    if isinstance(ref, Miss):
        return ref
    manifest = source.read_manifest(ref.key)
    if isinstance(manifest, Miss):
        return manifest
    signature = source.read_signature(request)
    if signers and (complaint := signers.complaint(request, manifest, signature)):
        return Miss(f"{ref.key.short} is not taken: {complaint}")
    copied = copy_files(source, manifest, destination)
    if isinstance(signature, Signature):
        destination.write_signature(signature)
    destination.write_ref(request, ref.fields, ref.key)
    return copied
