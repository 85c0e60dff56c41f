"""The Variants page: the numbers of each variant beside the others', and throughput against latency as a curve."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from http import HTTPStatus

import streamlit as st

from dashboard import charts, components, palette
from dashboard.api import Problem, ask, fetch
from dashboard.filters import View, selected
from dashboard.transform import Json
from tokentrail.shared.formatting import count, duration, percent, rate

MOST = 30
"""Variants that are shown: each one costs a question."""
LONGEST = 256
"""Characters of a name that the API filters by."""


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    view = selected()
    st.title("Variants")
    st.caption(
        "A variant is the label of an experiment: `--variant` of the engine, `tokentrail.variant` elsewhere. "
        "Rates are over the whole time range, so choose the time in which the variants ran."
    )
    components.refreshed(lambda: body(view), view.every_s)


def body(view: View) -> None:
    """Ask for the summary of each variant, and draw the table and the curve."""
    labels = tuple((name, value) for name, value in view.labels if name != "variant")
    names: Collection[str] | None = view.chosen.get("variant") or _sent(view)
    if names is None:
        return
    asked, left_out = shown(names)
    found: list[tuple[str, Json]] = []
    for variant in asked:
        summary = fetch(ask("summary", (*labels, ("start", view.start), ("end", view.end)), variant=variant))
        if isinstance(summary, Problem):
            components.problem(summary)
            return
        found.append((variant, summary))
    for sentence in left_out:
        st.caption(sentence)
    measured = [(variant, summary) for variant, summary in found if summary["requests"]["total"]]
    if not measured:
        st.info(
            "No request of this range has a variant: choose a longer range, or start an engine with `--variant NAME`."
        )
        return
    components.span(measured[0][1]["window"], view.zone)
    components.table([row(*one) for one in measured], width="stretch", key="variants")
    figure = curve(measured)
    if any(len(trace["x"]) > 1 for trace in figure["data"]):
        st.subheader("Throughput against latency", help="One point for each variant, in the order of the table.")
        st.plotly_chart(figure, key="variants-curve", **charts.show_options())


def _sent(view: View) -> set[str] | None:
    """The variants of the engine processes in the range. None, and the page says why, when nobody tells them."""
    found = fetch(ask("engines", start=view.start, end=view.end))
    if isinstance(found, Problem) and found.status == HTTPStatus.FORBIDDEN:
        st.info(
            "Engine processes serve all tenants, and the dashboard's key is for one, so their variants are not listed. "
            "Type the names of variants into the sidebar's filter."
        )
        return None
    engines = components.last_known("variants", found, view)
    return None if engines is None else {name for engine in engines["engines"] for name in engine["variants"]}


def shown(names: Collection[str]) -> tuple[list[str], list[str]]:
    """The variants to ask for, in order, and sentences about those that are left out."""
    ordered = in_order(name for name in names if len(name) <= LONGEST)
    long, more = sum(len(name) > LONGEST for name in names), len(ordered) - MOST
    left_out = []
    if more > 0:
        left_out.append(f"Variants that are not shown: {count(more)}. Choose some in the sidebar.")
    if long:
        left_out.append(f"Variants with names of more than {LONGEST} characters, which are not shown: {count(long)}.")
    return ordered[:MOST], left_out


# Numbers in names count as numbers: "batch 2" stands before "batch 16".
def in_order(variants: Iterable[str]) -> list[str]:
    """The names of variants, each once, without the empty one."""
    return sorted(
        {name for name in variants if name},
        key=lambda name: [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)],
    )


def row(variant: str, summary: Json) -> dict[str, str]:
    """A variant as a row of the table."""
    ttft, tpot = summary["ttft_s"], summary["tpot_s"]
    return {
        "variant": variant,
        "requests": count(summary["requests"]["total"]),
        "TTFT p50": duration(ttft["p50"]),
        "TTFT p99": duration(ttft["p99"]),
        "TPOT p50": duration(tpot["p50"]),
        "TPOT p99": duration(tpot["p99"]),
        "output tokens/s": rate(summary["throughput"]["output_tokens_per_s"], "/s"),
        "goodput": rate(summary["goodput"]["requests_per_s"], "/s"),
        "attainment": percent(summary["attainment"]),
    }


def curve(measured: Sequence[tuple[str, Json]]) -> Json:
    """TPOT over output tokens per second. A variant without a TPOT or a throughput has no point."""
    traces = []
    for quantile in ("p50", "p99"):
        points = [
            (summary["throughput"]["output_tokens_per_s"], summary["tpot_s"][quantile], variant)
            for variant, summary in measured
        ]
        known = [point for point in points if None not in point]
        traces.append(
            {
                "type": "scatter",
                "name": f"TPOT {quantile}",
                "mode": "lines+markers+text",
                "x": [point[0] for point in known],
                "y": [point[1] for point in known],
                "text": [charts.label(point[2]) for point in known],
                "textposition": "top center",
                "line": {"color": palette.QUANTILES[quantile]},
            }
        )
    axes = {
        "xaxis": {"title": {"text": "output tokens/s"}, "rangemode": "tozero"},
        "yaxis": {
            "rangemode": "nonnegative",
            **charts.seconds(max((at for trace in traces for at in trace["y"]), default=0.0)),
        },
    }
    return {"data": traces, "layout": {"height": 340, "margin": {"t": 24}, **axes}}
