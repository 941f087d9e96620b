"""The operators, run on the CPU through the loader: right for any call, safe with bad values, and clear errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernel_specs import moe
from kernel_specs import torch as reference
from kernel_specs.moe._indices import room_for_partial_counts
from tkc.errors import ArgumentError
from tkc.runtime import dispatch

pytestmark = [pytest.mark.level1, pytest.mark.usefixtures("on_cpu")]

LOGITS = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
BIAS = torch.zeros(64)
SOME = torch.tensor([True, False, True, True, False, True])


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, on_cpu: None) -> None:
    monkeypatch.setenv("TKC_CHECK", "1")
    dispatch.forget_settings()


@pytest.mark.parametrize("scoring_func", ["sqrtsoftplus", "sigmoid", "softmax"])
def test_both_gates_reach_one_kernel(scoring_func: str) -> None:
    replicas = torch.randperm(65 * 3, generator=torch.Generator().manual_seed(1)).view(65, 3).int()
    mapped = {"to_physical_map": replicas, "logical_count": torch.arange(65).int() % 3 + 1}
    for function in ("moe_topk_gate", "moe_topk_gate_forward"):
        args = (LOGITS, 8, True, 1, 2.5, 5, scoring_func, SOME, BIAS)
        _same(getattr(moe, function)(*args, **mapped), getattr(reference, function)(*args, **mapped))
    args = (LOGITS, BIAS, 8, 4, 8, True, 1, 2.5, 0, 8, 1, 4, scoring_func)
    _same(moe.top2_sum_gate(*args, **mapped), reference.top2_sum_gate(*args, **mapped))


def test_the_gate_fills_what_it_is_given() -> None:
    ours, theirs = ({"scores": torch.full((6, 64), 7.0), "unmapped_topk_idx": torch.full((6, 8), 7)} for _ in range(2))
    out = (torch.zeros(6, 8, dtype=torch.int64), torch.zeros(6, 8))
    got = moe.moe_topk_gate(LOGITS, 8, False, 0, 1.0, 0, force_random=SOME, out=out, **ours)
    _same(got, reference.moe_topk_gate(LOGITS, 8, False, 0, 1.0, 0, force_random=SOME, **theirs))
    assert got[0] is out[0] and got[1] is out[1]
    assert torch.equal(ours["unmapped_topk_idx"], theirs["unmapped_topk_idx"])
    assert torch.allclose(ours["scores"], theirs["scores"])


def test_non_finite_logits_and_biases_leave_as_many_different_picks() -> None:
    """The peer's assertion ends the process; a bias of minus infinity leaves it no candidate."""
    logits = torch.full((3, 64), float("nan"))
    logits[1] = float("-inf")
    for bias in (None, torch.full((64,), float("-inf")), torch.full((64,), float("nan"))):
        picked, _ = moe.moe_topk_gate(logits, 8, False, 0, 1.0, 0, scoring_func="sigmoid", bias=bias)
        assert all(len(set(row)) == 8 and min(row) >= 0 and max(row) < 64 for row in picked.tolist())


def test_bad_indices_touch_nothing_and_count_for_nothing() -> None:
    bad = torch.tensor([[0, -5, 2**40], [1, 64, 1]])
    assert moe.group_count(bad, 64)[:2].tolist() == [1, 2] and int(moe.group_count(bad, 64).sum()) == 3
    positions = moe.get_fused_mapping(bad, 64, 0, 1)[3]
    assert positions.tolist() == [[0, -1, -1], [1, -1, 2]]
    x = torch.randn(2, 8)
    expanded = moe.expand_to_fused(x, torch.tensor([[0, 99], [-7, 1]]).int(), torch.tensor([3, 3, -1]).int())
    assert torch.equal(expanded, torch.cat([x, torch.zeros(1, 8)]))
    reduced = moe.reduce_fused(x.bfloat16(), None, torch.tensor([[0, 99], [-7, 1]]).int())
    assert torch.equal(reduced, x.bfloat16())


def test_an_expert_picked_twice_gets_both_gradients() -> None:
    args = (torch.rand(1, 64), torch.tensor([[3, 3, -1, 64]]), torch.rand(1, 4), torch.rand(1, 4), 1.5, "sigmoid")
    grads = moe.moe_topk_gate_backward(*args)
    assert torch.allclose(grads, reference.moe_topk_gate_backward(*args), rtol=1e-4, atol=1e-6)
    assert torch.equal(grads, moe.moe_topk_gate_backward(*args))


@pytest.mark.parametrize("num_tokens", [0, 1, 300])
def test_laying_out_and_summing_up_is_what_the_references_say(num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    topk_idx = torch.randint(-1, 16, (num_tokens, 6), generator=generator)
    for arguments in ((16, 0, 8), (17, 0, 8, True), (16, 3000, 64)):
        ours, theirs = (f.get_fused_mapping(topk_idx, *arguments) for f in (moe, reference))
        assert ours[-1] == theirs[-1]
        assert all(torch.equal(a, b) for a, b in zip(ours[:-1], theirs[:-1], strict=True))
    experts, _, _, positions = moe.get_fused_mapping(topk_idx, 16, 0, 8)[:4]
    for dtype in (torch.bfloat16, torch.int8, torch.float64):
        x = torch.randint(-99, 99, (num_tokens, 40), generator=generator).to(dtype)
        ours, theirs = (f.expand_to_fused(x, positions, experts) for f in (moe, reference))
        assert torch.equal(ours, theirs)
    data, sf = torch.zeros(num_tokens, 256).to(torch.float8_e4m3fn), torch.rand(num_tokens, 2, generator=generator)
    for by_columns in (False, True):
        ours, theirs = (
            f.expand_to_fused_with_sf((data, sf), 128, positions, experts, by_columns)[1] for f in (moe, reference)
        )
        assert torch.equal(ours, theirs) and (ours.stride() == theirs.stride() or not num_tokens)
    x = torch.randn(experts.numel(), 72, generator=generator).bfloat16()
    weights = torch.rand(num_tokens, 6, generator=generator)
    assert torch.equal(moe.reduce_fused(x, weights, positions), reference.reduce_fused(x, weights, positions))


@pytest.mark.parametrize("num_positions", [13, 16])
def test_columns_of_scale_factors_begin_at_16_bytes_and_own_their_padding(num_positions: int) -> None:
    """A tensor map over whole columns must not read past the storage."""
    data, sf = torch.zeros(2, 256).to(torch.float8_e4m3fn), torch.rand(2, 2)
    positions, experts = torch.tensor([[0], [12]]).int(), torch.zeros(num_positions).int()
    out_sf = moe.expand_to_fused_with_sf((data, sf), 128, positions, experts, True)[1]
    assert out_sf.shape == (num_positions, 2) and out_sf.stride() == (1, 16)
    assert out_sf.untyped_storage().nbytes() == 16 * 2 * 4
    assert torch.equal(out_sf[[0, 12]], sf)


def test_counting_operators_are_what_the_references_say() -> None:
    topk_idx = torch.randint(-1, 20, (700, 7), generator=torch.Generator().manual_seed(9))
    assert torch.equal(moe.group_count(topk_idx, 20), reference.group_count(topk_idx.flatten(), 20))
    assert torch.equal(moe.group_count(topk_idx.flatten(), 20), reference.group_count(topk_idx.flatten(), 20))
    many = torch.randint(-1, 20, (700, 3))  # enough for several slices
    assert torch.equal(moe.group_count(many, 20), reference.group_count(many.flatten(), 20))
    assert torch.equal(moe.aux_fi(many, 20, 3), reference.aux_fi(many, 20, 3))
    assert torch.equal(moe.aux_fi(topk_idx, 20, 7), reference.aux_fi(topk_idx, 20, 7))
    assert moe.aux_fi(topk_idx[:0], 20, 7).tolist() == [0.0] * 20
    assert int(moe.group_count(topk_idx, 2**20).sum()) == int((topk_idx >= 0).sum())
    masked = moe.mask_indices_by_tp(topk_idx, 20, 5, 1, 2)
    assert torch.equal(masked, reference.mask_indices_by_tp(topk_idx, 20, 5, 1, 2))
    ours, theirs = topk_idx.clone(), topk_idx.clone()
    moe.inplace_unique_group_indices(ours, 20)
    reference.inplace_unique_group_indices(theirs, 20)
    assert torch.equal(ours, theirs)
    scores = torch.randn(30, 8, 25, generator=torch.Generator().manual_seed(2))
    for num_sum in (1, 2):
        picked = moe.topk_sum_and_topk_group_idx(scores, num_sum, 3)
        assert torch.equal(picked, reference.topk_sum_and_topk_group_idx(scores, num_sum, 3))


_MORE_THAN_INT32 = torch.empty(2**16, 2**15, dtype=torch.int64, device="meta")

REFUSED: list[tuple[Callable[[], object], str, str]] = [
    (lambda: _gate(scoring_func="sigmoyd"), "scoring_func", "Did you mean 'sigmoid'"),
    (lambda: moe.moe_topk_gate(LOGITS, 0, False, 0, 1.0, 0), "num_topk", "expected 1 to 32"),
    (lambda: moe.moe_topk_gate(LOGITS, 32, True, 1, 1.0, 0), "num_topk", "32 together with 1 shared"),
    (lambda: moe.moe_topk_gate(LOGITS, 8, True, 0, 1.0, 0), "num_shared_experts", "expected 1"),
    (lambda: moe.moe_topk_gate(LOGITS, 8, False, 0, 1.0, -1), "ep_rank", "expected 0"),
    (lambda: _gate(mask=SOME[:5]), "mask", r"expected \[6\]"),
    (lambda: _gate(bias=BIAS.double()), "bias", "float64"),
    (lambda: _gate(image_bias=BIAS), "image_token_mask", "pass both"),
    (lambda: _gate(fix_routing_mask=SOME), "unmapped_topk_idx", "is None"),
    (lambda: _gate(logical_count=torch.ones(64).int()), "to_physical_map", "pass both"),
    (lambda: _top2(num_groups=7), "num_groups", "64 experts is a multiple"),
    (lambda: _top2(num_topk_groups=9), "num_topk_groups", "expected 1 to 8"),
    (lambda: _top2(num_topk=9, num_topk_groups=1), "num_topk", "1 groups of 8 experts"),
    (lambda: _top2(tp_rank=2, num_tp_ranks=2), "tp_rank", "expected 0"),
    (lambda: moe.group_count(torch.zeros(2, 2, dtype=torch.int64), 0), "num_groups", "at least 1"),
    (lambda: moe.group_count(_MORE_THAN_INT32, 8), "group_idx", r"less than 2\^31"),
    (lambda: moe.aux_fi(_MORE_THAN_INT32, 8, 1), "topk_idx", r"less than 2\^31"),
    (lambda: moe.mask_indices_by_tp(_MORE_THAN_INT32, 8, 1, 0, 1), "indices", r"less than 2\^31"),
    (lambda: moe.get_fused_mapping(torch.zeros(2, 2, dtype=torch.int64), 1025, 0, 8), "num_experts", "1 to 1024"),
    (lambda: moe.get_fused_mapping(torch.zeros(2, 2, dtype=torch.int64), 8, 0, 0), "alignment", "at least 1"),
    (lambda: moe.reduce_fused(LOGITS, None, torch.zeros(2, 2).int(), "e5m2"), "fp8_format", "e4m3"),
    (lambda: moe.reduce_fused(LOGITS, None, torch.zeros(2, 2).int(), "", BIAS[:1]), "sf", "e4m3 alone"),
]


@pytest.mark.parametrize(("call", "argument", "said"), REFUSED, ids=[f"{row[1]}: {row[2]}" for row in REFUSED])
def test_what_the_host_can_know_is_refused_by_name(call: Callable[[], object], argument: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as raised:
        call()
    assert raised.value.argument == argument


INT = torch.int64
CHECKED: list[tuple[Callable[[], object], str]] = [
    (lambda: moe.moe_topk_gate(LOGITS / 0, 8, False, 0, 1.0, 0), r"logits\[0, 0\] is"),
    (lambda: _gate(bias=BIAS.log()), r"bias\[0\] is -inf"),
    (lambda: _gate(**_replicas(0)), r"logical_count\[0\] is 0; expected 1 to 2"),
    (lambda: _gate(**_replicas(3)), r"logical_count\[0\] is 3"),
    (
        lambda: _gate(fix_routing_mask=SOME, unmapped_topk_idx=torch.full((6, 8), -1)),
        r"unmapped_topk_idx\[0, 0\] is -1",
    ),
    (lambda: moe.group_count(torch.tensor([[1, 8]]), 8), r"group_idx\[0, 1\] is 8; expected -1 to 7"),
    (lambda: moe.aux_fi(torch.tensor([[-2]]), 8, 1), r"topk_idx\[0, 0\] is -2"),
    (lambda: moe.get_fused_mapping(torch.tensor([[9]]), 8, 0, 1), r"topk_idx\[0, 0\] is 9"),
    (lambda: moe.get_fused_mapping(torch.zeros(9, 1, dtype=INT), 1, 8, 8), "the tokens need 16 positions"),
    (lambda: moe.expand_to_fused(LOGITS[:1], torch.tensor([[5]]).int(), torch.zeros(5).int()), r"topk_to_pos\[0, 0\]"),
    (lambda: moe.reduce_fused(LOGITS, None, torch.tensor([[6]]).int()), r"token_topk_to_pos\[0, 0\] is 6"),
    (lambda: moe.inplace_unique_group_indices(torch.tensor([[4]]), 4), r"group_indices\[0, 0\] is 4"),
]


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(("call", "said"), CHECKED, ids=[row[1] for row in CHECKED])
def test_checked_mode_names_the_value(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        call()


def _gate(scoring_func: str = "sigmoid", **optional: torch.Tensor) -> object:
    return moe.moe_topk_gate(LOGITS, 8, False, 0, 1.0, 0, scoring_func=scoring_func, **optional)


def _top2(
    num_topk: int = 8, num_topk_groups: int = 4, num_groups: int = 8, tp_rank: int = 0, num_tp_ranks: int = 1
) -> object:
    groups = (num_topk_groups, num_groups)
    return moe.top2_sum_gate(LOGITS, BIAS, num_topk, *groups, False, 0, 1.0, 0, 8, tp_rank, num_tp_ranks, "sigmoid")


def _replicas(count: int) -> dict[str, torch.Tensor]:
    return {"to_physical_map": torch.zeros(64, 2).int(), "logical_count": torch.full((64,), count).int()}


def _same(ours: tuple[torch.Tensor, torch.Tensor], theirs: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(ours[0], theirs[0])
    assert torch.allclose(ours[1], theirs[1], rtol=4e-6, atol=1e-12)


@pytest.mark.parametrize("num_groups", [1, 33, 2**24, 2**26, 2**30, 2**31 - 1])
def test_partial_counts_of_many_groups_stay_below_int32(num_groups: int) -> None:
    """A block numbers the counts of up to eight slices after the last one, too."""
    indices = torch.empty(2**10, 2**10, dtype=torch.int64, device="meta")
    room = room_for_partial_counts(indices, num_groups).shape[0]
    assert (room % num_groups == 0 and room + 8 * num_groups < 2**31) or room == 0
    assert room == 64 * num_groups or num_groups > 2**24
