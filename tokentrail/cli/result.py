"""The result of a demo: checks the collector's numbers against the clients' and prints a summary."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console
from rich.rule import Rule

from tokentrail.cli.api import Api
from tokentrail.cli.live import latencies, slos
from tokentrail.cli.output import own_name
from tokentrail.cli.processes import PORTS
from tokentrail.load import Observation
from tokentrail.load.compare import Comparison, compare, longest_hop_s
from tokentrail.shared.formatting import duration

HOP_MEDIAN_S = 0.1
"""Median time that the hop between client and server may take when all processes share two cores."""
SETTLE_S = 20.0
ALERT_S = 60.0
"""An alert fires a scrape and an evaluation after its cause; on a busy machine both are late."""
EVICTIONS_ALERT_FROM = 20
"""Preemptions from which their alert must fire. It needs an increase of ten, and the first scrape may see some."""
MOST_DETAILS = 60
"""Requests that are compared token by token. Each is a query of the store."""

_MOST_RULE = 80
"""Columns of the line above the summary, also in an output that is no terminal and has no width."""


@dataclass(frozen=True, slots=True)
class Slowest:
    """The request with the largest value of a latency, and the time that each phase took of it, the longest first."""

    latency: str
    seconds: float
    trace_id: str
    phases: list[tuple[str, float]]


@dataclass(slots=True)
class DemoResult:
    """The collector's records of a demo. `problems` is empty when all numbers agree."""

    summary: dict[str, Any]
    slos: list[dict[str, Any]]
    comparison: Comparison
    alerts_seen: set[str]
    cold_starts: list[dict[str, Any]]
    preemptions: int
    slowest: list[Slowest]
    """By TTFT and by E2E."""
    details: int
    """Requests that were compared token by token."""
    explanation: str
    """The sentence about the slowest percent of TTFT."""
    problems: list[str] = field(default_factory=list)


def verify(
    api: Api, seen: Sequence[Observation], *, since: float, prometheus: str | None, to_the_end: bool = True
) -> DemoResult:
    """Wait until the collector has every request that did not fail, then check its numbers against the clients'.

    `to_the_end` False: the user ended the load, so a missing eviction or alert is no problem.
    """
    expected_ids = {o.request_id for o in seen if o.status != "error"} - {""}  # one cancelled early has no id
    rows = _settled_rows(api, expected_ids, since)
    comparison = compare(seen, rows)
    preemptions = sum(one["preemptions"] or 0 for one in api.get("processes", start=since)["processes"])
    expected = {"cold start": "TokentrailColdStart"} if prometheus and to_the_end else {}
    if expected and preemptions >= EVICTIONS_ALERT_FROM:
        expected["KV eviction"] = "TokentrailKvCacheEvictions"
    detailed = rows[:: -(-len(rows) // MOST_DETAILS) or 1]
    result = DemoResult(
        summary=api.get("summary", start=since),
        slos=api.get("slos")["slos"],
        comparison=comparison,
        alerts_seen=_settled_alerts({*expected.values()}, prometheus, since) if prometheus else set(),
        cold_starts=api.get("cold_starts", start=since - 300)["cold_starts"],
        preemptions=preemptions,
        slowest=[found for latency in ("ttft", "e2e") if (found := _slowest(api, rows, latency))],
        details=len(detailed),
        explanation=_settled_explanation(api, since),
        problems=comparison.problems(median_s=longest_hop_s(seen, HOP_MEDIAN_S)),
    )
    result.problems += [f"a request failed: {o.error}" for o in seen if o.status == "error"]
    result.problems += [p for row in detailed for p in _parts_that_do_not_sum(api, row)]
    if not to_the_end:
        return result
    if not any(o.status == "ok" for o in seen):
        result.problems.append("no request was answered")
    if not result.cold_starts:
        result.problems.append("the engine's cold start is not in /api/v1/cold_starts")
    if result.preemptions == 0:
        result.problems.append("the burst preempted no request: the cache was never under pressure")
    result.problems += [
        f"the {cause} alert ({name}) never fired in Prometheus"
        for cause, name in expected.items()
        if name not in result.alerts_seen
    ]
    return result


def _settled_rows(api: Api, expected: set[str], since: float) -> list[dict[str, Any]]:
    """The request rows, once no request is in flight and all expected ids are there; after `SETTLE_S`, those there."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        ended = api.get("summary", start=since)["requests"]["in_flight"] == 0  # asked first: a row comes with its end
        rows = api.requests(start=since)
        if (ended and expected <= {row["request_id"] for row in rows}) or time.monotonic() > deadline:
            return rows
        time.sleep(0.5)


def _settled_explanation(api: Api, since: float) -> str:
    """What took the time of the slowest TTFTs, once they are explained; after `SETTLE_S`, what is known by then."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        answer = api.get("explain", metric="ttft", start=since)
        selected = answer["selected"]
        if selected["explained"] >= selected["requests"] or time.monotonic() > deadline:
            return str(answer["sentence"])
        time.sleep(0.5)


def _slowest(api: Api, rows: Sequence[dict[str, Any]], latency: str) -> Slowest | None:
    """The slowest request by `ttft` or `e2e`. Its phases add up to E2E, and those before the first token to TTFT.

    TTFT 1.2 s of queued 1.0 s, prefill 0.2 s, decode 3.0 s    queued 1.0 s, prefill 0.2 s
    """
    known = [row for row in rows if row[f"{latency}_s"] is not None]
    row = max(known, key=lambda row: row[f"{latency}_s"], default=None)
    if row is None:
        return None
    left = row[f"{latency}_s"]
    spent: defaultdict[str, float] = defaultdict(float)
    for phase in api.get(f"requests/{row['trace_id']}", span_id=row["span_id"])["phases"]:
        part = min(left, phase["duration_s"])
        spent[phase["name"]] += part
        left -= part
    longest = sorted(((name, took) for name, took in spent.items() if took > 0), key=lambda item: -item[1])
    return Slowest(latency.upper(), row[f"{latency}_s"], row["trace_id"], longest)


def _parts_that_do_not_sum(api: Api, row: dict[str, Any]) -> list[str]:
    """Problems of one request: its phases, and its tokens when it ended ok, must sum to E2E to the nanosecond."""
    detail = api.get(f"requests/{row['trace_id']}", span_id=row["span_id"])
    e2e_ns = round(row["e2e_s"] * 1e9)
    problems = []
    for part in ("phases", "tokens"):
        total_ns = sum(round(p["duration_s"] * 1e9) for p in detail[part])
        if total_ns != e2e_ns and not (part == "tokens" and row["status"] != "ok"):
            problems.append(f"request {row['request_id']}: its {part} sum to {total_ns} ns, E2E is {e2e_ns} ns")
    if len(detail["tokens"]) != row["output_tokens"]:
        problems.append(
            f"request {row['request_id']}: {len(detail['tokens'])} tokens in the trail, {row['output_tokens']} counted"
        )
    return problems


def _settled_alerts(expected: set[str], prometheus: str, since: float) -> set[str]:
    """The alerts that fired, once all expected ones are among them. After `ALERT_S` without them, those that did."""
    deadline = time.monotonic() + ALERT_S
    while True:
        fired = _alerts_that_fired(prometheus, since)
        if expected <= fired or time.monotonic() > deadline:
            return fired
        time.sleep(0.5)


def _alerts_that_fired(prometheus: str, since: float) -> set[str]:
    """Names of the alerts that fired at any time since `since`, from Prometheus's ALERTS series."""
    answer = httpx.get(
        f"{prometheus}/api/v1/query_range",
        params={"query": 'ALERTS{alertstate="firing"}', "start": since, "end": time.time(), "step": "2s"},
        timeout=10,
        trust_env=False,
    )
    answer.raise_for_status()
    return {series["metric"]["alertname"] for series in answer.json()["data"]["result"]}


def report(console: Console, result: DemoResult, *, urls: Mapping[str, str], problems: Sequence[str] = ()) -> None:
    """Print the summary. `urls` are those of the processes; `problems` found elsewhere come before the result's own."""
    r, a = result.summary["requests"], result.comparison
    console.print(Rule("summary"), width=min(console.width, _MOST_RULE))
    ttft, tpot = (duration(result.summary[key]["p99"]) for key in ("ttft_s", "tpot_s"))
    ended = r["ok"] + r["failed"] + r["cancelled"]
    console.print(
        f"TTFT p99 [bold]{ttft}[/] · TPOT p99 [bold]{tpot}[/] · [bold]{r['good']} of {ended}[/] requests good"
    )
    console.print(f"{r['ok']} requests ok, {r['failed']} failed, {r['cancelled']} cancelled")
    for slow in result.slowest:
        longest = ", ".join(f"{name} {duration(seconds)}" for name, seconds in slow.phases[:3])
        console.print(f"Slowest {slow.latency} {duration(slow.seconds)}: {longest or 'its phases are unknown'}")
    if result.slowest:
        _way_to(console, result.slowest[-1].trace_id, urls)
    console.print()
    console.print(latencies(result.summary))
    console.print()
    console.print(slos(result.slos))
    console.print()
    if a.ttft_gaps_s:
        console.print(
            f"{a.matched} requests compared with their clients' clock, {result.details} token by token: "
            f"TTFT {_gap(a.ttft_gaps_s)}, E2E {_gap(a.e2e_gaps_s)} later at the client (median, max)",
            soft_wrap=True,
        )
    for cold in result.cold_starts[:1]:
        parts = ", ".join(f"{p['name']} {duration(p['duration_s'])}" for p in cold["phases"])
        console.print(f"cold start: {duration(cold['duration_s'])} ({parts})")
    console.print(f"KV pressure: {result.preemptions} preemptions took blocks from running requests")
    if result.alerts_seen:
        console.print(f"alerts that fired: {', '.join(sorted(result.alerts_seen))}")
    if wrong := [*problems, *result.problems]:
        console.print("\n[bold red]does not add up:[/]")
        for problem in wrong[:20]:
            console.print(f"  - {problem}", highlight=False, markup=False)
    else:
        console.print("\n[bold green]everything adds up[/]")
    console.print(result.explanation, soft_wrap=True, highlight=False, markup=False)


def _way_to(console: Console, trace_id: str, urls: Mapping[str, str]) -> None:
    """How to see each token of a request, in a terminal and in the browser."""
    api = urls["API"]
    elsewhere = "" if api.endswith(f":{PORTS['API']}") else f" --api {api}"
    for place, way in (
        ("a terminal", f"{own_name()} request {trace_id}{elsewhere}"),
        ("the browser", f"{urls['dashboard']}/request?trace_id={trace_id}"),
    ):
        console.print(f"  its tokens in {place}: {way}", soft_wrap=True, highlight=False)


def _gap(gaps: Sequence[float]) -> str:
    return f"{duration(statistics.median(gaps))}, {duration(max(gaps))}"
