from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "tilelang", "tvm", "numpy", "socket", "filelock", "rich"}


def test_the_store_needs_neither_torch_nor_tilelang_nor_the_network() -> None:
    code = "import sys, tkc.cache; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
