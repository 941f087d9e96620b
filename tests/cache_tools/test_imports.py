from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "tilelang", "tvm", "numpy", "fsspec", "aiohttp", "cryptography", "rich"}


def test_a_command_of_cache_tools_needs_neither_torch_nor_tilelang_nor_the_network() -> None:
    code = (
        "import sys, cache_tools.cli, cache_tools.fsck, cache_tools.gc, cache_tools.prune, cache_tools.rm, "
        "cache_tools.usage, cache_tools.misses\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
