"""Compare what a kernel wrote with what its reference says. torch is imported on use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tkc.model import KernelSpec, Role, Specialization, TensorArg, Tolerance

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One output of one launch, compared with the reference.

    Attributes:
        specialization: what ran.
        variant: where: a target, and ``interpreted`` or a device.
        sample: number of the sample input.
        output: name of the argument.
        ok: whether it is within tolerance everywhere.
        max_error: largest absolute difference; 0 if equal in every bit, infinite if the bits of a non-number differ.
        wrong: elements outside the tolerance.
        elements: elements compared.
        tolerance: what was allowed.
        detail: the first element outside, or why nothing could be compared.
    """

    specialization: Specialization
    variant: str
    sample: int
    output: str
    ok: bool
    max_error: float
    wrong: int
    elements: int
    tolerance: Tolerance
    detail: str = ""


def compare_outputs(
    spec: KernelSpec,
    specialization: Specialization,
    variant: str,
    sample: int,
    got: Mapping[str, Any],
    want: Mapping[str, torch.Tensor],
) -> Iterator[CheckResult]:
    """Compare every output argument of one launch; an output that the reference does not give is an error."""
    for argument in spec.arguments(specialization):
        if isinstance(argument, TensorArg) and argument.role is not Role.IN and got.get(argument.name) is not None:
            tolerance = spec.tolerance.get(argument.name, Tolerance())
            found = got[argument.name].detach().cpu()
            yield _compare(
                CheckResult(specialization, variant, sample, argument.name, True, 0.0, 0, found.numel(), tolerance),
                found,
                want[argument.name],
            )


def _compare(blank: CheckResult, got: torch.Tensor, want: torch.Tensor) -> CheckResult:
    from dataclasses import replace

    if got.shape != want.shape or got.dtype != want.dtype:
        detail = f"got {got.dtype} {tuple(got.shape)}, expected {want.dtype} {tuple(want.shape)}"
        return replace(blank, ok=False, max_error=float("inf"), wrong=got.numel(), detail=detail)
    outside, max_error = _outside(got, want, blank.tolerance)
    wrong = int(outside.sum())
    if not wrong:
        return replace(blank, max_error=max_error)
    first = tuple(int(index) for index in outside.nonzero()[0])
    detail = f"at {list(first)}: got {got[first].item()!r}, expected {want[first].item()!r}"
    return replace(blank, ok=False, max_error=max_error, wrong=wrong, detail=detail)


def _outside(got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> tuple[torch.Tensor, float]:
    """Which elements are not equal in every bit, nor within tolerance; and the largest error."""
    import torch

    equal = _bits(got) == _bits(want)
    if bool(equal.all()):
        return ~equal, 0.0
    error = (got.to(torch.float64) - want.to(torch.float64)).abs()
    allowed = tolerance.atol + tolerance.rtol * want.to(torch.float64).abs()
    if tolerance == Tolerance():
        outside = ~equal
    else:
        both_nan = got.isnan() & want.isnan() if got.is_floating_point() else equal
        outside = ~(equal | both_nan | (error <= allowed))
    max_error = float(torch.where(equal, torch.zeros_like(error), error).nan_to_num(nan=float("inf")).max())
    return outside, max_error


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(widths[tensor.element_size()])
