"""Where everything in a store lies. The one module that knows the paths.

::

    <root>/blobs-v1/ab/<digest>          bytes named by their digest; never change
           actions-v1/ab/<key>.json      action key → manifest
           refs-v1/ab/<request>.json     request → action key; the only entries that change, and the gc roots
           index-v1/refs.json           every ref, where the store is shown by a server that lists nothing
           pins-v1/ab/<key>.json        actions that prune spares and gc starts from too
           signatures-v1/ab/<request>.json  who vouches for what answers a request
           staging-v1/                   private, until one rename (or link) makes it visible
           locks-v1/<key>.lock           who compiles what; never removed by those who use them
           quarantine-v1/                damaged entries, each with a note
           logs-v1/<key>.log             output of compiles that failed
           misses-v1/misses.jsonl        what was asked for at run time and not there
           stamps-v1/                    digests that stand for installed tools

A folder's name carries the version of the format inside. Paths are strings here: a lookup formats
several, and it is on the path of every cold start.
"""

from __future__ import annotations

from pathlib import Path

from tkc.model import Digest


class Layout:
    """Paths below one root. Touches nothing."""

    def __init__(self, root: Path) -> None:
        self.root = str(root.absolute())
        self.blobs = f"{self.root}/blobs-v1"
        self.actions = f"{self.root}/actions-v1"
        self.refs = f"{self.root}/refs-v1"
        self.pins = f"{self.root}/pins-v1"
        self.signatures = f"{self.root}/signatures-v1"
        self.staging = f"{self.root}/staging-v1"
        self.locks = f"{self.root}/locks-v1"
        self.quarantine = f"{self.root}/quarantine-v1"
        self.logs = f"{self.root}/logs-v1"
        self.misses = f"{self.root}/misses-v1"
        self.stamps = f"{self.root}/stamps-v1"

    @property
    def entry_folders(self) -> tuple[str, str, str]:
        """The folders whose entries decide what is loaded."""
        return self.blobs, self.actions, self.refs

    def blob(self, digest: Digest) -> str:
        name = digest.hex
        return f"{self.blobs}/{name[:2]}/{name}"

    def action(self, key: Digest) -> str:
        name = key.hex
        return f"{self.actions}/{name[:2]}/{name}.json"

    def ref(self, request: Digest) -> str:
        name = request.hex
        return f"{self.refs}/{name[:2]}/{name}.json"

    def pin(self, key: Digest) -> str:
        name = key.hex
        return f"{self.pins}/{name[:2]}/{name}.json"

    def signature(self, request: Digest) -> str:
        name = request.hex
        return f"{self.signatures}/{name[:2]}/{name}.json"

    def lock(self, key: Digest) -> str:
        return f"{self.locks}/{key.hex}.lock"

    def log(self, key: Digest) -> str:
        return f"{self.logs}/{key.hex}.log"

    @property
    def index(self) -> str:
        return f"{self.root}/index-v1/refs.json"

    @property
    def miss_log(self) -> str:
        return f"{self.misses}/misses.jsonl"


def digest_in_name(name: str) -> Digest | None:
    """The digest that an entry's file name stands for; None for a file that is no entry."""
    try:
        return Digest(name.partition(".")[0])
    except ValueError:
        return None
