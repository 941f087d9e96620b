"""The target table and hosts."""

from __future__ import annotations

import pytest

from tkc.errors import TargetError
from tkc.model import Backend, Host, Target


@pytest.mark.parametrize(
    ("name", "backend", "arch"),
    [
        ("sm90", Backend.CUDA, "sm_90a"),
        ("sm100", Backend.CUDA, "sm_100f"),
        ("ascend950", Backend.ASCEND, "dav-3510"),
        ("cpu", Backend.CPU, "generic"),
        ("sm80", Backend.CUDA, "sm_80"),
        ("sm89", Backend.CUDA, "sm_89"),
        ("sm103", Backend.CUDA, "sm_103a"),
        ("sm120", Backend.CUDA, "sm_120a"),
    ],
)
def test_names_parse(name: str, backend: Backend, arch: str) -> None:
    target = Target.parse(name)
    assert (target.backend, target.arch, str(target)) == (backend, arch, name)


@pytest.mark.parametrize(("name", "near"), [("sm9O", "sm90"), ("ascend", "ascend950"), ("cpus", "cpu")])
def test_unknown_target_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(TargetError, match=near):
        Target.parse(name)


def test_too_old_target_says_so() -> None:
    with pytest.raises(TargetError, match="too old"):
        Target.parse("sm60")


@pytest.mark.parametrize(("name", "arch"), [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64")])
def test_hosts_parse(name: str, arch: str) -> None:
    assert Host.parse(name).arch == arch


def test_unknown_host_lists_the_known() -> None:
    with pytest.raises(TargetError, match="aarch64"):
        Host.parse("riscv64")
