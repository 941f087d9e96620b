"""The store: key → files. Knows nothing of kernels and nothing of compilers."""

from tkc.cache.bucket import EntryStatus, Miss
from tkc.cache.layers import Layers, Upstream
from tkc.cache.locks import OnWait, Waiting
from tkc.cache.misses import LoggedMiss, Misses, MissLog
from tkc.cache.owner import Owner
from tkc.cache.pins import Pin
from tkc.cache.refs import RefEntry
from tkc.cache.signatures import Signature, Signers, Verifier, signed_message
from tkc.cache.store import Hit, Store

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
