"""Measure a callable on a CUDA device: kernel time and host time, as medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_FLUSH_BYTES = 256 * 1024 * 1024
_FLUSH_MARK = "Memset"


def kernel_time_us(call: Callable[[], object], repeats: int = 30) -> float:
    """Median time that the device spends in the kernels of one call, in µs, with a cold L2 cache.

    Read from the driver's activity records, so launch gaps do not count. Between two calls the L2 cache is
    overwritten; the records of that memset part one call's kernels from the next one's.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            flush.zero_()
            call()
        flush.zero_()
        torch.cuda.synchronize()
    records = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    records.sort(key=lambda event: event.time_range.start)
    times: list[float] = []
    for event in records:
        if _is_flush(event):
            times.append(0.0)
        elif times:
            times[-1] += event.time_range.elapsed_us()
    counted = [spent for spent in times if spent > 0]
    if len(counted) < repeats:
        raise RuntimeError(f"expected the records of {repeats} calls, got {len(counted)}")
    return statistics.median(counted)


def _is_flush(event: object) -> bool:
    name = event.name  # type: ignore[attr-defined]
    return _FLUSH_MARK in name or ("FillFunctor<unsigned char>" in name)


def host_time_us(call: Callable[[], object], repeats: int = 2000) -> float:
    """Median time that the host spends in one call, in µs, while the device keeps up."""
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    times = []
    for index in range(repeats):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
        if index % 100 == 99:
            torch.cuda.synchronize()
    return statistics.median(times) / 1000


def copy_bandwidth_gb_s() -> float:
    """Bytes read and written per second by a large device-to-device copy: the ceiling of a memory-bound kernel."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    return 2 * source.numel() / kernel_time_us(lambda: target.copy_(source)) / 1000
