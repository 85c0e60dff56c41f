"""The parts of tokentrail that run as processes of their own: collector, engine, dashboard and alerting rules.

Each is a package: a top-level folder of a checkout, and a folder in a `parts` folder of the wheel. Only the processes
that run a part have it on their path, so that no environment gets packages with names as common as `collector`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from tokentrail.cli.processes import ProcessFailed

_PACKAGE: Final = Path(__file__).resolve().parent.parent
_NEEDS: Final = {
    "collector": ("clickhouse_connect", "fastapi", "grpc", "prometheus_client", "pydantic_settings", "uvicorn"),
    "instrumented_engine": ("fastapi", "prometheus_client", "pydantic_settings", "torch", "transformers", "uvicorn"),
    "dashboard": ("httpx", "plotly", "streamlit"),
    "alerts": ("pydantic", "yaml"),
}
"""Modules that each part imports and that only an extra brings."""
_EXTRAS: Final = {
    "collector": "collector",
    "instrumented_engine": "engine",
    "dashboard": "dashboard",
    "alerts": "collector-server",
}


def folder() -> Path:
    """The folder of the parts."""
    installed = _PACKAGE / "parts"
    return installed if installed.is_dir() else _PACKAGE.parent


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a part's module, such as `collector.access`, in an `environment()`.

    Raises ProcessFailed when the part's packages are not installed, and names the extra that brings them.
    """
    require(module.partition(".")[0])
    return [sys.executable, "-m", module, *arguments]


def require(*names: str) -> None:
    """Raise ProcessFailed, which names the extras, unless the packages of all these parts are installed."""
    missing = {
        part: absent for part in names if (absent := [m for m in _NEEDS[part] if importlib.util.find_spec(m) is None])
    }
    if missing:
        modules = ", ".join(dict.fromkeys(module for absent in missing.values() for module in absent))
        extras = ",".join(_EXTRAS[part] for part in missing)
        *others, last = (f"the {part.replace('_', ' ')}" for part in missing)
        named = f"{', '.join(others)} and {last}" if others else last
        raise ProcessFailed(f"packages of {named} are not installed ({modules}): pip install 'tokentrail[{extras}]'")


def dashboard(*flags: str) -> list[str]:
    """The command that runs the dashboard. Raises ProcessFailed as `command` does."""
    python, option, _ = command("dashboard")
    return [python, option, "streamlit", "run", str(folder() / "dashboard" / "app.py"), *flags]


def environment() -> dict[str, str]:
    """The environment of a process that runs a part: this one's, with the parts on the path."""
    path = os.pathsep.join(filter(None, [str(folder()), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
