"""How often each group occurs among indices, for kernels: blocks count slices of them, then the counts are added.

No count depends on the order of anything, nor on how many multiprocessors there are. With few indices there is one
slice, whose counts are the result: no memory is needed for partial counts, and the kernel that adds has no block.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import tilelang.language as T

from kernel_specs._cuda import once

THREADS = 256
_BATCH = 4
"""Indices that a thread loads before it counts the first."""
_ROOM = 4096
"""Groups that one pass over the indices can count."""
_COLUMNS = 32
"""Groups whose counts one block adds."""

Result: TypeAlias = Callable[[Any], Any]
"""What is written for a group with this count."""


def num_counting_blocks(partial_counts: Any, num_groups: Any) -> Any:
    """Blocks that count, one for each slice."""
    return T.max(1, T.truncdiv(partial_counts.shape[0], num_groups))


def num_adding_blocks(partial_counts: Any, num_groups: Any) -> Any:
    """Blocks that add: none if there are no partial counts."""
    return T.min(1, partial_counts.shape[0]) * T.ceildiv(num_groups, _COLUMNS)


@T.macro
def count_slice(indices: Any, partial_counts: Any, results: Any, result: Result, block: Any) -> None:
    """Count a block's slice of the indices; what is no group is not counted.

    The counts go into the block's part of `partial_counts` or, if that is empty, what `result` makes of them into
    `results`.
    """
    counts = T.alloc_shared((_ROOM,), "int32")
    given = T.alloc_local((_BATCH,), "int64")
    first, size, base, room = (T.alloc_var("int32") for _ in range(4))
    num_indices, num_groups = indices.shape[0] * indices.shape[1], results.shape[0]
    num_slices, thread = num_counting_blocks(partial_counts, num_groups), T.get_thread_binding()
    flat = T.view(indices, (indices.shape[0] * indices.shape[1],))
    size = T.truncdiv(num_indices + num_slices - 1, num_slices)
    first = block * size
    size = T.min(size, num_indices - first)
    for chunk in once(T.ceildiv(num_groups, _ROOM)):
        base = chunk * _ROOM
        room = T.min(num_groups - base, _ROOM)
        for i in once(T.ceildiv(room, THREADS)):
            if i * THREADS + thread < room:
                counts[i * THREADS + thread] = 0
        T.sync_threads()
        for step in T.serial(T.ceildiv(size, THREADS * _BATCH)):
            for i in T.unroll(_BATCH):
                place = (step * _BATCH + i) * THREADS + thread
                given[i] = T.int64(-1)
                if place < size:
                    given[i] = flat[first + place] - T.cast(base, "int64")
            for i in T.unroll(_BATCH):
                if given[i] >= T.int64(0) and given[i] < T.cast(room, "int64"):
                    T.atomic_add(counts[T.cast(given[i], "int32")], 1)
        T.sync_threads()
        if partial_counts.shape[0] > 0:
            for i in once(T.ceildiv(room, THREADS)):
                if i * THREADS + thread < room:
                    partial_counts[block * num_groups + base + i * THREADS + thread] = counts[i * THREADS + thread]
        else:
            for i in once(T.ceildiv(room, THREADS)):
                if i * THREADS + thread < room:
                    results[base + i * THREADS + thread] = result(counts[i * THREADS + thread])
        T.sync_threads()


@T.macro
def add_slices(partial_counts: Any, results: Any, result: Result, block: Any) -> None:
    """Write what `result` makes of the sums of a block's columns of `partial_counts`."""
    sums = T.alloc_shared((THREADS // _COLUMNS, _COLUMNS), "int32")
    num_groups = results.shape[0]
    row, column = T.get_thread_binding() // _COLUMNS, T.get_thread_binding() % _COLUMNS
    group, total = block * _COLUMNS + column, T.alloc_var("int32")
    total = 0
    for i in T.serial(T.ceildiv(num_counting_blocks(partial_counts, num_groups), THREADS // _COLUMNS)):
        place = (i * (THREADS // _COLUMNS) + row) * num_groups + group
        if place < partial_counts.shape[0] and group < num_groups:
            total += partial_counts[place]
    sums[row, column] = total
    T.sync_threads()
    total = 0
    for i in T.unroll(THREADS // _COLUMNS):
        total += sums[i, column]
    if row == 0 and group < num_groups:
        results[group] = result(total)
