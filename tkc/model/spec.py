"""Kernel specs: the contract of a kernel, and how calls map to what is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from tkc.errors import SpecError, unknown_name
from tkc.model.digest import Digest
from tkc.model.tensor import Arg

Value: TypeAlias = str | int | bool | None
"""What a const axis can be bound to."""

Params: TypeAlias = Mapping[str, Value]
"""Named parameters of a call, as users write them: ``num_experts=256, num_topk=8``."""


@dataclass(frozen=True, slots=True)
class ConstAxis:
    """A name that is bound at compile time.

    Attributes:
        name: as in a specialization.
        values: every legal value; a build for anything else is refused.
        why: what being const buys, measured or argued. A const axis must earn its place.
    """

    name: str
    values: tuple[Value, ...]
    why: str

    def allows(self, value: Value) -> bool:
        """Whether `value` is legal; True is not 1."""
        try:
            return type(self.values[self.values.index(value)]) is type(value)
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class VarAxis:
    """A name that is free at launch: token counts, strides, epsilons, multiprocessor counts."""

    name: str
    doc: str


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed error against the reference: ``|got - want| <= atol + rtol * |want|``; both 0 means bitwise."""

    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True, slots=True)
class Specialization(Mapping[str, Value]):
    """A spec's const axes bound to values; a mapping, ordered by name, hashable."""

    spec: str
    items_: tuple[tuple[str, Value], ...]

    def __getitem__(self, name: str) -> Value:
        for key, value in self.items_:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Any:
        return (key for key, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __str__(self) -> str:
        return " ".join((self.spec, *(f"{key}={value}" for key, value in self.items_)))

    def int(self, name: str) -> int:
        """The value of `name`, which is an integer. Raises SpecError if it is not."""
        value = self[name]
        if type(value) is not int:
            raise SpecError(f"{self.spec}: {name} is {value!r}, expected an integer")
        return value

    def str(self, name: str) -> str:
        """The value of `name`, which is a string. Raises SpecError if it is not."""
        value = self[name]
        if not isinstance(value, str):
            raise SpecError(f"{self.spec}: {name} is {value!r}, expected a string")
        return value


@dataclass(frozen=True, slots=True)
class ModelDims:
    """Dimensions of one model, which a spec maps to its specializations. A grid is a set of these.

    Attributes:
        name: of the model or the grid entry.
        hidden: width of the residual stream.
        intermediate: widths of feed-forward layers (routed experts, shared experts, dense).
        num_experts: routed experts; 0 for a dense model.
        num_topk: experts per token.
        num_groups, num_topk_groups: expert groups, and how many of them compete; 0 without groups.
        num_shared_experts: experts that every token uses.
        scoring_funcs: of the router: sigmoid, softmax, sqrtsoftplus.
        rope_dims: sizes of the rotated part of a head.
        attention_dims: other widths that are quantised (low-rank queries, keys and values, heads).
        hyper_connections: residual streams (hc or mhc multiplier); 0 without.
        engram: whether the model has Engram layers.
        quant: quantisation recipes, each ``fmt:block:scale`` such as ``e4m3:128:float32``.
        dtypes: of activations.
    """

    name: str
    hidden: int
    intermediate: tuple[int, ...] = ()
    num_experts: int = 0
    num_topk: int = 0
    num_groups: int = 0
    num_topk_groups: int = 0
    num_shared_experts: int = 0
    scoring_funcs: tuple[str, ...] = ()
    rope_dims: tuple[int, ...] = ()
    attention_dims: tuple[int, ...] = ()
    hyper_connections: int = 0
    engram: bool = False
    quant: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("bfloat16",)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """The contract of a kernel. Lives in ``<family>/<kernel>/spec.py`` as ``SPEC``.

    Attributes:
        name: ``<family>.<kernel>``, the names of its folders.
        summary: one line.
        definition: where the operator is defined (a formula, a paper, a format's specification).
        const: const axes; together they make a specialization.
        var: axes and scalars that are free at launch.
        specialize: maps a call's parameters to a value for each const axis. Its keyword
            parameters are what users may write; it raises SpecError for illegal ones.
        arguments: launch arguments of a specialization, in order. The variants' functions
            take the same names in the same order.
        grid: the calls (parameters for `specialize`) that a model with these dimensions can make.
        tolerance: by output argument name; an output that is not listed is bitwise.
    """

    name: str
    summary: str
    definition: str
    const: tuple[ConstAxis, ...]
    var: tuple[VarAxis, ...]
    specialize: Callable[..., Params]
    arguments: Callable[[Specialization], tuple[Arg, ...]]
    grid: Callable[[ModelDims], Iterable[Params]]
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name.count(".") != 1 or not all(part.isidentifier() for part in self.name.split(".")):
            raise SpecError(f"spec name {self.name!r} is not <family>.<kernel>")
        for what in ("summary", "definition"):
            if not getattr(self, what).strip():
                raise SpecError(f"{self.name}: {what} is empty; say it in one line")
        for axis in self.const:
            if not axis.values or not axis.why.strip():
                raise SpecError(f"{self.name}: const axis {axis.name!r} needs legal values and a reason (why)")

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def kernel(self) -> str:
        return self.name.partition(".")[2]

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """What a user may write after the spec's name, with defaults."""
        return _parameters(self.specialize)

    def bind(self, **params: Value) -> Specialization:
        """Give the specialization that serves a call with `params`.

        A value for each const axis is taken too, the way a specialization is written in errors and refs,
        unless it can be meant as a call's parameters. Raises SpecError for an unknown parameter (with the
        nearest name), a missing one, or a value outside the legal ones.
        """
        known = [parameter.name for parameter in self.parameters]
        missing = [p.name for p in self.parameters if p.default is p.empty and p.name not in params]
        if (missing or not set(params) <= set(known)) and set(params) == {axis.name for axis in self.const}:
            return self.specialization(params)
        for name in params:
            if name not in known:
                raise SpecError(f"{self.name}: {unknown_name('parameter', name, known)}")
        if missing:
            raise SpecError(f"{self.name}: parameter {missing[0]!r} is missing; expected {', '.join(known)}")
        return self.specialization(self.specialize(**params))

    def specialization(self, values: Params) -> Specialization:
        """Give the specialization with these const values. Raises SpecError unless each axis has a legal one."""
        if set(values) != {axis.name for axis in self.const}:
            raise SpecError(
                f"{self.name}: const axes are {', '.join(axis.name for axis in self.const) or 'none'}; "
                f"got {', '.join(sorted(values)) or 'none'}"
            )
        for axis in self.const:
            if not axis.allows(values[axis.name]):
                legal = ", ".join(map(str, axis.values))
                raise SpecError(f"{self.name}: {axis.name} is {values[axis.name]!r}; expected one of {legal}")
        return Specialization(self.name, tuple(sorted(values.items())))

    def specializations(self, dims: Iterable[ModelDims]) -> tuple[Specialization, ...]:
        """Every specialization that these models need, without repeats, in a stable order."""
        found = {self.bind(**params): None for model in dims for params in self.grid(model)}
        return tuple(found)


@cache
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(function).parameters.values())


LOADER_ABI = 1
"""Version of the contract between an artifact and the loader; part of every request."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a runtime asks the store for. It needs no toolchain to ask.

    Attributes:
        specialization: which kernel, with which const values.
        source: digest of the variant's source files.
        target: name of the target.
        host: name of the host.
        abi: the loader's.
    """

    specialization: Specialization
    source: Digest
    target: str
    host: str
    abi: int = LOADER_ABI

    @property
    def key(self) -> Digest:
        """Names the ref that answers this request."""
        return Digest.of_fields("tkc.request/1", self.fields())

    def fields(self) -> dict[str, Any]:
        """The request as canonical fields, for its key and for explanations."""
        return {
            "spec": self.specialization.spec,
            "specialization": dict(self.specialization),
            "source": self.source,
            "target": self.target,
            "host": self.host,
            "abi": self.abi,
        }

    def __str__(self) -> str:
        return f"{self.specialization} --target {self.target}"
