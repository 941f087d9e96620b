"""Layers: stores that are asked one after another, so that an installed wheel answers before a compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from tkc.cache.bucket import Miss
from tkc.cache.store import Hit, Store
from tkc.errors import StoreError
from tkc.model import Digest

if TYPE_CHECKING:
    from tkc.cache.signatures import Verifier


class Upstream(Protocol):
    """A remote store. It is asked on a miss, before compiling; never by a lookup."""

    def fetch(self, request: Digest, into: Store) -> Hit | Miss:
        """Copy what answers `request` into a writable store, verified; or say why there is none; never raises."""


class Layers:
    """Stores in the order in which they are asked. There may be none, and none need be writable.

    Args:
        stores: asked by every lookup.
        upstream: asked by `fetch` alone; None if no remote is configured.
    """

    def __init__(self, stores: Sequence[Store], upstream: Upstream | None = None) -> None:
        self.stores = tuple(stores)
        self.upstream = upstream
        self._unusable: dict[Store, str] = {}

    @classmethod
    def of_folders(
        cls,
        read_only: Sequence[Path],
        user: Path | None,
        *,
        installed: Sequence[Path] = (),
        upstream: Upstream | None = None,
        signers: Verifier | None = None,
    ) -> Self:
        """Stores inside installed packages, then read-only ones, then the user's, if there is one.

        With `signers`, the read-only ones answer only with what one of these signed. An installed package is
        trusted as its installer trusted it, the user's own store as what this user compiled.
        """
        wheels = [Store(root, trusted=True) for root in installed]
        shared = [Store(root, signers=signers) for root in read_only]
        return cls([*wheels, *shared, *([Store(user, writable=True)] if user else [])], upstream)

    @property
    def writable(self) -> Store | None:
        """The store that a compile on a miss goes to; None if there is none."""
        return next((store for store in self.stores if store.writable), None)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why layers that were asked cannot be used at all: untrusted, or impossible to examine."""
        return tuple(self._unusable.values())

    def resolve(self, request: Digest) -> Hit | Miss:
        """Return the first layer's artifact that answers `request`, or one reason a layer, line by line.

        Never raises for a layer that cannot be used: its reason is kept, and the next one is asked.
        """
        misses: list[Miss] = []
        for store in self.stores:
            found = self._ask(store, request)
            if isinstance(found, Hit):
                return replace(found, skipped=tuple(miss.reason for miss in misses)) if misses else found
            misses.append(replace(found, reason=f"{store.root}: {found.reason}"))
        if not misses:
            return Miss("there is no store: set TKC_STORES or TKC_CACHE_DIR, or HOME")
        return Miss("\n".join(miss.reason for miss in misses), damaged=any(miss.damaged for miss in misses))

    def fetch(self, request: Digest, into: Store) -> Hit | Miss:
        """Ask the remote, if there is one, and keep what it has in `into`. Raises StoreError if that takes nothing."""
        if self.upstream is None:
            return Miss("no remote is configured (TKC_REMOTE)", absent=True)
        return self.upstream.fetch(request, into)

    def _ask(self, store: Store, request: Digest) -> Hit | Miss:
        try:
            found = store.resolve(request)
        except StoreError as error:
            self._unusable[store] = str(error)
            return Miss(str(error))
        self._unusable.pop(store, None)
        return found
