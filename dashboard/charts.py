"""The charts of the overview. Their time axis is in UTC; undefined values are gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import plotly.graph_objects as go

from dashboard import palette
from dashboard.transform import Json, Series
from tokentrail.formatting import duration, instant

HEIGHT = 230
CONFIG = {"displayModeBar": False, "responsive": True}
FAR_ABOVE = 2.5
"""A threshold more than this many times the largest value would flatten the curves. It is named beside the chart."""


def base(window: Json, *, height: int = HEIGHT) -> go.Figure:
    """An empty chart with the window as its time axis."""
    figure = go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 28, "b": 8},
        hovermode="x unified",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        bargap=0.15,
    )
    begin, end = instant(window["start"]), instant(window["end"])
    ticks = "%b %d" if end - begin > timedelta(days=1) else "%H:%M"
    figure.update_xaxes(range=[begin, end], tickformat=ticks, hoverformat="%b %d %H:%M:%S", showgrid=False, nticks=6)
    figure.update_yaxes(
        rangemode="tozero", nticks=5, gridcolor="rgba(128,136,150,0.18)", zeroline=False, automargin=True
    )
    return figure


def latency(series: Series, allowed: Mapping[str, float], window: Json, incidents: Sequence[Json] = ()) -> go.Figure:
    """Percentiles over time in seconds, with the thresholds of SLOs as lines and incidents as shaded bands."""
    figure = base(window)
    for name, colour in palette.QUANTILES.items():
        figure.add_scatter(
            x=series.times,
            y=series.values[name],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 1.5 if name == "p50" else 2},
            marker={"size": 3},
        )
    figure.update_yaxes(tickformat="~s", hoverformat=".3~s", ticksuffix="s")
    for limit in in_reach(series, allowed):
        _threshold(figure, limit)
    _incident_bands(figure, incidents, window)
    return figure


def in_reach(series: Series, allowed: Mapping[str, float]) -> list[float]:
    """The thresholds that can be drawn without flattening the curves."""
    top = series.top("p99")
    return sorted({limit for limit in allowed.values() if top is None or limit <= FAR_ABOVE * top})


def legend(series: Series, allowed: Mapping[str, float]) -> str:
    """The thresholds in words: `Dashed: chat, completion ≤ 100 ms. Above the chart: all ≤ 1 min.`"""
    drawn = in_reach(series, allowed)
    texts = {
        limit: f"{', '.join(name for name, other in allowed.items() if other == limit)} ≤ {duration(limit)}"
        for limit in sorted(set(allowed.values()))
    }
    dashed = [text for limit, text in texts.items() if limit in drawn]
    above = [text for limit, text in texts.items() if limit not in drawn]
    parts = [
        f"{title}: {' · '.join(limits)}."
        for title, limits in (("Dashed", dashed), ("Above the chart", above))
        if limits
    ]
    return " ".join(parts) or "No SLO limits it."


def _threshold(figure: go.Figure, at: float) -> None:
    figure.add_hline(y=at, line={"color": palette.THRESHOLD, "width": 1.2, "dash": "dash"})


def _incident_bands(figure: go.Figure, incidents: Sequence[Json], window: Json) -> None:
    """Shade the incidents of engine processes. SLO burns are left out: they would shade the whole chart."""
    bands = [
        {
            "type": "rect",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": max(instant(incident["start"]), instant(window["start"])),
            "x1": instant(incident["end"]) or instant(window["end"]),
            "fillcolor": palette.CAUSES.get(incident["cause"], palette.QUIET),
            "opacity": 0.10,
            "line": {"width": 0},
            "layer": "below",
        }
        for incident in incidents
        if incident["cause"] != "slo_burn"
    ]
    figure.update_layout(shapes=[*figure.layout.shapes, *bands])


def traffic(requests: Series, goodput: Series, window: Json) -> go.Figure:
    """Requests and good requests per second."""
    figure = base(window)
    line = {"color": palette.QUIET, "width": 1.5, "shape": "hvh"}
    figure.add_scatter(x=requests.times, y=requests.values["value"], name="ended", mode="lines", line=line)
    figure.add_scatter(
        x=goodput.times,
        y=goodput.values["value"],
        name="good",
        mode="lines",
        fill="tozeroy",
        fillcolor="rgba(16,185,129,0.18)",
        line={"color": palette.GOOD, "width": 2, "shape": "hvh"},
    )
    figure.update_yaxes(ticksuffix=" /s", hoverformat=".3~f")
    return figure


def attainment(series: Series, objective: float | None, window: Json) -> go.Figure:
    """Attainment over time, with the SLO's objective as a line."""
    figure = base(window)
    line = {"color": palette.GOOD, "width": 2}
    figure.add_scatter(
        x=series.times, y=series.values["value"], name="attainment", mode="lines+markers", line=line, marker={"size": 3}
    )
    if objective is not None:
        _threshold(figure, objective)
    figure.update_yaxes(tickformat=".0%", hoverformat=".2%", range=[0, 1.05])
    figure.update_layout(showlegend=False)
    return figure


def queue(running: Series, waiting: Series, window: Json) -> go.Figure:
    """Requests in the batches and in the queues of all engine processes."""
    figure = base(window)
    for name, series, colour in (("running", running, palette.MAIN), ("waiting", waiting, palette.WARN)):
        figure.add_scatter(
            x=series.times, y=series.values["value"], name=name, mode="lines+markers",
            line={"color": colour, "width": 2, "shape": "hvh"}, marker={"size": 3},
        )  # fmt: skip
    figure.update_yaxes(hoverformat=".0f")
    return figure


def kv(usage: Series, evictions: Series, window: Json) -> go.Figure:
    """KV-cache use (left axis) and blocks evicted per second (right axis)."""
    figure = base(window)
    if evictions.top("value"):
        figure.add_bar(
            x=evictions.times, y=evictions.values["value"], name="blocks evicted /s", yaxis="y2",
            marker={"color": palette.BAD, "opacity": 0.55},
        )  # fmt: skip
    figure.add_scatter(
        x=usage.times,
        y=usage.values["value"],
        name="KV used",
        mode="lines+markers",
        line={"color": palette.MAIN, "width": 2},
        marker={"size": 3},
    )
    figure.update_layout(
        yaxis={"tickformat": ".0%", "range": [0, 1.05]},
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "showgrid": False,
            "nticks": 4,
            "tickmode": "auto",
        },
    )
    return figure


def show_options() -> dict[str, Any]:
    """Arguments of `st.plotly_chart` for every figure."""
    return {"width": "stretch", "config": CONFIG}
