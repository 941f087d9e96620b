"""`per_token_cast` for CPUs: a row after the other, a block after the other, narrow floats as integers."""

from typing import Any

import tilelang.cpu.language as T

from kernel_specs.quant import _cpu, _expressions
from kernel_specs.quant._formats import PACK, STORAGE
from kernel_specs.quant.per_token_cast._program import Plan, plan_of, program
from tkc.model import Specialization, Target

_E4M3 = "float8_e4m3fn"


def build(specialization: Specialization, target: Target) -> Any:
    plan = plan_of(specialization)

    @T.macro
    def body(x, x_sf, x_block_m, x_block_k, out, sf, clamp_min):
        with T.Kernel(T.max(x.shape[0], sf.shape[0])) as row:
            factors, values = T.alloc_local((plan.width,), "float32"), T.alloc_local((plan.width,), "float32")
            amax, inverse, stored = T.alloc_var("float32"), T.alloc_var("float32"), T.alloc_var("uint32")
            for block in T.serial(_num_blocks(plan, plan.hidden(x))):
                _read(plan, x, row, block, values)
                for i in T.serial(plan.width):
                    factors[i] = T.float32(1)
                if plan.requantises:
                    _read_factors(plan, x, x_sf, x_block_m, x_block_k, row, block, factors)
                if plan.mode == "precomputed":
                    inverse = T.float32(1) / _sf_at(sf, plan.sf, row, block)
                else:
                    amax = clamp_min
                    for i in T.serial(plan.width):
                        amax = _larger(amax, T.abs(values[i]) * factors[i])
                    stored = _stored(amax, plan)
                    inverse = _inverse(amax, stored, plan)
                    if row >= x.shape[0] or block * plan.width >= plan.hidden(x):
                        stored = T.uint32(0)
                    _write_sf(plan, sf, row, block, stored)
                for i in T.serial(plan.width):
                    values[i] = values[i] * _expressions.finite(factors[i] * inverse)
                if plan.mode != "sf_only":
                    _write(plan, x, out, row, block, values)

    return program(plan, body)


def _num_blocks(plan: Plan, hidden: Any) -> Any:
    """Blocks of a row, with those that packing adds."""
    if plan.sf == "ue8m0" and plan.mode != "precomputed":
        return T.ceildiv(hidden, plan.width * PACK) * PACK
    return T.ceildiv(hidden, plan.width)


def _larger(a: Any, b: Any) -> Any:
    """The larger of two numbers; `a` if `b` is none."""
    return T.if_then_else(b > a, b, a)


@T.macro
def _read(plan, x, row, block, values):
    for i in T.serial(plan.width):
        values[i] = T.float32(0)
        if row < x.shape[0] and block * plan.width + i < plan.hidden(x):
            if plan.x == "e2m1":
                byte = T.cast(_cpu.codes(x)[row, (block * plan.width + i) // 2], "uint32")
                values[i] = _expressions.e2m1_value(byte, T.cast(i % 2, "uint32"))
            else:
                values[i] = _cpu.decoded(_cpu.codes(x)[row, block * plan.width + i], STORAGE[plan.x].value)


@T.macro
def _read_factors(plan, x, x_sf, x_block_m, x_block_k, row, block, factors):
    for i in T.serial(plan.width):
        if row < x.shape[0] and block * plan.width + i < plan.hidden(x):
            m, k = T.truncdiv(row, x_block_m), T.truncdiv(block * plan.width + i, x_block_k)
            if plan.x_sf == "e4m3":
                factors[i] = _cpu.decoded(_cpu.codes(x_sf)[m, k], _E4M3)
            else:
                factors[i] = _expressions.sf_at(x_sf, plan.x_sf, m, k, plan.x_run == 1 and x_block_k == 1)


def _sf_at(sf: Any, kind: str, row: Any, block: Any) -> Any:
    if kind == "e4m3":
        return _cpu.decoded(_cpu.codes(sf)[row, block], _E4M3)
    return _expressions.sf_at(sf, kind, row, block, False)


def _stored(amax: Any, plan: Plan) -> Any:
    """The bits of a block's scale factor, as uint32."""
    if plan.sf == "e4m3":
        return T.cast(_cpu.encoded(amax / _expressions.largest(plan.fmt), _E4M3), "uint32")
    sf = _expressions.sf_of(amax, plan.fmt, plan.sf)
    return T.cast(sf, "uint32") if plan.sf == "ue8m0" else T.reinterpret(sf, "uint32")


def _inverse(amax: Any, stored: Any, plan: Plan) -> Any:
    if plan.sf == "e4m3":
        return T.float32(1) / _cpu.decoded(stored, _E4M3)
    return _expressions.inverse_of(amax, plan.fmt, plan.sf)


@T.macro
def _write_sf(plan, sf, row, block, stored):
    if row < sf.shape[0]:
        if plan.sf == "ue8m0":
            others = T.if_then_else(block % PACK == 0, 0, sf[row, block // PACK])
            sf[row, block // PACK] = others | (T.cast(stored, "int32") << (block % PACK * 8))
        elif plan.sf == "e4m3":
            _cpu.codes(sf)[row, block] = T.cast(stored, "uint8")
        else:
            sf[row, block] = T.reinterpret(stored, "float32")


@T.macro
def _write(plan, x, out, row, block, values):
    if plan.stochastic:
        hashed = T.alloc_var("uint32")
        for i in T.serial(plan.width):
            values[i] = _expressions.canonical(values[i])
        for four in T.serial(plan.width // 4):
            hashed = _expressions.stochastic_hash(values, 4 * four, block * (plan.width // 4) + four)
            _expressions.round_four(values, 4 * four, hashed, plan.fmt)
    step = 2 if plan.fmt == "e2m1" else 1
    for i in T.serial(plan.width // step):
        if row < x.shape[0] and block * plan.width + i * step < plan.hidden(x):
            if plan.fmt == "e2m1":
                pair = _cpu.encoded_e2m1(values[2 * i]) | (_cpu.encoded_e2m1(values[2 * i + 1]) << 4)
                _cpu.codes(out)[row, block * (plan.width // 2) + i] = T.cast(pair, "int8")
            else:
                _cpu.codes(out)[row, block * plan.width + i] = _cpu.encoded(values[i], _E4M3)
