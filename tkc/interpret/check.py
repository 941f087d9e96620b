"""Compare a variant, interpreted on the CPU, with its reference on the reference's own samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tkc.errors import TkcError
from tkc.interpret.errors import InterpretError
from tkc.interpret.program import Program
from tkc.interpret.sanitizer import Sanitizer
from tkc.model import ModelDims, Role, Specialization, Target, TensorArg, Tolerance
from tkc.registry import Catalog, CatalogEntry


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one output of one sample compares with the reference, or why it could not be had.

    Attributes:
        sample: number of the sample.
        output: name of the argument; empty if the variant did not run.
        error: largest absolute difference; NaN and infinities count as infinite where they differ.
        excess: how far the worst element is beyond its tolerance, as a multiple of it; at most 1 passes.
        mismatches: elements beyond their tolerance, of `elements`.
        message: what went wrong, or empty.
    """

    specialization: Specialization
    target: str
    sample: int
    output: str
    tolerance: Tolerance
    error: float
    excess: float
    mismatches: int
    elements: int
    message: str = ""

    @property
    def passed(self) -> bool:
        return not self.message and not self.mismatches

    def __str__(self) -> str:
        allowed = "bitwise" if self.tolerance == Tolerance() else f"rtol {self.tolerance.rtol:g} atol {self.tolerance.atol:g}"
        verdict = "ok" if self.passed else self.message or f"{self.mismatches} of {self.elements} elements differ"
        return f"{self.specialization} --target {self.target} sample {self.sample} {self.output}: error {self.error:g} ({allowed}) {verdict}"


def check(
    catalog: Catalog,
    names: Sequence[str],
    targets: Sequence[Target],
    dims: Iterable[ModelDims],
    *,
    seed: int = 0,
    sanitize: bool = False,
) -> Iterator[CheckResult]:
    """Check the variants of the kernels named (none: all) for each target that they support."""
    dims = tuple(dims)
    for entry in catalog.select(tuple(names)):
        for target in targets:
            if target.backend in entry.backends:
                for specialization in entry.spec.specializations(dims):
                    yield from check_variant(entry, specialization, target, seed=seed, sanitize=sanitize)


def check_variant(
    entry: CatalogEntry,
    specialization: Specialization,
    target: Target,
    *,
    seed: int = 0,
    sanitize: bool = False,
) -> list[CheckResult]:
    """Run a variant on every sample of its reference, and compare each output.

    A variant that cannot be traced or interpreted gives one result that says why; it raises nothing.
    """
    variant, reference = entry.variant(target.backend), entry.reference()
    configs = dict(getattr(variant, "PASS_CONFIGS", {}))
    try:
        program = Program.translate(variant.build(specialization, target), target.backend.value, configs)
    except TkcError as error:
        return [_failed(specialization, target, 0, str(error))]
    results: list[CheckResult] = []
    for number, arguments in enumerate(reference.samples(specialization, seed)):
        try:
            expected = reference.expected(specialization, arguments)
            _run(program, entry, specialization, arguments, sanitize)
        except InterpretError as error:
            results.append(_failed(specialization, target, number, str(error)))
            continue
        for name, want in expected.items():
            tolerance = entry.spec.tolerance.get(name, Tolerance())
            figures = compare(arguments[name], want, tolerance)
            results.append(CheckResult(specialization, target.name, number, name, tolerance, *figures))
    return results


def _run(
    program: Program, entry: CatalogEntry, specialization: Specialization, arguments: Mapping[str, Any], sanitize: bool
) -> None:
    declared = entry.spec.arguments(specialization)
    outputs = [a.name for a in declared if isinstance(a, TensorArg) and a.role is Role.OUT]
    program.run([arguments[argument.name] for argument in declared], sanitize=sanitize, unwritten=outputs)


def _failed(specialization: Specialization, target: Target, sample: int, message: str) -> CheckResult:
    return CheckResult(specialization, target.name, sample, "", Tolerance(), float("inf"), float("inf"), 0, 0, message)


def compare(got: Any, want: Any, tolerance: Tolerance) -> tuple[float, float, int, int]:
    """Largest error, excess over the tolerance, elements beyond it, and elements in all."""
    import torch

    if tuple(got.shape) != tuple(want.shape) or got.dtype != want.dtype:
        return float("inf"), float("inf"), max(got.numel(), 1), max(got.numel(), 1)
    if not got.numel():
        return 0.0, 0.0, 0, 0
    if tolerance == Tolerance():
        return _compare_bits(got, want)
    left, right = got.to(torch.float64), want.to(torch.float64)
    same = (left == right) | (left.isnan() & right.isnan())
    error = torch.where(same, 0.0, (left - right).abs()).nan_to_num(nan=float("inf"), posinf=float("inf"))
    allowed = tolerance.atol + tolerance.rtol * right.abs().nan_to_num(posinf=0.0)
    excess = torch.where(error == 0, 0.0, error / allowed)
    return float(error.max()), float(excess.max()), int((error > allowed).sum()), got.numel()


def _compare_bits(got: Any, want: Any) -> tuple[float, float, int, int]:
    """Bits must agree, except that any NaN is as good as another."""
    import torch

    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    different = got.contiguous().view(raw) != want.contiguous().view(raw)
    if got.is_floating_point():
        left, right = got.to(torch.float64), want.to(torch.float64)
        different &= ~(left.isnan() & right.isnan())
    else:
        left, right = got, want
    if not different.any():
        return 0.0, 0.0, 0, got.numel()
    gap = (left[different].to(torch.float64) - right[different].to(torch.float64)).abs()
    error = float(gap.nan_to_num(nan=float("inf")).max())
    return error, float("inf"), int(different.sum()), got.numel()
