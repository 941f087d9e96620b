"""The CUDA variants, interpreted on the CPU under the sanitizer, bit for bit as the references say."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tkc.interpret.check import check_variant
from tkc.model import Backend, Specialization, Target
from tkc.registry import find_entry

from .conftest import PER_TOKEN_CAST, casts, per_token_casts


def _check(specialization: Specialization, target: str) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    results = check_variant(
        find_entry(specialization.spec), specialization, Target.parse(target), seed=seed, sanitize=True
    )
    assert results
    assert [result for result in results if not result.ok] == [], f"seed {seed}"


@pytest.mark.parametrize("specialization", (*per_token_casts(), *casts()), ids=str)
def test_cuda_variant_equals_its_reference(specialization: Specialization) -> None:
    """Two roundings that were written independently agree; nothing is read or written out of range."""
    _check(specialization, "sm90")


_SEVERAL_ROWS = [one for one in per_token_casts() if one["sf"] == "ue8m0" or one["x"] == "e2m1"]


@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize("specialization", _SEVERAL_ROWS, ids=str)
def test_per_token_cast_of_several_rows_a_warp(
    specialization: Specialization, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many rows are shared; those of the samples are so few that each has a warp of its own."""
    variant = find_entry(PER_TOKEN_CAST.name).variant(Backend.CUDA)
    tuned = variant.tuned
    monkeypatch.setattr(variant, "tuned", lambda plan: dataclasses.replace(tuned(plan), few=0))
    _check(specialization, target)


@pytest.mark.parametrize(("width", "sf"), [(128, "float32"), (32, "ue8m0")])
def test_tables_of_products_with_scale_factors_that_are_no_numbers(
    width: int, sf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero times NaN has no sign in e4m3, where zero times anything else has the element's."""
    fours = {"mode": "cast", "x": "e2m1", "x_sf": "float32", "x_run": 16, "fmt": "e4m3", "stochastic": False}
    reference = find_entry(PER_TOKEN_CAST.name).reference()
    samples = reference.samples

    def with_specials(specialization: Specialization, seed: int) -> Iterator[dict[str, Any]]:
        for args in samples(specialization, seed):
            specials = torch.tensor([math.nan, 1.0, math.inf, 0.0]).repeat(args["x_sf"].numel())
            args["x_sf"].copy_(specials[: args["x_sf"].numel()].view_as(args["x_sf"]))
            yield args

    monkeypatch.setattr(reference, "samples", with_specials)
    _check(PER_TOKEN_CAST.specialization({**fours, "width": width, "sf": sf}), "sm90")
