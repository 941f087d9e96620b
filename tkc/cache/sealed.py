"""Records that verify themselves: one line of canonical JSON, and one with its digest.

A flipped bit, a lost tail or an empty file is found before a single field is believed.
"""

from __future__ import annotations

import hashlib

_TAIL_BYTES = len('\n"sha256:"\n') + 64


def seal(body: bytes) -> bytes:
    """Give the written form of `body`, which is one line."""
    return body + _tail(body)


def unseal(data: bytes) -> bytes:
    """Give the body back. Raises ValueError, saying what is wrong, unless it is exactly what was sealed."""
    if not data:
        raise ValueError("it is empty")
    body = data[:-_TAIL_BYTES]
    if data[-_TAIL_BYTES:] != _tail(body):
        raise ValueError(f"its {len(data)} bytes do not match the digest in its last line")
    return body


def _tail(body: bytes) -> bytes:
    return f'\n"sha256:{hashlib.sha256(body).hexdigest()}"\n'.encode()
