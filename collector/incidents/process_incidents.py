"""Incidents of engine processes: silence, standstill, preemptions and cold starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from collector.ask.times import DAY_NS, SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.process import Process
from collector.count import samples
from collector.count.evaluation import open_requests, process_filter
from collector.count.in_flight import InFlight, Ints
from collector.count.reader import Reader
from collector.incidents.incident import Incident, RequestList, incident, request_list
from collector.slo.conditions import Cause, load_conditions
from tokentrail.shared.durations import duration_text

_FRESH_NS: Final = 120 * SECOND_NS
"""An incident that the newest sample shows lasts for so long after it."""
MOST_FOUND: Final = 10_000
"""The most incidents that one query finds, those that were seen last."""


def processes_in_trouble(reader: Reader, window: Window) -> Iterator[Incident]:
    """Find the processes that went silent, and those that make no progress."""
    in_flight, given_up_ns = _given_up(reader, window)
    victims = defaultdict(list)
    for i in np.flatnonzero(in_flight.is_lost | in_flight.no_progress).tolist():
        victims[in_flight.processes[i], bool(in_flight.is_lost[i])].append(i)
    shown = load_conditions()["engine_lost"].shown
    yield from _sampled_processes_in_trouble(reader, window) if not reader.tenant else ()
    newest_first = sorted(victims.items(), key=lambda item: given_up_ns[item[1]].max(), reverse=True)
    open_by_process = in_flight.count_by_process(~in_flight.is_lost)
    for (process, is_lost), rows in newest_first[:MOST_FOUND]:
        where, n = process.title, len(rows) if is_lost else open_by_process[process]
        silent_since = int(in_flight.seen_ns[rows].max())
        stuck_since = int(np.maximum(in_flight.began_ns, in_flight.last_step_ns)[rows].min())
        asked = {**process._asdict(), "status": "lost" if is_lost else "in_flight"}
        listed = replace(window, start_ns=min(window.start_ns, int(in_flight.lost_at_ns[rows].min())))
        common: dict[str, Any] = {
            "start_ns": silent_since if is_lost else stuck_since,
            **process._asdict(),
            "requests_affected": n,
            "requests": request_list(listed, n, **asked),
        }
        if is_lost:
            over_ns = int(given_up_ns[rows].max()) + shown
            yield incident(
                "engine_lost",
                title=f"{where} went silent",
                detail=f"Requests lost: {n}. Nothing was heard of them in {duration_text(reader.lost_after_ns)}.",
                end_ns=over_ns if over_ns <= window.end_ns else None,
                **common,
            )
        else:
            yield incident(
                "engine_hung",
                title=f"{where} makes no progress",
                detail=f"Requests open: {n}. There was no step in {duration_text(reader.lost_after_ns)} or longer.",
                end_ns=None,
                **common,
            )


def _given_up(reader: Reader, window: Window) -> tuple[InFlight, Ints]:
    """The requests that had not ended at the window's end, without those that were given up before its start; and when.

    In an outage of the collector nobody gives up a request, and the alert asks for what was given up lately. So an
    engine that died in an outage is lost from its end on. The counters remember a day.
    """
    not_ended = open_requests(reader, replace(window, start_ns=min(window.start_ns, window.end_ns - DAY_NS)))
    given_up = not_ended.lost_at_ns.copy()
    for i in np.flatnonzero(not_ended.is_lost).tolist():
        if (at_ns := reader.given_up_ns(not_ended.key(i))) <= window.end_ns:
            given_up[i] = max(given_up[i], at_ns)
    inside = given_up >= window.start_ns
    return not_ended.where(inside), given_up[inside]


def _sampled_processes_in_trouble(reader: Reader, window: Window) -> Iterator[Incident]:
    lasts = duration_text(reader.lost_after_ns)
    for hung in samples.standstills(reader, window, MOST_FOUND):
        running, waiting = (round(hung.detail[name]) for name in ("running_then", "waiting_then"))
        yield _of_stretch(
            "engine_hung",
            window,
            hung,
            title=f"{hung.process.title} makes no progress",
            detail=f"{running} requests run and {waiting} wait, and its metrics show no token and no step in {lasts} or"
            " longer.",
            requests_affected=running + waiting,
        )
    for down in samples.outages(reader, window, MOST_FOUND):
        yield _of_stretch(
            "engine_lost",
            window,
            down,
            title=f"{down.process.title} does not answer scrapes",
            detail=f"{down.detail['scrapes']} scrapes in a row failed. The last reason: {down.detail['last_reason']}.",
            requests_affected=0,
        )


def _of_stretch(cause: Cause, window: Window, stretch: samples.Stretch, **fields: Any) -> Incident:
    """An incident that lasts while the newest sample, which must be fresh, shows it."""
    lasts = stretch.lasts and stretch.last_ns + _FRESH_NS > window.end_ns
    end_ns = None if lasts else stretch.last_ns
    return incident(cause, start_ns=stretch.began_ns, end_ns=end_ns, **stretch.process._asdict(), **fields)


def _sampled_preemptions(reader: Reader, window: Window) -> Iterator[Incident]:
    """Runs of preemptions that the totals of sampled processes show, divided by a minute without one."""
    shown = load_conditions()["kv_eviction"].shown
    runs: list[tuple[dict[str, Any], int, int]] = []  # the process, the last bucket, the preemptions
    begins: list[int] = []
    for row in samples.growth(reader, window, ["preemptions"], SECOND_NS):
        n, at = round(row["growth"]), row["bucket_ns"]
        if not n:
            continue
        same = runs and Process.of(runs[-1][0]) == Process.of(row)
        if same and at - runs[-1][1] <= shown:
            runs[-1] = (row, at, runs[-1][2] + n)
        else:
            runs.append((row, at, n))
            begins.append(at)
    for (process, last_ns, n), began_ns in zip(runs, begins, strict=True):
        yield incident(
            "kv_eviction",
            title=f"{Process.of(process).title} takes KV-cache blocks from running requests",
            detail=f"{n} preemptions by its metrics. The tokens of these requests are computed again.",
            start_ns=began_ns,
            end_ns=last_ns if last_ns + shown <= window.end_ns else None,
            **Process.of(process)._asdict(),
            requests_affected=n,
        )


def _eviction_runs(reader: Reader, window: Window, quiet_ns: int, since_ns: int) -> list[dict[str, Any]]:
    """The runs of preemptions with one in the window, from `since_ns` on."""
    return reader.queries.rows(
        "eviction_runs",
        {"process_filter": process_filter(window), "filter": window.filter},
        **window.bounds,
        since_ns=since_ns,
        quiet_ns=quiet_ns,
        limit=MOST_FOUND,
    )


def evictions(reader: Reader, window: Window) -> Iterator[Incident]:
    """Find the runs of preemptions of each process."""
    shown = load_conditions()["kv_eviction"].shown
    rows = _eviction_runs(reader, window, shown, window.start_ns)
    if any(row["began_ns"] < window.start_ns + shown for row in rows):  # perhaps it goes on from before the window
        rows = _eviction_runs(reader, window, shown, window.start_ns - DAY_NS)
    yield from _sampled_preemptions(reader, window)
    still_open = _keys(open_requests(reader, window)) if any(row["not_ended"] for row in rows) else frozenset()
    for row in rows:
        yield incident(
            "kv_eviction",
            title=f"{Process.of(row).title} takes KV-cache blocks from running requests",
            detail=_preempted(row),
            start_ns=row["began_ns"],
            end_ns=row["last_ns"] if row["last_ns"] + shown <= window.end_ns else None,
            **Process.of(row)._asdict(),
            requests_affected=row["victims"],
            requests=_lists(
                "kv_eviction",
                window,
                row,
                row["last_ns"],
                ended=row["ended"],
                in_flight=len(still_open & {*row["not_ended"]}),
            ),
        )


def _keys(in_flight: InFlight) -> frozenset[str]:
    """The keys of the requests that are in flight and not lost."""
    return frozenset(in_flight.key(i) for i in np.flatnonzero(~in_flight.is_lost).tolist())


def _lists(
    cause: Cause, window: Window, row: Mapping[str, Any], until_ns: int, *, ended: int, in_flight: int = 0
) -> list[RequestList]:
    """The lists of the requests of one process that a cause touched, from the row's `began_ns` until `until_ns`."""
    asked = {"cause": cause, "cause_start": rfc3339(row["began_ns"]), "cause_end": rfc3339(until_ns)}
    asked |= Process.of(row)._asdict()
    return request_list(window, ended, **asked) + request_list(window, in_flight, **asked, status="in_flight")


def _preempted(row: Mapping[str, Any]) -> str:
    """A sentence about the preemptions of a process and their blocks."""
    preemptions = "1 preemption" if row["evictions"] == 1 else f"{row['evictions']} preemptions"
    return f"{preemptions} took {_number(row['blocks_lost'])} blocks{_fate(row)}."


def _fate(row: Mapping[str, Any]) -> str:
    """The end of a sentence about preemptions: their blocks are computed again, or were copied to the host."""
    if not row["offloads"]:
        return ", to be computed again"
    if row["offloads"] == row["evictions"]:
        return ", which were copied to the host's memory"
    others = row["evictions"] - row["offloads"]
    return f": {row['offloads']} copied them to the host's memory, those of {others} are to be computed again"


def _number(n: int | None) -> str:
    return "an unknown number of" if n is None else str(n)


def cold_starts(reader: Reader, window: Window) -> Iterator[Incident]:
    """Find the cold starts that took long."""
    condition = load_conditions()["cold_start"]
    rows = reader.queries.rows(
        "cold_starts",
        {"process_filter": process_filter(window), "filter": window.filter},
        **window.bounds,
        limit=MOST_FOUND,
    )
    for row in rows:
        if row["duration_ns"] < condition.longer_than:
            continue
        end_ns = row["began_ns"] + row["duration_ns"]
        failed = f" and failed ({row['error_type'] or 'no reason given'})" if row["status"] == "error" else ""
        yield incident(
            "cold_start",
            title=f"{Process.of(row).title} started",
            detail=f"The cold start took {row['duration_ns'] / SECOND_NS:.3g} s{failed}.",
            start_ns=row["began_ns"],
            end_ns=end_ns,
            firing=end_ns + condition.shown > window.end_ns,
            **Process.of(row)._asdict(),
            requests_affected=row["waited"],
            requests=_lists("cold_start", window, row, end_ns, ended=row["waited"]),
        )
