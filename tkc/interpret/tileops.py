"""Operations on whole tiles: copy, fill, reduce, scan, reducers, matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from tkc.interpret import dtypes, values
from tkc.interpret.access import BufferView, load, store, uniform_int
from tkc.interpret.atomics import atomic
from tkc.interpret.dtypes import Array
from tkc.interpret.errors import InterpretError
from tkc.interpret.frame import Evaluate, Frame
from tkc.interpret.memory import Level, level_of
from tkc.interpret.translate import Node, Region, Translator, annotations_of, call, is_region

_HINTS = frozenset(
    [
        "coalesced_width",
        "disable_tma",
        "eviction_policy",
        "l2_cache_ctrl",
        "force_cp_async",
        "parallel_loop_layout",
        "loop_layout",
        "is_async_copy",
        "prefer_instruction",
        "batch",
        "enable_fadd2",
        "no_implicit_async_commit_wait",
    ]
)


def check_hints(translator: Translator, node: Node, *also: str) -> None:
    """Raise UnsupportedError for an annotation that could change what an operation means."""
    for name in annotations_of(node):
        if name not in _HINTS and name not in also:
            raise translator.unsupported(f"the annotation {name} of {node.op.name}")


def each_threads(*views: BufferView) -> bool:
    """Whether an operation on these buffers is each thread's own, as it is on local buffers."""
    return any(level_of(view.scope) is Level.THREAD for view in views)


def extents_of(frame: Frame, region: Region) -> tuple[int, ...]:
    """How far a region reaches along each dimension."""
    return tuple(uniform_int(extent(frame), region.view.name) for extent in region.extents)


@contextmanager
def box(frame: Frame, sizes: Sequence[int], *, tile: bool) -> Iterator[list[Array]]:
    """Open an axis for each size; gives the positions along each, all of the same rank."""
    with ExitStack() as stack:
        depth = frame.depth
        positions = [stack.enter_context(frame.axis(size, tile=tile)) for size in sizes]
        yield [frame.lift(p, depth + 1 + axis) for axis, p in enumerate(positions)]


def at(frame: Frame, region: Region, positions: Sequence[Array | None]) -> tuple[Array, ...]:
    """Indices of a region's elements; None stands for the start."""
    starts = (start(frame) for start in region.starts)
    return tuple(
        start if position is None else np.asarray(start + position).astype(np.int64)
        for start, position in zip(starts, positions, strict=True)
    )


def spread_over(sizes: Sequence[int], positions: Sequence[Array]) -> list[Array | None]:
    """Give positions to the dimensions that are longer than one, in order."""
    rest = iter(positions)
    return [next(rest) if size != 1 else None for size in sizes]


def read_region(frame: Frame, region: Region, positions: Sequence[Array]) -> Array:
    """All elements of a region, along axes that are open."""
    value = load(frame, region.view, at(frame, region, list(positions)))
    shape = np.broadcast_shapes(value.shape, *(p.shape for p in positions))
    return np.broadcast_to(value, shape)


@call("tl.tileop.copy", "tl.tileop.async_copy", "tl.tileop.ascend_copy")
def _copy(translator: Translator, node: Node) -> Evaluate:
    check_hints(translator, node)
    source, target = translator.region(node.args[0]), translator.region(node.args[1])
    return lambda frame: copy(frame, source, target)


def copy(frame: Frame, source: Region, target: Region, combine: Callable[..., Array] | None = None) -> None:
    """Copy a region into another of the same size, dimensions of one aside, converting elements."""
    sizes, into = extents_of(frame, source), extents_of(frame, target)
    long = [size for size in sizes if size != 1]
    if long != [size for size in into if size != 1]:
        raise InterpretError(f"copy of a region of {list(sizes)} elements into one of {list(into)}")
    if 0 in long:
        return
    kind = target.view.element.numpy
    with box(frame, long, tile=not each_threads(source.view, target.view)) as positions:
        value = load(frame, source.view, at(frame, source, spread_over(sizes, positions)))
        where = at(frame, target, spread_over(into, positions))
        if combine is None:
            store(frame, target.view, where, dtypes.convert(value, kind))
        else:
            atomic(frame, target.view, where, value, combine, False)


@call("tl.tileop.atomicadd", "tl.tileop.atomicmax", "tl.tileop.atomicmin")
def _atomic_tile(translator: Translator, node: Node) -> Evaluate:
    combine = {"add": values.add, "max": values.maximum, "min": values.minimum}[str(node.op.name)[-3:]]
    check_hints(translator, node, "use_tma", "memory_order")
    target = translator.region(node.args[1])
    if not is_region(node.args[0]):
        raise translator.unsupported(f"{node.op.name} of a value that is not a region")
    source = translator.region(node.args[0])
    return lambda frame: copy(frame, source, target, combine)


@call("tl.tileop.fill")
def _fill(translator: Translator, node: Node) -> Evaluate:
    check_hints(translator, node)
    target, value = translator.region(node.args[0]), translator.expr(node.args[1])

    def evaluate(frame: Frame) -> None:
        sizes = extents_of(frame, target)
        if 0 in sizes:
            return
        with box(frame, sizes, tile=not each_threads(target.view)) as positions:
            store(
                frame,
                target.view,
                at(frame, target, positions),
                dtypes.convert(np.asarray(value(frame)), target.view.element.numpy),
            )

    return evaluate


@call("tl.tileop.transpose")
def _transpose(translator: Translator, node: Node) -> Evaluate:
    check_hints(translator, node)
    source, target = translator.region(node.args[0]), translator.region(node.args[1])

    def evaluate(frame: Frame) -> None:
        with box(frame, extents_of(frame, source), tile=not each_threads(source.view, target.view)) as positions:
            value = load(frame, source.view, at(frame, source, positions))
            swapped = [*positions[:-2], positions[-1], positions[-2]]
            store(frame, target.view, at(frame, target, swapped), dtypes.convert(value, target.view.element.numpy))

    return evaluate


@call("tl.tileop.gemm")
def _gemm(translator: Translator, node: Node) -> Evaluate:
    check_hints(translator, node)
    left, right, target = (translator.region(argument) for argument in node.args[:3])
    swap_left, swap_right = (bool(argument.value) for argument in node.args[3:5])
    clear = translator.expr(node.args[9])

    def evaluate(frame: Frame) -> None:
        a, b = _matrix(frame, left, swap_left), _matrix(frame, right, swap_right)
        element = target.view.element.numpy
        product = dtypes.convert(np.matmul(a, b), element)
        with box(frame, extents_of(frame, target), tile=True) as positions:
            where = at(frame, target, positions)
            if not bool(np.asarray(clear(frame)).flat[0]):
                product = values.add(load(frame, target.view, where), product)
            store(frame, target.view, where, product)

    return evaluate


def _matrix(frame: Frame, region: Region, swap: bool) -> Array:
    """A region as matrices, one a block, of the type that products are summed in."""
    if frame.depth:
        raise InterpretError("T.gemm inside a loop that runs all at once")
    with box(frame, extents_of(frame, region), tile=True) as positions:
        value = dtypes.widen(read_region(frame, region, positions))
    value = value if dtypes.is_float(value.dtype) else value.astype(np.int32)
    return value.swapaxes(-1, -2) if swap else value
