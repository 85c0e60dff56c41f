"""Counters of where the time of requests went, by model and service: phases at once, causes when they are explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from collector.causes.split.names import PARTS
from collector.incidents.held_up import held_up
from collector.metrics import metrics
from collector.metrics.series import SECOND_NS, Labels, LabelSets, Series, is_other
from collector.sql.fragment import Fragment
from tokentrail.semconv import Phase

MOST_SERVED: Final = 100
"""Most pairs of a model and a service that are told apart; others count as `other`."""
REASONS: Final = tuple(name.removeprefix("wait_") for name in PARTS if name.startswith("wait_"))
"""Why a request waits for its first token although the engine has begun to serve others."""


PHASES: Final = {
    Phase.QUEUED: "queue_ns",
    Phase.COLD_START: "cold_start_ns",
    Phase.PREFILL: "prefill_ns",
    Phase.DECODE: "decode_ns",
    Phase.PREEMPTED: "preempted_ns",
    Phase.KV_TRANSFER: "kv_transfer_ns",
    Phase.STALLED: "stalled_ns",
}
"""Columns of `requests`."""


def _sums(values: Sequence[str]) -> Fragment:
    return Fragment(f"[{', '.join(f'sum(weight * ({value}))' for value in values)}]")


SUMS: Final[Mapping[str, Fragment]] = {
    "before": _sums([f"ttft_{name}_us" for name in PARTS]),
    "after": _sums([f"rest_{name}_us" for name in PARTS]),
    "held": _sums([held_up(reason) for reason in REASONS]),
    "phases": _sums([*PHASES.values()]),
}
"""What the queries `segment_causes` and `segment_requests` add up."""


class CauseCounters:
    """Adds up times of requests that were explained. The caller has a lock."""

    def __init__(self, series: Series, served: LabelSets, clock: Callable[[], int]) -> None:
        self._series, self._served, self._clock = series, served, clock

    def add_phases(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows of `segment_requests`, without what was measured at clients. An unknown time adds nothing."""
        at_s = self._clock() / SECOND_NS
        for row in rows:
            if row["vantage"] == "server":
                labels = self._labels(row)
                if is_other(labels):
                    self._series.add(metrics.OVERFLOW, ("models",), row["n"])
                for phase, ns in zip(PHASES, row["phases"], strict=True):
                    if ns is not None:
                        self._series.add(metrics.PHASE_TIME, (*labels, phase), ns / SECOND_NS, at_s=at_s)

    def _labels(self, row: Mapping[str, Any]) -> Labels:
        return self._served.admit((row["model"], row["service"], row["process_tenant"]), self._clock())

    def add_causes(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows of `segment_causes`, without what was measured at clients: they know no causes."""
        at_s = self._clock() / SECOND_NS
        for row in rows:
            if not row["is_server"]:
                continue
            labels = self._labels(row)
            for of, sums in (("ttft", row["before"]), ("rest", row["after"])):
                for cause, us in zip(PARTS, sums, strict=True):
                    if us:
                        self._series.add(metrics.CAUSE_TIME, (*labels, of, cause), us / 1e6, at_s=at_s)
            for reason, n in zip(REASONS, row["held"], strict=True):
                self._series.add(metrics.HELD_UP, (*labels, reason), n, at_s=at_s)
