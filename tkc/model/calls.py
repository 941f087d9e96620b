"""Calls that a model can make of an operator, as sets: what `tkc coverage` walks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Span:
    """Every integer from `low` to `high`, both included: token counts, strides, alignments."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"a span from {self.low} to {self.high} is empty")


Domain: TypeAlias = "Span | tuple[Any, ...]"
"""What one parameter of a call can be: any of a span, or one of a few values."""


class Calls:
    """All calls of a function whose parameters each come from a domain.

    ::

        Calls(lambda num_tokens: topk_gate(rows(num_tokens, 256), 8), num_tokens=Span(0, 2**31 - 1))

    `call` makes its tensors on the device ``meta``, which holds no data, and calls the operator as a user would.

    Attributes:
        call: makes one call.
        domains: of its parameters, by name.
    """

    __slots__ = ("call", "domains")

    def __init__(self, call: Callable[..., object], **domains: Domain) -> None:
        self.call = call
        self.domains: Mapping[str, Domain] = domains
