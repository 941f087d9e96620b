"""The store: key → files. Knows nothing of kernels and nothing of compilers."""

from tkc.cache.blobs import BlobEntry
from tkc.cache.bucket import Miss
from tkc.cache.layers import Layers
from tkc.cache.locks import OnWait, Waiting
from tkc.cache.misses import LoggedMiss, Misses, MissLog
from tkc.cache.owner import Owner
from tkc.cache.refs import RefEntry
from tkc.cache.store import Hit, Store

__all__ = [
    "BlobEntry",
    "Hit",
    "Layers",
    "LoggedMiss",
    "Miss",
    "MissLog",
    "Misses",
    "OnWait",
    "Owner",
    "RefEntry",
    "Store",
    "Waiting",
]
