"""Specs, specializations, requests and manifests."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tkc.errors import SpecError
from tkc.model import (
    Action,
    ConstAxis,
    Digest,
    FileEntry,
    KernelSpec,
    Manifest,
    ModelDims,
    Params,
    Request,
    Stage,
    diff_fields,
    manifest_of,
)


def _specialize(num_experts: int, num_topk: int = 8) -> Params:
    return {"bucket": 64 if num_experts <= 64 else 256, "num_topk": num_topk}


SPEC = KernelSpec(
    name="demo.gate",
    summary="a gate",
    definition="demo",
    const=(ConstAxis("bucket", (64, 256), "registers"), ConstAxis("num_topk", (4, 8), "unrolled")),
    var=(),
    specialize=_specialize,
    arguments=lambda specialization: (),
    grid=lambda dims: [{"num_experts": dims.num_experts}],
)


def test_bind_maps_a_call_to_const_values() -> None:
    assert dict(SPEC.bind(num_experts=60)) == {"bucket": 64, "num_topk": 8}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"num_expert": 60}, "Did you mean 'num_experts'"),
        ({}, "'num_experts' is missing"),
        ({"num_experts": 60, "num_topk": 5}, "expected one of 4, 8"),
        ({"num_experts": 60, "num_topk": True}, "expected one of"),
    ],
)
def test_wrong_parameters_are_named(params: Params, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        SPEC.bind(**params)


@pytest.mark.parametrize("field", ["summary", "definition"])
def test_incomplete_spec_is_refused(field: str) -> None:
    with pytest.raises(SpecError, match=field):
        dataclasses.replace(SPEC, **{field: " "})


def test_a_const_axis_without_a_reason_is_refused() -> None:
    with pytest.raises(SpecError, match="reason"):
        dataclasses.replace(SPEC, const=(ConstAxis("bucket", (64,), ""),))


def test_a_grid_gives_each_specialization_once() -> None:
    models = [ModelDims("a", 128, num_experts=32), ModelDims("b", 128, num_experts=64)]
    assert len(SPEC.specializations(models)) == 1


def test_every_field_of_a_request_changes_its_key() -> None:
    request = Request(SPEC.bind(num_experts=60), Digest.of_bytes(b"source"), "sm90", "x86_64")
    others = [
        dataclasses.replace(request, specialization=SPEC.bind(num_experts=200)),
        dataclasses.replace(request, source=Digest.of_bytes(b"edited")),
        dataclasses.replace(request, target="sm100"),
        dataclasses.replace(request, host="aarch64"),
        dataclasses.replace(request, abi=request.abi + 1),
    ]
    assert len({request.key, *(other.key for other in others)}) == 6


def test_diff_names_nested_fields() -> None:
    diff = diff_fields({"tools": {"nvrtc": "13.0"}, "same": 1}, {"tools": {"nvrtc": "13.5"}, "same": 1, "new": 2})
    assert [(one.field, one.ours, one.theirs) for one in diff] == [("new", None, 2), ("tools.nvrtc", "13.0", "13.5")]


def _manifest() -> Manifest:
    action = Action(Stage.LINK, {"host": "x86_64", "ratio": 0.5})
    return manifest_of(action, (FileEntry("kernel.so", Digest.of_bytes(b"so"), 2),), facts={"entry": "main"})


def test_manifest_survives_a_round_trip() -> None:
    assert Manifest.from_bytes(_manifest().to_bytes()) == _manifest()


@pytest.mark.parametrize("name", ["../kernel.so", "/kernel.so", ".hidden", "a/b", "a\\b", "", "a\0b"])
def test_a_file_name_that_leaves_the_artifact_is_refused(name: str) -> None:
    data = _manifest().to_bytes().replace(b'"kernel.so"', _quoted(name))
    with pytest.raises(ValueError, match="manifest"):
        Manifest.from_bytes(data)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_manifest_reader(data: bytes) -> None:
    with pytest.raises(ValueError):
        Manifest.from_bytes(data)


@given(st.data())
def test_no_cut_or_flip_crashes_the_manifest_reader(data: st.DataObject) -> None:
    whole = bytearray(_manifest().to_bytes())
    index = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[index] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del whole[index:]
    try:
        Manifest.from_bytes(bytes(whole))
    except ValueError:
        return  # refused; what is still well-formed is caught by the store's digest of the manifest


def _quoted(name: str) -> bytes:
    import json

    return json.dumps(name).encode()
