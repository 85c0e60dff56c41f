"""Describes the machine, the versions and the time of a benchmark, beside its numbers."""

from __future__ import annotations

import json
import mmap
import os
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

Quick = Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes; the numbers are rough.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the result there, with machine and versions.")]


VECTORS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd")
"""Instructions that decide how quickly a CPU multiplies matrices, the quickest first. Its name does not tell them."""


def publish(
    name: str, numbers: Mapping[str, Any], *, packages: tuple[str, ...], quick: bool, path: Path | None
) -> None:
    """Prints a benchmark's numbers, one a line, and writes them as JSON to `path` when there is one."""
    for key, value in numbers.items():
        print(f"{key:<44} {value:,.4g}" if isinstance(value, float) else f"{key:<44} {value}")
    if path:
        save(name, numbers, packages=packages, quick=quick, path=path)
        print(f"written to {path}")


def save(name: str, numbers: Mapping[str, Any], *, packages: tuple[str, ...], quick: bool, path: Path) -> None:
    """Writes a benchmark's numbers as JSON, with the machine and the versions."""
    report = {
        "benchmark": name,
        "quick": quick,
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{package: _version(package) for package in packages}},
        "numbers": dict(numbers),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """CPU model and its best vector instructions, cores that this process may use, memory, kernel, load, fresh pages.

    A number cannot be judged without them.
    """
    flags = (_first_line("/proc/cpuinfo", "flags") or _first_line("/proc/cpuinfo", "Features")).split()
    return {
        "cpu": _first_line("/proc/cpuinfo", "model name") or platform.processor(),
        "vectors": next((name for name in VECTORS if name in flags), "unknown"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first_line("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "load_1m": round(os.getloadavg()[0], 2),
        "us_per_fresh_page": round(_us_per_fresh_page(), 2),
    }


def _us_per_fresh_page(size: int = 64 << 20) -> float:
    """CPU of a page's first touch, in µs.

    A virtual machine whose host must find that memory first took 2 to 4 µs, while a loop without memory was as quick
    as ever. A third of the CPU of an insert went there (`perf record -e cpu-clock`: `clear_page_erms`).
    """
    pages = size // mmap.PAGESIZE
    with mmap.mmap(-1, size) as memory:
        begun = time.process_time()
        memory[:: mmap.PAGESIZE] = bytes(pages)
        return (time.process_time() - begun) / pages * 1e6


def _first_line(path: str, key: str) -> str:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
