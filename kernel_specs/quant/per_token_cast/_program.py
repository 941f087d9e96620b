"""The signature of `per_token_cast`'s programs, which is the same in every dialect."""

from dataclasses import dataclass
from typing import Any

import tilelang.language.common as T

from kernel_specs.quant._formats import PACK, SF_STORAGE, STORAGE
from tkc.model import Specialization


@dataclass(frozen=True, slots=True)
class Plan:
    """What is fixed at compile time; the axes of the spec, by name."""

    mode: str
    x: str
    x_sf: str
    x_run: int
    fmt: str
    width: int
    sf: str
    stochastic: bool

    @property
    def requantises(self) -> bool:
        return self.x_sf != "none"

    def hidden(self, x: Any) -> Any:
        """Columns of `x`, in elements."""
        return x.shape[1] * 2 if self.x == "e2m1" else x.shape[1]


def plan_of(specialization: Specialization) -> Plan:
    return Plan(**dict(specialization))  # type: ignore[arg-type]


def program(plan: Plan, body: Any) -> Any:
    """A program with the arguments of the spec, around a macro.

    `body` takes x, x_sf, x_block_m, x_block_k, out, sf and clamp_min; those that a mode lacks are None.
    """
    num_tokens = T.dynamic("num_tokens")
    stored = T.dynamic("packed_hidden" if plan.x == "e2m1" else "hidden")
    hidden = stored * 2 if plan.x == "e2m1" else stored
    columns = T.ceildiv(hidden, plan.width * PACK if plan.sf == "ue8m0" else plan.width)
    stored_out = hidden if plan.fmt == "e4m3" else T.floordiv(hidden, 2)
    sf_rows = num_tokens if plan.mode == "precomputed" else T.dynamic("sf_rows")
    x_stride, out_stride = T.dynamic("x_stride"), T.dynamic("out_stride")
    x_type = T.StridedTensor[(num_tokens, stored), (x_stride, 1), STORAGE[plan.x].value]
    out_type = T.StridedTensor[(num_tokens, stored_out), (out_stride, 1), STORAGE[plan.fmt].value]
    sf_type = _sf_type("sf", (sf_rows, columns), plan.sf)
    if plan.requantises:
        x_sf_type = _sf_type("x_sf", (T.dynamic("x_sf_rows"), T.dynamic("x_sf_columns")), plan.x_sf)
        return _requantise(body, x_type, x_sf_type, out_type, sf_type)
    if plan.mode == "sf_only":
        return _sf_only(body, x_type, sf_type)
    if plan.mode == "precomputed":
        return _precomputed(body, x_type, sf_type, out_type)
    return _cast(body, x_type, out_type, sf_type)


def _sf_type(name: str, shape: tuple[Any, Any], kind: str) -> Any:
    strides = (T.dynamic(f"{name}_stride_m"), T.dynamic(f"{name}_stride_k"))
    return T.StridedTensor[shape, strides, SF_STORAGE[kind].value]


def _cast(body: Any, x_type: Any, out_type: Any, sf_type: Any) -> Any:
    @T.prim_func
    def per_token_cast(x: x_type, out: out_type, sf: sf_type, clamp_min: T.float32):
        body(x, None, None, None, out, sf, clamp_min)

    return per_token_cast


def _requantise(body: Any, x_type: Any, x_sf_type: Any, out_type: Any, sf_type: Any) -> Any:
    @T.prim_func
    def per_token_cast(
        x: x_type,
        x_sf: x_sf_type,
        out: out_type,
        sf: sf_type,
        x_block_m: T.int32,
        x_block_k: T.int32,
        clamp_min: T.float32,
    ):
        T.assume(x_block_m > 0)
        T.assume(x_block_k > 0)
        body(x, x_sf, x_block_m, x_block_k, out, sf, clamp_min)

    return per_token_cast


def _sf_only(body: Any, x_type: Any, sf_type: Any) -> Any:
    @T.prim_func
    def per_token_cast(x: x_type, sf: sf_type, clamp_min: T.float32):
        body(x, None, None, None, None, sf, clamp_min)

    return per_token_cast


def _precomputed(body: Any, x_type: Any, sf_type: Any, out_type: Any) -> Any:
    @T.prim_func
    def per_token_cast(x: x_type, sf: sf_type, out: out_type):
        body(x, None, None, None, out, sf, None)

    return per_token_cast
