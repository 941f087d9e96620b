"""The store: key → files. Knows nothing of kernels and nothing of compilers."""

from typing import TYPE_CHECKING

from tkc._lazy import lazily
from tkc.cache.bucket import EntryStatus, Miss
from tkc.cache.layers import Layers, Upstream
from tkc.cache.refs import RefEntry
from tkc.cache.store import Hit, Store

if TYPE_CHECKING:
    from tkc.cache.locks import OnWait, Waiting
    from tkc.cache.misses import LoggedMiss, Misses, MissLog
    from tkc.cache.owner import Owner
    from tkc.cache.pins import Pin
    from tkc.cache.signatures import Signature, Signers, Verifier, signed_message

__all__ = [
    "EntryStatus",
    "Hit",
    "Layers",
    "LoggedMiss",
    "Miss",
    "MissLog",
    "Misses",
    "OnWait",
    "Owner",
    "Pin",
    "RefEntry",
    "Signature",
    "Signers",
    "Store",
    "Upstream",
    "Verifier",
    "Waiting",
    "signed_message",
]

# What a lookup does without.
__getattr__ = lazily(
    __name__,
    {
        "OnWait": "tkc.cache.locks",
        "Waiting": "tkc.cache.locks",
        "LoggedMiss": "tkc.cache.misses",
        "MissLog": "tkc.cache.misses",
        "Misses": "tkc.cache.misses",
        "Owner": "tkc.cache.owner",
        "Pin": "tkc.cache.pins",
        "Signature": "tkc.cache.signatures",
        "Signers": "tkc.cache.signatures",
        "Verifier": "tkc.cache.signatures",
        "signed_message": "tkc.cache.signatures",
    },
)
