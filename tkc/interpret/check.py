"""Compare variants, interpreted on the CPU, with their references on the references' own samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tkc.compare import CheckResult, compare_outputs
from tkc.errors import TargetError, TkcError
from tkc.interpret.program import Program
from tkc.model import ModelDims, Role, Specialization, Target, TensorArg, Tolerance
from tkc.registry import Catalog, CatalogEntry


def check(
    catalog: Catalog,
    names: Sequence[str],
    targets: Sequence[Target],
    dims: Iterable[ModelDims],
    *,
    seed: int = 0,
    sanitize: bool = False,
) -> Iterator[CheckResult]:
    """Check the variants of the kernels named (none: all) for each of the targets that they support.

    Results come as they are had: one for each output of each sample, and one for each sample that could not run.
    """
    models = tuple(dims)
    for entry in catalog.select(tuple(names)):
        for target in targets:
            if target.backend in entry.backends:
                for specialization in entry.spec.specializations(models):
                    yield from check_variant(entry, specialization, target, seed=seed, sanitize=sanitize)


def check_variant(
    entry: CatalogEntry,
    specialization: Specialization,
    target: Target,
    *,
    seed: int = 0,
    sanitize: bool = False,
) -> list[CheckResult]:
    """Run a variant on every sample of its reference, and compare each output.

    A variant that cannot be traced or interpreted, or that the sanitizer finds fault with, gives a failed
    result that says why. A target that the variant refuses (it raises TargetError when built) gives none.
    """
    where = f"{target.name}, interpreted"
    try:
        program = _translate(entry, specialization, target)
    except TargetError:
        return []
    except TkcError as error:
        return [_failed(specialization, where, 0, error)]
    results: list[CheckResult] = []
    reference = entry.reference()
    for number, sample in enumerate(reference.samples(specialization, seed)):
        want = reference.expected(specialization, sample)
        try:
            _run(program, entry, specialization, sample, sanitize)
        except TkcError as error:
            results.append(_failed(specialization, where, number, error))
        else:
            results += compare_outputs(entry.spec, specialization, where, number, sample, want)
    return results


def _translate(entry: CatalogEntry, specialization: Specialization, target: Target) -> Program:
    variant = entry.variant(target.backend)
    configs = dict(getattr(variant, "PASS_CONFIGS", {}))
    return Program.translate(variant.build(specialization, target), target.backend.value, configs)


def _run(
    program: Program, entry: CatalogEntry, specialization: Specialization, sample: Mapping[str, Any], sanitize: bool
) -> None:
    declared = entry.spec.arguments(specialization)
    outputs = [a.name for a in declared if isinstance(a, TensorArg) and a.role is Role.OUT]
    program.run([sample[argument.name] for argument in declared], sanitize=sanitize, unwritten=outputs)


def _failed(specialization: Specialization, where: str, sample: int, error: TkcError) -> CheckResult:
    return CheckResult(specialization, where, sample, "", False, float("inf"), 0, 0, Tolerance(), str(error))
