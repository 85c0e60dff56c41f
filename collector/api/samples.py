"""Reads of samples, for engines without spans of their own: for `/kv`, `/engines`, `/timeseries` and `/incidents`."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel

from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.api.session import ALL_TENANTS
from collector.measure.answers import WindowOut
from collector.measure.reader import Reader
from collector.measure.times import DAY_NS, SECOND_NS, rfc3339
from collector.measure.window import Window
from collector.process import Process
from collector.query.template import part
from collector.samples.names import SCRAPE_DURATION, UP
from collector.samples.present import SampledProcess, processes
from collector.sql.fragment import TRUE, Fragment, all_of
from collector.status import IngestStatus

_CARRIED_NS: Final = 600 * SECOND_NS
"""A process that was not sampled for so long has no value any more, however long its intervals are."""
_LOOK_BACK_NS: Final = 300 * SECOND_NS
"""Growth is the difference from the sample before: of the first one in a window, from one that is at most so old."""
_PROGRESS: Final = ("running", "waiting", "generation_tokens", "prompt_tokens", "engine_steps", "itl", "ttft")
"""Requests, and counters that grow while an engine works on them. Some engines count tokens when the request ends,
so tokens alone would call a long answer a standstill."""
_MOST_PROBLEMS: Final = 100
_LATENCIES: Final = ("ttft", "itl", "tpot", "e2e", "queue")


class SampledProcessOut(BaseModel):
    """The newest samples of one process, by common name."""

    service: str
    instance: str
    process_tenant: str
    engine: str
    models: list[str]
    up: bool | None
    reason: str
    seen: str
    scrape_s: float | None
    values: dict[str, float]


class DiscoveryProblem(BaseModel):
    """A file of targets, or a name, that tells no targets now. Those that it told before are still scraped."""

    source: str
    problem: str


class Samples(BaseModel):
    """`/samples`."""

    window: WindowOut
    processes: list[SampledProcessOut]
    discovery_problems: list[DiscoveryProblem]
    """At most 100."""


class Between(BaseModel):
    """A quantile that a histogram tells: over `above_s`, and at most `up_to_s`, which is null above the last bound."""

    above_s: float
    up_to_s: float | None


class SampledLatency(BaseModel):
    """One latency of a service, from the buckets of its histograms."""

    service: str
    process_tenant: str
    engine: str
    name: str
    count: int
    mean_s: float | None
    """Null where a histogram tells no sum."""
    p50: Between
    p90: Between
    p95: Between
    p99: Between


class SampledLatencies(BaseModel):
    """`/samples/latencies`."""

    window: WindowOut
    latencies: list[SampledLatency]


def router(ctx: Context, status: IngestStatus) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["engines"])

    @routes.get("/samples", dependencies=[ALL_TENANTS])
    def get_samples(query: Annotated[WindowQuery, Query()]) -> Samples:
        """The newest metrics of each process that is scraped or sends them, and why some targets are not known."""
        reader = ctx.reader()
        window = query.window(reader)
        problems = sorted(status.snapshot().discovery_problems.items())[:_MOST_PROBLEMS]
        return Samples(
            window=WindowOut.of(window, reader.complete_ns),
            processes=[_out(process) for process in _processes(reader, window)],
            discovery_problems=[DiscoveryProblem(source=source, problem=problem) for source, problem in problems],
        )

    @routes.get("/samples/latencies", dependencies=[ALL_TENANTS])
    def get_sampled_latencies(query: Annotated[WindowQuery, Query()]) -> SampledLatencies:
        """Latencies of the window from engines' own histograms, as bounds: a histogram has no exact quantile."""
        reader = ctx.reader()
        window = query.window(reader)
        told = WindowOut.of(window, reader.complete_ns)
        rows = reader.queries.rows(
            "sample_histograms",
            {"service_filter": _serves(window)},
            **window.bounds,
            before_ns=_LOOK_BACK_NS,
            names=[*_LATENCIES],
        )
        return SampledLatencies(window=told, latencies=[_latency(row) for row in rows if sum(row["observations"])])

    return routes


def _latency(row: Mapping[str, Any]) -> SampledLatency:
    count = sum(row["observations"])
    p50, p90, p95, p99 = (between(quantile, row["bounds"], row["observations"]) for quantile in (0.5, 0.9, 0.95, 0.99))
    return SampledLatency(
        service=row["service"],
        process_tenant=row["process_tenant"],
        engine=row["engine"],
        name=row["name"],
        count=count,
        mean_s=None if math.isnan(row["total"]) else row["total"] / count,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
    )


def between(quantile: float, bounds: Sequence[float], observations: Sequence[int]) -> Between:
    """The bounds of a quantile with inclusive interpolation. `observations` has one more entry than `bounds`.

    between(0.5, [1, 2, 5], [1, 2, 1, 0]): of 4 values, the 2nd and the 3rd lie in (1, 2], and so does the median
    """
    count = sum(observations)
    place = quantile * (count - 1)
    upper = [*itertools.accumulate(observations)]
    # Of more than 2^53 observations, a double may round up to a rank that none has.
    ranks = (min(rank, count - 1) for rank in (math.floor(place), math.ceil(place)))
    first, last = (bisect.bisect_right(upper, rank) for rank in ranks)
    return Between(above_s=bounds[first - 1] if first else 0.0, up_to_s=bounds[last] if last < len(bounds) else None)


def _out(process: SampledProcess) -> SampledProcessOut:
    values = {name: value for name, value in process.values.items() if name not in (UP, SCRAPE_DURATION)}
    return SampledProcessOut(
        **process.process._asdict(),
        engine=process.engine,
        models=sorted(process.models),
        up=process.up,
        reason=process.reason,
        seen=rfc3339(process.seen_ns),
        scrape_s=process.values.get(SCRAPE_DURATION),
        values=values,
    )


def _serves(window: Window) -> Fragment:
    """The filter for samples: their process's service has matching requests."""
    return TRUE if window.filter == TRUE else part("serves_service", {"filter": window.filter})


def _instead_of_spans(window: Window) -> Fragment:
    """The filter for samples that are shown in place of steps."""
    return all_of(_serves(window), part("tells_no_steps", {}))


def _processes(reader: Reader, window: Window) -> list[SampledProcess]:
    return processes(reader.queries, start_ns=window.start_ns, end_ns=window.end_ns, service_filter=_serves(window))


def sampled(reader: Reader, window: Window, names: Sequence[str] = ()) -> list[SampledProcess]:
    """The processes with samples and without spans of steps in the window. Only `names` are read, if given."""
    return processes(
        reader.queries,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        service_filter=_instead_of_spans(window),
        names=names,
    )


def growth(reader: Reader, window: Window, names: Sequence[str], step_ns: int | None = None) -> list[dict[str, Any]]:
    """How much totals grew, by process, name and bucket; without a step the window is one bucket."""
    return _ask(
        reader,
        "sample_increases",
        window,
        before_ns=_LOOK_BACK_NS,
        names=names,
        step_ns=step_ns or 2**62,
    )


def preemptions(reader: Reader, window: Window) -> dict[Process, int]:
    """Preemptions in the window of the processes that tell them."""
    rows = growth(reader, window, ["preemptions"])
    return {Process.of(row): round(row["growth"]) for row in rows}


def gauges(reader: Reader, window: Window, step_ns: int, also: Collection[int]) -> list[dict[str, Any]]:
    """KV-cache use, batch and queue over all processes, by bucket, where one was sampled; and in the buckets `also`."""
    rows = _ask(reader, "timeseries_samples", window, before_ns=_CARRIED_NS, step_ns=step_ns)
    return [row for row in rows if row.pop("sampled") or row["bucket_ns"] in also]


def together(of_spans: Iterable[Mapping[str, Any]], of_samples: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put the buckets of different processes together: the highest KV-cache use, and the sum of all else."""
    buckets: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in (*of_spans, *of_samples):
        bucket = buckets[row["bucket_ns"]]
        for name, value in row.items():
            known = bucket.get(name)
            if name == "bucket_ns" or known is None:
                bucket[name] = value
            elif value is not None:
                bucket[name] = max(known, value) if name == "kv_usage" else known + value
    return [buckets[at] for at in sorted(buckets)]


@dataclass(frozen=True)
class Stretch:
    """A stretch of time in which something was wrong with a process."""

    process: Process
    began_ns: int
    last_ns: int
    lasts: bool
    """It holds at the newest sample."""
    detail: Mapping[str, Any]


def standstills(reader: Reader, window: Window, limit: int) -> list[Stretch]:
    """Stretches as long as TOKENTRAIL_LOST_AFTER_S in which a process had requests and nothing grew."""
    return _stretches(reader, "sample_standstills", window, _instead_of_spans(window), names=[*_PROGRESS], limit=limit)


def outages(reader: Reader, window: Window, limit: int) -> list[Stretch]:
    """Stretches as long as TOKENTRAIL_LOST_AFTER_S in which every scrape of a process failed."""
    return _stretches(reader, "sample_outages", window, _serves(window), limit=limit)


def _ask(reader: Reader, query: str, window: Window, **fields: Any) -> list[dict[str, Any]]:
    return reader.queries.rows(query, {"service_filter": _instead_of_spans(window)}, **window.bounds, **fields)


def _stretches(reader: Reader, query: str, window: Window, services: Fragment, **fields: Any) -> list[Stretch]:
    """The stretches that a query finds. Those that last since the first sample that it read are looked for over a day.

    Take each process from one collector: two that scrape it see the same stretches at slightly other times.
    """

    def ask(asked: Fragment, before_ns: int) -> list[dict[str, Any]]:
        parameters = {"least_ns": reader.lost_after_ns, "before_ns": before_ns, **fields}
        return reader.queries.rows(query, {"service_filter": asked}, **window.bounds, **parameters)

    rows = ask(services, 2 * reader.lost_after_ns)
    if older := sorted({Process.of(row) for row in rows if row["since_first"]}):
        of_older = Fragment(
            f"({', '.join(Process._fields)}) IN {{older:Array(Tuple(String, String, String))}}", {"older": older}
        )
        rows = [row for row in rows if Process.of(row) not in older]
        rows = sorted([*rows, *ask(of_older, DAY_NS)], key=lambda row: -int(row["last_ns"]))
    scraper: dict[Process, str] = {}
    found = []
    for row in rows:
        process = Process.of(row)
        if scraper.setdefault(process, row["scraper"]) == row["scraper"]:
            found.append(Stretch(process, row["began_ns"], row["last_ns"], bool(row["lasts"]), row))
    return found
