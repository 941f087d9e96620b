"""Run a traced program: bind its arguments, cut the grid into chunks of blocks, run each chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tkc.interpret.arguments import bind
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import FaultError, InterpretError
from tkc.interpret.frame import Execute, Frame
from tkc.interpret.memory import Level, level_of
from tkc.interpret.sanitizer import Sanitizer
from tkc.interpret.shadow import NOBODY
from tkc.interpret.translate import Node, Semantics, Translator, one_line

CHUNK_BYTES = 192 << 20
"""Memory that the buffers and values of one chunk of blocks may take, about."""


def interpret(
    prim_func: Any,
    *arguments: Any,
    sanitize: bool = False,
    backend: str = "cuda",
    pass_configs: Mapping[str, Any] | None = None,
    unwritten: Sequence[str] = (),
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Run a TileLang function on the CPU; tensors are changed in place.

    Args:
        prim_func: the traced function, before lowering.
        arguments: for each parameter, in order: a PyTorch tensor on the CPU (any strides), None for a tensor that
            the function never touches, or a number.
        sanitize: look for faults, and raise FaultError with a report of each at the end.
        backend: whose arithmetic to follow where they differ: ``cuda``, ``ascend`` or ``cpu``.
        pass_configs: what the function is compiled with. Two of TileLang's passes change what a program does:
            the one that guards accesses to device memory, and the one that puts barriers between statements that
            share memory; either may be turned off.
        unwritten: names of tensors that hold nothing yet; the sanitizer reports reads of what was not written.
        chunk_bytes: memory that one chunk of blocks may take.

    Raises:
        UnsupportedError: naming the operation and the statement that the interpreter does not know.
        FaultError: if the sanitizer found faults.
        InterpretError: for arguments that do not fit, and for what no program may do.
    """
    program = Program.translate(prim_func, backend, pass_configs)
    program.run(arguments, sanitize=sanitize, unwritten=unwritten, chunk_bytes=chunk_bytes)


@dataclass(frozen=True)
class Kernel:
    """One launch of a function: its grid, by slot of each block index, extent and dtype; threads; what a block does."""

    grid: tuple[tuple[int, Execute, str], ...]
    threads: tuple[int, int, int]
    body: Execute


@dataclass
class Program:
    """A function, translated once; it can run many times. Its kernels run one after another."""

    name: str
    function: Node
    translator: Translator
    kernels: tuple[Kernel, ...]

    @classmethod
    def translate(cls, prim_func: Any, backend: str = "cuda", pass_configs: Mapping[str, Any] | None = None) -> Program:
        """Translate a function. Raises UnsupportedError for what the interpreter does not know."""
        import tkc.interpret.rules  # noqa: F401

        name = str(prim_func.attrs["global_symbol"]) if prim_func.attrs else "main"
        configs = pass_configs or {}
        translator = Translator(
            name,
            Semantics(
                backend,
                guards=not configs.get("tl.disable_safe_memory_legalize", False),
                barriers=not configs.get("tl.disable_thread_storage_sync", False),
            ),
        )
        for parameter in prim_func.params:
            if parameter not in prim_func.buffer_map:
                translator.slot(parameter)
        for buffer in prim_func.buffer_map.values():
            for size in (*buffer.shape, *buffer.strides):
                if type(size).__name__ == "Var":
                    translator.slot(size)
        for buffer in prim_func.buffer_map.values():
            translator.view(buffer)
        try:
            kernels = tuple(_kernel(translator, part) for part in _kernel_bodies(prim_func.body))
        except InterpretError as error:
            raise error.at(name, one_line(translator.here)) from None
        return cls(name, prim_func, translator, kernels)

    def run(
        self,
        arguments: Sequence[Any],
        *,
        sanitize: bool = False,
        unwritten: Sequence[str] = (),
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Run the whole grid on these arguments: see `interpret`."""
        sanitizer = Sanitizer(self.name, auto_barriers=self.translator.semantics.barriers) if sanitize else None
        launch = Frame(np.zeros(1, np.int64), (1, 1, 1), sanitizer, self.translator.semantics.guards)
        bind(self.name, self.function, self.translator, launch, arguments, frozenset(unwritten))
        with np.errstate(all="ignore"):
            try:
                for kernel in self.kernels:
                    self._run_kernel(kernel, launch, chunk_bytes)
            except InterpretError as error:
                raise error.at(self.name, one_line(launch.statement)) from None
        if sanitizer is not None and sanitizer.reports:
            raise FaultError("\n".join(str(report) for report in sanitizer.reports), sanitizer.reports)

    def _run_kernel(self, kernel: Kernel, launch: Frame, chunk_bytes: int) -> None:
        _forget_writers(launch)
        extents = [int(np.asarray(extent(launch)).flat[0]) for _, extent, _ in kernel.grid]
        total = int(np.prod(extents, dtype=np.int64))
        size = total if self.translator.whole_grid else self._blocks_at_once(kernel, launch, chunk_bytes)
        for first in range(0, total, max(size, 1)):
            _run_chunk(kernel, launch, np.arange(first, min(first + size, total)), extents)

    def _blocks_at_once(self, kernel: Kernel, launch: Frame, chunk_bytes: int) -> int:
        """How many blocks fit: their buffers, and some values as large as the largest of these."""
        count = kernel.threads[0] * kernel.threads[1] * kernel.threads[2]
        sizes = [1024]
        for view in self.translator.views.values():
            if level_of(view.scope) is Level.DEVICE:
                continue
            elements = int(np.prod(view.dims(launch), dtype=np.int64)) * max(view.element.bits // 8, 4)
            sizes.append(elements * (count if level_of(view.scope) is Level.THREAD else 1))
        per_block = sum(sizes) * (4 if launch.sanitizer else 1) + 8 * max(sizes) + 64 * count
        return max(1, chunk_bytes // per_block)


def _run_chunk(kernel: Kernel, launch: Frame, blocks: Array, extents: Sequence[int]) -> None:
    frame = Frame(blocks, kernel.threads, launch.sanitizer, launch.guards, variables=dict(launch.variables))
    frame.memories = dict(launch.memories)
    below = 1
    for (slot, _, kind), extent in zip(kernel.grid, extents, strict=True):
        index = (blocks // below % extent).astype(kind).reshape(-1, 1)
        frame.set(slot, index if len(blocks) > 1 else index[0, 0])
        below *= extent
    kernel.body(frame)


def _forget_writers(launch: Frame) -> None:
    """A kernel's blocks cannot be in conflict with those of the kernel before, which have ended."""
    for memory in launch.memories.values():
        if memory.shadow is not None and memory.shadow.writer is not None:
            memory.shadow.writer.fill(NOBODY)


def _kernel(translator: Translator, body: Node) -> Kernel:
    loops, threads, translator.inlined = _launch(body)
    extents = [translator.expr(loop.extent) for loop in loops]
    translator.inlined = {}
    execute = translator.stmt(body)
    slots = [translator.grid_slots[str(loop.thread_binding.thread_tag)] for loop in loops]
    kinds = [str(loop.loop_var.dtype) for loop in loops]
    return Kernel(tuple(zip(slots, extents, kinds, strict=True)), threads, execute)


def _kernel_bodies(body: Node) -> Sequence[Node]:
    """The statements that launch a kernel each, where a function is a sequence of them; else the whole of it."""
    inner = body
    while type(inner).__name__ in {"SBlockRealize", "SBlock"}:
        inner = inner.block if type(inner).__name__ == "SBlockRealize" else inner.body
    parts = list(inner.seq) if type(inner).__name__ == "SeqStmt" else []
    return parts if len(parts) > 1 and all(_launch(part)[0] for part in parts) else [body]


def _launch(body: Node) -> tuple[list[Node], tuple[int, int, int], dict[Any, Node]]:
    """The loops over the grid by name (x, y, z), the threads of a block, and what names stand for."""
    from tvm import tirx

    loops: list[Node] = []
    threads = [(1, 1, 1)]
    names: dict[Any, Node] = {}

    def visit(node: Any) -> None:
        kind = type(node).__name__
        if (
            kind == "For"
            and node.thread_binding is not None
            and str(node.thread_binding.thread_tag).startswith("blockIdx")
        ):
            loops.append(node)
        elif kind == "SBlock" and node.annotations.get("tl.launch_threads") is not None:
            x, y, z = (int(size) for size in node.annotations["tl.launch_threads"])
            threads[0] = (x, y, z)
        elif kind == "Bind":
            names[node.var] = node.value

    tirx.stmt_functor.post_order_visit(body, visit)
    loops.sort(key=lambda loop: str(loop.thread_binding.thread_tag))
    return loops, threads[0], names
