"""Reads NVIDIA devices through the driver's library, without torch."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

import pynvml


class NvidiaDevice:
    """One device. A reading is None when the driver does not support it or has gone away."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.name = str(pynvml.nvmlDeviceGetName(handle))

    def memory_used_bytes(self) -> int | None:
        """Memory in use by all processes."""
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except pynvml.NVMLError:
            return None

    def utilization(self) -> float | None:
        """Share of the last sampling period in which a kernel ran, 0 to 1."""
        try:
            return float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
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
