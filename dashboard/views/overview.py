"""What an SRE asks, in this order: is anything firing, are promises kept, how long are the tails, what is full."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import charts, parts
from dashboard.api import Answers, Problem, ask, fetch
from dashboard.filters import View, refresh_s, selected, step_s
from dashboard.formatting import clock, count, duration, instant, percent, plain, rate
from dashboard.parts import metric, or_problem
from dashboard.shape import Json, on_grid, thresholds
from dashboard.views import events, slos

TAILS = ("ttft", "tpot", "e2e")
RATES = ("requests", "goodput", "kv_evictions")
GAUGES = ("attainment", "running", "waiting", "kv_usage")


def page() -> None:
    """Draw the page; again by itself while the window moves."""
    view = selected()
    window = fetch({"summary": ask("summary", view.params)})["summary"]
    seconds = 0.0 if isinstance(window, Problem) else float(window["window"]["seconds"])
    st.title("Overview")
    parts.refreshed(lambda: body(view, seconds), refresh_s(seconds) if view.live else None)


def body(view: View, seconds: float) -> None:
    """Ask for everything at once and draw it."""
    step = f"{step_s(seconds)}s"
    questions = {name: ask(name, view.params) for name in ("summary", "incidents", "kv", "cold_starts")}
    questions |= {"slos": ask("slos"), "engines": ask("engines", start="-30d")}
    questions |= {
        name: ask("timeseries", view.params, metric=name, step=step, slo=view.slo) for name in (*TAILS, *RATES, *GAUGES)
    }
    answers = fetch(questions)
    if isinstance(summary := answers["summary"], Problem):
        parts.problem(summary)
        return
    if _never_seen(answers, summary):
        parts.no_data()
    st.caption(f"{clock(summary['window']['start'])} – {clock(summary['window']['end'])}")
    with or_problem():
        events.firing(answers.need("incidents")["incidents"])
    with or_problem():
        slos.cards(answers.need("slos")["slos"])
    tails(answers, summary, view.slo)
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


def tails(answers: Answers, summary: Json, slo: str | None) -> None:
    """TTFT, TPOT and E2E: percentiles now and over time."""
    st.subheader("Latency", help="Exact percentiles of requests that ended ok in this range. Dashed: what SLOs allow. "
                 "Shaded: cold starts, KV-eviction storms, lost engines.")  # fmt: skip
    for column, name in zip(st.columns(3), TAILS, strict=True):
        with column.container(border=True, key=f"tail-{name}"), or_problem():
            latency(name, answers, summary, slo)


def latency(name: str, answers: Answers, summary: Json, slo: str | None) -> None:
    """One latency: its percentiles, the count they rest on, its chart."""
    label, now = name.upper(), summary[f"{name}_s"]
    for column, quantile in zip(st.columns(3), ("p50", "p95", "p99"), strict=True):
        with column:
            metric(f"{label} {quantile}", duration(now.get(quantile)))
    series = on_grid(answers.need(name), ("p50", "p95", "p99"), summary["window"])
    allowed = thresholds(_listed(answers, "slos"), name, slo)
    rest = f"{count(now.get('count'))} requests · mean {duration(now.get('mean'))} · max {duration(now.get('max'))}"
    st.caption(f"{rest}  \n{plain(charts.legend(series, allowed))}")
    figure = charts.latency(series, allowed, summary["window"], _listed(answers, "incidents"))
    st.plotly_chart(figure, key=f"chart-{name}", **charts.show_options())


def traffic(answers: Answers, summary: Json, slo: str | None) -> None:
    """How much came, how much of it was good, what is still open."""
    st.subheader("Traffic and goodput")
    requests, flow, good = summary["requests"], summary["throughput"], summary["goodput"]
    late = requests["in_flight_violations"]
    numbers = [
        ("Attainment", percent(summary["attainment"]), None),
        ("Goodput", rate(good["requests_per_s"], "/s"), None),
        ("Requests/s", rate(flow["requests_per_s"], "/s"), None),
        (
            "Output tokens/s",
            rate(flow["output_tokens_per_s"], "/s"),
            f"{rate(good['output_tokens_per_s'], '/s')} good",
        ),
        ("Requests", count(requests["total"]), f"{count(requests['good'])} good"),
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
        ended, well = (on_grid(answers.need(name), ("value",), window, missing=0.0) for name in ("requests", "goodput"))
        st.plotly_chart(charts.traffic(ended, well, window), key="chart-traffic", **charts.show_options())
    with right.container(border=True), or_problem():
        st.markdown(f"**Attainment** of {plain(slo)}; dashed: what is promised" if slo else "**Attainment**")
        promised = next((float(s["objective"]) for s in _listed(answers, "slos") if s["name"] == slo), None)
        series = on_grid(answers.need("attainment"), ("value",), window)
        st.plotly_chart(charts.attainment(series, promised, window), key="chart-attainment", **charts.show_options())


def saturation(answers: Answers, summary: Json) -> None:
    """Queues and KV caches, now and over time, and each engine."""
    st.subheader("Saturation")
    window = summary["window"]
    with or_problem():
        engines = answers.need("kv")["engines"]
        fullest = max((engine["usage"] for engine in engines if engine["usage"] is not None), default=None)
        queue = summary["queue_s"]
        numbers = [
            ("Running", count(sum(engine["running"] for engine in engines)) if engines else count(None)),
            ("Waiting", count(sum(engine["waiting"] for engine in engines)) if engines else count(None)),
            ("Queue p50", duration(queue.get("p50"))),
            ("Queue p99", duration(queue.get("p99"))),
            ("ITL p99", duration(summary["itl_s"].get("p99"))),
            ("KV used", percent(fullest)),
            (
                "KV blocks evicted",
                count(sum(engine["evicted_blocks"] for engine in engines)) if engines else count(None),
            ),
            ("Preemptions", count(sum(engine["preemptions"] for engine in engines)) if engines else count(None)),
        ]
        with st.container(border=True, key="saturation"):
            for column, (label, value) in zip(st.columns(len(numbers)), numbers, strict=True):
                with column:
                    metric(label, value)
    left, right = st.columns(2)
    with left.container(border=True), or_problem():
        st.markdown("**Requests in the engines**")
        running, waiting = (on_grid(answers.need(name), ("value",), window) for name in ("running", "waiting"))
        st.plotly_chart(charts.queue(running, waiting, window), key="chart-queue", **charts.show_options())
    with right.container(border=True), or_problem():
        st.markdown("**KV cache**")
        used = on_grid(answers.need("kv_usage"), ("value",), window)
        evicted = on_grid(answers.need("kv_evictions"), ("value",), window, missing=0.0)
        st.plotly_chart(charts.kv(used, evicted, window), key="chart-kv", **charts.show_options())
    with or_problem():
        events.engines(answers.need("engines")["engines"], answers.need("kv")["engines"], instant(window["end"]))
