"""Tile-level programs: copies, fills, reductions, scans, reducers, parallel loops."""

# ruff: noqa: F821 — TileLang annotations are expressions, not names.
import pytest
import tilelang.language as T
import torch

from tkc.interpret import InterpretError, interpret

ROWS, COLUMNS = 4, 48


def rows_through_fragments():
    num_rows, stride = T.dynamic("num_rows"), T.dynamic("stride")

    @T.prim_func
    def scaled(
        x: T.StridedTensor[(num_rows, COLUMNS), (stride, 1), "bfloat16"],
        largest: T.Tensor[(num_rows,), "float32"],
        out: T.Tensor[(num_rows, COLUMNS), "float8_e4m3fn"],
        scale: T.float32,
    ):
        with T.Kernel(T.ceildiv(num_rows, ROWS), threads=64) as block:
            tile = T.alloc_fragment((ROWS, COLUMNS), "float32")
            amax = T.alloc_fragment((ROWS,), "float32")
            T.copy(x[block * ROWS, 0], tile)
            T.reduce_absmax(tile, amax, dim=1)
            T.copy(amax, largest[block * ROWS])
            for i, j in T.Parallel(ROWS, COLUMNS):
                out[block * ROWS + i, j] = T.cast(tile[i, j] * scale, "float8_e4m3fn")

    return scaled


@pytest.mark.parametrize("num_rows", [0, 1, 4, 7, 130])
def test_partial_tiles_are_read_as_zero_and_not_written_beyond_the_end(num_rows):
    x = torch.randn(num_rows, COLUMNS + 5).to(torch.bfloat16)[:, :COLUMNS]
    largest, out = torch.full((num_rows,), -1.0), torch.zeros(num_rows, COLUMNS).to(torch.float8_e4m3fn)
    interpret(rows_through_fragments(), x, largest, out, 300.0)
    assert torch.equal(largest, x.float().abs().amax(1))
    assert torch.equal(out.float(), (x.float() * 300).clamp(-448, 448).to(torch.float8_e4m3fn).float())


def test_chunks_of_blocks_give_what_the_whole_grid_gives():
    x = torch.randn(130, COLUMNS).to(torch.bfloat16)
    results = []
    for chunk_bytes in (1, 1 << 20):
        largest, out = torch.zeros(130), torch.zeros(130, COLUMNS).to(torch.float8_e4m3fn)
        interpret(rows_through_fragments(), x, largest, out, 1.0, chunk_bytes=chunk_bytes)
        results.append((largest, out.view(torch.uint8)))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


def reductions(kind: str, dim: int, clear: bool):
    shape = (COLUMNS,) if dim == 0 else (ROWS,)

    @T.prim_func
    def reduced(x: T.Tensor[(ROWS, COLUMNS), "float32"], out: T.Tensor[shape, "float32"]):
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment((ROWS, COLUMNS), "float32")
            result = T.alloc_fragment(shape, "float32")
            T.copy(x, tile)
            T.fill(result, 3.0)
            if kind == "sum":
                T.reduce_sum(tile, result, dim=dim, clear=clear)
            elif kind == "max":
                T.reduce_max(tile, result, dim=dim, clear=clear)
            elif kind == "min":
                T.reduce_min(tile, result, dim=dim, clear=clear)
            else:
                T.reduce_abssum(tile, result, dim=dim)
            T.copy(result, out)

    return reduced


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "abssum"])
def test_reductions_start_afresh_or_from_what_is_there(kind, dim, clear):
    x = torch.randn(ROWS, COLUMNS)
    out = torch.zeros(COLUMNS if dim == 0 else ROWS)
    interpret(reductions(kind, dim, clear), x, out)
    start = torch.full_like(out, 3.0)
    want = {
        "sum": x.sum(dim) + (0 if clear else start),
        "max": x.amax(dim) if clear else torch.maximum(x.amax(dim), start),
        "min": x.amin(dim) if clear else torch.minimum(x.amin(dim), start),
        "abssum": x.abs().sum(dim),
    }[kind]
    torch.testing.assert_close(out, want)


@T.prim_func
def running_totals(x: T.Tensor[(2, 24), "float32"], out: T.Tensor[(2, 24), "float32"]):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((2, 24), "float32")
        T.copy(x, tile)
        T.cumsum(tile, dim=1, reverse=True)
        T.copy(tile, out)


def test_a_reversed_running_sum_starts_at_the_end():
    x, out = torch.randn(2, 24), torch.zeros(2, 24)
    interpret(running_totals, x, out)
    torch.testing.assert_close(out, x.flip(1).cumsum(1).flip(1))


@T.prim_func
def with_reducer(x: T.Tensor[(8, 40), "float32"], sums: T.Tensor[(8,), "float32"], largest: T.Tensor[(40,), "float32"]):
    with T.Kernel(1, threads=64):
        total = T.alloc_reducer((8,), "float32", op="sum")
        highest = T.alloc_reducer((40,), "float32", op="max")
        total_out = T.alloc_fragment((8,), "float32")
        highest_out = T.alloc_fragment((40,), "float32")
        T.reducer_init(total, 1.0)
        T.reducer_init(highest)
        for i, j in T.Parallel(8, 40):
            T.reducer_update(total[i], x[i, j])
            T.reducer_update(highest[j], x[i, j])
        for i, _ in T.Parallel(8, 2):
            T.reducer_update(total[i], 0.5)
        T.finalize_reducer(total, total_out)
        T.finalize_reducer(highest, highest_out)
        T.copy(total_out, sums)
        T.copy(highest_out, largest)


def test_each_iteration_contributes_once_to_a_reducer():
    x, sums, largest = torch.randn(8, 40), torch.zeros(8), torch.zeros(40)
    interpret(with_reducer, x, sums, largest)
    torch.testing.assert_close(sums, x.sum(1) + 2)
    assert torch.equal(largest, x.amax(0))


@T.prim_func
def atomics_between_blocks(
    x: T.Tensor[(6, 16), "int32"], out: T.Tensor[(16,), "int32"], count: T.Tensor[(1,), "int32"]
):
    with T.Kernel(6, threads=32) as block:
        tile = T.alloc_fragment((16,), "int32")
        T.copy(x[block, 0:16], tile)
        for i in T.Parallel(16):
            T.atomic_add(out[i], tile[i])
        T.atomic_add(count[0], 1)


def test_an_atomic_runs_once_an_iteration_or_once_a_thread():
    x = torch.randint(-9, 9, (6, 16), dtype=torch.int32)
    out, count = torch.zeros(16, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    interpret(atomics_between_blocks, x, out, count)
    assert torch.equal(out, x.sum(0).to(torch.int32))
    assert count.item() == 6 * 32


@T.prim_func
def tiles_added(x: T.Tensor[(6, 16), "float32"], out: T.Tensor[(20,), "float32"]):
    with T.Kernel(6, threads=32) as block:
        tile = T.alloc_shared((16,), "float32")
        T.copy(x[block, 0:16], tile)
        T.atomic_add(out[2:18], tile)


def test_a_tile_is_added_atomically_where_it_belongs():
    x, out = torch.randint(-9, 9, (6, 16)).float(), torch.zeros(20)
    interpret(tiles_added, x, out, sanitize=True)
    assert torch.equal(out[2:18], x.sum(0))
    assert out[[0, 1, 18, 19]].tolist() == [0] * 4


@T.prim_func
def scratch_of_an_iteration(x: T.Tensor[(64,), "float32"], out: T.Tensor[(64,), "float32"]):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            total = T.alloc_var("float32")
            total = 0.0
            for k in T.serial(i % 4 + 1):
                total = total + x[i] * T.cast(k + 1, "float32")
            out[i] = total


def test_locals_of_a_parallel_loop_belong_to_its_iterations():
    x, out = torch.randn(64), torch.zeros(64)
    interpret(scratch_of_an_iteration, x, out, sanitize=True)
    factor = torch.tensor([1.0, 3.0, 6.0, 10.0]).repeat(16)
    torch.testing.assert_close(out, x * factor)


@T.prim_func
def persistent(x: T.Tensor[(12, 8), "float32"], out: T.Tensor[(12, 8), "float32"]):
    with T.Kernel(5, threads=32) as block:
        for i, j in T.Persistent([12, 4], 5, block):
            for k in T.Parallel(2):
                out[i, j * 2 + k] = x[i, j * 2 + k] + 1.0


def test_a_persistent_loop_visits_every_tile_once():
    x, out = torch.randn(12, 8), torch.zeros(12, 8)
    interpret(persistent, x, out)
    assert torch.equal(out, x + 1)


@T.prim_func
def thread_index_in_a_tile(out: T.Tensor[(32,), "int32"]):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            out[i] = T.get_thread_binding() + i


def test_a_tile_level_loop_that_asks_for_its_thread_is_refused():
    with pytest.raises(InterpretError, match=r"tile-level.*\n.*in: out\[i\]"):
        interpret(thread_index_in_a_tile, torch.zeros(32, dtype=torch.int32))


@T.prim_func
def fragment_per_thread(out: T.Tensor[(32,), "float32"]):
    with T.Kernel(1, threads=32):
        tile = T.alloc_fragment((4,), "float32")
        tile[0] = T.cast(T.get_thread_binding(), "float32")
        out[0] = tile[0]


def test_threads_that_write_a_fragment_differently_are_refused():
    with pytest.raises(InterpretError, match="fragment tile belongs to the block"):
        interpret(fragment_per_thread, torch.zeros(32))
