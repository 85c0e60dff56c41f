"""The charts of the overview. Their time axis is in the reader's zone; undefined values are gaps."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from functools import cache
from typing import Any

import plotly.io as pio
import streamlit as st
from plotly.basedatatypes import BaseFigure
from streamlit.elements.lib.streamlit_plotly_theme import configure_streamlit_plotly_theme

from dashboard import palette
from dashboard.transform import Json, Series
from tokentrail.shared.formatting import duration, instant, one_line

HEIGHT = 230
CONFIG = {"displayModeBar": False, "responsive": True}
FAR_ABOVE = 2.5
"""A threshold more than this many times the largest value would flatten the curves. It is named beside the chart."""
LABEL = 40
"""Characters of a name in a figure."""
GRID = "rgba(128,136,150,0.18)"


def label(text: str) -> str:
    """Text of others as a name in a figure: short, and without the markup and links that Plotly would read in it."""
    return html.escape(one_line(text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"), quote=False)


class _AsItIs(BaseFigure):  # type: ignore[misc]  # plotly has no types
    """A figure that is sent as it is. Plotly's own check every value, 30 to 60 ms for each; the tests check ours."""

    def __init__(self, figure: dict[str, Any]) -> None:
        self._figure = figure

    def to_dict(self) -> dict[str, Any]:
        """The figure as plotly.js reads it."""
        return self._figure


@cache
def _template() -> dict[str, Any]:
    """The template that Streamlit fills with its theme."""
    configure_streamlit_plotly_theme()
    template: dict[str, Any] = pio.templates["streamlit"].to_plotly_json()
    return template


class Chart:
    """Curves over time."""

    def __init__(self, window: Json, zone: tzinfo) -> None:
        """An empty chart with the window as its time axis."""
        self.zone = zone
        self.begin, self.end = instant(window["start"]), instant(window["end"])
        ticks = "%b %d" if self.end - self.begin > timedelta(days=1) else "%H:%M"
        self.traces: list[dict[str, Any]] = []
        self.shapes: list[dict[str, Any]] = []
        self.axes: dict[str, dict[str, Any]] = {
            "xaxis": {
                "type": "date", "range": [self.at(self.begin), self.at(self.end)], "tickformat": ticks,
                "hoverformat": "%b %d %H:%M:%S", "showgrid": False, "nticks": 6,
            },
            "yaxis": {"rangemode": "tozero", "nticks": 5, "gridcolor": GRID, "zeroline": False, "automargin": True},
        }  # fmt: skip
        self.shows_legend = True
        if (until := instant(window["complete_until"])) < self.end:
            self.band(until, self.end, palette.INCOMPLETE)

    def at(self, moment: datetime) -> str:
        """A time as the axis takes it: on the reader's clock."""
        return moment.astimezone(self.zone).replace(tzinfo=None).isoformat()

    def trace(self, series: Series, value: str, name: str, *, kind: str = "scatter", **more: Any) -> None:
        """Add a curve, or bars."""
        times = [self.at(time) for time in series.times]
        self.traces.append({"type": kind, "x": times, "y": series.values[value], "name": name, **more})

    def curve(self, series: Series, value: str, name: str, line: dict[str, Any]) -> None:
        """Add a curve with its points. A point without neighbours has no line, so it is larger."""
        known = [None, *series.values[value], None]
        around = zip(known, known[1:], known[2:], strict=False)
        sizes = [7 if now is not None and before is after is None else 3 for before, now, after in around]
        self.trace(series, value, name, mode="lines+markers", line=line, marker={"size": sizes})

    def threshold(self, at: float) -> None:
        """A dashed line across the chart."""
        line = {"color": palette.THRESHOLD, "width": 1.2, "dash": "dash"}
        self.shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line})

    def band(self, begin: datetime, end: datetime, colour: str) -> None:
        """Shade a stretch of time."""
        self.shapes.append(
            {
                "type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": self.at(begin), "x1": self.at(end),
                "fillcolor": colour, "opacity": 0.10, "line": {"width": 0}, "layer": "below",
            }
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The figure as plotly.js reads it. Streamlit fills the template with its theme."""
        layout = {
            "height": HEIGHT,
            "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
            "hovermode": "x unified",
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
            "bargap": 0.15,
            "showlegend": self.shows_legend,
            "shapes": self.shapes,
            "template": _template(),
            **self.axes,
        }
        return {"data": self.traces, "layout": layout}


def latency(
    series: Series, allowed: Mapping[str, float], window: Json, zone: tzinfo, incidents: Sequence[Json] = ()
) -> Chart:
    """Percentiles over time in seconds, with the thresholds of SLOs as lines and incidents as shaded bands."""
    chart = Chart(window, zone)
    for name, colour in palette.QUANTILES.items():
        line = {"color": colour, "width": 1.5 if name == "p50" else 2}
        chart.curve(series, name, name, line)
    chart.axes["yaxis"] |= seconds(series.top("p99") or 0.0)
    for limit in in_reach(series, allowed):
        chart.threshold(limit)
    shaded: dict[str, list[tuple[datetime, datetime]]] = {}
    for incident in incidents:
        if incident["cause"] != "slo_burn":  # it would shade the whole chart
            begin, end = max(instant(incident["start"]), chart.begin), instant(incident["end"]) or chart.end
            shaded.setdefault(palette.CAUSES.get(incident["cause"], palette.QUIET), []).append((begin, end))
    for colour, times in shaded.items():
        for begin, end in joined(times):
            chart.band(begin, end, colour)
    return chart


def joined(times: Sequence[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Stretches of time with those that overlap as one. Shaded one over another, many would hide the curves."""
    found: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(times):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def seconds(top: float) -> dict[str, str]:
    """The format of an axis of seconds up to `top`: `200ms`, `1.5s`, `3,600s`. Nobody counts in kiloseconds."""
    if top < 1000:
        return {"tickformat": "~s", "hoverformat": ".3~s", "ticksuffix": "s"}
    return {"tickformat": ",~r", "hoverformat": ".3~r", "ticksuffix": "s"}


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


def traffic(requests: Series, goodput: Series, window: Json, zone: tzinfo) -> Chart:
    """Requests and good requests per second."""
    chart = Chart(window, zone)
    chart.trace(requests, "value", "ended", mode="lines", line={"color": palette.QUIET, "width": 1.5, "shape": "hvh"})
    good = {"color": palette.GOOD, "width": 2, "shape": "hvh"}
    chart.trace(goodput, "value", "good", mode="lines", fill="tozeroy", fillcolor="rgba(16,185,129,0.18)", line=good)
    chart.axes["yaxis"] |= {"ticksuffix": " /s", "hoverformat": ".3~f"}
    return chart


def attainment(series: Series, objective: float | None, window: Json, zone: tzinfo) -> Chart:
    """Attainment over time, with the SLO's objective as a line."""
    chart = Chart(window, zone)
    line = {"color": palette.GOOD, "width": 2}
    chart.curve(series, "value", "attainment", line)
    if objective is not None:
        chart.threshold(objective)
    chart.axes["yaxis"] |= {"tickformat": ".0%", "hoverformat": ".2%", "range": [0, 1.05]}
    chart.shows_legend = False
    return chart


def queue(running: Series, waiting: Series, window: Json, zone: tzinfo) -> Chart:
    """Requests in the batches and in the queues of all engine processes."""
    chart = Chart(window, zone)
    for name, series, colour in (("running", running, palette.MAIN), ("waiting", waiting, palette.WARN)):
        line = {"color": colour, "width": 2, "shape": "hvh"}
        chart.curve(series, "value", name, line)
    chart.axes["yaxis"] |= {"hoverformat": ".0f"}
    return chart


def kv(usage: Series, evictions: Series, window: Json, zone: tzinfo) -> Chart:
    """KV-cache use (left axis) and blocks evicted per second (right axis)."""
    chart = Chart(window, zone)
    if evictions.top("value"):
        marker = {"color": palette.BAD, "opacity": 0.55}
        chart.trace(evictions, "value", "blocks evicted /s", kind="bar", yaxis="y2", marker=marker)
    line = {"color": palette.MAIN, "width": 2}
    chart.curve(usage, "value", "KV used", line)
    chart.axes["yaxis"] |= {"tickformat": ".0%", "range": [0, 1.05]}
    chart.axes["yaxis2"] = {
        "overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False, "nticks": 4, "tickmode": "auto",
    }  # fmt: skip
    return chart


def show(chart: Chart, key: str) -> None:
    """Draw a chart."""
    st.plotly_chart(_AsItIs(chart.to_dict()), key=key, **show_options())


def show_options() -> dict[str, Any]:
    """Arguments of `st.plotly_chart` for every figure."""
    return {"width": "stretch", "config": CONFIG}
