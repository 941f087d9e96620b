"""Launch a loaded kernel, and say what is wrong with its arguments when it refuses them.

The hot path is one call. A kernel's host part checks its arguments before it launches anything, in C;
what it refuses is looked at here again, slowly, to name the argument, what was expected and what was given.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tkc.errors import ArgumentError, LoadError
from tkc.model import Arg, Backend, DType, KernelSpec, Manifest, ScalarArg, Specialization, Target, TensorArg
from tkc.runtime.device import DeviceInfo

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tkc.runtime.loader import Library

Launch = Callable[..., None]
"""Takes the launch arguments of a kernel, in the order of its spec."""


class LoadedKernel:
    """A kernel bound to one artifact and one device; call it with the launch arguments, in order.

    A call puts the kernel on the caller's current stream and returns. Raises ArgumentError for arguments
    that do not match the spec, in which case nothing was launched; LoadError in a process that was forked
    from one that had used the device; RuntimeError for what the device reports.

    Attributes:
        spec: its contract.
        specialization: which of it this is.
        device: where it is loaded.
        layer: the store that it came from.
    """

    __slots__ = ("_library", "_main", "_record", "device", "layer", "spec", "specialization")

    def __init__(
        self,
        spec: KernelSpec,
        specialization: Specialization,
        manifest: Manifest,
        device: DeviceInfo,
        layer: Path,
        library: Library,
    ) -> None:
        self.spec = spec
        self.specialization = specialization
        # As bytes: hundreds of parsed manifests would set off the garbage collector, which takes longer than they did.
        self._record = manifest.written or manifest.to_bytes()
        self.device = device
        self.layer = layer
        self._library = library
        self._main = library.main

    @property
    def manifest(self) -> Manifest:
        """What the artifact is: what it was built from, registers, shared memory. Read anew at every access."""
        return Manifest.from_bytes(self._record)

    @property
    def target(self) -> Target:
        """The target that the artifact was compiled for."""
        return self.device.target

    def launch(self, *args: Any) -> None:
        """Launch on the current stream of the arguments' device."""
        try:
            self._main(*args)
        except Exception as error:
            if problem := self._second_look(self._main, args, error):
                raise problem from error

    __call__ = launch

    def entry(self, *, pdl: bool = False) -> Launch:
        """The callable for a hot path: a call of it costs less than a call of the object.

        Args:
            pdl: launch without waiting for the end of the kernel before (programmatic dependent launch).
        """
        main = self._library.main_pdl if pdl else self._main

        def launch(*args: Any) -> None:
            try:
                main(*args)
            except Exception as error:
                if problem := self._second_look(main, args, error):
                    raise problem from error

        return launch

    def __repr__(self) -> str:
        return f"<LoadedKernel {self.specialization} on {self.device} from {self.layer}>"

    def _second_look(self, function: Launch, args: tuple[Any, ...], error: Exception) -> Exception | None:
        """What was wrong with a failed launch; None if a meaningless stride was, and it is launched now."""
        if self.device.target.backend is not Backend.CPU and forked_after_loading():
            return LoadError(forked(str(self.specialization), self.device))
        if "torch" not in sys.modules:
            return self._failure(error)  # arrays of another library, of which only the host part knows
        args = as_tensors(args)
        if problem := explain(self.spec, self.specialization, args, self.device):
            return problem
        plain = tuple(map(_with_plain_strides, self.spec.arguments(self.specialization), args))
        if all(one is other for one, other in zip(plain, args, strict=True)):
            return self._failure(error)
        try:
            function(*plain)
        except RuntimeError as second:
            return self._failure(second)
        return None

    def _failure(self, error: Exception) -> RuntimeError:
        return RuntimeError(f"{self.specialization}: launch on {self.device} failed: {error}")


def converted(tensor: torch.Tensor) -> Any:
    """A launch argument that stands for `tensor` and shares its memory, for one that is passed again and again.

    A launch converts each tensor that it is given, which takes the host 0.1 us; this one is converted already. Of a
    tensor without memory (``meta``) there is no such form, and it is given back.
    """
    if tensor.is_meta:
        return tensor
    import tvm_ffi

    return tvm_ffi.from_dlpack(tensor)


def as_tensors(args: Iterable[Any]) -> tuple[Any, ...]:
    """Launch arguments, with the tensors that `converted` ones stand for."""
    import torch
    import tvm_ffi

    return tuple(torch.from_dlpack(given) if isinstance(given, tvm_ffi.Tensor) else given for given in args)


def explain(
    spec: KernelSpec, specialization: Specialization, args: Sequence[Any], device: DeviceInfo
) -> ArgumentError | None:
    """Compare launch arguments with what the spec says; give the first mismatch, or None.

    A stride of a dimension with one entry, or of an empty tensor, means nothing and is not compared.
    """
    expected = spec.arguments(specialization)
    if len(args) != len(expected):
        names = ", ".join(arg.name for arg in expected)
        return ArgumentError(f"{spec.name}: {len(args)} launch arguments given; expected {len(expected)}: {names}")
    seen = _Axes(spec.name, device)
    for arg, given in zip(expected, args, strict=True):
        if problem := next(seen.problems(arg, given), None):
            return ArgumentError(f"{spec.name}: `{arg.name}` {problem}", argument=arg.name)
    return None


@dataclass
class _Axes:
    """What earlier arguments bound each axis to, and the checks of the next one."""

    spec: str
    device: DeviceInfo
    bound: dict[str, tuple[int, str]] = field(default_factory=dict)

    def problems(self, arg: Arg, given: Any) -> Iterator[str]:
        if isinstance(arg, ScalarArg):
            yield from _scalar_problems(arg, given)
        elif given is not None or not arg.nullable:
            yield from self._tensor_problems(arg, given)

    def _tensor_problems(self, arg: TensorArg, given: Any) -> Iterator[str]:
        import torch

        if not isinstance(given, torch.Tensor):
            either = " or None" if arg.nullable else ""
            yield f"is {_kind(given)}; expected a tensor{either}. Pass a torch.Tensor of {arg.dtype}"
            return
        dtype = str(given.dtype).removeprefix("torch.")
        if dtype != arg.dtype:
            yield f"has dtype {dtype}; built for {arg.dtype}. Cast it: .to(torch.{arg.dtype})"
        if given.layout is not torch.strided:
            yield f"has layout {given.layout}; expected a dense tensor. Call .to_dense()"
            return
        yield from self._device_problems(given)
        if given.dim() != len(arg.shape):
            yield f"has shape {_dims(given.shape)}; expected {len(arg.shape)} dimensions, {_dims(arg.shape)}"
            return
        yield from self._dims_problems(arg, "shape", given.shape, arg.shape, range(given.dim()))
        if given.numel():
            yield from self._stride_problems(arg, given)
            if misaligned := given.data_ptr() % arg.alignment_bytes:
                yield (
                    f"begins {misaligned} bytes past a multiple of {arg.alignment_bytes}, which its address must be. "
                    "Pass a .clone(), or a slice that begins at an aligned offset"
                )

    def _device_problems(self, given: Any) -> Iterator[str]:
        place = given.device.type if given.device.type == "cpu" else str(given.device)
        if place != self.device.place:
            here = self.device.place
            yield f"is on {place}; the kernel is loaded for {here}. Move it: .to({here!r})"

    def _stride_problems(self, arg: TensorArg, given: Any) -> Iterator[str]:
        expected = arg.strides if arg.strides is not None else contiguous_strides(given.shape)
        significant = [dim for dim, size in enumerate(given.shape) if size != 1]
        yield from self._dims_problems(arg, "strides", given.stride(), expected, significant)

    def _dims_problems(
        self, arg: TensorArg, what: str, got: Sequence[int], expected: Sequence[Any], dims: Sequence[int]
    ) -> Iterator[str]:
        for dim in dims:
            want, why = self._expected(expected[dim], got[dim], arg.name)
            if got[dim] != want:
                remedy = " Call .contiguous()" if what == "strides" else ""
                written = arg.shape if what == "shape" else arg.strides or expected
                yield (
                    f"has {what} {_dims(got)}; expected {_dims(written)}: "
                    f"entry {dim} is {got[dim]}, must be {want}{why}.{remedy}"
                )

    def _expected(self, dim: str | int, got: int, name: str) -> tuple[int, str]:
        if isinstance(dim, int):
            return dim, ""
        size, first = self.bound.setdefault(dim, (got, name))
        return size, f" ({dim} as in `{first}`)"


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major tensor of this shape."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


_INTEGER_RANGES = {
    DType.INT8: (-(2**7), 2**7 - 1),
    DType.UINT8: (0, 2**8 - 1),
    DType.INT16: (-(2**15), 2**15 - 1),
    DType.INT32: (-(2**31), 2**31 - 1),
    DType.INT64: (-(2**63), 2**63 - 1),
}


def _scalar_problems(arg: ScalarArg, given: Any) -> Iterator[str]:
    integral = arg.dtype is DType.BOOL or arg.dtype in _INTEGER_RANGES
    if not isinstance(given, int if integral else (int, float)):
        yield f"is {_kind(given)}; expected {'an integer' if integral else 'a number'} ({arg.dtype})"
    elif arg.dtype in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[arg.dtype]
        if not low <= given <= high:
            yield f"is {given}; expected {arg.dtype}, from {low} to {high}"


def _with_plain_strides(arg: Arg, given: Any) -> Any:
    """The same tensor with row-major numbers in place of the strides that mean nothing, if it has any."""
    if not isinstance(arg, TensorArg) or given is None:
        return given
    plain = contiguous_strides(given.shape)
    strides = tuple(
        normal if size == 1 or not given.numel() else stride
        for size, stride, normal in zip(given.shape, given.stride(), plain, strict=True)
    )
    return given if strides == given.stride() else given.as_strided(given.shape, strides)


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _dims(dims: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, dims))}]"


# A process that was forked after a device was used cannot use that device: its driver refuses every call.

_FORKED_AFTER_LOADING = False


def mark_forked() -> None:
    """Remember, in a child, that its parent had loaded kernels on a device."""
    global _FORKED_AFTER_LOADING
    _FORKED_AFTER_LOADING = True


def forked_after_loading() -> bool:
    """Whether this process was forked from one that had loaded kernels on a device."""
    return _FORKED_AFTER_LOADING


def forked(what: str, device: DeviceInfo) -> str:
    """Say that a device cannot be used in this process, and what to do."""
    return (
        f"{what} cannot be used on {device} in this process: it was forked after its parent "
        "had used the device. Start processes with multiprocessing.get_context('spawn'), or fork before that"
    )
