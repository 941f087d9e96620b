"""Kernels are found by what the tensors are, and loaded once."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tkc
from tests.runtime.conftest import H200, Maker
from tkc.errors import LoadError, SpecError, TargetError
from tkc.model import Specialization
from tkc.runtime import KernelTable, LoadedKernel, device, table
from tkc.runtime.device import device_info

CPU_DEVICE = torch.device("cpu")


def test_table_entry_computes_what_the_kernel_computes(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4)
    x, out = torch.randn(5, 4), torch.full((5, 4), float("nan"))
    KernelTable(maker.entry.spec)[CPU_DEVICE, False, 4](x, out, 3.0)
    torch.testing.assert_close(out, x * 3)


def test_pdl_key_launches_the_pdl_entry_and_falls_back_to_the_plain_one(
    maker: Maker, entry: object, user_store: Path
) -> None:
    spec = maker.entry.spec
    maker.put(user_store, spec.bind(columns=4), pdl=True)
    maker.put(user_store, spec.bind(columns=8), pdl=False)
    kernels = KernelTable(spec)
    out = torch.empty(1, 4)
    kernels[CPU_DEVICE, True, 4](torch.zeros(1, 4), out, 1.0)
    assert out.unique().item() == 1000  # the hand-made PDL entry marks what it writes
    out = torch.empty(1, 8)
    kernels[CPU_DEVICE, True, 8](torch.ones(1, 8), out, 2.0)
    assert out.unique().item() == 2


def test_second_use_is_a_plain_dictionary_hit(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4)
    kernels = KernelTable(maker.entry.spec)
    first = kernels[CPU_DEVICE, False, 4]
    assert kernels.get((CPU_DEVICE, False, 4)) is first


def test_key_with_illegal_or_missing_values_is_a_spec_error(maker: Maker) -> None:
    kernels = KernelTable(maker.entry.spec)
    with pytest.raises(SpecError, match="width is 5; expected one of 4, 8"):
        kernels[CPU_DEVICE, False, 5]
    with pytest.raises(SpecError, match="0 const values; expected 1: width"):
        kernels[CPU_DEVICE, False]
    assert not kernels


def test_device_of_a_kind_without_target_is_a_target_error(maker: Maker) -> None:
    with pytest.raises(TargetError, match="no target serves device 'meta'"):
        KernelTable(maker.entry.spec)[torch.device("meta"), False, 4]


def test_device_without_index_is_looked_up_anew_each_time(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.put(user_store, spec4, H200)
    asked = []

    def current(_device: object) -> object:
        asked.append(1)
        return H200

    monkeypatch.setattr(table, "device_info", current)
    kernels = KernelTable(maker.entry.spec)
    kernels[torch.device("cuda"), False, 4]
    kernels[torch.device("cuda"), False, 4]
    assert len(asked) == 2
    assert not kernels
    kernels[torch.device("cuda", 0), False, 4]
    assert list(kernels) == [(torch.device("cuda", 0), False, 4)]


def test_sixteen_threads_that_miss_at_once_load_once(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.put(user_store, spec4)
    opened = []
    really_open = table._open
    monkeypatch.setattr(table, "_open", lambda *args: (opened.append(1), really_open(*args))[1])
    kernels = KernelTable(maker.entry.spec)
    barrier, results = threading.Barrier(16), []

    def use() -> None:
        x, out = torch.randn(3, 4), torch.empty(3, 4)
        barrier.wait()
        kernels[CPU_DEVICE, False, 4](x, out, 2.0)
        results.append(torch.equal(out, x * 2))

    threads = [threading.Thread(target=use) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 16
    assert len(opened) == 1


def test_failed_load_is_tried_again(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TKC_ON_MISS", "error")
    kernels = KernelTable(maker.entry.spec)
    with pytest.raises(tkc.errors.ArtifactMissingError):
        kernels[CPU_DEVICE, False, 4]
    maker.put(user_store, spec4)
    assert kernels[CPU_DEVICE, False, 4]


def test_kernel_by_name_says_what_it_is(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4)
    kernel = tkc.kernel("demo.scale", "cpu", columns=2)
    assert isinstance(kernel, LoadedKernel)
    assert kernel.specialization == spec4
    assert kernel.layer == user_store
    assert str(kernel.target) == "cpu"
    assert kernel.manifest.file("kernel.so").size_bytes > 0
    x, out = torch.randn(2, 4), torch.empty(2, 4)
    kernel(x, out, 0.5)
    torch.testing.assert_close(out, x / 2)


def test_kernel_with_unknown_name_or_parameter_names_the_nearest(maker: Maker) -> None:
    with pytest.raises(SpecError, match=r"Did you mean 'demo.scale'"):
        tkc.kernel("demo.scael", columns=4)
    with pytest.raises(SpecError, match="Did you mean 'columns'"):
        tkc.kernel("demo.scale", "cpu", colums=4)


def test_kernel_takes_const_axes_as_an_error_message_writes_them(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    maker.put(user_store, spec4)
    assert tkc.kernel("demo.scale", "cpu", **spec4).specialization == spec4


def test_load_during_graph_capture_is_refused_with_the_call_that_helps(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.put(user_store, spec4, H200)
    monkeypatch.setattr(device, "_is_capturing", lambda index: True)
    with pytest.raises(LoadError, match="captured into a CUDA graph") as caught:
        table.load_kernel(maker.entry.spec, spec4, H200, {"columns": 3})
    assert "tkc.warmup([('demo.scale', {'columns': 3})], device='cuda:0')" in str(caught.value)


def test_kernel_that_is_loaded_can_be_used_during_graph_capture(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.put(user_store, spec4, H200)
    warm = table.load_kernel(maker.entry.spec, spec4, H200)
    monkeypatch.setattr(device, "_is_capturing", lambda index: True)
    assert table.load_kernel(maker.entry.spec, spec4, H200) is warm


def test_device_that_refuses_the_artifact_is_a_load_error(
    maker: Maker, spec4: Specialization, user_store: Path
) -> None:
    from dataclasses import replace

    maker.put(user_store, spec4, H200)
    with pytest.raises(LoadError, match=r"demo.scale width=4: artifact \w+ cannot be loaded on cuda:7.*no such device"):
        table.load_kernel(maker.entry.spec, spec4, replace(H200, index=7))


def test_cpu_kernels_go_on_working_in_a_forked_child(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4)
    maker.put(user_store, maker.entry.spec.bind(columns=8))
    kernels = KernelTable(maker.entry.spec)
    loaded = kernels[CPU_DEVICE, False, 4]

    def child() -> None:
        x, out = torch.ones(2, 4), torch.empty(2, 4)
        loaded(x, out, 2.0)
        assert out.unique().item() == 2
        assert dict.get(kernels, (CPU_DEVICE, False, 4)) is loaded
        wide = torch.empty(2, 8)
        kernels[CPU_DEVICE, False, 8](torch.ones(2, 8), wide, 3.0)
        assert wide.unique().item() == 3

    _in_forked_child(child)


def test_device_kernels_are_refused_in_a_forked_child(maker: Maker, spec4: Specialization, user_store: Path) -> None:
    maker.put(user_store, spec4, H200)
    kernels = KernelTable(maker.entry.spec)
    held = table.load_kernel(maker.entry.spec, spec4, H200)
    kernels[torch.device("cuda", 0), False, 4] = held.entry()

    def child() -> None:
        assert not kernels
        with pytest.raises(LoadError, match="forked after its parent"):
            table.load_kernel(maker.entry.spec, spec4, H200)
        with pytest.raises(LoadError, match="forked after its parent"):
            held._main = _refusing
            held(torch.ones(1, 4), torch.empty(1, 4), 1.0)

    _in_forked_child(child)
    assert kernels


def test_fork_while_another_thread_loads_leaves_no_lock_held(
    maker: Maker, spec4: Specialization, user_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.put(user_store, spec4)
    inside, go_on = threading.Event(), threading.Event()
    really_open = table._open
    parent = os.getpid()

    def slow_open(*args: object) -> object:
        if os.getpid() == parent:
            inside.set()
            go_on.wait(30)
        return really_open(*args)

    monkeypatch.setattr(table, "_open", slow_open)
    kernels = KernelTable(maker.entry.spec)
    thread = threading.Thread(target=lambda: kernels[CPU_DEVICE, False, 4])
    thread.start()
    assert inside.wait(30)
    try:
        _in_forked_child(lambda: kernels[CPU_DEVICE, False, 4])
    finally:
        go_on.set()
        thread.join()


def test_default_device_is_the_cpu_without_cuda() -> None:
    if not torch.cuda.is_available():
        assert device_info().place == "cpu"
        with pytest.raises(TargetError, match="no usable"):
            device_info("cuda")


def _refusing(*args: object) -> None:
    raise RuntimeError("not initialized")


def _in_forked_child(check: Callable[[], object]) -> None:
    """Run `check` in a forked child, and fail if it fails or does not end."""
    child = os.fork()
    if child == 0:
        try:
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    timer = threading.Timer(60, os.kill, (child, 9))
    timer.start()
    status = os.waitpid(child, 0)[1]
    timer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
