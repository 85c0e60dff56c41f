"""Small line charts with one crosshair (components/small.js): drag over one of them to choose its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from dashboard.transform import Json, Series
from tokentrail.shared.formatting import instant, one_line

HEIGHT = 110
"""Pixels of one chart, with its axis of time."""
LABEL = 60
"""Characters of a name in a chart."""

Unit = Literal["s", "ratio", "rate", "count"]

_FILES = Path(__file__).parent
_mount = st.components.v2.component(
    "tokentrail_small",
    html='<div class="small" tabindex="0" role="group"></div>',
    css=(_FILES / "small.css").read_text(encoding="utf-8"),
    js=(_FILES / "small.js").read_text(encoding="utf-8"),
)


@dataclass(frozen=True)
class Line:
    """One curve. None in its values is a gap."""

    name: str
    colour: str
    values: Sequence[float | None]
    ghost: Sequence[float | None] | None = None
    """Values of an earlier time, drawn with dots."""
    fill: bool = False


@dataclass(frozen=True)
class Chart:
    """One chart."""

    title: str
    unit: Unit
    lines: Sequence[Line]
    log: bool = False
    """A logarithmic axis: latencies differ by factors, and one burst would flatten all else on a linear one."""
    top: float | None = None
    """Where the axis ends. None: above the largest value."""
    bars: bool = False
    limits: Sequence[tuple[str, float]] = ()
    """Names and values of dashed lines."""

    @property
    def is_known(self) -> bool:
        """It has a value to draw."""
        return any(value is not None for line in self.lines for value in line.values)


@dataclass(frozen=True)
class Band:
    """A stretch of time with its name, marked above the curves."""

    start: datetime
    end: datetime
    text: str
    colour: str
    firing: bool = False


@dataclass(frozen=True)
class Board:
    """Charts of the same times."""

    times: Sequence[datetime]
    step_s: float
    window: Json
    zone: tzinfo
    charts: Sequence[Chart]
    bands: Sequence[Band] = ()
    clicks: bool = False
    """A click chooses a bucket, as a drag chooses several."""

    def data(self, height: int) -> dict[str, Any]:
        """What the component draws; names of others are short and on one line."""
        return {
            "zone": str(self.zone),
            "times": [_ms(at) for at in self.times],
            "step": round(self.step_s * 1000),
            "span": [_ms(instant(self.window["start"])), _ms(instant(self.window["end"]))],
            "height": height,
            "clicks": self.clicks,
            "charts": [_chart(chart) for chart in self.charts],
            "bands": [
                {"from": _ms(band.start), "to": _ms(band.end), "text": _short(band.text), "colour": band.colour}
                for band in self.bands
            ],
        }


def draw(board: Board, key: str, height: int = HEIGHT) -> tuple[datetime, datetime] | None:
    """Draw the charts. Returns the time over which the reader has just dragged."""
    brushed = _mount(key=key, data=board.data(height), on_brush_change=lambda: None).brush
    return None if not brushed else (_moment(brushed[0]), _moment(brushed[1]))


def line(series: Series, value: str, name: str, colour: str, *, fill: bool = False) -> Line:
    """A curve of one value of a series."""
    return Line(name, colour, series.values[value], fill=fill)


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "title": chart.title,
        "unit": chart.unit,
        "log": chart.log,
        "top": chart.top,
        "bars": chart.bars,
        "lines": [
            {
                "name": _short(one.name),
                "colour": one.colour,
                "values": [_rounded(value) for value in one.values],
                "ghost": None if one.ghost is None else [_rounded(value) for value in one.ghost],
                "fill": one.fill,
            }
            for one in chart.lines
        ],
        "limits": [{"name": _short(name), "at": at} for name, at in chart.limits],
    }


def _rounded(value: float | None) -> float | None:
    """Five digits are more than a pixel shows, and a third of the bytes."""
    return None if value is None else float(f"{value:.5g}")


def _short(text: str) -> str:
    return one_line(text if len(text) <= LABEL else f"{text[: LABEL - 1]}…")


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _moment(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
