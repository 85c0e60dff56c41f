"""Gauges of `/metrics`: the present state of engine processes, the numbers of SLOs, and the store's disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from collector.ask.queries import Queries
from collector.base.process import Process, by_turns
from collector.causes.split.names import load_causes
from collector.count.in_flight import InFlight, judge_in_flight, last_steps, processes_of, read_announced
from collector.count.sampled import processes
from collector.keep.usage import Usage
from collector.metrics import metrics
from collector.metrics.filled import FilledTables
from collector.metrics.series import SECOND_NS, Series, fits, is_other, printable
from collector.metrics.store_counters import StoreCounters
from collector.sql.fragment import TRUE
from tokentrail.shared.durations import format_duration

if TYPE_CHECKING:
    from collector.incidents.top_cause import Reason
    from collector.numbers.slos import Evaluation, SloOut

RECENT_NS: Final = 300 * SECOND_NS
"""The present state of an engine process is its newest step, if that is not older than this."""
_LATE_NS: Final = 60 * SECOND_NS
"""Steps are looked for that began so long before the time up to which they were read."""
_AHEAD_NS: Final = 60 * SECOND_NS
"""What is announced by now has begun, also by a clock that is ahead. The query knows clocks that are further ahead."""
_MEMORY_NS: Final = 24 * 3600 * SECOND_NS
_MOST_REMEMBERED: Final = 10_000
"""Most processes without requests in flight whose last step is remembered. Others are asked for when they have some."""
_MOST_SAMPLED: Final = 1000
"""Most processes with samples on one page."""
_MOST_CAUSES: Final = 5
"""Of one SLO that burns."""
_ENGINE_METRICS: Final = {
    "running": metrics.ENGINE_RUNNING,
    "waiting": metrics.ENGINE_WAITING,
    "generation_tokens": metrics.ENGINE_GENERATION_TOKENS,
    "preemptions": metrics.ENGINE_PREEMPTIONS,
    "kv_usage": metrics.ENGINE_KV_USAGE,
}
"""By common name."""


class Processes:
    """Remembers the last step of every engine process, so that none of the stored steps is read twice."""

    def __init__(self, queries: Queries, filled: FilledTables, *, lost_after_ns: int) -> None:
        self._queries = queries
        self._filled = filled
        self._lost_after_ns = lost_after_ns
        self._newest: dict[Process, dict[str, Any]] = {}
        self._began_ns: dict[Process, int] = {}
        self._read_until_ns = 0
        self._open: Mapping[str, Sequence[Any]] | None = None

    def read(self, *, now_ns: int, heard_until_ns: int, since_ns: int) -> None:
        """Read the steps that came since the last call, and the requests in flight that were not lost before a time.

        When the end of a request is stored, its segment counts it, also when its sender's clock is ahead of ours.
        """
        filled = self._filled.look()
        if "steps" in filled:
            read_until_ns = min(self._read_until_ns, now_ns)  # somebody may have set the clock back
            self._read_steps(max(now_ns - RECENT_NS, read_until_ns - _LATE_NS), now_ns)
        self._read_until_ns = heard_until_ns
        announced = {"start_ns": since_ns, "end_ns": now_ns + _AHEAD_NS, "lost_after_ns": self._lost_after_ns}
        is_any = "open_requests" in filled
        self._open = read_announced(self._queries, TRUE, **announced) if is_any else defaultdict(list)
        of_open = {one for process in processes_of(self._open) for one in (process, process.of_all_tenants)}
        unknown = of_open - self._began_ns.keys()
        self._began_ns |= dict.fromkeys(unknown, 0) | last_steps(self._queries, unknown, now_ns)
        idle = [(ns, p) for p, ns in self._began_ns.items() if p not in of_open and ns > now_ns - _MEMORY_NS]
        idle = sorted(idle)[-_MOST_REMEMBERED:]
        self._began_ns = {p: self._began_ns[p] for p in of_open} | {p: ns for ns, p in idle}

    def _read_steps(self, start_ns: int, end_ns: int) -> None:
        for row in self._queries.rows("newest_steps", {"process_filter": TRUE}, start_ns=start_ns, end_ns=end_ns):
            process = Process.of(row)
            self._newest[process], self._began_ns[process] = row, row["seen_ns"]

    @property
    def has_open_requests(self) -> bool:
        """Requests were in flight when they were last read, or nothing was read yet."""
        return self._open is None or bool(self._open["service"])

    def in_flight(self, *, now_ns: int, heard_until_ns: int) -> InFlight:
        """The requests in flight as of now, from memory."""
        if not self._open:
            return InFlight.nothing()
        return judge_in_flight(
            self._open,
            self._began_ns,
            end_ns=now_ns,
            lost_after_ns=self._lost_after_ns,
            heard_until_ns=heard_until_ns,
        )

    def expose(self, series: Series, counters: StoreCounters, in_flight: InFlight, *, now_ns: int) -> None:
        """Set the gauges of engine processes. Those that share the labels `other` add up."""
        self._newest = {p: row for p, row in self._newest.items() if now_ns - RECENT_NS < row["seen_ns"] <= now_ns}
        processes = dict.fromkeys([*self._newest, *in_flight.count_by_process(~in_flight.is_lost)])
        beyond = sum(is_other(counters.admit_process(process)) for process in processes)
        series.set(metrics.PROCESSES_UNDER_OTHER, (), beyond)
        for process, row in self._newest.items():
            labels = counters.admit_process(process)
            for metric, n in ((metrics.RUNNING, row["running_now"]), (metrics.WAITING, row["waiting_now"])):
                if n is not None:
                    series.increase(metric, labels, n)
            if row["blocks_total"] and row["blocks_used"] is not None:
                series.raise_to(metrics.KV_USAGE, labels, row["blocks_used"] / row["blocks_total"])
        for labels, ahead_s in counters.clocks.ahead_s(now_ns).items():
            series.set(metrics.CLOCK_AHEAD, labels, ahead_s)
        for labels, behind_s in counters.clocks.behind_s(now_ns).items():
            series.set(metrics.CLOCK_BEHIND, labels, behind_s)
        for labels in counters.processes():
            series.increase(metrics.IN_FLIGHT, labels, 0)
            series.increase(metrics.STUCK, labels, 0)
        for metric, requests in (
            (metrics.IN_FLIGHT, ~in_flight.is_lost),
            (metrics.STUCK, ~in_flight.is_lost & in_flight.no_progress),
        ):
            for process, n in in_flight.count_by_process(requests).items():
                series.increase(metric, counters.admit_process(process), n)


def expose_tables(series: Series, usage: Usage) -> None:
    """Set the gauges of the store's tables and disks."""
    for table, row in usage.tables().items():
        series.set(metrics.STORE_ROWS, (table,), row["total_rows"])
        series.set(metrics.STORE_BYTES, (table,), row["disk_bytes"])
        series.set(metrics.STORE_BROKEN, (table,), row["broken_parts"])
    for disk in usage.disks():
        labels = disk["host"], disk["name"], disk["path"]
        series.set(metrics.STORE_FREE, labels, disk["free_bytes"])
        series.set(metrics.STORE_TOTAL, labels, disk["total_bytes"])


def expose_samples(series: Series, queries: Queries, *, now_ns: int) -> int:
    """Set the metrics of engines that are scraped or send samples, scraped ones first. Return how many are left out."""
    sampled = processes(queries, start_ns=now_ns - RECENT_NS, end_ns=now_ns)
    in_order = by_turns(sampled, lambda process: process.process.process_tenant)
    for process in sorted(in_order, key=lambda process: process.up is None)[:_MOST_SAMPLED]:
        labels = tuple(map(printable, (process.engine, *process.process)))
        if process.up is not None:
            series.set(metrics.ENGINE_UP, labels, int(process.up))
        for name, metric in _ENGINE_METRICS.items():
            if name in process.values:
                (series.add if metric.kind == "counter" else series.set)(metric, labels, process.values[name])
    return max(0, len(sampled) - _MOST_SAMPLED)


def expose_slos(series: Series, slos: Sequence[SloOut]) -> None:
    """Set the gauges of SLOs, so that neither rules nor dashboards need to compute them."""
    for slo in slos:
        series.set(metrics.SLO_SELECTED, (slo.name,), slo.selected_last_day)
        series.set(metrics.SLO_CANDIDATES, (), slo.ended_last_day)
        _expose_numbers(series, (slo.name, ""), slo)
        for group in slo.groups:
            if group.tenant and fits(group.tenant):
                _expose_numbers(series, (slo.name, printable(group.tenant)), group)


def expose_reasons(series: Series, reasons: Sequence[Reason]) -> None:
    """Set the gauges of what took time from the bad requests of SLOs that burn."""
    for one in reasons:
        labels = one.slo, printable(one.tenant or "")
        if not fits(labels[1]):
            continue
        series.set(metrics.SLO_REASON, (*labels, printable(one.text)), 1)
        for cause, share in islice(one.shares.items(), _MOST_CAUSES):
            series.set(metrics.SLO_CAUSE_SHARE, (*labels, cause, load_causes()[cause].group), share)
        for culprit in one.culprits:
            if culprit.share and fits(culprit.name):
                series.set(metrics.SLO_CULPRIT_SHARE, (*labels, culprit.by, printable(culprit.name)), culprit.share)


def _expose_numbers(series: Series, labels: tuple[str, str], numbers: Evaluation) -> None:
    for metric, value in (
        (metrics.SLO_ATTAINMENT, numbers.attainment),
        (metrics.SLO_BUDGET_LEFT, numbers.budget_left),
        (metrics.SLO_EXHAUSTION, numbers.exhausted_in_s),
    ):
        if value is not None:
            series.set(metric, labels, value)
    for burn in numbers.burn:
        for seconds, rate in ((burn.short_s, burn.short_burn), (burn.long_s, burn.long_burn)):
            if rate is not None:
                series.set(metrics.SLO_BURN, (*labels, format_duration(round(seconds * SECOND_NS))), rate)
