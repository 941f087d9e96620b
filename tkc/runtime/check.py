"""Check loaded kernels against their references, on the device that they were loaded on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tkc.compare import CheckResult, compare_outputs
from tkc.model import Specialization
from tkc.registry import CatalogEntry
from tkc.runtime.device import DeviceLike, device_info
from tkc.runtime.table import load_kernel


def check_loaded(
    entry: CatalogEntry, specialization: Specialization, device: DeviceLike, seed: int = 0
) -> Iterator[CheckResult]:
    """Launch the loaded kernel on each sample input of its reference and compare every output.

    Sample inputs are fresh random numbers drawn from `seed`, with the outputs poisoned. Raises what
    loading and launching raise.
    """
    info = device_info(device)
    kernel = load_kernel(entry.spec, specialization, info)
    reference = entry.reference()
    names = [argument.name for argument in entry.spec.arguments(specialization)]
    for number, sample in enumerate(reference.samples(specialization, seed)):
        want = reference.expected(specialization, sample)
        there = {name: _moved(sample[name], info.place) for name in names}
        kernel(*there.values())
        yield from compare_outputs(entry.spec, specialization, f"{info.target} on {info.place}", number, there, want)


def _moved(value: Any, place: str) -> Any:
    """A tensor on the device, with the strides that it had; numbers and None as they are."""
    import torch

    if not isinstance(value, torch.Tensor) or place == "cpu":
        return value
    span = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
    if value.numel() == 0:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=place)
    flat = value.as_strided((span,), (1,)).to(place)
    return flat.as_strided(value.shape, value.stride())
