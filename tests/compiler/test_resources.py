"""What is read from a device binary is what the compiler says that it made."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conftest import HOST

from tkc.compiler import CompileOptions, Tools, probe
from tkc.compiler.assemble import nvrtc
from tkc.compiler.resources import cubin_capability, ptxas_spills, read_cubin
from tkc.model import Target

pytestmark = pytest.mark.level1

# Shared memory; local memory, because the index is not known; and as many registers as are allowed.
SOURCE = """
extern "C" __global__ void stacked(float* x, int n) {
  __shared__ float shared[300];
  float local[64];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 64; ++i) local[i] = shared[i] * n;
  x[threadIdx.x] = local[(n * threadIdx.x) & 63];
}
extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2; }
"""

ARCHITECTURES = {
    "sm_75": 75,
    "sm_80": 80,
    "sm_86": 86,
    "sm_89": 89,
    "sm_90": 90,
    "sm_90a": 90,
    "sm_100a": 100,
    "sm_100f": 100,
    "sm_103a": 103,
    "sm_110a": 110,
    "sm_120a": 120,
    "sm_121a": 121,
}


@pytest.fixture(scope="module")
def tools(stamps_dir: Path) -> Tools:
    return probe(Target.parse("sm90"), HOST, CompileOptions(), stamps_dir=stamps_dir)


def build(tools: Tools, arch: str, folder: Path) -> tuple[bytes, str]:
    """The binary of SOURCE, and what ptxas says of it."""
    assert tools.device_compiler is not None
    done = nvrtc.load(tools.device_compiler).compile(SOURCE, (f"-arch={arch.replace('sm_', 'compute_')}",), ())
    assert done.ptx is not None, done.log
    (folder / "k.ptx").write_text(done.ptx)
    command = (str(tools.ptxas), "-v", f"-arch={arch}", "k.ptx", "-o", "k.cubin")
    words = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stderr
    return (folder / "k.cubin").read_bytes(), words


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_binary_says_what_ptxas_said(tools: Tools, tmp_path: Path, arch: str) -> None:
    binary, words = build(tools, arch, tmp_path)
    info = read_cubin(binary)
    assert info.capability == cubin_capability(binary[:64]) == ARCHITECTURES[arch]
    assert set(info.kernels) == {"stacked", "plain"}
    for name, kernel in info.kernels.items():
        said = words[words.index(f"Function properties for {name}") :]
        assert kernel.stack_bytes == number(r"(\d+) bytes stack frame", said)
        assert kernel.registers == number(r"Used (\d+) registers", said)
        assert kernel.code_bytes > 0 and kernel.code_bytes % 128 == 0
    assert info.kernels["stacked"].static_shared_bytes == 1200 == number(r"(\d+) bytes smem", words)
    assert info.kernels["plain"].static_shared_bytes == info.kernels["plain"].stack_bytes == 0


def number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, text
    return int(match[1])


def test_local_memory_that_is_no_spill_is_not_called_one(tools: Tools, tmp_path: Path) -> None:
    binary, words = build(tools, "sm_90a", tmp_path)
    assert read_cubin(binary).kernels["stacked"].stack_bytes == 256
    assert ptxas_spills(words) == {"stacked": 0, "plain": 0}


def test_flags_of_older_compilers_hold_the_capability_elsewhere() -> None:
    """CUDA 12 wrote ABI version 7, and the number in the low byte."""
    header = bytearray(64)
    header[:4], header[8] = b"\x7fELF", 7
    header[18:20] = (190).to_bytes(2, "little")
    header[48:52] = (0x5A055A).to_bytes(4, "little")
    assert cubin_capability(bytes(header)) == 90


def test_what_is_no_device_binary_is_said_to_be_none(tools: Tools, tmp_path: Path) -> None:
    binary, _ = build(tools, "sm_90a", tmp_path)
    for data in (b"", b"\x7fELF", b"text", Path("/proc/self/exe").read_bytes()[:4096]):
        with pytest.raises(ValueError, match="not a CUDA device binary"):
            read_cubin(data)
    for size in range(64, len(binary), 97):
        with pytest.raises(ValueError, match="device binary"):
            read_cubin(binary[:size])
