"""TileLang program → device source, host C, and facts about both. The only file that imports tilelang."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tkc.compiler import cpu_program, host_c
from tkc.compiler.finders.packages import package_folder
from tkc.compiler.programs import LOG, failed
from tkc.compiler.stages import DEVICE_SOURCE, HOST_SOURCE, StageOutput, Unit, pass_configs
from tkc.errors import CompileError, SpecError, TkcError, ToolchainError
from tkc.model import Arg, Backend, Stage, TensorArg


def lower(unit: Unit, folder: Path) -> StageOutput:
    """Trace the variant of `unit` and write its device source and host C into `folder`.

    May be called many times in one process, one at a time: what TileLang prints meanwhile goes to
    ``log.txt`` in `folder`. Raises SpecError if the traced function does not take the spec's
    arguments, ToolchainError if tilelang is missing, CompileError if TileLang refuses the program.
    """
    log = folder / LOG
    with _printing_to(log):
        try:
            traced = _trace(unit)
            host_source, device_source, kernels = _generate(unit, traced)
        except TkcError:
            raise
        except Exception as error:  # TileLang raises whatever it likes; all of it means the same
            traceback.print_exc()
            raise _refused(unit, error, log) from error
    name = str(traced.attrs["global_symbol"])
    arguments = unit.entry.spec.arguments(unit.specialization)
    (folder / HOST_SOURCE).write_text(host_c.correct(host_source, name, arguments))
    facts = {
        "entry": "__tvm_ffi_main",
        "function": name,
        "parameters": [argument.name for argument in arguments],
        "pass_configs": pass_configs(unit.entry, unit.target.backend),
        "kernels": [_kernel_facts(kernel, arguments) for kernel in kernels],
    }
    return StageOutput((HOST_SOURCE, *_write_device_source(unit, device_source, folder)), facts)


def _trace(unit: Unit) -> Any:
    """Build the variant's function, and check that it takes what the spec says."""
    try:
        variant = unit.entry.variant(unit.target.backend)
    except ModuleNotFoundError as error:
        if error.name != "tilelang":
            raise
        raise ToolchainError("tilelang is missing; install it: pip install 'tilelang-tkc[build]'") from error
    traced = variant.build(unit.specialization, unit.target)
    _check_parameters(unit, traced)
    _name_addresses(traced)
    return traced


def _name_addresses(traced: Any) -> None:
    """Call each tensor's address by the tensor's name again, by which alignment is checked and errors speak.

    A variable that holds a view of a tensor, as in ``flat = T.view(x, …)``, gives its name to the address of ``x``.
    """
    from tilelang import tvm

    for buffer in traced.buffer_map.values():
        if buffer.data.name != buffer.name:
            tvm.script.ir_builder.IRBuilder.name(buffer.name, buffer)


def _check_parameters(unit: Unit, traced: Any) -> None:
    buffers = traced.buffer_map
    taken = [buffers[var].name if var in buffers else var.name for var in traced.params]
    arguments = unit.entry.spec.arguments(unit.specialization)
    wanted = [argument.name for argument in arguments]
    where = f"{unit.entry.spec.name}: {unit.target.backend.value}.py"
    if taken != wanted:
        raise SpecError(f"{where} takes ({', '.join(taken)}); the spec's arguments are ({', '.join(wanted)})")
    for var, argument in zip(traced.params, arguments, strict=True):
        shape = "scalar" if var not in buffers else f"tensor of rank {len(buffers[var].shape)}"
        expected = f"tensor of rank {len(argument.shape)}" if isinstance(argument, TensorArg) else "scalar"
        dtype = str(buffers[var].dtype if var in buffers else var.dtype)
        if (shape, dtype) != (expected, argument.dtype.value):
            raise SpecError(
                f"{where} takes `{argument.name}` as a {shape}, {dtype}; the spec says {expected}, {argument.dtype}"
            )


def _generate(unit: Unit, traced: Any) -> tuple[str, str, list[Any]]:
    """Run TileLang's stages: host source, device source, and the device functions."""
    from tilelang import tvm
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import device_codegen_without_compile, host_codegen, lower_to_host_device_ir

    target = _tilelang_target(unit)
    config = {**_PASS_CONFIGS[unit.target.backend], **pass_configs(unit.entry, unit.target.backend)}
    with tvm.transform.PassContext(opt_level=3, config=config), tvm.target.Target(target):
        context = create_backend_context(target, "c", "auto")
        host, device, *_ = lower_to_host_device_ir(traced, context)
        if unit.target.backend is Backend.CPU:
            host, device = cpu_program.call_as_c(host), cpu_program.complete(device)
        kernels = [function for _, function in device.functions.items()]
        device_source = str(device_codegen_without_compile(device, context).inspect_source())
        host_source = str(host_codegen(host, context).inspect_source())
    if unit.target.backend is Backend.CPU:
        device_source = device_source.replace("#include <tl_templates/cpp/common.h>", '#include "tkc_cpu.h"')
    return host_source, device_source, sorted(kernels, key=lambda kernel: str(kernel.attrs["global_symbol"]))


# The race check can be switched by an environment variable, and reports false positives; a key knows
# no environment. C has no vector types, and its compiler vectorises by itself.
_QUIET = {"tl.disable_data_race_check": True}
_PASS_CONFIGS: Mapping[Backend, Mapping[str, Any]] = {
    Backend.CUDA: _QUIET,
    Backend.ASCEND: _QUIET,
    Backend.CPU: {**_QUIET, "tirx.disable_vectorize": True},
}


def _tilelang_target(unit: Unit) -> str | dict[str, str]:
    if unit.target.backend is Backend.CUDA:
        return {"kind": "cuda", "arch": unit.target.arch}
    return {Backend.ASCEND: "ascend", Backend.CPU: "c"}[unit.target.backend]


def _kernel_facts(kernel: Any, arguments: tuple[Arg, ...]) -> dict[str, Any]:
    """What launching a kernel takes, as JSON values."""
    attrs = kernel.attrs
    alignment = {a.name: a.alignment_bytes for a in arguments if isinstance(a, TensorArg)}
    dims = attrs.get("cluster_dims")
    return {
        "symbol": str(attrs["global_symbol"]),
        "args": [
            {"name": param.name, "kind": _kind(param), "alignment_bytes": alignment.get(param.name, 1)}
            for param in kernel.params
        ],
        "launch_params": [str(tag) for tag in attrs.get("tirx.kernel_launch_params", ())],
        "block": _block(attrs.get("thread_extent")),
        "cluster": [int(dim) for dim in dims] if dims is not None else None,
        "cooperative": bool(attrs.get("use_cooperative_groups", 0)),
        "pdl": bool(attrs.get("has_cuda_pdl_sync", 0)),
    }


def _kind(param: Any) -> str:
    if str(param.dtype) != "handle":
        return str(param.dtype)
    scope = getattr(param.type_annotation, "storage_scope", "")
    return "tensormap" if scope == "grid_constant" else "pointer"


def _block(extents: Any) -> list[int] | None:
    """Threads of one block in x, y, z, where all three are known now."""
    if extents is None:
        return None
    try:
        return [int(extents[f"threadIdx.{axis}"]) for axis in "xyz"]
    except (KeyError, TypeError):
        return None


def _write_device_source(unit: Unit, source: str, folder: Path) -> tuple[str, ...]:
    """Write the device source, and what it includes where a machine without TileLang may assemble it."""
    name, source = DEVICE_SOURCE[unit.target.backend], _without_places(source, unit)
    if unit.target.backend is not Backend.ASCEND:
        (folder / name).write_text(source)
        return (name,)
    (folder / name).write_text(_bundled(source))
    return (name, *_bundle_headers(folder))


_PLACE = re.compile(r"(?<=at )(?P<folder>(?:\\?/[^/\\:\"\n]+)*\\?/)(?P<file>[^/\\:\"\n]+\.py:\d+)")


def _without_places(source: str, unit: Unit) -> str:
    """Assertions name the file they were written in; keep its path relative to the package."""
    package_folder = unit.entry.folder.parent.parent
    roots = {str(root) + "/" for root in (package_folder.parent, package_folder.parent.resolve())}

    def relative(match: re.Match[str]) -> str:
        path = match["folder"].replace("\\", "") + match["file"]
        for root in roots:
            if path.startswith(root):
                return path.removeprefix(root)
        return match["file"]

    return _PLACE.sub(relative, source)


def _bundle_headers(folder: Path) -> tuple[str, ...]:
    """Copy TileLang's Ascend headers beside the source; what assembles it then needs no TileLang."""
    installed = package_folder("tilelang")
    assert installed is not None, "tilelang was just used"
    headers = sorted((installed / "src" / _ASCEND_HEADERS).glob("*.h"))
    for header in headers:
        (folder / header.name).write_text(_bundled(header.read_text()))
    return tuple(header.name for header in headers)


def _bundled(source: str) -> str:
    """Let `source` include the headers from beside it."""
    return re.sub(rf'#include ["<]{_ASCEND_HEADERS}/(\w+\.h)[">]', r'#include "\1"', source)


_ASCEND_HEADERS = "tl_templates/ascend"


def _refused(unit: Unit, error: Exception, log: Path) -> CompileError:
    reason = str(error).strip() or type(error).__name__
    last = "\n".join(reason.splitlines()[-6:])
    return failed(unit, Stage.LOWER, f"TileLang refused the program: {last}", log)


@contextlib.contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Send what this process prints, from Python and from libraries, to `log`."""
    with (
        log.open("w", buffering=1) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
        _descriptors_to(file.fileno()),
        warnings.catch_warnings(),
    ):
        yield


@contextlib.contextmanager
def _descriptors_to(descriptor: int) -> Iterator[None]:
    """Let the descriptors of standard output and error stand for `descriptor` for a while."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in kept:
            os.dup2(descriptor, number)
        yield
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
