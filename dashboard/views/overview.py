"""The Overview page: firing incidents, SLOs, latency, traffic and goodput, saturation, incidents and cold starts."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import charts, components
from dashboard.api import Answers, Problem, ask, fetch
from dashboard.components import metric, or_problem
from dashboard.filters import View, refresh_s, selected, step_s
from dashboard.transform import Json, on_grid, thresholds
from dashboard.views import events, slos
from tokentrail.formatting import clock, count, duration, estimate, instant, percent, plain, rate

LATENCIES = ("ttft", "tpot", "e2e")
RATES = ("requests", "goodput", "kv_evictions")
GAUGES = ("attainment", "running", "waiting", "kv_usage")


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    view = selected()
    window = fetch({"summary": ask("summary", view.params)})["summary"]
    seconds = 0.0 if isinstance(window, Problem) else float(window["window"]["seconds"])
    st.title("Overview")
    components.refreshed(lambda: body(view, seconds), refresh_s(seconds) if view.live else None)


def body(view: View, seconds: float) -> None:
    """Run all queries in parallel and draw the answers."""
    step = f"{step_s(seconds)}s"
    queries = {name: ask(name, view.params) for name in ("summary", "incidents", "kv", "cold_starts")}
    queries |= {"slos": ask("slos"), "engines": ask("engines", start="-30d")}
    queries |= {
        name: ask("timeseries", view.params, metric=name, step=step, slo=view.slo)
        for name in (*LATENCIES, *RATES, *GAUGES)
    }
    answers = components.last_known("overview", fetch(queries), "summary", view)
    if isinstance(summary := answers["summary"], Problem):
        components.problem(summary)
        return
    if _never_seen(answers, summary):
        components.no_data()
    st.caption(f"{clock(summary['window']['start'])} – {clock(summary['window']['end'])}")
    with or_problem():
        events.firing(answers.need("incidents"))
    with or_problem():
        slos.cards(answers.need("slos")["slos"])
    latencies(answers, summary, view.slo)
    traffic(answers, summary, view.slo)
    saturation(answers, summary)
    with or_problem():
        events.tables(answers.need("incidents")["incidents"], answers.need("cold_starts")["cold_starts"])


def _never_seen(answers: Answers, summary: Json) -> bool:
    engines = answers["engines"]
    counted = summary["requests"]["total"] + summary["requests"]["in_flight"]
    return not counted and not isinstance(engines, Problem) and not engines["engines"]


def _listed(answers: Answers, name: str) -> list[dict[str, Any]]:
    found = answers[name]
    return [] if isinstance(found, Problem) else list(found[name])


def latencies(answers: Answers, summary: Json, slo: str | None) -> None:
    """TTFT, TPOT and E2E: percentiles of the range and over time."""
    st.subheader("Latency", help="Exact percentiles of requests that ended ok in this range. Dashed: SLO thresholds. "
                 "Shaded: cold starts, KV-eviction storms, engine processes that were lost or hang.")  # fmt: skip
    for column, name in zip(st.columns(3), LATENCIES, strict=True):
        with column.container(border=True, key=f"tail-{name}"), or_problem():
            latency(name, answers, summary, slo)


def latency(name: str, answers: Answers, summary: Json, slo: str | None) -> None:
    """One latency: its percentiles, the number of requests behind them, its chart."""
    label, now = name.upper(), summary[f"{name}_s"]
    for column, quantile in zip(st.columns(3), ("p50", "p95", "p99"), strict=True):
        with column:
            metric(label, estimate(duration(now.get(quantile)), _error(summary, name, quantile)), quantile=quantile)
    series = on_grid(answers.need(name), ("p50", "p95", "p99"), summary["window"])
    allowed = thresholds(_listed(answers, "slos"), name, slo)
    rest = f"{count(now.get('count'))} requests · mean {duration(now.get('mean'))} · max {duration(now.get('max'))}"
    st.caption(f"{rest}  \n{plain(charts.legend(series, allowed))}")
    figure = charts.latency(series, allowed, summary["window"], _listed(answers, "incidents"))
    st.plotly_chart(figure, key=f"chart-{name}", **charts.show_options())


def _error(summary: Json, name: str, quantile: str) -> str | None:
    """The standard error of a percentile that was estimated from sampled requests."""
    of_latency = (summary["errors"] or {}).get("percentiles", {}).get(f"{name}_s")
    return None if of_latency is None else duration(of_latency[quantile])


def traffic(answers: Answers, summary: Json, slo: str | None) -> None:
    """Requests, good requests and requests in flight: counts, rates and attainment."""
    st.subheader("Traffic and goodput")
    requests, flow, good = summary["requests"], summary["throughput"], summary["goodput"]
    late = requests["in_flight_violations"]
    errors = summary["errors"]
    goodput_error = errors and rate(errors["requests_good"] / summary["window"]["seconds"], "/s")
    numbers = [
        (
            "Attainment",
            estimate(percent(summary["attainment"]), errors and percent(errors["attainment"])),
            "of all SLOs, in this range",
        ),
        ("Goodput", estimate(rate(good["requests_per_s"], "/s"), goodput_error), "in this range"),
        ("Requests/s", rate(flow["requests_per_s"], "/s"), None),
        (
            "Output tokens/s",
            rate(flow["output_tokens_per_s"], "/s"),
            f"{rate(good['output_tokens_per_s'], '/s')} good",
        ),
        (
            "Requests",
            estimate(count(requests["total"]), errors and count(errors["requests_total"])),
            f"{count(requests['good'])} good",
        ),
        ("Failed", count(requests["failed"]), f"{count(requests['cancelled'])} cancelled"),
        ("In flight", count(requests["in_flight"]), f"{count(late)} late"),
        ("Lost", count(requests["lost"]), None),
    ]
    with st.container(border=True, key="traffic"):
        for column, (label, value, note) in zip(st.columns(len(numbers)), numbers, strict=True):
            with column:
                metric(label, value, note=note)
    left, right = st.columns(2)
    window = summary["window"]
    with left.container(border=True), or_problem():
        st.markdown("**Requests per second**")
        ended, good_ones = (
            on_grid(answers.need(name), ("value",), window, missing=0.0) for name in ("requests", "goodput")
        )
        st.plotly_chart(charts.traffic(ended, good_ones, window), key="chart-traffic", **charts.show_options())
    with right.container(border=True), or_problem():
        st.markdown(f"**Attainment** of {plain(slo)}; dashed: its objective" if slo else "**Attainment**")
        promised = next((float(s["objective"]) for s in _listed(answers, "slos") if s["name"] == slo), None)
        series = on_grid(answers.need("attainment"), ("value",), window)
        st.plotly_chart(charts.attainment(series, promised, window), key="chart-attainment", **charts.show_options())


def saturation(answers: Answers, summary: Json) -> None:
    """Batches, queues and KV caches, now and over time, and the table of engine processes."""
    st.subheader("Saturation")
    window = summary["window"]
    with or_problem():
        caches = answers.need("kv")["engines"]
        fullest = max((cache["usage"] for cache in caches if cache["usage"] is not None), default=None)
        queue = summary["queue_s"]
        numbers = [
            ("Running", "", _total(caches, "running")),
            ("Waiting", "", _total(caches, "waiting")),
            ("Queue", "p50", duration(queue.get("p50"))),
            ("Queue", "p99", duration(queue.get("p99"))),
            ("ITL", "p99", duration(summary["itl_s"].get("p99"))),
            ("KV used", "", percent(fullest)),
            ("KV blocks evicted", "", _total(caches, "evicted_blocks")),
            ("Preemptions", "", _total(caches, "preemptions")),
        ]
        with st.container(border=True, key="saturation"):
            for column, (name, quantile, value) in zip(st.columns(len(numbers)), numbers, strict=True):
                with column:
                    metric(name, value, quantile=quantile)
    left, right = st.columns(2)
    with left.container(border=True), or_problem():
        st.markdown("**Requests in the engine processes**")
        running, waiting = (on_grid(answers.need(name), ("value",), window) for name in ("running", "waiting"))
        st.plotly_chart(charts.queue(running, waiting, window), key="chart-queue", **charts.show_options())
    with right.container(border=True), or_problem():
        st.markdown("**KV cache**")
        used = on_grid(answers.need("kv_usage"), ("value",), window)
        evicted = on_grid(answers.need("kv_evictions"), ("value",), window, missing=0.0)
        st.plotly_chart(charts.kv(used, evicted, window), key="chart-kv", **charts.show_options())
    with or_problem():
        events.engines(answers.need("engines")["engines"], answers.need("kv")["engines"], instant(window["end"]))


def _total(caches: list[Json], field: str) -> str:
    """A count summed over engine processes; undefined when none reports it."""
    known = [cache[field] for cache in caches if cache[field] is not None]
    return count(sum(known) if known else None)
