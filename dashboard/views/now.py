"""The page Now: firing incidents, SLOs, latency, traffic and goodput, saturation, incidents and cold starts."""

from __future__ import annotations

import streamlit as st

from dashboard import charts, components
from dashboard.api import Problem, ask, fetch
from dashboard.components import metric
from dashboard.filters import View, selected
from dashboard.transform import Json, NotEnded, goodput, on_grid, thresholds
from dashboard.views import events, slos
from tokentrail.shared.formatting import count, duration, estimate, instant, percent, plain, rate

LATENCIES = ("ttft", "tpot", "e2e")


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    view = selected()
    components.refreshed(body, view)


def body(view: View) -> None:
    """Ask for everything at once, and draw the answer."""
    found = fetch(ask("overview", view.params, slo=view.slo))
    overview = components.last_known("overview", found, view)
    if overview is None:
        return
    window = overview["summary"]["window"]
    is_empty, is_old = _never_seen(overview), isinstance(found, Problem)
    if is_empty:
        components.no_data()
    components.span(window, view.zone)
    events.firing(
        overview["incidents"],
        view,
        instant(window["end"]),
        is_heard=not (is_empty or is_old),
        is_judged=_is_judged(overview["summary"]["requests"]),
    )
    slos.cards(overview["slos"]["slos"], _engines(overview))
    latencies(overview, view)
    traffic(overview, view)
    if overview["engines"] is None:
        components.for_one_tenant()
        return
    saturation(overview, view)
    events.table(overview["incidents"], view)


def _engines(overview: Json) -> list[Json] | None:
    return None if overview["engines"] is None else overview["engines"]["engines"]


def _never_seen(overview: Json) -> bool:
    requests, engines = overview["summary"]["requests"], overview["engines"]
    return engines is not None and not (requests["total"] + requests["in_flight"] or engines["engines"])


def _is_judged(requests: Json) -> bool:
    """An SLO selects a request that ended in the range, or there is none."""
    return not requests["unselected"] or bool(requests["unselected"] < requests["total"] + requests["lost"])


def latencies(overview: Json, view: View) -> None:
    """TTFT, TPOT and E2E: percentiles of the range and over time."""
    st.subheader("Latency", help="Exact percentiles of requests that ended ok in this range. Dashed: SLO thresholds. "
                 "Shaded: cold starts, KV-eviction storms, engine processes that were lost or hang.")  # fmt: skip
    for column, name in zip(st.columns(3), LATENCIES, strict=True):
        with column.container(border=True, key=f"tail-{name}"):
            latency(name, overview, view)


def latency(name: str, overview: Json, view: View) -> None:
    """One latency: its percentiles, the number of requests behind them, its chart."""
    summary = overview["summary"]
    label, now = name.upper(), summary[f"{name}_s"]
    for column, quantile in zip(st.columns(3), ("p50", "p95", "p99"), strict=True):
        with column:
            metric(label, estimate(duration(now.get(quantile)), _error(summary, name, quantile)), quantile=quantile)
    series = on_grid(overview["timeseries"][name], ("p50", "p95", "p99"), summary["window"])
    allowed = thresholds(overview["slos"]["slos"], name, view.slo)
    rest = f"Requests: {count(now.get('count'))} · mean {duration(now.get('mean'))} · max {duration(now.get('max'))}"
    st.caption(f"{rest}  \n{plain(charts.legend(series, allowed))}")
    figure = charts.latency(series, allowed, summary["window"], view.zone, overview["incidents"]["incidents"])
    charts.show(figure, f"chart-{name}")


def _error(summary: Json, name: str, quantile: str) -> str | None:
    """The standard error of a percentile that was estimated from sampled requests."""
    of_latency = (summary["errors"] or {}).get("percentiles", {}).get(f"{name}_s")
    return None if of_latency is None else duration(of_latency[quantile])


def traffic(overview: Json, view: View) -> None:
    """Requests, good requests and requests in flight: counts, rates and attainment."""
    st.subheader("Traffic and goodput")
    summary, slo = overview["summary"], view.slo
    requests, flow, good = summary["requests"], summary["throughput"], summary["goodput"]
    open_ones = NotEnded.of(requests, _engines(overview), view.chosen)
    errors, judged = summary["errors"], good["requests_per_s"] is not None
    goodput_error = errors and rate(errors["requests_good"] / summary["window"]["seconds"], "/s")
    numbers = [
        (
            "Attainment",
            estimate(percent(summary["attainment"]), errors and percent(errors["attainment"])),
            f"{count(requests['unselected'])} are in no SLO"
            if requests["unselected"]
            else "of all SLOs, in this range",
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
            f"{count(requests['good'] if judged else None)} good",
        ),
        ("Failed", count(requests["failed"]), f"{count(requests['cancelled'])} cancelled"),
        (
            "In flight",
            count(open_ones.in_flight),
            "no engine announces requests" if open_ones.late is None else f"{count(open_ones.late)} late",
        ),
        ("Lost", count(open_ones.lost), None),
    ]
    with st.container(border=True, key="traffic"):
        for column, (label, value, note) in zip(st.columns(len(numbers)), numbers, strict=True):
            with column:
                metric(label, value, note=note)
    left, right = st.columns(2)
    window, over_time = summary["window"], overview["timeseries"]
    with left.container(border=True):
        st.markdown("**Requests per second**")
        ended = on_grid(over_time["requests"], ("value",), window, missing=0.0)
        figure = charts.traffic(ended, goodput(over_time["goodput"], ended, window), window, view.zone)
        charts.show(figure, "chart-traffic")
    with right.container(border=True):
        st.markdown(f"**Attainment** of {plain(slo)}; dashed: its objective" if slo else "**Attainment**")
        promised = next((float(s["objective"]) for s in overview["slos"]["slos"] if s["name"] == slo), None)
        series = on_grid(over_time["attainment"], ("value",), window)
        figure = charts.attainment(series, promised, window, view.zone)
        charts.show(figure, "chart-attainment")


def saturation(overview: Json, view: View) -> None:
    """Batches, queues and KV caches, now and over time, and the table of engine processes."""
    st.subheader("Saturation")
    summary, over_time = overview["summary"], overview["timeseries"]
    window, queue, caches = summary["window"], summary["queue_s"], overview["kv"]["engines"]
    fullest = max((cache["usage"] for cache in caches if cache["usage"] is not None), default=None)
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
    with left.container(border=True):
        st.markdown("**Requests in the engine processes**")
        running, waiting = (on_grid(over_time[name], ("value",), window) for name in ("running", "waiting"))
        charts.show(charts.queue(running, waiting, window, view.zone), "chart-queue")
    with right.container(border=True):
        st.markdown("**KV cache**")
        used = on_grid(over_time["kv_usage"], ("value",), window)
        evicted = on_grid(over_time["kv_evictions"], ("value",), window, missing=0.0)
        charts.show(charts.kv(used, evicted, window, view.zone), "chart-kv")


def _total(caches: list[Json], field: str) -> str:
    """A count summed over engine processes; undefined when none reports it."""
    known = [cache[field] for cache in caches if cache[field] is not None]
    return count(sum(known) if known else None)
