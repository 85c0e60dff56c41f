"""Reads NVIDIA devices through the driver's library, without torch."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

THROTTLE_REASONS = {
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
"""Reasons for clocks below those that the work asks for, with their bits."""
MOST_EVENTS = 64
"""XID events that one reading takes from the driver."""


class NvidiaDevice:
    """One device. A reading is None when the driver does not support it or has gone away."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._events: Any = None
        self._xids: Counter[int] = Counter()
        self.name = str(pynvml.nvmlDeviceGetName(handle))
        try:
            events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
            self._events = events
        except pynvml.NVMLError:
            pass  # a container or a virtual device may not listen

    def memory_used_bytes(self) -> int | None:
        """Memory in use by all processes."""
        return _read(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def utilization(self) -> float | None:
        """Share of the last sampling period in which a kernel ran, 0 to 1."""
        return _read(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100)

    def power_watts(self) -> float | None:
        """Power of the whole board."""
        return _read(lambda: float(pynvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000)

    def sm_clock_hertz(self) -> float | None:
        """Clock of the multiprocessors."""
        return _read(lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM) * 1e6)

    def memory_clock_hertz(self) -> float | None:
        """Clock of the memory."""
        return _read(lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_MEM) * 1e6)

    def throttled(self) -> dict[str, bool] | None:
        """Whether the clocks are lowered, by reason."""
        bits = _read(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)))
        return None if bits is None else {reason: bool(bits & bit) for reason, bit in THROTTLE_REASONS.items()}

    def xid_errors(self) -> dict[int, int] | None:
        """Critical XID errors since this process looks for them, by number."""
        if self._events is None:
            return None
        for _ in range(MOST_EVENTS):
            event = _read(lambda: pynvml.nvmlEventSetWait_v2(self._events, 0))
            if event is None:  # the driver's time-out is an error, too
                break
            self._xids[int(event.eventData)] += 1
        return dict(self._xids)


def _read(value: Callable[[], T]) -> T | None:
    try:
        return value()
    except pynvml.NVMLError:
        return None


@cache
def devices() -> list[NvidiaDevice]:
    """The devices that torch can use, in its order; none without the driver or with a CPU-only torch."""
    if not _torch_has_cuda():
        return []
    try:
        pynvml.nvmlInit()
        return [NvidiaDevice(handle) for handle in _visible_handles(os.environ.get("CUDA_VISIBLE_DEVICES"))]
    except pynvml.NVMLError:
        return []


def _visible_handles(setting: str | None) -> list[Any]:
    """Handles of the devices that CUDA_VISIBLE_DEVICES lists by index or UUID; all when it is not set.

    Like CUDA, this ignores an entry that names no device, and all entries behind it. Indices count in PCI order.
    """
    if setting is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    handles: list[Any] = []
    for entry in (part.strip() for part in setting.split(",")):
        try:
            if entry.isdecimal():
                handles.append(pynvml.nvmlDeviceGetHandleByIndex(int(entry)))
            else:
                handles.append(pynvml.nvmlDeviceGetHandleByUUID(entry))
        except pynvml.NVMLError:
            break
    return handles


def _torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA, found without importing it."""
    torch = importlib.util.find_spec("torch")
    return bool(torch and torch.origin and (Path(torch.origin).parent / "lib" / "libtorch_cuda.so").exists())
