"""Prove, with no device, that no call a model can make misses what a grid builds.

Two ways, kernel by kernel:

* *exhausted*: the grid holds every specialization that the spec allows, so whatever an operator asks for is there;
* *walked*: operators say which calls a model makes of them (``calls.py``: domains of parameters), and each is called
  as a user calls it, on tensors without data, while tables note what they are asked for instead of loading it.

A walk finds where the answer changes along each span of integers: it looks at every small number, at every power of
two and its neighbours, and halves every gap between two different answers until the first number of the new one is
found. Two equal answers with nothing different looked at in between are taken for one stretch; the certificate says
which points were looked at, so that this can be judged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tkc.errors import ArgumentError, SpecError, TkcError
from tkc.model import Calls, Digest, Host, KernelSpec, ModelDims, Request, Span, Specialization, Target
from tkc.registry import Catalog, CatalogEntry, Operator, load_catalog, operators

SCHEMA = "tkc.coverage/1"
SMALL = 256
"""Up to here from its lower end, every number of a span is looked at."""

Answer: TypeAlias = "tuple[Specialization, ...] | None"
"""What one call asks for, in order; None if the operator refuses it, so that it is no legal call."""

Holds: TypeAlias = Callable[[Request], "Mapping[str, str] | str"]
"""What answers a request: facts about the artifact, or why there is none."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A call that would miss, or of which nothing can be proven.

    Attributes:
        where: the operator or kernel.
        call: parameters of the first such call that was found, as text; empty if it is no single call.
        why: what is missing.
    """

    where: str
    call: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}({self.call}): {self.why}" if self.call else f"{self.where}: {self.why}"


@dataclass(frozen=True, slots=True)
class Walk:
    """One set of calls that was walked.

    Attributes:
        operator: whose.
        choices: the values chosen for parameters that have a few.
        breakpoints: for each span, the numbers at which the answer changes from the one before.
        looked_at: how many calls were made.
        asked: every specialization that they asked for.
    """

    operator: str
    choices: Mapping[str, str]
    breakpoints: Mapping[str, tuple[int, ...]]
    looked_at: int
    asked: tuple[Specialization, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What was proven of one kernel, and how."""

    spec: str
    source: Digest
    method: str
    artifacts: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The outcome: a certificate if there is no hole.

    Attributes:
        grid, target, host: what it is about.
        models: names of the models whose calls were walked.
        kernels, walks: what was proven.
        holes: what was not.
    """

    grid: str
    target: Target
    host: Host
    models: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    walks: tuple[Walk, ...]
    holes: tuple[Hole, ...]

    def certificate(self) -> dict[str, Any]:
        """The whole as JSON values, with a digest over them."""
        body = {
            "schema": SCHEMA,
            "grid": self.grid,
            "target": self.target.name,
            "host": self.host.arch,
            "models": list(self.models),
            "covered": not self.holes,
            "holes": [str(hole) for hole in self.holes],
            "kernels": [
                {"spec": one.spec, "source": str(one.source), "method": one.method, "artifacts": list(one.artifacts)}
                for one in self.kernels
            ],
            "walks": [
                {
                    "operator": one.operator,
                    "choices": dict(one.choices),
                    "breakpoints": {name: list(points) for name, points in one.breakpoints.items()},
                    "looked_at": one.looked_at,
                    "asked": [str(specialization) for specialization in one.asked],
                }
                for one in self.walks
            ],
        }
        return {**body, "digest": str(Digest.of_fields(SCHEMA, body))}


def cover(
    dims: Sequence[ModelDims],
    target: Target,
    host: Host,
    *,
    grid: str = "",
    holds: Holds | None = None,
    catalog: Catalog | None = None,
    found_operators: Iterable[Operator] | None = None,
    first_only: bool = False,
) -> Coverage:
    """Prove or disprove that the models' calls are covered on `target`.

    Args:
        holds: where artifacts are looked up; by default whatever the grid builds is there.
        first_only: stop at the first hole.

    Raises TkcError if torch is not here, or a ``calls.py`` cannot be imported.
    """
    _require_torch()
    prover = _Prover(tuple(dims), target, host, holds or (lambda request: {}), catalog or load_catalog())
    holes = prover.holes(tuple(operators() if found_operators is None else found_operators))
    found = tuple(itertools.islice(holes, 1)) if first_only else tuple(holes)
    names = tuple(one.name for one in dims)
    return Coverage(grid, target, host, names, tuple(prover.kernels), tuple(prover.walks), found)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise TkcError(
            "operators are walked with torch, which is not here; any build of it will do, for the CPU too"
        ) from error


@dataclass
class _Prover:
    """Collects what is proven, and yields what is not."""

    dims: tuple[ModelDims, ...]
    target: Target
    host: Host
    answers: Holds
    catalog: Catalog
    kernels: list[Kernel] = field(default_factory=list)
    walks: list[Walk] = field(default_factory=list)
    _reported: set[Specialization] = field(default_factory=set)

    def holes(self, found: Sequence[Operator]) -> Iterator[Hole]:
        open_kernels: dict[str, frozenset[Specialization]] = {}
        for entry in self.catalog:
            built = frozenset(entry.spec.specializations(self.dims))
            if self.target.backend not in entry.backends:
                yield Hole(entry.spec.name, "", f"has no variant for {self.target}")
                continue
            exhausted = built >= every_specialization(entry.spec)
            yield from self._kernel(entry, built, "exhausted" if exhausted else "walked")
            if not exhausted:
                open_kernels[entry.spec.name] = built
        yield from self._walked(found, open_kernels)

    def _kernel(self, entry: CatalogEntry, built: frozenset[Specialization], method: str) -> Iterator[Hole]:
        """Look up every artifact that the grid says is built."""
        source, artifacts = entry.source_digest(self.target.backend), []
        for one in sorted(built, key=str):
            request = Request(one, source, self.target.name, self.host.arch)
            facts = self.answers(request)
            if isinstance(facts, str):
                yield Hole(entry.spec.name, " ".join(f"{k}={v}" for k, v in one.items()), f"no artifact: {facts}")
            else:
                artifacts.append({"specialization": dict(one), "request": str(request.key), **facts})
        self.kernels.append(Kernel(entry.spec.name, source, method, tuple(artifacts)))

    def _walked(
        self, found: Sequence[Operator], open_kernels: Mapping[str, frozenset[Specialization]]
    ) -> Iterator[Hole]:
        reached = set[str]()
        for operator in found:
            needs = operator.uses() & set(open_kernels)
            reached |= needs
            if not needs:
                continue
            if not operator.has_calls:
                yield Hole(
                    operator.name, "", f"has no calls.py, and the grid does not hold all of {', '.join(sorted(needs))}"
                )
                continue
            yield from self._operator(operator, open_kernels)
        for name in sorted(set(open_kernels) - reached):
            if open_kernels[name]:
                yield Hole(name, "", "no operator uses it, and the grid does not hold all of it")

    def _operator(self, operator: Operator, built: Mapping[str, frozenset[Specialization]]) -> Iterator[Hole]:
        describe = operator.calls()
        for model in self.dims:
            for calls in describe(model):
                for choices in _choices(calls):
                    walk = _Walker(calls, choices)
                    try:
                        walk.run()
                    except (TkcError, TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
                        last = _text({**choices, **walk.last})
                        yield Hole(
                            operator.name, f"{model.name}: {last}", f"cannot be walked: {type(error).__name__}: {error}"
                        )
                        continue
                    self.walks.append(walk.result(operator.name))
                    yield from self._misses(operator, model, walk, built)

    def _misses(
        self, operator: Operator, model: ModelDims, walk: _Walker, built: Mapping[str, frozenset[Specialization]]
    ) -> Iterator[Hole]:
        if all(answer is None for answer in walk.answers.values()):
            yield Hole(operator.name, f"{model.name}: {_text(walk.choices)}", "is refused at every point of its spans")
        for specialization, point in walk.first_asked().items():
            covered = built.get(specialization.spec)
            if covered is not None and specialization not in covered | self._reported:
                self._reported.add(specialization)
                call = _text({**walk.choices, **dict(zip(walk.spans, point, strict=True))})
                yield Hole(operator.name, f"{model.name}: {call}", f"asks for {specialization}, which the grid lacks")


def every_specialization(spec: KernelSpec) -> frozenset[Specialization]:
    """All that the const axes of a spec allow, whether a call leads to it or not."""
    names = [axis.name for axis in spec.const]
    return frozenset(
        spec.specialization(dict(zip(names, values, strict=True)))
        for values in itertools.product(*(axis.values for axis in spec.const))
    )


def _choices(calls: Calls) -> Iterator[dict[str, Any]]:
    """Each way to choose the parameters that have a few values."""
    few = {name: domain for name, domain in calls.domains.items() if not isinstance(domain, Span)}
    for values in itertools.product(*few.values()):
        yield dict(zip(few, values, strict=True))


@dataclass
class _Walker:
    """Walks the spans of one set of calls, with everything else chosen."""

    calls: Calls
    choices: Mapping[str, Any]
    answers: dict[tuple[int, ...], Answer] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = {name: domain for name, domain in self.calls.domains.items() if isinstance(domain, Span)}
        self._stops: list[set[int]] = [{span.low, span.high} for span in self.spans.values()]

    def run(self) -> None:
        """Walk each span for every combination of what is known of the others, until nothing new is found."""
        if not self.spans:
            self._answer(())
            return
        known = -1
        while known < (known := sum(map(len, self._stops))):
            for axis in range(len(self.spans)):
                others = [sorted(stops) if at != axis else [0] for at, stops in enumerate(self._stops)]
                for point in itertools.product(*others):
                    self._walk_axis(axis, point)

    def _walk_axis(self, axis: int, point: tuple[int, ...]) -> None:
        span = tuple(self.spans.values())[axis]

        def answer(value: int) -> Answer:
            return self._answer((*point[:axis], value, *point[axis + 1 :]))

        values = _points(span)
        for low, high in itertools.pairwise(values):
            while answer(low) != answer(high):
                if high - low == 1:
                    self._stops[axis] |= {low, high}
                    break
                middle = (low + high) // 2
                low, high = (low, middle) if answer(low) != answer(middle) else (middle, high)

    def _answer(self, point: tuple[int, ...]) -> Answer:
        if point not in self.answers:
            self.last = dict(zip(self.spans, point, strict=True))
            self.answers[point] = ask(self.calls.call, {**self.choices, **self.last})
        return self.answers[point]

    def first_asked(self) -> dict[Specialization, tuple[int, ...]]:
        """Each specialization that was asked for, and the smallest point that did."""
        found: dict[Specialization, tuple[int, ...]] = {}
        for point in sorted(self.answers):
            for specialization in self.answers[point] or ():
                found.setdefault(specialization, point)
        return found

    def result(self, operator: str) -> Walk:
        """What was found."""
        points = {
            name: tuple(sorted(stops - {span.low, span.high}))
            for (name, span), stops in zip(self.spans.items(), self._stops, strict=True)
        }
        asked = tuple(sorted(self.first_asked(), key=str))
        return Walk(operator, {k: _word(v) for k, v in self.choices.items()}, points, len(self.answers), asked)


def _points(span: Span) -> list[int]:
    """The numbers of a span that are looked at before gaps are halved."""
    small = range(span.low, min(span.low + SMALL, span.high) + 1)
    powers = (2**exponent + offset for exponent in range(span.high.bit_length() + 1) for offset in (-1, 0, 1))
    return sorted({*small, *(value for value in powers if span.low <= value <= span.high), span.high})


def ask(call: Callable[..., object], parameters: Mapping[str, Any]) -> Answer:
    """What one call asks tables for; None if the operator refuses it. Loads and launches nothing."""
    from tkc.runtime.table import recording

    with recording() as asked:
        try:
            call(**parameters)
        except ArgumentError:
            return None
        return tuple(specialization for _, specialization in asked)


def _text(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_word(value)}" for name, value in parameters.items())


def _word(value: Any) -> str:
    return str(value).removeprefix("torch.")


__all__ = ["Coverage", "Hole", "Kernel", "SpecError", "Walk", "ask", "cover", "every_specialization"]
