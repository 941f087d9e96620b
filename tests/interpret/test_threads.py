"""Thread-level programs: indices, divergence, shuffles, votes, atomics, wide accesses, views."""

# ruff: noqa: F821 — TileLang annotations are expressions, not names.
import pytest
import tilelang.language as T
import torch

from tkc.interpret import InterpretError, interpret


@T.prim_func
def butterfly(x: T.Tensor[(2, 64), "float32"], out: T.Tensor[(2, 64), "float32"]):
    with T.Kernel(2, threads=64) as block:
        thread = T.get_thread_binding()
        value = T.alloc_var("float32")
        value = x[block, thread]
        for i in T.unroll(5):
            value = value + T.shfl_xor(value, 16 >> i)
        out[block, thread] = value


def test_a_butterfly_sums_each_warp_in_its_own_order():
    x, out = torch.randn(2, 64), torch.zeros(2, 64)
    interpret(butterfly, x, out)
    want = x.reshape(2, 2, 32)
    for distance in (16, 8, 4, 2, 1):
        want = want + want[:, :, torch.arange(32) ^ distance]
    assert torch.equal(out, want.reshape(2, 64))


@T.prim_func
def shuffles(out: T.Tensor[(4, 32), "int32"]):
    with T.Kernel(1, threads=32):
        lane = T.get_lane_idx()
        out[0, lane] = T.shfl_down(lane, 3)
        out[1, lane] = T.shfl_up(lane, 3)
        out[2, lane] = T.shfl_sync(lane * 10, 7)
        out[3, lane] = T.shfl_sync(lane * 10, 1, width=8)


def test_shuffles_beyond_the_edge_give_the_lane_its_own_value():
    out = torch.zeros(4, 32, dtype=torch.int32)
    interpret(shuffles, out)
    lane = torch.arange(32, dtype=torch.int32)
    assert torch.equal(out[0], torch.where(lane + 3 < 32, lane + 3, lane))
    assert torch.equal(out[1], torch.where(lane >= 3, lane - 3, lane))
    assert out[2].tolist() == [70] * 32
    assert torch.equal(out[3], lane // 8 * 80 + 10)


@T.prim_func
def votes(x: T.Tensor[(64,), "int32"], out: T.Tensor[(5, 64), "int32"]):
    with T.Kernel(1, threads=64):
        thread = T.get_thread_binding()
        value = x[thread]
        out[0, thread] = T.cast(T.ballot_sync(value > 0), "int32")
        out[1, thread] = T.cast(T.match_any_sync(value), "int32")
        out[2, thread] = T.cast(T.any_sync(value > 2), "int32")
        out[3, thread] = T.warp_reduce_max(value)
        out[4, thread] = T.__ffs(value)


def test_votes_count_the_lanes_of_a_warp():
    x = torch.randint(0, 4, (64,), dtype=torch.int32)
    out = torch.zeros(5, 64, dtype=torch.int32)
    interpret(votes, x, out)
    for warp in x.reshape(2, 32), out.reshape(5, 2, 32)[:, 0], out.reshape(5, 2, 32)[:, 1]:
        assert warp.shape[-1] == 32
    for number in range(2):
        values, found = x.reshape(2, 32)[number].tolist(), out.reshape(5, 2, 32)[:, number]
        mask = sum(1 << lane for lane, value in enumerate(values) if value > 0)
        assert {int(v) % 2**32 for v in found[0]} == {mask}
        matches = [sum(1 << j for j, other in enumerate(values) if other == value) for value in values]
        assert [int(v) % 2**32 for v in found[1]] == matches
        assert {bool(v) for v in found[2]} == {any(value > 2 for value in values)}
        assert {int(v) for v in found[3]} == {max(values)}
        assert found[4].tolist() == [(value & -value).bit_length() for value in values]


@T.prim_func
def divergent(x: T.Tensor[(32,), "int32"], out: T.Tensor[(32,), "int32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        steps = T.alloc_var("int32")
        left = T.alloc_var("int32")
        steps, left = 0, x[thread]
        while left != 1:
            if left % 2 == 0:  # noqa: SIM108
                left = left // 2
            else:
                left = 3 * left + 1
            steps = steps + 1
        out[thread] = steps


def test_threads_leave_a_loop_each_in_its_own_time():
    x, out = torch.arange(1, 33, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    interpret(divergent, x, out)

    def collatz(n):
        return 0 if n == 1 else 1 + collatz(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert out.tolist() == [collatz(n) for n in range(1, 33)]


@T.prim_func
def leaving(x: T.Tensor[(32,), "int32"], found: T.Tensor[(32,), "int32"], out: T.Tensor[(32,), "int32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        for i in T.serial(8):
            if x[thread] == i:
                T.loop_break()
            found[thread] = i
        if thread >= 20:
            T.thread_return()
        out[thread] = thread


def test_break_and_return_stop_only_the_threads_that_reach_them():
    x = torch.arange(32, dtype=torch.int32) % 11
    found, out = torch.full((32,), -1, dtype=torch.int32), torch.full((32,), -1, dtype=torch.int32)
    interpret(leaving, x, found, out)
    assert found.tolist() == [min(n, 8) - 1 for n in x.tolist()]
    assert out.tolist() == [n if n < 20 else -1 for n in range(32)]


@T.prim_func
def tickets(out: T.Tensor[(2, 64), "int32"], counter: T.Tensor[(1,), "int32"]):
    with T.Kernel(2, threads=64) as block:
        thread = T.get_thread_binding()
        mine = T.alloc_var("int32")
        if thread % 2 == 0:
            mine = T.atomic_add(counter[0], 1, return_prev=True)
            out[block, thread] = mine


def test_every_thread_draws_a_ticket_of_its_own():
    out, counter = torch.full((2, 64), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    interpret(tickets, out, counter)
    assert counter.item() == 64
    assert sorted(out[:, ::2].flatten().tolist()) == list(range(64))
    assert out[:, 1::2].eq(-1).all()


@T.prim_func
def wide(x: T.Tensor[(32, 8), "bfloat16"], out: T.Tensor[(32, 8), "bfloat16"], bits: T.Tensor[(32, 4), "uint32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        words = T.alloc_local((4,), "uint32")
        halves = T.view(words, (8,), "bfloat16")
        words[0:4] = T.ldg128(x[thread, 0])
        for i in T.vectorized(8):
            halves[i] = halves[i] * T.bfloat16(2)
        T.stg128(out[thread, 0], words[0:4])
        for i in T.vectorized(4):
            bits[thread, i] = words[i]


def test_wide_accesses_and_views_see_the_same_bytes():
    x = torch.randn(32, 8).to(torch.bfloat16)
    out, bits = torch.zeros_like(x), torch.zeros(32, 4, dtype=torch.uint32)
    interpret(wide, x, out, bits)
    assert torch.equal(out, x * 2)
    assert torch.equal(bits.view(torch.bfloat16), x * 2)


@T.prim_func
def packed_fours(x: T.Tensor[(32, 8), "float32"], out: T.Tensor[(32,), "uint32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        word = T.alloc_local((1,), "uint32")
        codes = T.view(word, (8,), "float4_e2m1fn")
        for i in T.serial(8):
            codes[i] = T.cast(x[thread, i], "float4_e2m1fn")
        out[thread] = word[0]


def test_four_bit_floats_share_bytes_low_nibble_first():
    x = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -6.0]).repeat(32, 1)
    out = torch.zeros(32, dtype=torch.uint32)
    interpret(packed_fours, x, out)
    assert {int(v) for v in out} == {0xF6543210}


@T.prim_func
def guarded_select(x: T.Tensor[(16,), "int32"], out: T.Tensor[(32,), "int32"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        shared = T.alloc_shared((16,), "int32")
        if thread < 16:
            shared[thread] = x[thread]
        T.sync_threads()
        out[thread] = T.if_then_else(thread < 16, shared[thread], -1)


def test_the_side_that_is_not_taken_is_not_read():
    x, out = torch.arange(16, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    interpret(guarded_select, x, out)
    assert out.tolist() == [*range(16), *[-1] * 16]


@T.prim_func
def hashes(x: T.Tensor[(32,), "uint32"], out: T.Tensor[(32,), "uint32"], small: T.Tensor[(32,), "int8"]):
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        h = T.alloc_var("uint32")
        h = x[thread] * T.uint32(0x5671D42B) + T.uint32(0x9995E499)
        h = (h ^ (h >> 23)) * T.uint32(0x7FEB352D)
        out[thread] = T.call_extern("uint32", "__byte_perm", h, x[thread], T.uint32(0x5140))
        small[thread] = T.cast(h, "int8") >> T.int8(2)


def test_unsigned_hashes_wrap_and_signed_shifts_keep_the_sign():
    x = torch.randint(0, 2**32, (32,), dtype=torch.int64)
    out, small = torch.zeros(32, dtype=torch.uint32), torch.zeros(32, dtype=torch.int8)
    interpret(hashes, x.to(torch.uint32), out, small)
    for value, got, byte in zip(x.tolist(), out.tolist(), small.tolist(), strict=True):
        h = (value * 0x5671D42B + 0x9995E499) % 2**32
        h = ((h ^ (h >> 23)) * 0x7FEB352D) % 2**32
        eight = [*h.to_bytes(4, "little"), *value.to_bytes(4, "little")]
        assert got == int.from_bytes(bytes(eight[i] for i in (0, 4, 1, 5)), "little")
        assert byte == int.from_bytes(bytes([h % 256]), "little", signed=True) >> 2


@T.prim_func
def endless(flag: T.Tensor[(2,), "int32"]):
    with T.Kernel(2, threads=32) as block:
        while flag[block] == 0:
            flag[1 - block] = 0


def test_a_loop_that_never_ends_is_an_error(monkeypatch):
    monkeypatch.setattr("tkc.interpret.frame.MAX_STEPS", 100)
    with pytest.raises(InterpretError, match="without ending"):
        interpret(endless, torch.zeros(2, dtype=torch.int32))
