"""The variants of a range, if there are more than two: a table, and throughput against latency as a curve."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import streamlit as st

from dashboard import charts, components, palette
from dashboard.api import Problem, ask, fetch
from dashboard.filters import View
from dashboard.transform import Json
from tokentrail.shared.formatting import count, duration, percent, rate, whole_answers

MOST = 30
"""Variants that are shown, those with the most requests."""


FEWEST = 3
"""Two variants are compared above; a curve needs more."""


def draw(view: View) -> None:
    """The table and the curve of the range's variants; nothing for fewer than `FEWEST`."""
    # One more than are shown: requests without a variant are a group too.
    answer = fetch(ask("summary", view.params, group_by="variant", top=MOST + 1))
    if isinstance(answer, Problem):
        return
    measured, left_out = shown(answer)
    if len(measured) < FEWEST:
        return
    st.subheader("All variants", help="The label of an experiment. Rates are over the whole range.")
    components.span(answer["window"], view.zone)
    if left_out:
        st.caption(f"Variants that are not shown: {count(left_out)}. Choose some with a filter.")
    components.table([row(*one) for one in measured], width="stretch", key="variants")
    if told := whole_answers(answer):
        st.caption(told)
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


def is_series(names: Iterable[str]) -> bool:
    """The names differ in a number alone, as `batch 1` and `batch 16`: a line may join their points."""
    forms = {re.sub(r"\d+", "#", name) for name in names}
    return len(forms) == 1 and "#" in forms.pop()


def curve(measured: Sequence[tuple[str, Json]]) -> Json:
    """TPOT over output tokens per second. A variant without a TPOT or a throughput has no point."""
    traces = []
    for quantile, side in (("p50", "bottom"), ("p99", "top")):
        points = [
            (summary["throughput"]["output_tokens_per_s"], summary["tpot_s"][quantile], variant)
            for variant, summary in measured
        ]
        known = [point for point in points if None not in point]
        traces.append(
            {
                "type": "scatter",
                "name": f"TPOT {quantile}",
                "mode": "lines+markers+text" if is_series(variant for variant, _ in measured) else "markers+text",
                "x": [point[0] for point in known],
                "y": [point[1] for point in known],
                "text": [charts.label(point[2]) for point in known],
                "textposition": f"{side} center",
                "line": {"color": palette.QUANTILES[quantile]},
            }
        )
    axes = {
        "xaxis": {"title": {"text": "output tokens/s"}, "rangemode": "tozero"},
        "yaxis": {
            "rangemode": "nonnegative",
            **charts.seconds(max((float(at) for trace in traces for at in trace["y"]), default=0.0)),
        },
    }
    return {"data": traces, "layout": {"height": 340, "margin": {"t": 24}, **axes}}
