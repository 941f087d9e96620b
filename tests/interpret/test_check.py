# ruff: noqa: F821 — TileLang annotations are expressions, not names.
"""A variant is compared with its reference; what fails says why, and nothing else is hidden by it."""

from pathlib import Path
from types import ModuleType

import pytest
import tilelang.language as T
import torch

from tkc.errors import TargetError
from tkc.grids import load_grid
from tkc.interpret.check import check, check_variant
from tkc.model import (
    Backend,
    ConstAxis,
    DType,
    KernelSpec,
    ModelDims,
    Role,
    ScalarArg,
    Target,
    TensorArg,
    Tolerance,
    VarAxis,
)
from tkc.registry import Catalog, CatalogEntry, find_entry

SM90 = Target.parse("sm90")
FACTORS = (2, 3)


def build(factor: int, *, reads_late: bool = False):
    size = T.dynamic("size")

    @T.prim_func
    def scale(x: T.Tensor[(size,), "float32"], out: T.Tensor[(size,), "float32"], bias: T.float32):
        with T.Kernel(T.ceildiv(size, 32), threads=32) as block:
            index = block * 32 + T.get_thread_binding()
            if index < size:
                if reads_late:
                    out[index] = out[index] + x[index] * T.float32(factor) + bias
                else:
                    out[index] = x[index] * T.float32(factor) + bias

    return scale


class Entry(CatalogEntry):
    """A kernel that needs no folder; `variant_module` and `reference_module` stand for its files."""

    variant_module: ModuleType
    reference_module: ModuleType

    backends = (Backend.CUDA,)

    def variant(self, backend):
        return self.variant_module

    def reference(self):
        return self.reference_module


BITWISE = Tolerance()


def entry(build_variant, tolerance: Tolerance = BITWISE, wrong_by: float = 0.0) -> Entry:
    def specialize(factor: int):
        return {"factor": factor}

    def arguments(specialization):
        return (
            TensorArg("x", ("size",), DType.FLOAT32),
            TensorArg("out", ("size",), DType.FLOAT32, Role.OUT),
            ScalarArg("bias", DType.FLOAT32),
        )

    def samples(specialization, seed):
        generator = torch.Generator().manual_seed(seed)
        for size in (0, 1, 40):
            yield {"x": torch.randn(size, generator=generator), "out": torch.full((size,), float("nan")), "bias": 0.5}

    def expected(specialization, args):
        return {"out": args["x"] * specialization["factor"] + args["bias"] + wrong_by}

    spec = KernelSpec(
        name="demo.scale",
        summary="Scale and shift.",
        definition="x * factor + bias",
        const=(ConstAxis("factor", FACTORS, "a test"),),
        var=(VarAxis("size", "elements"),),
        specialize=specialize,
        arguments=arguments,
        grid=lambda dims: [{"factor": factor} for factor in FACTORS],
        tolerance={"out": tolerance},
    )
    found = Entry(spec, "demo", Path("demo"))
    variant, reference = ModuleType("variant"), ModuleType("reference")
    variant.build = build_variant
    reference.samples, reference.expected = samples, expected
    object.__setattr__(found, "variant_module", variant)
    object.__setattr__(found, "reference_module", reference)
    return found


def test_each_output_of_each_sample_is_compared():
    one = entry(lambda specialization, target: build(specialization.int("factor")))
    results = check_variant(one, one.spec.specialization({"factor": 3}), SM90)
    assert [(r.sample, r.output, r.ok, r.variant) for r in results] == [
        (number, "out", True, "sm90, interpreted") for number in range(3)
    ]


def test_a_wrong_number_fails_unless_the_tolerance_allows_it():
    def variant(specialization, target):
        return build(specialization.int("factor"))

    strict, loose = entry(variant, wrong_by=0.001), entry(variant, Tolerance(atol=0.01), wrong_by=0.001)
    specialization = strict.spec.specialization({"factor": 2})
    assert [r.ok for r in check_variant(strict, specialization, SM90)] == [True, False, False]
    results = check_variant(loose, specialization, SM90)
    assert all(r.ok for r in results)
    assert results[2].max_error == pytest.approx(0.001, rel=1e-3)


def test_a_fault_fails_the_sample_that_shows_it_and_says_which_statement():
    one = entry(lambda specialization, target: build(2, reads_late=True))
    specialization = one.spec.specialization({"factor": 2})
    results = check_variant(one, specialization, SM90, sanitize=True)
    assert [r.ok for r in results] == [True, False, False]
    assert "uninitialised" in results[1].detail and "out[index]" in results[1].detail


def test_a_variant_that_cannot_be_interpreted_gives_one_failed_result():
    @T.prim_func
    def unknown(x: T.Tensor[(8,), "float32"]):
        with T.Kernel(1, threads=32):
            x[0] = T.call_extern("float32", "mystery")

    one = entry(lambda specialization, target: unknown)
    (result,) = check_variant(one, one.spec.specialization({"factor": 2}), SM90)
    assert not result.ok and "mystery" in result.detail


def test_a_target_that_the_variant_refuses_is_no_failure():
    def refuse(specialization, target):
        raise TargetError("not on this target")

    one = entry(refuse)
    assert check_variant(one, one.spec.specialization({"factor": 2}), SM90) == []


def test_checking_a_catalogue_visits_every_specialization_of_the_targets_that_a_kernel_has():
    one = entry(lambda specialization, target: build(specialization.int("factor")))
    catalog = Catalog({"demo.scale": one})
    results = list(check(catalog, ["demo"], [SM90, Target.parse("cpu")], [ModelDims("any", 64)]))
    assert len(results) == len(FACTORS) * 3
    assert {r.variant for r in results} == {"sm90, interpreted"}


@pytest.mark.parametrize("name", ["transpose.batched_transpose", "quant.per_token_cast"])
def test_running_loops_all_at_once_changes_no_bit(name, monkeypatch):
    """The same kernel with every thread-level loop run one iteration after another."""
    one = find_entry(name)
    specialization = one.spec.specializations(load_grid("smoke"))[0]
    assert all(result.ok for result in check_variant(one, specialization, SM90))
    monkeypatch.setattr("tkc.interpret.loops.iterations_are_independent", lambda loop: False)
    results = check_variant(one, specialization, SM90)
    assert results and all(result.ok for result in results)
