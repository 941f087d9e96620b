"""The comparison that every numerics check rests on can fail, and says where."""

from __future__ import annotations

import pytest
import torch

from tkc.compare import CheckResult, compare_outputs
from tkc.model import DType, KernelSpec, Params, Role, TensorArg, Tolerance


def _no_parameters() -> Params:
    return {}


def _compare(got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance | None = None) -> CheckResult:
    spec = KernelSpec(
        name="demo.copy",
        summary="a copy",
        definition="y = x",
        const=(),
        var=(),
        specialize=_no_parameters,
        arguments=lambda s: (TensorArg("y", ("n",), DType.FLOAT32, Role.OUT),),
        grid=lambda dims: [{}],
        tolerance={"y": tolerance} if tolerance else {},
    )
    (result,) = compare_outputs(spec, spec.bind(), "cpu", 0, {"y": got}, {"y": want})
    return result


def test_equal_bits_pass_nan_too() -> None:
    x = torch.tensor([1.0, float("nan"), -0.0, float("inf")])
    assert _compare(x, x.clone()).ok


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ([1.0, 2.0], [1.0, 2.0000002]),
        ([0.0, 2.0], [-0.0, 2.0]),
        ([float("nan"), 2.0], [1.0, 2.0]),
        ([1.0, 2.0], [float("nan"), 2.0]),
    ],
)
def test_a_bit_that_differs_fails_without_a_tolerance(got: list[float], want: list[float]) -> None:
    result = _compare(torch.tensor(got), torch.tensor(want))
    assert not result.ok and result.wrong == 1 and result.detail.startswith("at [")


def test_tolerance_admits_what_it_says_and_no_more() -> None:
    want = torch.tensor([100.0, 100.0])
    assert _compare(torch.tensor([100.0, 100.9]), want, Tolerance(rtol=0.01)).ok
    assert not _compare(torch.tensor([100.0, 101.1]), want, Tolerance(rtol=0.01)).ok


def test_nan_is_outside_every_tolerance() -> None:
    assert not _compare(torch.tensor([float("nan")]), torch.tensor([1.0]), Tolerance(rtol=1.0, atol=1e9)).ok


def test_another_shape_or_dtype_fails() -> None:
    assert not _compare(torch.zeros(2), torch.zeros(3)).ok
    assert not _compare(torch.zeros(2, dtype=torch.float64), torch.zeros(2)).ok
