"""A launch with wrong arguments launches nothing, and says which argument is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.conftest import CPU, H200, Maker
from tkc.errors import ArgumentError
from tkc.model import Arg, DType, KernelSpec, Role, ScalarArg, Specialization, TensorArg
from tkc.runtime.launch import LoadedKernel, converted, explain
from tkc.runtime.table import load_kernel

NAN = float("nan")


@pytest.fixture
def kernel(maker: Maker, spec4: Specialization, user_store: Path) -> LoadedKernel:
    maker.put(user_store, spec4)
    loaded = load_kernel(maker.entry.spec, spec4, CPU)
    assert isinstance(loaded, LoadedKernel)
    return loaded


def misaligned(rows: int) -> torch.Tensor:
    return torch.zeros(rows * 4 + 1)[1:].view(rows, 4)


@pytest.mark.parametrize(
    ("x", "factor", "argument", "message"),
    [
        (torch.zeros(3, 4).double(), 1.0, "x", "`x` has dtype float64; built for float32. Cast it: .to(torch.float32)"),
        (torch.zeros(3), 1.0, "x", "`x` has shape [3]; expected 2 dimensions, [num_rows, 4]"),
        (torch.zeros(3, 5), 1.0, "x", "expected [num_rows, 4]: entry 1 is 5, must be 4"),
        (torch.zeros(2, 4), 1.0, "out", "`out` has shape [3, 4]; expected [num_rows, 4]: entry 0 is 3, must be 2 ("),
        (torch.zeros(3, 8)[:, ::2], 1.0, "x", "`x` has strides [8, 2]; expected [4, 1]: entry 0 is 8, must be 4."),
        (torch.zeros(4, 3).T, 1.0, "x", "`x` has strides [1, 3]; expected [4, 1]"),
        (misaligned(3), 1.0, "x", "`x` begins 4 bytes past a multiple of 16"),
        (torch.zeros(3, 4, device="meta"), 1.0, "x", "`x` is on meta; the kernel is loaded for cpu. Move it: "),
        (None, 1.0, "x", "`x` is None; expected a tensor"),
        ([1.0, 2.0], 1.0, "x", "`x` is of type list; expected a tensor"),
        ("a long text that tvm-ffi passes as an object", 1.0, "x", "`x` is of type str; expected a tensor"),
        (torch.zeros(3, 4), "two", "factor", "`factor` is of type str; expected a number (float32)"),
        (torch.zeros(3, 4), None, "factor", "`factor` is None; expected a number"),
        (torch.zeros(3, 4).to_sparse(), 1.0, "x", "`x` has layout torch.sparse_coo; expected a dense tensor"),
    ],
)  # fmt: skip
def test_wrong_argument_is_named_with_expected_and_got_and_nothing_is_written(
    kernel: LoadedKernel, x: Any, factor: Any, argument: str, message: str
) -> None:
    out = torch.full((3, 4), NAN)
    with pytest.raises(ArgumentError) as caught:
        kernel(x, out, factor)
    assert message in str(caught.value)
    assert str(caught.value).startswith("demo.scale: ")
    assert caught.value.argument == argument
    assert out.isnan().all()


@pytest.mark.parametrize("args", [(), (torch.zeros(1, 4),), (torch.zeros(1, 4), torch.zeros(1, 4), 1.0, 2)])
def test_wrong_number_of_arguments_names_those_expected(kernel: LoadedKernel, args: Sequence[Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{len(args)} launch arguments given; expected 3: x, out, factor"):
        kernel(*args)


def test_stride_of_a_single_row_means_nothing_even_if_the_library_minds(kernel: LoadedKernel) -> None:
    x, out = torch.randn(3, 9)[:1, :4], torch.full((1, 4), NAN)
    x = x.clone().as_strided((1, 4), (9, 1))
    kernel(x, out, 2.0)
    torch.testing.assert_close(out, x * 2)


def test_strides_of_an_empty_tensor_mean_nothing(kernel: LoadedKernel) -> None:
    kernel(torch.empty(0, 4).as_strided((0, 4), (9, 2)), torch.empty(0, 4), 2.0)


def test_converted_tensors_are_launched_and_named_like_others(kernel: LoadedKernel) -> None:
    x, out = torch.randn(3, 4), torch.full((3, 4), NAN)
    kernel(converted(x), out, 2.0)
    torch.testing.assert_close(out, x * 2)
    with pytest.raises(ArgumentError, match="`x` has dtype float64; built for float32"):
        kernel(converted(x.double()), out, 2.0)
    kernel(converted(torch.randn(3, 9)[:1, :4].as_strided((1, 4), (9, 1))), torch.empty(1, 4), 2.0)


def test_failure_that_no_argument_explains_names_kernel_and_device(kernel: LoadedKernel) -> None:
    with pytest.raises(RuntimeError, match=r"demo.scale width=4: launch on cpu failed: the device is on fire"):
        kernel(torch.zeros(1, 4), torch.zeros(1, 4), 13.0)


def spec_with(maker: Maker, *args: Arg) -> KernelSpec:
    return replace(maker.entry.spec, arguments=lambda specialization: args)


def problem(maker: Maker, args: Sequence[Arg], given: Sequence[Any]) -> str | None:
    spec = spec_with(maker, *args)
    found = explain(spec, spec.bind(columns=4), given, CPU)
    return None if found is None else str(found)


def test_nullable_argument_may_be_none_and_others_not(maker: Maker) -> None:
    weight = TensorArg("weight", ("n",), DType.FLOAT32, nullable=True)
    assert problem(maker, [weight], [None]) is None
    assert "expected a tensor or None" in str(problem(maker, [weight], [3]))


@pytest.mark.parametrize(
    ("value", "accepted"), [(2**31 - 1, True), (2**31, False), (-(2**31) - 1, False), (1.5, False), (True, True)]
)
def test_integer_outside_its_type_is_named(maker: Maker, value: Any, accepted: bool) -> None:
    assert (problem(maker, [ScalarArg("count", DType.INT32)], [value]) is None) == accepted


def test_strides_named_by_an_axis_bind_it_for_later_arguments(maker: Maker) -> None:
    args = [
        TensorArg("x", ("n", 4), DType.FLOAT32, strides=("row", 1)),
        TensorArg("y", ("n", 4), DType.FLOAT32, role=Role.OUT, strides=("row", 1)),
    ]
    wide = torch.zeros(3, 8)[:, :4]
    assert problem(maker, args, [wide, wide]) is None
    assert "entry 0 is 4, must be 8 (row as in `x`)" in str(problem(maker, args, [wide, torch.zeros(3, 4)]))
    assert problem(maker, args, [wide[:1], torch.zeros(3, 4)[:1]]) is None


def test_tensor_on_another_device_of_the_same_kind_is_named(maker: Maker, spec4: Specialization) -> None:
    given = (torch.zeros(1, 4), torch.zeros(1, 4), 1.0)
    found = explain(maker.entry.spec, spec4, given, replace(H200, index=1))
    assert "`x` is on cpu; the kernel is loaded for cuda:1" in str(found)
