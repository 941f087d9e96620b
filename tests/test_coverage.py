from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tkc import coverage
from tkc.coverage import Coverage, ask, cover, every_specialization
from tkc.errors import ArgumentError
from tkc.grids import load_grid
from tkc.model import (
    Calls,
    ConstAxis,
    Digest,
    DType,
    Host,
    KernelSpec,
    ModelDims,
    Role,
    Span,
    Target,
    TensorArg,
)
from tkc.registry import Catalog, Operator, load_catalog, operators
from tkc.runtime import KernelTable

SM90, HOST = Target.parse("sm90"), Host.parse("x86_64")
GRIDS = ("smoke", "deepseek-v3")


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.level1
def test_no_legal_call_of_a_grid_misses(grid: str) -> None:
    found = cover(load_grid(grid), SM90, HOST, grid=grid)
    assert [str(hole) for hole in found.holes] == []
    assert {kernel.spec for kernel in found.kernels} == {entry.spec.name for entry in load_catalog()}


@pytest.mark.parametrize("grid", ["deepseek-v4", "full"])
@pytest.mark.level2
def test_no_legal_call_of_a_larger_grid_misses(grid: str) -> None:
    assert [str(hole) for hole in cover(load_grid(grid), SM90, HOST, grid=grid).holes] == []


@pytest.mark.level1
def test_each_specialization_that_is_left_out_of_a_grid_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove from the grid, one by one, everything that a walk asks for: each time there is a hole that names it."""
    dims = load_grid("smoke")
    walked = {one for walk in cover(dims, SM90, HOST).walks for one in walk.asked}
    complete = KernelSpec.specializations
    for missing in sorted(walked, key=str):
        spec = load_catalog().find(missing.spec).spec
        if frozenset(complete(spec, dims)) >= every_specialization(spec):
            continue  # the grid holds all that there is, so no walk has to reach this kernel

        def without(self: KernelSpec, models: Iterable[ModelDims], missing: object = missing) -> tuple:
            return tuple(one for one in complete(self, models) if one != missing)

        users = [operator for operator in operators() if missing.spec in operator.uses()]
        monkeypatch.setattr(KernelSpec, "specializations", without)
        found = cover(dims, SM90, HOST, found_operators=users, catalog=_only(missing.spec))
        assert [hole.why for hole in found.holes] == [f"asks for {missing}, which the grid lacks"]
        monkeypatch.setattr(KernelSpec, "specializations", complete)


def _only(name: str) -> Catalog:
    return Catalog({name: load_catalog().find(name)})


def test_the_first_hole_ends_the_walk_and_makes_the_command_fail(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"hidden_size": 100, "num_experts": 5000, "num_experts_per_tok": 8}))
    command = [sys.executable, "-m", "tkc", "coverage", "--target", "sm90", "--model", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "5000" in done.stdout + done.stderr


# A walk, on operators whose answers are known


def _spec(name: str, values: tuple[object, ...], built: tuple[object, ...]) -> KernelSpec:
    return KernelSpec(
        name=name,
        summary="a test",
        definition="none",
        const=(ConstAxis("kind", values, "a test"),),
        var=(),
        specialize=lambda kind: {"kind": kind},
        arguments=lambda specialization: (TensorArg("x", ("n",), DType.FLOAT32, Role.INOUT),),
        grid=lambda dims: [{"kind": kind} for kind in built],
    )


class Entry:
    """A catalogue entry of a spec that has no files."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.backends = (SM90.backend,)

    def source_digest(self, backend: object) -> Digest:
        return Digest.of_bytes(self.spec.name.encode())


class Described:
    """An operator that is described here."""

    name = "demo.op"
    has_calls = True

    def __init__(self, spec: KernelSpec, describe: Callable[[ModelDims], Iterable[Calls]]) -> None:
        self._spec, self._describe = spec, describe

    def uses(self) -> frozenset[str]:
        return frozenset({self._spec.name})

    def calls(self) -> Callable[[ModelDims], Iterable[Calls]]:
        return self._describe


def walk(
    choose: Callable[..., object],
    values: tuple[object, ...] = ("a", "b", "c"),
    built: tuple[object, ...] = ("a", "b"),
    **domains: object,
) -> Coverage:
    """Cover one operator that asks for the kernel of kind ``choose(…)``, or for none if that is None."""
    spec = _spec("demo.kernel", values, built)
    table = KernelTable(spec)

    def call(**parameters: object) -> None:
        kind = choose(**parameters)
        if kind is not None:
            table[torch.device("meta"), False, kind](torch.empty(1, device="meta"))

    operator = Described(spec, lambda dims: [Calls(call, **domains)])  # type: ignore[arg-type]
    return cover(
        [ModelDims("model", 1)],
        SM90,
        HOST,
        catalog=Catalog({spec.name: Entry(spec)}),  # type: ignore[dict-item]
        found_operators=[operator],  # type: ignore[list-item]
    )


@pytest.mark.parametrize("at", [1, 2, 200, 4097, 100_003, 2**20 + 12345, 2**31 - 1])
def test_the_very_number_at_which_the_answer_changes_is_found(at: int) -> None:
    found = walk(lambda n: "a" if n < at else "b", n=Span(0, 2**31 - 1))
    assert not found.holes
    points = found.walks[0].breakpoints["n"]
    assert {at - 1, at} - {0, 2**31 - 1} == set(points)
    assert found.walks[0].looked_at < 700


def test_a_hole_behind_a_breakpoint_is_found_with_its_first_call() -> None:
    found = walk(lambda n: "a" if n < 100_003 else "c", n=Span(0, 2**31 - 1))
    (hole,) = found.holes
    assert hole.call == "model: n=100003"
    assert hole.why == "asks for demo.kernel kind=c, which the grid lacks"


def test_a_hole_that_two_sizes_open_together_is_found() -> None:
    """Neither span has it while the other is at an end: breakpoints of one are walked for the other."""

    def choose(rows: int, columns: int) -> str:
        return "c" if 1000 <= rows < 3000 and columns > 70_000 else "a" if rows < 1000 else "b"

    found = walk(choose, rows=Span(0, 10_000), columns=Span(0, 100_000))
    assert found.holes[0].why == "asks for demo.kernel kind=c, which the grid lacks"
    assert "rows=1000, columns=70001" in found.holes[0].call


def test_a_remainder_decides_among_small_numbers_too() -> None:
    found = walk(lambda n: "a" if n % 16 == 0 else "b" if n % 2 else "c", n=Span(0, 2**20))
    assert found.holes[0].call == "model: n=2"


def test_few_values_are_all_tried() -> None:
    found = walk(lambda flag, name: "c" if flag and name == "y" else "a", flag=(False, True), name=("x", "y"))
    assert [hole.call for hole in found.holes] == ["model: flag=True, name=y"]
    assert len(found.walks) == 4


def test_calls_that_the_operator_refuses_are_no_legal_calls() -> None:
    def choose(n: int) -> str:
        if n > 1000:
            raise ArgumentError("too many", argument="n")
        return "a"

    found = walk(choose, n=Span(0, 10**6))
    assert not found.holes
    assert found.walks[0].breakpoints["n"] == (1000, 1001)


def test_a_description_of_which_nothing_is_legal_proves_nothing() -> None:
    def choose(n: int) -> str:
        raise ArgumentError("never", argument="n")

    assert "refused at every point" in walk(choose, n=Span(0, 3)).holes[0].why


def test_a_description_that_is_wrong_is_a_hole_and_not_a_proof() -> None:
    def choose(n: int) -> str:
        return {0: "a"}[n]

    (hole,) = walk(choose, n=Span(0, 3)).holes
    assert hole.call == "model: n=1"
    assert "cannot be walked: KeyError" in hole.why


def test_a_value_that_the_spec_does_not_know_is_a_hole() -> None:
    (hole,) = walk(lambda n: "zzz", n=Span(0, 3)).holes
    assert "kind is 'zzz'; expected one of a, b, c" in hole.why


def test_a_grid_that_holds_all_that_the_spec_allows_needs_no_walk() -> None:
    found = walk(lambda n: "c", built=("a", "b", "c"), n=Span(0, 3))
    assert (found.holes, found.walks) == ((), ())
    assert [kernel.method for kernel in found.kernels] == ["exhausted"]


def test_an_operator_that_does_not_say_its_calls_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Described, "has_calls", False)
    (hole,) = walk(lambda n: "a", n=Span(0, 3)).holes
    assert hole.why == "has no calls.py, and the grid does not hold all of demo.kernel"


def test_a_kernel_that_no_operator_uses_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Described, "uses", lambda self: frozenset())
    (hole,) = walk(lambda n: "a", n=Span(0, 3)).holes
    assert hole.why == "no operator uses it, and the grid does not hold all of it"


def test_a_kernel_without_a_variant_for_the_target_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cover(load_grid("smoke"), Target.parse("ascend950"), HOST, found_operators=[])
    assert any(hole.why == "has no variant for ascend950" for hole in found.holes)


def test_a_missing_artifact_is_a_hole_with_the_reason() -> None:
    found = cover(load_grid("smoke"), SM90, HOST, holds=lambda request: "not in this wheel", first_only=True)
    (hole,) = found.holes
    assert hole.why == "no artifact: not in this wheel"


def test_nothing_is_loaded_or_launched_while_operators_are_walked() -> None:
    from kernel_specs.moe import topk_gate

    before = list(topk_gate.__globals__["_KERNELS"])
    asked = ask(lambda: topk_gate(torch.empty(4, 256, device="meta"), 8), {})
    assert asked is not None
    assert [str(one) for one in asked] == ["moe.topk_gate max_experts=256"]
    assert list(topk_gate.__globals__["_KERNELS"]) == before


def test_the_certificate_carries_digests_and_changes_with_what_it_says() -> None:
    found = walk(lambda n: "a", n=Span(0, 3))
    certificate = found.certificate()
    assert certificate["covered"] is True
    assert [one["request"][:7] for one in certificate["kernels"][0]["artifacts"]] == ["sha256:", "sha256:"]
    assert found.certificate() == certificate
    assert replace(found, grid="other").certificate()["digest"] != certificate["digest"]
    body = {name: value for name, value in certificate.items() if name != "digest"}
    assert str(Digest.of_fields(coverage.SCHEMA, body)) == certificate["digest"]


def test_every_operator_that_needs_it_says_its_calls() -> None:
    """What a new kernel lacks if it was forgotten: docs/adding-a-kernel.md."""
    open_kernels = {
        entry.spec.name
        for entry in load_catalog()
        if not frozenset(entry.spec.specializations(load_grid("deepseek-v3"))) >= every_specialization(entry.spec)
    }
    silent = [one.name for one in operators() if one.uses() & open_kernels and not one.has_calls]
    assert silent == []


def test_spans_that_are_empty_are_refused() -> None:
    with pytest.raises(ValueError, match="is empty"):
        Span(3, 2)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "torch", None)
    yield


def test_without_torch_the_command_says_so(no_torch: None) -> None:
    from tkc.errors import TkcError

    with pytest.raises(TkcError, match="any build of it will do"):
        cover(load_grid("smoke"), SM90, HOST)


def test_operators_are_found_with_the_kernels_that_they_use() -> None:
    found = {operator.name: operator for operator in operators()}
    assert isinstance(found["moe.topk_gate"], Operator)
    assert found["moe.topk_gate"].uses() == {"moe.topk_gate"}
    assert found["moe.top2_sum_gate"].uses() == {"moe.moe_topk_gate_forward"}
