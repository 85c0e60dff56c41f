"""tokentrail: SLO monitoring for LLM inference that keeps the trail of every token.

A name is imported from its module when it is first used. So `import tokentrail` takes milliseconds, and numpy and
OpenTelemetry are loaded by the first `Trail`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokentrail.version import __version__

if TYPE_CHECKING:
    from tokentrail.clock import now_ns
    from tokentrail.coldstart import ColdStart
    from tokentrail.config import Settings
    from tokentrail.export import TrailStats
    from tokentrail.http import Endpoint
    from tokentrail.observed import observe
    from tokentrail.request import Choice, RequestTrail
    from tokentrail.sampling import Sampling, Thresholds
    from tokentrail.semconv import KvEvent, Phase, Status
    from tokentrail.trail import Trail

_MODULES = {
    "Choice": "request",
    "ColdStart": "coldstart",
    "Endpoint": "http",
    "KvEvent": "semconv",
    "Phase": "semconv",
    "RequestTrail": "request",
    "Sampling": "sampling",
    "Settings": "config",
    "Status": "semconv",
    "Thresholds": "sampling",
    "Trail": "trail",
    "TrailStats": "export",
    "now_ns": "clock",
    "observe": "observed",  # a module of that name would take the function's place
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
