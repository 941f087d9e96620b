"""How the CUDA variant of `per_token_cast` shares rows among threads."""

from dataclasses import dataclass

from kernel_specs.quant._formats import STORAGE
from kernel_specs.quant.per_token_cast._program import Plan

WARP = 32


@dataclass(frozen=True, slots=True)
class Config:
    """How threads share the rows.

    Attributes:
        vector: elements of a lane: 16, or 32 where blocks are no narrower.
        rows: rows of a warp, loaded together, where there are more than a `few`.
        warps: warps of a thread block.
        neighbours: a warp's rows are neighbours, so that their packed scale factors can be stored as one vector
            where they lie by columns. Otherwise rows are dealt to the warps of a block one by one.
        few: rows are few if this many warps can take one each, so that a small batch spreads out. 0: never.
    """

    vector: int = 16
    rows: int = 2
    warps: int = 4
    neighbours: bool = False
    few: int = 0


DEFAULT = Config()
_AT_ONCE = 8192
"""Warps that an H200 nearly holds at once."""


def tuned(plan: Plan) -> Config:
    """The fastest sharing of those that were timed on an H200, at 8192 rows of 7168 columns."""
    if plan.mode != "cast":
        return DEFAULT
    if looks_up(plan) and plan.width >= 32:
        return Config(vector=32, neighbours=plan.sf == "ue8m0", few=_AT_ONCE)
    if plan.x == "e4m3" and (plan.fmt, plan.width, plan.sf, plan.stochastic) == ("e4m3", 32, "ue8m0", False):
        return Config(rows=4, warps=2, neighbours=True, few=_AT_ONCE // 8)
    if plan.requantises:
        return Config(vector=32, rows=1) if plan.x == "e4m3" and plan.width >= 32 else DEFAULT
    if plan.fmt == "e2m1":
        return Config(rows=4)  # bound by instructions: more of them in flight
    if plan.x == "float32" or plan.width < 32:
        return Config(rows=1)
    return Config(vector=32, rows=1 if plan.width >= 64 else 2)


def looks_up(plan: Plan) -> bool:
    """Whether e2m1 elements are looked up in tables of a run's eight products: see `_table`."""
    return plan.x == "e2m1" and plan.fmt == "e4m3" and plan.x_run % 8 == 0 and not plan.stochastic


@dataclass(frozen=True, slots=True)
class Shares:
    """How one specialization's elements are shared by lanes."""

    plan: Plan
    config: Config
    pdl: bool

    @property
    def lanes(self) -> int:
        """Lanes that share a block of a row."""
        return self.plan.width // self.config.vector

    @property
    def runs(self) -> int:
        """Input scale factors of a lane's elements."""
        return self.config.vector // self.plan.x_run

    @property
    def raw(self) -> tuple[int, str]:
        """How many values, of which dtype, a lane's elements arrive in."""
        vector = self.config.vector
        return (vector // 8, "uint32") if self.plan.x == "e2m1" else (vector, STORAGE[self.plan.x].value)

    @property
    def stored_sf(self) -> str:
        """Dtype of a scale factor before packing."""
        return {"ue8m0": "int32", "e4m3": "float8_e4m3fn"}.get(self.plan.sf, "float32")

    @property
    def packs(self) -> bool:
        """Whether scale factors are stored four a word."""
        return self.plan.sf == "ue8m0" and self.plan.mode != "precomputed"

    @property
    def step(self) -> int:
        """From one of a warp's rows to the next."""
        return 1 if self.config.neighbours else self.config.warps
