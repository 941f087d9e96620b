"""Specializations to check, and a store with their artifacts for the CPU, built once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_specs.quant.cast.spec import DTYPES, STOCHASTIC
from tests.kernel_specs.cpu_stores import build_cpu_store
from tkc.model import Specialization
from tkc.registry import find_entry
from tkc.runtime import reset

CAST, PER_TOKEN_CAST = find_entry("quant.cast").spec, find_entry("quant.per_token_cast").spec

_PLAIN = {
    "mode": "cast",
    "x": "bfloat16",
    "x_sf": "none",
    "x_run": 16,
    "fmt": "e4m3",
    "width": 128,
    "sf": "float32",
    "stochastic": False,
}
_CHOSEN = (
    {},
    {"x": "float32", "sf": "pow2"},
    {"width": 32, "sf": "ue8m0"},
    {"width": 32, "sf": "ue8m0", "x": "float32"},
    {"width": 64, "sf": "e4m3"},
    {"width": 16, "sf": "ue8m0", "x": "float32"},
    {"fmt": "e2m1", "width": 32, "sf": "ue8m0"},
    {"fmt": "e2m1", "width": 16, "sf": "e4m3"},
    {"fmt": "e2m1", "width": 128, "sf": "float32", "x": "float32"},
    {"mode": "sf_only", "sf": "ue8m0"},
    {"mode": "sf_only", "sf": "e4m3", "width": 16},
    {"mode": "precomputed"},
    {"mode": "precomputed", "sf": "ue8m0", "fmt": "e2m1", "width": 32},
    {"mode": "precomputed", "sf": "e4m3", "fmt": "e2m1", "width": 16},
    {"stochastic": True},
    {"stochastic": True, "fmt": "e2m1", "width": 32},
    {"x": "e4m3", "x_sf": "float32", "width": 32, "sf": "ue8m0"},
    {"x": "e4m3", "x_sf": "ue8m0", "x_run": 1},
    {"x": "e4m3", "x_sf": "e4m3", "x_run": 1, "fmt": "e2m1", "width": 16, "sf": "e4m3"},
    {"x": "e2m1", "x_sf": "ue8m0", "width": 128},
    {"x": "e2m1", "x_sf": "e4m3", "width": 32, "sf": "ue8m0"},
    {"x": "e2m1", "x_sf": "float32", "width": 16},
    {"x": "e2m1", "x_sf": "float32", "x_run": 1, "width": 64, "sf": "pow2"},
    {"x": "e2m1", "x_sf": "e4m3", "fmt": "e2m1", "width": 32, "sf": "ue8m0"},
)


def per_token_casts() -> tuple[Specialization, ...]:
    """Every value of every axis, and the pairs that go different ways in a variant."""
    return tuple(PER_TOKEN_CAST.specialization({**_PLAIN, **chosen}) for chosen in _CHOSEN)


def casts() -> tuple[Specialization, ...]:
    """Every pair of dtypes."""
    plain = [CAST.bind(x_dtype=x, y_dtype=y) for x, y in itertools.permutations(DTYPES, 2)]
    return (*plain, *(CAST.bind(x_dtype=x, y_dtype=y, stochastic=True) for x, y in STOCHASTIC))


def compiled() -> tuple[Specialization, ...]:
    """What the operators' tests call, and every format's conversions at least once."""
    chosen = [one for one in casts() if "float32" in (one["x_dtype"], one["y_dtype"]) or one["stochastic"]]
    return (*per_token_casts(), *chosen, CAST.bind(x_dtype="bfloat16", y_dtype="float8_e4m3fn"))


@pytest.fixture(scope="session")
def cpu_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The specializations, compiled for this machine's CPU."""
    return build_cpu_store(tmp_path_factory.mktemp("quant") / "store", compiled())


@pytest.fixture
def on_cpu(cpu_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The runtime finds the artifacts of `cpu_store`, and nothing is compiled on a miss."""
    monkeypatch.setenv("TKC_STORES", str(cpu_store))
    monkeypatch.setenv("TKC_ON_MISS", "error")
    reset()
    yield
    reset()
