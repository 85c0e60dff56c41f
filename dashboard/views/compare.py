"""The page Compare: the numbers of each variant beside the others', and throughput against latency as a curve."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import streamlit as st

from dashboard import charts, components, palette
from dashboard.api import ask, fetch
from dashboard.filters import View, selected
from dashboard.transform import Json
from tokentrail.shared.formatting import count, duration, percent, rate

MOST = 30
"""Variants that are shown, those with the most requests."""


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    view = selected()
    st.caption(
        "A variant is the label of an experiment: `--variant` of the engine, `tokentrail.variant` elsewhere. "
        "Rates are over the whole time range, so choose the time in which the variants ran."
    )
    components.refreshed(body, view)


def body(view: View) -> None:
    """Ask for the summary of each variant, and draw the table and the curve."""
    asked = (*view.labels, ("start", view.start), ("end", view.end))
    # One more than are shown: requests without a variant are a group too.
    answer = components.last_known("variants", fetch(ask("summary", asked, group_by="variant", top=MOST + 1)), view)
    if answer is None:
        return
    measured, left_out = shown(answer)
    if left_out:
        st.caption(f"Variants that are not shown: {count(left_out)}. Choose some with a filter.")
    if not measured:
        st.info(
            "No request of this range has a variant: choose a longer range, or start an engine with `--variant NAME`."
        )
        return
    components.span(answer["window"], view.zone)
    components.table([row(*one) for one in measured], width="stretch", key="variants")
    figure = curve(measured)
    if any(len(trace["x"]) > 1 for trace in figure["data"]):
        st.subheader("Throughput against latency", help="One point for each variant, in the order of the table.")
        st.plotly_chart(figure, key="variants-curve", **charts.show_options())


def shown(answer: Json) -> tuple[list[tuple[str, Json]], int]:
    """The variants with requests that ended, in the order of their names, and how many are not shown."""
    groups = {group["value"]: group for group in answer["groups"]}
    most = [name for name in groups if name][:MOST]
    left_out = answer["groups_total"] - len(most) - ("" in groups)
    return [(name, groups[name]) for name in in_order(most) if groups[name]["requests"]["total"]], left_out


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
