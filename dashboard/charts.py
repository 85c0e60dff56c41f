"""The overview's charts: one look for all of them, time to the right in UTC, undefined is a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import plotly.graph_objects as go

from dashboard import palette
from dashboard.formatting import duration, instant
from dashboard.shape import Json, Series

HEIGHT = 230
CONFIG = {"displayModeBar": False, "responsive": True}
FAR_ABOVE = 2.5
"""A threshold so many times over the largest value is named beside the chart instead of squashing the curves."""


def base(window: Json, *, height: int = HEIGHT) -> go.Figure:
    """An empty chart over the window."""
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
    """Percentiles over time in seconds, with what SLOs allow and what happened meanwhile."""
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
    """The thresholds that can be drawn without squashing the curves."""
    top = series.top("p99")
    return sorted({limit for limit in allowed.values() if top is None or limit <= FAR_ABOVE * top})


def legend(series: Series, allowed: Mapping[str, float]) -> str:
    """What the dashed lines are: `Dashed: chat, completion ≤ 100 ms. Above the chart: all ≤ 1 min.`"""
    drawn = in_reach(series, allowed)
    who = {
        limit: f"{', '.join(name for name, other in allowed.items() if other == limit)} ≤ {duration(limit)}"
        for limit in sorted(set(allowed.values()))
    }
    dashed = [text for limit, text in who.items() if limit in drawn]
    above = [text for limit, text in who.items() if limit not in drawn]
    parts = [
        f"{title}: {' · '.join(texts)}." for title, texts in (("Dashed", dashed), ("Above the chart", above)) if texts
    ]
    return " ".join(parts) or "No SLO limits it."


def _threshold(figure: go.Figure, at: float) -> None:
    figure.add_hline(y=at, line={"color": palette.THRESHOLD, "width": 1.2, "dash": "dash"})


def _incident_bands(figure: go.Figure, incidents: Sequence[Json], window: Json) -> None:
    """What happened to engines, shaded; an SLO's burn is a consequence and would shade everything."""
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
    """Requests per second and how many of them were good."""
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
    """The share of good requests over time, with what was promised."""
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
    """Requests in the engines' batches and in their queues."""
    figure = base(window)
    for name, series, colour in (("running", running, palette.MAIN), ("waiting", waiting, palette.WARN)):
        figure.add_scatter(
            x=series.times, y=series.values["value"], name=name, mode="lines+markers",
            line={"color": colour, "width": 2, "shape": "hvh"}, marker={"size": 3},
        )  # fmt: skip
    figure.update_yaxes(hoverformat=".0f")
    return figure


def kv(usage: Series, evictions: Series, window: Json) -> go.Figure:
    """KV-cache use (left) and blocks evicted per second (right)."""
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
    """How every figure is shown."""
    return {"width": "stretch", "config": CONFIG}
