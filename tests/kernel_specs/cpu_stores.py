"""Stores of artifacts for this machine's CPU, which tests of operators build once and then run from."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from tkc.build import build, plan
from tkc.cache import Store
from tkc.compiler.stages import Unit
from tkc.model import Host, Specialization, Target
from tkc.registry import find_entry


def every_specialization(name: str) -> tuple[Specialization, ...]:
    """Everything that the kernel `name` can be built for."""
    spec = find_entry(name).spec
    values = itertools.product(*(axis.values for axis in spec.const))
    names = [axis.name for axis in spec.const]
    return tuple(spec.specialization(dict(zip(names, chosen, strict=True))) for chosen in values)


def build_cpu_store(root: Path, specializations: Iterable[Specialization]) -> Path:
    """Compile the specializations into a new store at `root`; fails the test if one does not compile."""
    store = Store(root, writable=True)
    target, host = Target.parse("cpu"), Host.this_machine()
    units = [Unit(find_entry(one.spec), one, target, host) for one in specializations]
    outcomes = list(build(plan(units, store), store, jobs=2))
    assert len(outcomes) == len(units)
    assert [outcome for outcome in outcomes if outcome.manifest is None] == []
    return root
