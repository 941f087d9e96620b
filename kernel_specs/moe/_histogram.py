"""How often each group occurs among indices, for kernels: blocks count slices of them, then the counts are added.

No count depends on the order of anything, nor on how many multiprocessors there are.
"""

from typing import Any

import tilelang.language as T

THREADS = 256
_BATCH = 4
"""Indices that a thread loads before it counts the first."""
_ROOM = 4096
"""Groups that one pass over the indices can count."""
_COLUMNS = 32


@T.macro
def count_slice(indices: Any, partial_counts: Any, block: Any, threads: int) -> None:
    """Count a block's slice of the indices into its row of `partial_counts`; what is no group is not counted."""
    counts = T.alloc_shared((_ROOM,), "int32")
    thread = T.get_thread_binding()
    given = T.alloc_local((_BATCH,), "int64")
    first, size, base, room = (T.alloc_var("int32") for _ in range(4))
    size = T.truncdiv(indices.shape[0] + partial_counts.shape[0] - 1, partial_counts.shape[0])
    first = block * size
    size = T.min(size, indices.shape[0] - first)
    for chunk in T.serial(T.ceildiv(partial_counts.shape[1], _ROOM)):
        base = chunk * _ROOM
        room = T.min(partial_counts.shape[1] - base, _ROOM)
        for i in T.serial(T.ceildiv(room, threads)):
            if i * threads + thread < room:
                counts[i * threads + thread] = 0
        T.sync_threads()
        for step in T.serial(T.ceildiv(size, threads * _BATCH)):
            for i in T.unroll(_BATCH):
                place = (step * _BATCH + i) * threads + thread
                given[i] = T.int64(-1)
                if place < size:
                    given[i] = indices[first + place] - T.cast(base, "int64")
            for i in T.unroll(_BATCH):
                if given[i] >= T.int64(0) and given[i] < T.cast(room, "int64"):
                    T.atomic_add(counts[T.cast(given[i], "int32")], 1)
        T.sync_threads()
        for i in T.serial(T.ceildiv(room, threads)):
            if i * threads + thread < room:
                partial_counts[block, base + i * threads + thread] = counts[i * threads + thread]
        T.sync_threads()


@T.macro
def add_counts(partial_counts: Any, block: Any, threads: int) -> Any:
    """The count of group ``block * 32 + thread``, for the first 32 threads of a block of `threads`."""
    sums = T.alloc_shared((threads // _COLUMNS, _COLUMNS), "int32")
    row, column = T.get_thread_binding() // _COLUMNS, T.get_thread_binding() % _COLUMNS
    total = T.alloc_var("int32")
    total = 0
    for i in T.serial(T.ceildiv(partial_counts.shape[0], threads // _COLUMNS)):
        slice_of = i * (threads // _COLUMNS) + row
        if slice_of < partial_counts.shape[0] and block * _COLUMNS + column < partial_counts.shape[1]:
            total += partial_counts[slice_of, block * _COLUMNS + column]
    sums[row, column] = total
    T.sync_threads()
    total = 0
    for i in T.unroll(threads // _COLUMNS):
        total += sums[i, column]
    return total


def num_reducing_blocks(num_groups: Any) -> Any:
    """Blocks that `add_counts` needs."""
    return T.ceildiv(num_groups, _COLUMNS)
