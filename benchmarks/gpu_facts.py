"""Prints versions, the measured peaks of the device and each reading of NVML as JSON."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import torch

from instrumented_engine import nvml
from instrumented_engine.device import open_device
from instrumented_engine.model.work import measure_peaks
from instrumented_engine.settings import Settings

READINGS = (
    "memory_used_bytes",
    "utilization",
    "power_watts",
    "sm_clock_hertz",
    "memory_clock_hertz",
    "throttled",
    "xid_errors",
)


def main() -> None:
    """Print the facts. Each is asked for by itself: one that fails is told as its error."""
    device = open_device(Settings())
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device.target.type,
    }
    facts["peaks"] = measure_peaks(device.target, device.dtype)._asdict()
    if device.target.type == "cuda":
        facts["capability"] = torch.cuda.get_device_capability(0)
        facts["memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
    facts["nvml"] = [{"name": one.name} | {name: getattr(one, name)() for name in READINGS} for one in nvml.devices()]
    json.dump(facts, sys.stdout, indent=1, default=str)
    print()


if __name__ == "__main__":
    main()
