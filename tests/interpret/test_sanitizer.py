"""Each planted fault is reported, with the kernel, the statement, the buffer and the element; clean programs pass."""

# ruff: noqa: F821 — TileLang annotations are expressions, not names.
import pytest
import tilelang.language as T
import torch

from tkc.interpret import FaultError, InterpretError, Report, interpret

UNGUARDED = {"tl.disable_safe_memory_legalize": True}
NO_BARRIERS = {"tl.disable_thread_storage_sync": True}


def the_report(program, *arguments, **options) -> Report:
    """The one report of a sanitized run."""
    with pytest.raises(FaultError) as caught:
        interpret(program, *arguments, sanitize=True, **options)
    (report,) = caught.value.reports
    assert report.kernel == program.attrs["global_symbol"]
    return report


@T.prim_func
def clean(x: T.Tensor[(64,), "float32"], out: T.Tensor[(64,), "float32"], total: T.Tensor[(1,), "float32"]):
    with T.Kernel(2, threads=32) as block:
        thread = T.get_thread_binding()
        shared = T.alloc_shared((32,), "float32")
        value = T.alloc_var("float32")
        shared[thread] = x[block * 32 + thread]
        T.sync_threads()
        value = shared[31 - thread]
        out[block * 32 + thread] = value
        T.atomic_add(total[0], value)


def test_a_clean_program_passes_with_and_without_the_compiler_s_barriers():
    x, out, total = torch.randn(64), torch.zeros(64), torch.zeros(1)
    interpret(clean, x, out, total, sanitize=True, unwritten=("out",))
    interpret(clean, x, out, total, sanitize=True, pass_configs=NO_BARRIERS | UNGUARDED)
    assert torch.equal(out, x.reshape(2, 32).flip(1).flatten())


@T.prim_func
def reads_past_shared(x: T.Tensor[(32,), "float32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        shared = T.alloc_shared((32,), "float32")
        shared[thread] = x[thread]
        T.sync_threads()
        x[thread] = shared[thread + 4]


def test_a_read_past_shared_memory_names_the_first_element():
    report = the_report(reads_past_shared, torch.zeros(32))
    assert (report.kind, report.buffer) == ("out of bounds", "shared")
    assert report.element == "[32], block 0, thread 28"
    assert report.statement == "x[thread] = shared[thread + 4]"


def test_without_the_sanitizer_a_read_past_shared_memory_stops_the_run():
    with pytest.raises(
        InterpretError, match=r"read outside shared.dyn buffer shared\[32\] at \[32\], block 0, thread 28"
    ):
        interpret(reads_past_shared, torch.zeros(32))


def writes_past_the_end():
    size = T.dynamic("size")

    @T.prim_func
    def late(out: T.Tensor[(size,), "float32"]):
        with T.Kernel(T.ceildiv(size, 32), threads=32) as block:
            out[block * 32 + T.get_thread_binding()] = 1.0

    return late


def test_a_write_past_device_memory_is_a_fault_only_where_no_pass_guards_it():
    out = torch.zeros(40)
    interpret(writes_past_the_end(), out, sanitize=True)
    assert out.eq(1).all()
    report = the_report(writes_past_the_end(), out, pass_configs=UNGUARDED)
    assert (report.kind, report.buffer, report.element) == ("out of bounds", "out", "[40], block 1, thread 8")


def test_a_constant_index_is_not_guarded():
    size = T.dynamic("size")

    @T.prim_func
    def fifth(x: T.Tensor[(size,), "float32"], out: T.Tensor[(1,), "float32"]):
        with T.Kernel(1, threads=32):
            out[0] = x[5]

    report = the_report(fifth, torch.zeros(3), torch.zeros(1))
    assert (report.kind, report.buffer) == ("out of bounds", "x")


@T.prim_func
def reads_nothing(out: T.Tensor[(32,), "float32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        values = T.alloc_local((4,), "float32")
        values[0] = 1.0
        out[thread] = values[0] + values[2]


def test_a_read_of_what_nothing_wrote_is_reported():
    report = the_report(reads_nothing, torch.zeros(32))
    assert (report.kind, report.buffer) == ("uninitialised", "values")
    assert report.element.startswith("[2]")


@T.prim_func
def carries_rubbish(x: T.Tensor[(32,), "float32"], out: T.Tensor[(32,), "float32"], size: T.int32):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        raw = T.alloc_local((2,), "float32")
        cooked = T.alloc_local((2,), "float32")
        for i in T.unroll(2):
            if thread * 2 + i < size:
                raw[i] = x[thread]
        for i in T.vectorized(2):
            cooked[i] = raw[i] * 2.0
        if thread * 2 < size:
            out[thread] = cooked[0] + cooked[1]


def test_rubbish_that_never_leaves_the_registers_is_none_of_our_business():
    """Only thread 2 adds an element that was never loaded, and only if the size is odd."""
    interpret(carries_rubbish, torch.zeros(32), torch.zeros(32), 6, sanitize=True)
    report = the_report(carries_rubbish, torch.zeros(32), torch.zeros(32), 5)
    assert (report.kind, report.buffer, report.element) == ("uninitialised", "cooked", "[1], block 0, thread 2")


@T.prim_func
def half_filled(x: T.Tensor[(32,), "float32"], out: T.Tensor[(32,), "float32"]):
    with T.Kernel(1, threads=32):
        tile = T.alloc_fragment((32,), "float32")
        for i in T.Parallel(16):
            tile[i] = x[i]
        T.copy(tile, out)


def test_a_tile_that_is_half_filled_is_reported_where_it_is_copied():
    report = the_report(half_filled, torch.zeros(32), torch.zeros(32))
    assert (report.kind, report.buffer) == ("uninitialised", "tile")
    assert report.element.startswith("[16]")
    assert report.statement.startswith("T.copy(")


@T.prim_func
def adds_to_nothing(out: T.Tensor[(32,), "float32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        out[thread] = out[thread] + 1.0


def test_an_output_that_is_read_first_is_reported():
    interpret(adds_to_nothing, torch.zeros(32), sanitize=True)
    assert the_report(adds_to_nothing, torch.zeros(32), unwritten=("out",)).kind == "uninitialised"


@T.prim_func
def blocks_collide(out: T.Tensor[(100,), "int32"]):
    with T.Kernel(4, threads=32) as block:
        out[block * 31 + T.get_thread_binding()] = block


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 24])
def test_two_blocks_writing_one_element_are_reported(chunk_bytes):
    """Also when the blocks run in chunks of their own."""
    report = the_report(blocks_collide, torch.zeros(125, dtype=torch.int32)[:100], chunk_bytes=chunk_bytes)
    assert (report.kind, report.buffer) == ("block conflict", "out")
    assert "[31]" in report.element


@T.prim_func
def races_in_a_branch(x: T.Tensor[(64,), "float32"], out: T.Tensor[(64,), "float32"]):
    with T.Kernel(1, threads=64):
        thread = T.get_thread_binding()
        shared = T.alloc_shared((64,), "float32")
        if thread < 48:
            shared[thread] = x[thread]
            if thread >= 16:
                out[thread] = shared[thread - 16]


def test_a_race_inside_a_branch_that_some_threads_take_is_reported():
    """The compiler can put no barrier there."""
    report = the_report(races_in_a_branch, torch.zeros(64), torch.zeros(64))
    assert (report.kind, report.buffer) == ("race", "shared")
    assert report.element == "[0], block 0, thread 16"
    assert "shared[thread - 16]" in report.statement


@T.prim_func
def forgets_the_barrier(x: T.Tensor[(64,), "float32"], out: T.Tensor[(64,), "float32"]):
    with T.Kernel(1, threads=64):
        thread = T.get_thread_binding()
        shared = T.alloc_shared((64,), "float32")
        shared[thread] = x[thread]
        out[thread] = shared[63 - thread]


def test_a_missing_barrier_is_a_race_where_the_compiler_adds_none():
    interpret(forgets_the_barrier, torch.zeros(64), torch.zeros(64), sanitize=True)
    report = the_report(forgets_the_barrier, torch.zeros(64), torch.zeros(64), pass_configs=NO_BARRIERS)
    assert (report.kind, report.buffer) == ("race", "shared")


@T.prim_func
def overwrites_too_early(x: T.Tensor[(64,), "float32"], out: T.Tensor[(64,), "float32"]):
    with T.Kernel(1, threads=64):
        thread = T.get_thread_binding()
        shared = T.alloc_shared((64,), "float32")
        shared[thread] = x[thread]
        T.sync_threads()
        out[thread] = shared[63 - thread]
        shared[thread] = 0.0


def test_overwriting_what_others_may_still_read_is_a_race():
    report = the_report(overwrites_too_early, torch.zeros(64), torch.zeros(64), pass_configs=NO_BARRIERS)
    assert (report.kind, report.statement) == ("race", "shared[thread] = T.float32(0.0)")


@T.prim_func
def warp_ordered(x: T.Tensor[(64,), "float32"], out: T.Tensor[(64,), "float32"]):
    with T.Kernel(1, threads=64):
        thread = T.get_thread_binding()
        shared = T.alloc_shared((2, 32), "float32")
        warp, lane = thread // 32, thread % 32
        shared[warp, lane] = x[thread]
        T.sync_warp()
        out[thread] = shared[warp, 31 - lane]


def test_a_warp_barrier_orders_the_threads_of_its_warp():
    interpret(warp_ordered, torch.zeros(64), torch.zeros(64), sanitize=True, pass_configs=NO_BARRIERS)


@T.prim_func
def iterations_collide(x: T.Tensor[(64,), "float32"]):
    with T.Kernel(1, threads=32):
        shared = T.alloc_shared((32,), "float32")
        for i in T.Parallel(64):
            shared[i // 2] = x[i]
        T.copy(shared, x[0])


def test_iterations_of_a_parallel_loop_that_write_one_element_differently_are_a_race():
    report = the_report(iterations_collide, torch.arange(64.0))
    assert (report.kind, report.buffer, report.element.split(",")[0]) == ("race", "shared", "[0]")


@T.prim_func
def unaligned(x: T.Tensor[(64,), "float32"], out: T.Tensor[(64,), "float32"]):
    with T.Kernel(1, threads=8):
        words = T.alloc_local((4,), "uint32")
        words[0:4] = T.ldg128(x[T.get_thread_binding() * 6])
        T.stg128(out[T.get_thread_binding() * 4], words[0:4])


def test_a_wide_access_off_its_boundary_is_reported():
    report = the_report(unaligned, torch.zeros(64), torch.zeros(64))
    assert (report.kind, report.buffer, report.element) == ("misaligned", "x", "[6], block 0, thread 1")


@T.prim_func
def overflowing(out: T.Tensor[(32,), "int32"], stride: T.int32):
    with T.Kernel(1, threads=32):
        row = T.get_thread_binding() * stride
        out[T.get_thread_binding()] = row


def test_an_index_that_overflows_int32_is_reported():
    interpret(overflowing, torch.zeros(32, dtype=torch.int32), 2**26, sanitize=True)
    report = the_report(overflowing, torch.zeros(32, dtype=torch.int32), 2**27)
    assert (report.kind, report.element) == ("overflow", "block 0, thread 16")
    assert "multiply of 16 and 134217728" in report.detail


@T.prim_func
def asserting(x: T.Tensor[(32,), "int32"]):
    with T.Kernel(1, threads=32):
        T.device_assert(x[T.get_thread_binding()] >= 0, "a negative count")


def test_a_failed_assertion_stops_the_run_and_is_reported_by_the_sanitizer():
    x = torch.zeros(32, dtype=torch.int32)
    interpret(asserting, x)
    x[9] = -1
    with pytest.raises(InterpretError, match="a negative count"):
        interpret(asserting, x)
    report = the_report(asserting, x)
    assert (report.kind, report.element) == ("assertion", "block 0, thread 9")
    assert "a negative count" in report.detail


@T.prim_func
def assuming(x: T.Tensor[(32,), "float32"], step: T.int32):
    with T.Kernel(1, threads=32):
        T.assume(step % 4 == 0)
        x[0] = 1.0


def test_an_assumption_that_does_not_hold_is_reported():
    interpret(assuming, torch.zeros(32), 8, sanitize=True)
    assert the_report(assuming, torch.zeros(32), 6).kind == "assumption"


@T.prim_func
def lonely_barrier(x: T.Tensor[(64,), "float32"]):
    with T.Kernel(1, threads=64):
        if T.get_thread_binding() < 32:
            T.sync_threads()
        x[T.get_thread_binding()] = 0.0


def test_a_barrier_that_only_some_threads_reach_is_reported():
    assert the_report(lonely_barrier, torch.zeros(64)).kind == "divergent barrier"


def test_several_faults_are_all_reported_once():
    @T.prim_func
    def twice(out: T.Tensor[(32,), "float32"], stride: T.int32):
        with T.Kernel(1, threads=32):
            values = T.alloc_local((2,), "float32")
            for i in T.serial(3):
                out[(T.get_thread_binding() * stride + i) % 32] = values[0]

    with pytest.raises(FaultError) as caught:
        interpret(twice, torch.zeros(32), 2**30, sanitize=True)
    assert sorted({report.kind for report in caught.value.reports}) == ["overflow", "uninitialised"]
    assert len(caught.value.reports) == 2
    assert "twice: uninitialised: values" in str(caught.value)
