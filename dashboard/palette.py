"""Colours, each with one meaning on all pages, readable in light and dark mode."""

from __future__ import annotations

from typing import Final

from tokentrail.semconv import Phase

QUANTILES: Final = {"p50": "#94a3b8", "p95": "#3b82f6", "p99": "#8b5cf6"}
THRESHOLD: Final = "#ef4444"
GOOD: Final = "#10b981"
BAD: Final = "#ef4444"
WARN: Final = "#f59e0b"
QUIET: Final = "#94a3b8"
MAIN: Final = "#3b82f6"
OTHERS: Final = "#fb7185"
"""Prompts of other requests, in a step for which a token waited."""
INCOMPLETE: Final = QUIET
"""Shades the end of a window of which requests may be on their way."""

PHASES: Final = {
    Phase.QUEUED: "#94a3b8",
    Phase.COLD_START: "#8b5cf6",
    Phase.PREFILL: "#f59e0b",
    Phase.DECODE: "#3b82f6",
    Phase.PREEMPTED: "#ef4444",
    Phase.KV_TRANSFER: "#14b8a6",
    Phase.STALLED: "#db2777",
}

SELECTED: Final = "#e1323c"
CHANGE: Final = "#0ea5e9"
"""A new model or variant."""

CAUSES: Final = {
    "kv_eviction": "#ef4444",
    "kv_wait": "#f97316",
    "cold_start": "#8b5cf6",
    "slo_burn": "#f59e0b",
    "engine_lost": "#db2777",
    "engine_hung": "#db2777",
}


def phase_colour(name: str) -> str:
    """The colour of a phase; grey for a phase that only a newer collector knows."""
    return PHASES.get(name, QUIET)  # type: ignore[call-overload,no-any-return] # a StrEnum is looked up by its value
