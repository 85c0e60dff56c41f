"""A load generator for OpenAI-compatible endpoints, which times every response with the client's own clock."""

from tokentrail.load.client import Observation, observe, run
from tokentrail.load.workload import CHAT, COMPLETION, LONG_GENERATION, Lengths, PlannedRequest, Profile, burst, poisson

__all__ = [
    "CHAT",
    "COMPLETION",
    "LONG_GENERATION",
    "Lengths",
    "Observation",
    "PlannedRequest",
    "Profile",
    "burst",
    "observe",
    "poisson",
    "run",
]
