"""Reads NVIDIA devices through the driver's library, without torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pynvml


class NvidiaDevice:
    """One device. Readings raise pynvml.NVMLError when the driver cannot give them."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.name = str(pynvml.nvmlDeviceGetName(handle))

    def memory_used_bytes(self) -> int:
        """Memory in use by all processes."""
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def utilization(self) -> float:
        """Share of the last sampling period in which a kernel ran, 0 to 1."""
        return float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100


@cache
def devices() -> list[NvidiaDevice]:
    """All devices; none without the driver."""
    try:
        pynvml.nvmlInit()
        return [NvidiaDevice(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
