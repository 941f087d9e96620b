"""The device runtime: the C that an artifact's host function reaches its device through, one set for each backend.

The host function that TileLang generates asks for functions by name (`TVMBackendGetFuncFromEnv`): one that
chooses the device, one for each kernel, and the makers of TMA descriptors. The sources here define that
function and these few, on the driver of the backend, which is opened at run time. They are compiled once for
a host and linked into every artifact; what differs between artifacts is a table, which `kernel_table_c` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tkc.model import Backend

_SHARED = ("common.c", "kernel_table.h", "tkc_runtime.h")
_FILES = {
    Backend.CPU: (*_SHARED, "cpu.c"),
    Backend.CUDA: (
        *_SHARED,
        *("cuda.c", "cuda.h", "cuda_driver.c", "cuda_driver.h", "cuda_stream.c", "cuda_tensormap.c"),
    ),
    Backend.ASCEND: (*_SHARED, "ascend.c"),
}


@cache
def sources(backend: Backend) -> Mapping[str, str]:
    """The sources of a backend's runtime, by file name. Each ``.c`` is compiled by itself, headers beside it."""
    folder = Path(__file__).parent
    return {name: (folder / name).read_text() for name in _FILES[backend]}


def kernel_table_c(facts: Mapping[str, Any]) -> str:
    """Write the table that tells the runtime one artifact's kernels, as C that includes ``kernel_table.h``.

    Args:
        facts: of the artifact: ``function``, and for each of ``kernels`` its ``symbol``, ``args``,
            ``launch_params``, ``cluster``, ``cooperative``, ``pdl``, and ``arch`` once it is assembled.

    Raises ValueError for an argument or a launch parameter that the runtime cannot pass on.
    """
    kernels: list[Mapping[str, Any]] = list(facts["kernels"])
    arch = next((kernel["arch"] for kernel in kernels if kernel.get("arch")), "")
    lines = ['#include "kernel_table.h"', ""]
    for index, kernel in enumerate(kernels):
        lines += _details(index, kernel)
    lines += ["const tkc_kernel tkc_kernels[] = {", *(_row(index, kernel) for index, kernel in enumerate(kernels))]
    if not kernels:
        lines.append("    {0},")
    lines += [
        "};",
        f"const int32_t tkc_num_kernels = {len(kernels)};",
        f"const char tkc_function[] = {json.dumps(str(facts['function']))};",
        f"const char tkc_arch[] = {json.dumps(str(arch))};",
    ]
    return "\n".join(lines) + "\n"


def _details(index: int, kernel: Mapping[str, Any]) -> Iterator[str]:
    """The arrays that a kernel's row points to. C has no empty ones, so each ends in a row that is not counted."""
    yield f"static const tkc_argument tkc_arguments_{index}[] = {{"
    for argument in kernel["args"]:
        kind, size_bytes = _kind(kernel, argument)
        yield f"    {{{json.dumps(argument['name'])}, {_alignment(kernel, argument)}, {kind}, {size_bytes}}},"
    yield "    {0, 0, 0, 0}};"
    codes = [_launch_param(kernel, tag) for tag in _passed(kernel)]
    yield f"static const uint8_t tkc_launch_params_{index}[] = {{{', '.join([*codes, '0'])}}};"
    yield ""


def _row(index: int, kernel: Mapping[str, Any]) -> str:
    cluster = ", ".join(str(int(size)) for size in kernel.get("cluster") or (1, 1, 1))
    counts = f"{len(kernel['args'])}, {len(_passed(kernel))}"
    switches = f"{int(bool(kernel['cooperative']))}, {int(bool(kernel['pdl']))}"
    symbol = json.dumps(kernel["symbol"])
    return f"    {{{symbol}, tkc_arguments_{index}, tkc_launch_params_{index}, {counts}, {{{cluster}}}, {switches}}},"


# How a kernel takes an argument of each type, and in how many bytes.
_KINDS = {
    **dict.fromkeys(("pointer", "handle"), ("TKC_POINTER", 8)),
    "tensormap": ("TKC_TENSORMAP", 128),
    **dict.fromkeys(("bool", "int8", "uint8"), ("TKC_INTEGER", 1)),
    **dict.fromkeys(("int16", "uint16"), ("TKC_INTEGER", 2)),
    **dict.fromkeys(("int32", "uint32"), ("TKC_INTEGER", 4)),
    **dict.fromkeys(("int64", "uint64"), ("TKC_INTEGER", 8)),
    "float32": ("TKC_FLOAT32", 4),
    "float64": ("TKC_FLOAT64", 8),
}

# Tags of launch parameters that are followed by a number, in TileLang's spelling.
_LAUNCH_PARAMS = {
    **{f"blockIdx.{axis}": f"TKC_GRID_{axis.upper()}" for axis in "xyz"},
    **{f"threadIdx.{axis}": f"TKC_BLOCK_{axis.upper()}" for axis in "xyz"},
    **{f"tir.cluster_dim_{axis}": f"TKC_CLUSTER_{axis.upper()}" for axis in "xyz"},
    "tirx.use_dyn_shared_memory": "TKC_DYNAMIC_SHARED_BYTES",
}

# Tags that are switches; no number comes with them.
_SWITCHES = frozenset({"tirx.use_programtic_dependent_launch", "tirx.use_cooperative_launch"})


def _kind(kernel: Mapping[str, Any], argument: Mapping[str, Any]) -> tuple[str, int]:
    if argument["kind"] not in _KINDS:
        raise ValueError(
            f"kernel {kernel['symbol']}: argument `{argument['name']}` has type {argument['kind']}, which cannot be "
            f"passed at launch; expected one of {', '.join(_KINDS)}"
        )
    return _KINDS[argument["kind"]]


def _alignment(kernel: Mapping[str, Any], argument: Mapping[str, Any]) -> int:
    alignment = int(argument.get("alignment_bytes") or 1)
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(
            f"kernel {kernel['symbol']}: argument `{argument['name']}` is to be aligned to {alignment} bytes, "
            "which is not a power of two"
        )
    return alignment


def _passed(kernel: Mapping[str, Any]) -> list[str]:
    return [tag for tag in kernel["launch_params"] if tag not in _SWITCHES]


def _launch_param(kernel: Mapping[str, Any], tag: str) -> str:
    if tag not in _LAUNCH_PARAMS:
        raise ValueError(
            f"kernel {kernel['symbol']}: unknown launch parameter {tag!r}; known: {', '.join(_LAUNCH_PARAMS)}"
        )
    return _LAUNCH_PARAMS[tag]
