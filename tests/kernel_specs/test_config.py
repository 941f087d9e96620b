"""Settings: whole, scoped, undoable, checked; devices are asked one by one."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import kernel_specs
from kernel_specs import config, utils
from tkc.errors import ArgumentError, TargetError

PEER_NAMES = {
    *("get_device_num_sms", "set_num_sms", "get_num_sms", "get_num_ai_cores", "get_num_cube_cores"),
    *("get_num_vec_cores", "get_max_smem_per_sm", "get_max_ub_per_vector_core"),
    *("set_token_alignment", "get_token_alignment", "set_pdl", "get_pdl"),
    *("use_deterministic_algorithms", "get_deterministic_algorithms"),
    *("set_amax_clamp_for_quant", "get_amax_clamp_for_quant"),
}


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    config.reset_runtime_config()
    yield
    config.reset_runtime_config()


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with two different cards, of 132 and 148 multiprocessors; the first is the current one."""
    cards = [SimpleNamespace(multi_processor_count=n, shared_memory_per_multiprocessor=n << 10) for n in (132, 148)]
    module = SimpleNamespace(current=0, current_device=lambda: module.current, get_device_properties=cards.__getitem__)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    config._num_sms_of.cache_clear()
    monkeypatch.setattr(config, "_num_sms_of", config._num_sms_of.__wrapped__)
    return module


def snapshot() -> tuple[object, ...]:
    clamps = [config.get_amax_clamp_for_quant(fmt, e4m3) for fmt in ("e4m3", "e2m1") for e4m3 in (False, True)]
    flags = (config.get_pdl(), config.get_deterministic_algorithms())
    return config.get_token_alignment(), *flags, config.get_num_sms(), *clamps


DEFAULTS = (128, False, False, 1, 1e-4, 0.875, 6 * 2.0**-126, 0.01171875)


def test_the_package_offers_every_function_of_the_peer() -> None:
    assert {name for name in PEER_NAMES if not callable(getattr(kernel_specs, name, None))} == set()
    assert set(kernel_specs.__all__) >= PEER_NAMES | set(config.__all__)


def test_defaults() -> None:
    assert snapshot() == DEFAULTS


def test_everything_that_was_set_is_undone_by_a_reset() -> None:
    """In the peer only a reset of everything can unset the number of multiprocessors, and it is not public."""
    config.set_token_alignment(64)
    config.set_pdl(True)
    config.use_deterministic_algorithms(True)
    config.set_amax_clamp_for_quant("e4m3", False, 0.5)
    assert snapshot() == (64, True, True, 1, 0.5, *DEFAULTS[5:])
    config.reset_runtime_config()
    assert snapshot() == DEFAULTS


@pytest.mark.parametrize("nothing", [0, None])
def test_the_number_of_multiprocessors_can_be_unset(two_devices: SimpleNamespace, nothing: int | None) -> None:
    config.set_num_sms(20)
    assert config.get_num_sms() == config.get_num_ai_cores() == config.get_num_cube_cores() == 20
    assert config.get_num_vec_cores() == 40
    config.set_num_sms(nothing)
    assert config.get_num_sms() == 132


def test_each_device_is_asked_for_itself(two_devices: SimpleNamespace) -> None:
    """The peer remembers the first device's answers for all others."""
    assert config.get_device_num_sms() == config.get_device_num_sms(0) == 132
    assert config.get_device_num_sms("cuda:1") == config.get_device_num_sms(torch.device("cuda", 1)) == 148
    assert config.get_max_smem_per_sm() == 132 << 10
    assert config.get_max_smem_per_sm("cuda:1") == 148 << 10
    two_devices.current = 1
    assert config.get_num_sms() == config.get_num_sms("cuda") == 148
    config.set_num_sms(140)
    assert config.get_num_sms("cuda:0") == 132
    assert config.get_num_sms("cuda:1") == 140


def test_a_cpu_counts_as_one_multiprocessor() -> None:
    assert config.get_device_num_sms("cpu") == config.get_num_sms(torch.device("cpu")) == 1
    with pytest.raises(TargetError, match="CUDA"):
        config.get_max_smem_per_sm("cpu")


@pytest.mark.skipif(config.is_ascend(), reason="asks what an Ascend machine would answer")
def test_the_unified_buffer_is_an_ascend_notion(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match="davinci"):
        config.get_max_ub_per_vector_core()
    monkeypatch.setattr(config, "is_ascend", lambda: True)
    assert config.get_max_ub_per_vector_core() == 216 * 1024
    assert config.get_max_ub_per_vector_core(use_simt=False) == 248 * 1024


@pytest.mark.parametrize(
    ("function", "arguments", "argument", "said"),
    [
        (config.set_num_sms, (-1,), "num_sms", "at least 0"),
        (config.set_num_sms, (1.5,), "num_sms", "integer"),
        (config.set_num_sms, (True,), "num_sms", "integer"),
        (config.set_token_alignment, (0,), "token_alignment", "at least 1"),
        (config.set_token_alignment, ("128",), "token_alignment", "integer"),
        (config.set_pdl, ("yes",), "pdl", "True or False"),
        (config.set_pdl, (None,), "pdl", "True or False"),
        (config.use_deterministic_algorithms, (2,), "deterministic_algorithms", "True or False"),
        (config.set_amax_clamp_for_quant, ("e4m2", False, 1.0), "fmt", "e4m3"),
        (config.set_amax_clamp_for_quant, ("e4m3", False, 0.0), "value", "at least"),
        (config.set_amax_clamp_for_quant, ("e4m3", False, math.nan), "value", "finite"),
        (config.set_amax_clamp_for_quant, ("e4m3", False, math.inf), "value", "finite"),
        (config.set_amax_clamp_for_quant, ("e2m1", True, 6 * 2.0**-11), "value", "at least"),
        (config.set_amax_clamp_for_quant, ("e2m1", None, 1.0), "use_e4m3_sf", "True or False"),
        (config.get_amax_clamp_for_quant, ("bf16", False), "fmt", "e2m1"),
    ],
)
def test_an_illegal_value_is_refused_and_changes_nothing(
    function: object, arguments: tuple[object, ...], argument: str, said: str
) -> None:
    """The peer takes any alignment, and any clamp: zero gives a scale factor of zero, and NaN."""
    before = snapshot()
    with pytest.raises(ArgumentError, match=said) as raised:
        function(*arguments)
    assert raised.value.argument == argument
    assert isinstance(raised.value, ValueError)
    assert snapshot() == before


def test_more_multiprocessors_than_the_device_has_are_refused(two_devices: SimpleNamespace) -> None:
    with pytest.raises(ArgumentError, match="num_sms is 133; the current device has 132"):
        config.set_num_sms(133)


def test_an_override_ends_with_its_block() -> None:
    with config.override(pdl=True, token_alignment=32, amax_clamp={("e2m1", False): 1.0}):
        assert snapshot() == (32, True, False, 1, 1e-4, 0.875, 1.0, DEFAULTS[-1])
        with config.override(pdl=False):
            assert (config.get_pdl(), config.get_token_alignment()) == (False, 32)
        config.set_token_alignment(16)
        assert (config.get_pdl(), config.get_token_alignment()) == (True, 16)
        config.reset_runtime_config()
        assert snapshot() == DEFAULTS
    assert snapshot() == DEFAULTS


def test_an_override_ends_with_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), config.override(pdl=True):
        _ = 1 // 0
    assert not config.get_pdl()


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'token_alignment'"), config.override(token_alignement=1):
        pass


def test_an_override_is_seen_by_its_own_thread_alone() -> None:
    seen: list[bool] = []
    with config.override(pdl=True):
        thread = threading.Thread(target=lambda: seen.append(config.get_pdl()))
        thread.start()
        thread.join()
        contextvars.copy_context().run(lambda: seen.append(config.get_pdl()))
    assert seen == [False, True]


def test_asynchronous_tasks_do_not_see_each_others_overrides() -> None:
    async def task(alignment: int) -> set[int]:
        seen = set()
        with config.override(token_alignment=alignment):
            for _ in range(20):
                await asyncio.sleep(0)
                seen.add(config.get_token_alignment())
        return seen

    async def both() -> list[set[int]]:
        return await asyncio.gather(task(32), task(64))

    assert asyncio.run(both()) == [{32}, {64}]
    assert config.get_token_alignment() == 128


def test_threads_that_change_different_settings_lose_none() -> None:
    """Replacing the whole value without a lock would drop what another thread set in between."""
    barrier = threading.Barrier(4)

    def work(change: object) -> None:
        barrier.wait()
        for number in range(1, 400):
            change(number)

    changes = (
        config.set_token_alignment,
        lambda n: config.set_amax_clamp_for_quant("e4m3", False, float(n)),
        lambda n: config.set_amax_clamp_for_quant("e2m1", True, float(n)),
        lambda n: config.set_pdl(bool(n % 2)),
    )
    threads = [threading.Thread(target=work, args=(change,)) for change in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert snapshot() == (399, True, False, 1, 399.0, 0.875, DEFAULTS[6], 399.0)


def test_small_arithmetic_and_names_of_dtypes() -> None:
    assert [utils.ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [utils.align(n, 16) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]
    assert [n for n in range(-4, 17) if utils.is_power_of_two(n)] == [1, 2, 4, 8, 16]
    assert [utils.next_power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 1025)] == [1, 1, 2, 4, 4, 8, 2048]
    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}.items():
        assert utils.str_to_dtype(name) is dtype and utils.dtype_to_str(dtype) == name
    assert utils.str_to_dtype("e2m1") is torch.int8 and utils.dtype_to_str(torch.int8) == "e2m1"
    with pytest.raises(ValueError, match="Did you mean 'bf16'"):
        utils.str_to_dtype("bf61")
    with pytest.raises(ValueError, match="float64"):
        utils.dtype_to_str(torch.float64)
