"""What TileLang's C backend leaves undone is done, and right."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import tilelang.language as T
import torch
import tvm_ffi
from conftest import HOST, compile_in

from tkc.compiler import Tools, Unit
from tkc.errors import CompileError
from tkc.model import Target
from tkc.registry import CatalogEntry, load_catalog


@pytest.fixture
def run_on_cpu(
    monkeypatch: pytest.MonkeyPatch, tools: Callable[[Unit], Tools], tmp_path: Path
) -> Callable[[Callable[[object], object], torch.Tensor], torch.Tensor]:
    """Compile ``out[i] = expression(x[i])`` for the CPU, and run it."""

    def run(expression: Callable[[object], object], x: torch.Tensor) -> torch.Tensor:
        size = T.dynamic("size")

        @T.prim_func
        def convert(x: T.Tensor[(size,), T.float32], out: T.Tensor[(size,), T.float32]):
            with T.Kernel(1) as _:
                for i in T.serial(size):
                    out[i] = expression(x[i])

        monkeypatch.setattr(CatalogEntry, "variant", lambda *_: SimpleNamespace(build=lambda *_: convert))
        entry = load_catalog("sample_kernels").find("elementwise.convert")
        unit = Unit(entry, entry.spec.bind(source="float32", target="float32"), Target.parse("cpu"), HOST)
        library = compile_in(unit, tools(unit), tmp_path).library
        out = torch.empty_like(x)
        tvm_ffi.load_module(str(library)).get_function("main")(x, out)
        return out

    return run


X = torch.cat([torch.randn(1000) * 10, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-42])])

FUNCTIONS = {
    "abs": (T.abs, torch.abs),
    "isfinite": (lambda x: T.Select(T.isfinite(x), 1.0, 0.0), lambda x: x.isfinite().float()),
    "isinf": (lambda x: T.Select(T.isinf(x), 1.0, 0.0), lambda x: x.isinf().float()),
    "fmod": (lambda x: T.fmod(x, T.float32(0.75)), lambda x: torch.fmod(x, 0.75)),
    "division": (lambda x: T.ieee_fdiv(x, T.float32(3)), lambda x: x / 3),
    "square root": (lambda x: T.ieee_fsqrt(T.abs(x)), lambda x: x.abs().double().sqrt().float()),
    "fused multiply-add": (
        lambda x: T.ieee_fmaf(x, x, T.float32(-1)),
        lambda x: (x.double() * x.double() - 1).float(),
    ),
    "bits": (
        lambda x: T.cast(T.popcount(T.reinterpret(x, "uint32")), "float32"),
        lambda x: torch.tensor([float((v & 0xFFFFFFFF).bit_count()) for v in x.view(torch.int32).tolist()]),
    ),
    "a constant of nine digits": (lambda x: x * T.float32(3.14159274), lambda x: x * torch.tensor(3.14159274)),
    "bits of a constant": (
        lambda x: T.reinterpret(T.reinterpret(x, "int32") ^ T.reinterpret(T.float32(-0.0), "int32"), "float32"),
        torch.neg,
    ),
    "the smallest constant": (lambda x: T.max(x, T.float32(1.1754944e-38)), lambda x: x.clamp(min=1.1754944e-38)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_constants_are_exact_on_the_cpu(
    run_on_cpu: Callable[[Callable[[object], object], torch.Tensor], torch.Tensor], name: str
) -> None:
    expression, reference = FUNCTIONS[name]
    x = X[~X.isnan()] if name == "the smallest constant" else X
    torch.testing.assert_close(run_on_cpu(expression, x), reference(x), rtol=0, atol=0, equal_nan=True)


def test_a_rounding_that_c_does_not_have_is_refused(
    run_on_cpu: Callable[[Callable[[object], object], torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(CompileError, match="TileLang refused the program"):
        run_on_cpu(lambda x: T.ieee_fdiv(x, T.float32(3), "rz"), X)
