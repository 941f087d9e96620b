"""Bind a program's parameters: tensors to memories, their sizes and strides to symbols, numbers to variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tkc.interpret import dtypes
from tkc.interpret.dtypes import Array, ElementType
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import Frame
from tkc.interpret.memory import Memory
from tkc.interpret.translate import Node, Translator


def bind(
    name: str,
    function: Node,
    translator: Translator,
    frame: Frame,
    arguments: Sequence[Any],
    unwritten: frozenset[str],
) -> None:
    """Bind every parameter of `function`. Raises InterpretError, naming the parameter, for one that does not fit."""
    names = [_name_of(function, parameter) for parameter in function.params]
    if len(arguments) != len(names):
        raise InterpretError(f"{name} takes {len(names)} arguments ({', '.join(names)}); got {len(arguments)}")
    if unknown := unwritten - set(names):
        raise InterpretError(f"{name} has no parameter {min(unknown)!r}; it has {', '.join(names)}")
    binder = _Binder(name, translator, frame, unwritten)
    for parameter, argument in zip(function.params, arguments, strict=True):
        if parameter not in function.buffer_map:
            binder.number(parameter, argument)
        elif argument is not None:
            binder.tensor(function.buffer_map[parameter], argument)


def _name_of(function: Node, parameter: Node) -> str:
    return str(function.buffer_map[parameter].name if parameter in function.buffer_map else parameter.name)


@dataclass
class _Binder:
    """Binds one parameter after another; `known` is what symbols stand for, and which parameter said so."""

    name: str
    translator: Translator
    frame: Frame
    unwritten: frozenset[str]
    known: dict[int, tuple[int, str]] = field(default_factory=dict)

    def number(self, parameter: Node, argument: Any) -> None:
        kind = dtypes.parse(str(parameter.dtype)).numpy
        if not isinstance(argument, bool | int | float):
            raise self._error(f"{parameter.name} is {type(argument).__name__}, expected a number")
        whole = kind.kind in "iu"
        if whole and not np.iinfo(kind).min <= argument <= np.iinfo(kind).max:
            raise self._error(f"{parameter.name} is {argument}, which {kind} does not hold")
        value = np.asarray(argument, None if whole or kind.kind == "b" else np.float64)
        self.frame.set(self.translator.slots[parameter], dtypes.convert(value, kind)[()])

    def tensor(self, buffer: Node, tensor: Any) -> None:
        view = self.translator.view(buffer)
        raw, found = tensor_bytes(tensor)
        if found != view.element and not _same_storage(found, view.element):
            raise self._error(f"{view.name} has dtype {found.name}; expected {view.element.name}")
        if tensor.dim() != len(buffer.shape):
            raise self._error(f"{view.name} has {tensor.dim()} dimensions; expected {len(buffer.shape)}")
        for axis, (want, have) in enumerate(zip(buffer.shape, tensor.shape, strict=True)):
            self._match(f"{view.name}: size of dimension {axis}", want, int(have))
        for axis, want in enumerate(buffer.strides):
            if tensor.shape[axis] > 1 or type(want).__name__ == "Var":
                self._match(f"{view.name}: stride of dimension {axis}", want, tensor.stride(axis))
        memory = Memory.of_tensor(view.name, raw, tensor.data_ptr())
        if self.frame.sanitizer is not None:
            granule = self.translator.narrowest[view.memory]
            self.frame.sanitizer.watch(memory, granule, written=view.name not in self.unwritten)
        self.frame.memories[view.memory] = memory

    def _match(self, what: str, want: Node, have: int) -> None:
        """Bind a symbol to a size, or compare the size with what is known."""
        if type(want).__name__ != "Var":
            expected = int(np.asarray(self.translator.expr(want)(self.frame)).flat[0])
            if expected != have:
                raise self._error(f"{what} is {have}; expected {expected}")
            return
        slot = self.translator.slots[want]
        known, where = self.known.setdefault(slot, (have, what))
        if known != have:
            raise self._error(f"{what} is {have}; {where} says that {want.name} is {known}")
        self.frame.set(slot, np.dtype(str(want.dtype)).type(have))

    def _error(self, message: str) -> InterpretError:
        return InterpretError(f"{self.name}: {message}")


def _same_storage(found: ElementType, wanted: ElementType) -> bool:
    """Whether a tensor may stand for a type that PyTorch has no name for: bytes for packed 4-bit floats."""
    return {found.name, wanted.name} <= {"int8", "uint8", "float4_e2m1fn", "bool"}


def tensor_bytes(tensor: Any) -> tuple[Array, ElementType]:
    """The bytes that a tensor's elements lie in, from its first to its last, and its element type."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise InterpretError(f"got {type(tensor).__name__}, expected a PyTorch tensor")
    if tensor.device.type != "cpu":
        raise InterpretError(f"got a tensor on {tensor.device}, expected one on the CPU")
    name = str(tensor.dtype).removeprefix("torch.")
    element = dtypes.parse({"float4_e2m1fn_x2": "uint8"}.get(name, name))
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0
    flat = tensor.detach().as_strided((reach,), (1,), tensor.storage_offset())
    return flat.view(torch.uint8).numpy(), element
