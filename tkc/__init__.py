"""Ahead-of-time compiler, store and loader for TileLang kernels.

::

    kernel = tkc.kernel("moe.topk_gate", num_experts=256, num_topk=8)  # find, verify, load
    tkc.warmup("deepseek-v3", device="cuda:0")  # load a whole grid before it is needed
    tkc.seal()  # from now on a miss is an error

Importing this package imports nothing heavy: the names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tkc.version import __version__

if TYPE_CHECKING:
    from tkc.interpret import interpret
    from tkc.runtime import kernel, seal
    from tkc.runtime.warmup import warmup

__all__ = ["__version__", "interpret", "kernel", "seal", "warmup"]

_HOMES = {"interpret": "tkc.interpret", "kernel": "tkc.runtime", "seal": "tkc.runtime", "warmup": "tkc.runtime.warmup"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
