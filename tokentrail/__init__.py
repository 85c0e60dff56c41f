"""tokentrail: SLO monitoring for LLM inference that keeps the trail of every token.

A name is imported from its module when it is first used. So `import tokentrail` takes milliseconds, and numpy and
OpenTelemetry are loaded by the first `Trail`.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokentrail.version import __version__

if TYPE_CHECKING:
    from tokentrail._build.sampling import Sampling, Thresholds
    from tokentrail._host.books import TrailStats
    from tokentrail._host.clock import now_ns
    from tokentrail._record.coldstart import ColdStart
    from tokentrail._record.request import Choice, RequestTrail
    from tokentrail._send.http import Endpoint
    from tokentrail.clients.observe import observe
    from tokentrail.config import Settings
    from tokentrail.semconv import KvEvent, Phase, Status
    from tokentrail.trail import Trail

if os.path.isdir(_beside := f"{__path__[0]}/_beside"):  # noqa: PTH112 - pathlib takes longer than all the rest
    from tokentrail._host.beside import complete

    complete(_beside)

_MODULES = {
    "Choice": "_record.request",
    "ColdStart": "_record.coldstart",
    "Endpoint": "_send.http",
    "KvEvent": "semconv",
    "Phase": "semconv",
    "RequestTrail": "_record.request",
    "Sampling": "_build.sampling",
    "Settings": "config",
    "Status": "semconv",
    "Thresholds": "_build.sampling",
    "Trail": "trail",
    "TrailStats": "_host.books",
    "now_ns": "_host.clock",
    "observe": "clients.observe",
}

__all__ = [
    "Choice",
    "ColdStart",
    "Endpoint",
    "KvEvent",
    "Phase",
    "RequestTrail",
    "Sampling",
    "Settings",
    "Status",
    "Thresholds",
    "Trail",
    "TrailStats",
    "__version__",
    "now_ns",
    "observe",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
