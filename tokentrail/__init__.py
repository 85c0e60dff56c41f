"""tokentrail: SLO monitoring for LLM inference that keeps the trail of every token."""

from tokentrail.clock import now_ns
from tokentrail.coldstart import ColdStart
from tokentrail.config import Settings
from tokentrail.export import TrailStats
from tokentrail.http import Endpoint
from tokentrail.request import Choice, RequestTrail
from tokentrail.sampling import Sampling, Thresholds
from tokentrail.semconv import KvEvent, Phase, Status
from tokentrail.trail import Trail
from tokentrail.version import __version__

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
]
