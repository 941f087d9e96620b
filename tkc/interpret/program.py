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


@dataclass
class Program:
    """A function, translated once; it can run many times."""

    name: str
    function: Node
    translator: Translator
    body: Execute
    grid: tuple[tuple[str, Any, Any], ...]
    threads: tuple[int, int, int]

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
            loops, threads, translator.inlined = _launch(prim_func.body)
            grid = tuple(
                (str(loop.thread_binding.thread_tag), translator.expr(loop.extent), str(loop.loop_var.dtype))
                for loop in loops
            )
            translator.inlined = {}
            body = translator.stmt(prim_func.body)
        except InterpretError as error:
            raise error.at(name, one_line(translator.here)) from None
        return cls(name, prim_func, translator, body, grid, threads)

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
                extents = [int(np.asarray(extent(launch)).flat[0]) for _, extent, _ in self.grid]
                total = int(np.prod(extents, dtype=np.int64))
                size = total if self.translator.whole_grid else self._blocks_at_once(launch, chunk_bytes, sanitizer)
                for first in range(0, total, max(size, 1)):
                    self._run_chunk(launch, np.arange(first, min(first + size, total)), extents)
            except InterpretError as error:
                raise error.at(self.name, one_line(launch.statement)) from None
        if sanitizer is not None and sanitizer.reports:
            raise FaultError("\n".join(str(report) for report in sanitizer.reports), sanitizer.reports)

    def _run_chunk(self, launch: Frame, blocks: Array, extents: Sequence[int]) -> None:
        frame = Frame(blocks, self.threads, launch.sanitizer, launch.guards, variables=dict(launch.variables))
        frame.memories = dict(launch.memories)
        below = 1
        for (tag, _, kind), extent in zip(self.grid, extents, strict=True):
            index = (blocks // below % extent).astype(kind).reshape(-1, 1)
            frame.set(self.translator.grid_slots[tag], index if len(blocks) > 1 else index[0, 0])
            below *= extent
        self.body(frame)

    def _blocks_at_once(self, launch: Frame, chunk_bytes: int, sanitizer: Sanitizer | None) -> int:
        """How many blocks fit: their buffers, and some values as large as the largest of these."""
        count = self.threads[0] * self.threads[1] * self.threads[2]
        sizes = [1024]
        for view in self.translator.views.values():
            if level_of(view.scope) is Level.DEVICE:
                continue
            elements = int(np.prod(view.dims(launch), dtype=np.int64)) * max(view.element.bits // 8, 4)
            sizes.append(elements * (count if level_of(view.scope) is Level.THREAD else 1))
        per_block = sum(sizes) * (4 if sanitizer else 1) + 8 * max(sizes) + 64 * count
        return max(1, chunk_bytes // per_block)


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
