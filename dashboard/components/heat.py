"""The heatmap of latency over time: cells of `/heatmap`, thresholds, percentiles, events above and failures below."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from dashboard import address, palette
from dashboard.times import written
from dashboard.transform import Json
from tokentrail.shared.formatting import MAPPED, count, counted, instant, percent

_CSS = """
.wrap {position: relative; outline-offset: 2px}
.wrap:focus-visible {outline: 2px solid var(--st-primary-color)}
canvas {display: block; cursor: crosshair; touch-action: pan-y}
.tip {display: none; position: absolute; pointer-events: none; white-space: nowrap; padding: .2rem .5rem}
.tip {background: var(--st-secondary-background-color); border: 1px solid var(--st-border-color); border-radius: .4rem}
.tip {font: 12px var(--st-font); color: var(--st-text-color)}
"""
_HTML = """<div class="wrap" tabindex="0" role="group"><canvas role="img"></canvas>
<div class="tip" role="status" aria-live="polite"></div></div>"""
_heat = st.components.v2.component(
    "tokentrail_heat", html=_HTML, css=_CSS, js=Path(__file__).with_name("heat.js").read_text(encoding="utf-8")
)
LANES = 4
"""Rows of names of events above the map."""
LABEL = 40
"""Characters of an event's name."""
SHORT = {
    "kv_eviction": "KV storm",
    "kv_wait": "waits for KV",
    "cold_start": "cold start",
    "slo_burn": "burns",
    "engine_lost": "lost",
    "engine_hung": "hangs",
}


def _decimal(seconds: float) -> str:
    """A number without an exponent, to the nanosecond: `0.451`."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Selection:
    """A part of the map: a time in unix seconds, and a range of latency in seconds, or all of it."""

    t0: float
    t1: float
    lo: float | None = None
    hi: float | None = None
    failed: bool = False
    """The row of failed requests."""

    @classmethod
    def of_url(cls, start: str = "", end: str = "") -> Selection | None:
        """The selection that the URL holds, in `t0`, `t1`, `lo`, `hi` and `status`; None without any.

        Latencies without a time are those of the range, from `start` to `end`.
        """
        t0, t1, lo, hi = (address.number(name) for name in ("t0", "t1", "lo", "hi"))
        if t0 is None and t1 is None and (lo, hi) != (None, None):
            with suppress(ValueError):  # the API says what is wrong with it
                t0, t1 = (instant(text).timestamp() for text in (start, end))
        if t0 is None or t1 is None or t0 >= t1:
            return None
        return cls(t0, t1, lo, hi, address.get("status") == "error")

    def times(self) -> tuple[str, str]:
        """The time as the API takes it."""
        begin, end = (written(datetime.fromtimestamp(at, UTC)) for at in (self.t0, self.t1))
        return begin, end

    def bounds(self, metric: str) -> dict[str, str]:
        """The latencies as parameters of the API; none where it has all of them."""
        given = {"at_least": self.lo, "at_most": self.hi}
        bounds = {name: f"{_decimal(bound)}s" for name, bound in given.items() if bound is not None and bound > 0}
        return {"metric": metric, **bounds} if bounds else {}

    def in_url(self) -> dict[str, object]:
        """The selection as parameters of the URL; the bounds are cut to what a map can tell apart."""
        lo, hi = (None if bound is None else f"{bound:.6g}" for bound in (self.lo, self.hi))
        status = "error" if self.failed else None
        return {"t0": f"{self.t0:.0f}", "t1": f"{self.t1:.0f}", "lo": lo, "hi": hi, "status": status}


def cleared() -> dict[str, object]:
    """Parameters of the URL without a selection."""
    return dict.fromkeys(("t0", "t1", "lo", "hi", "status"))


def draw(
    answer: Json,
    zone: tzinfo,
    *,
    key: str,
    height: int = 340,
    events: Sequence[Json] = (),
    lines: Sequence[Json] = (),
    selection: Selection | None = None,
    lanes: int = LANES,
) -> dict[str, Any] | None:
    """Draw an answer of `/heatmap`.

    Returns what the reader has done in this run: parameters of the URL for a selection or for none (`t0`, `t1`, …), or
    `{"zoom": (begin, until)}` for a double click; None for nothing.
    """
    rows = len(answer["edges_s"]) - 1 if answer["edges_s"] else 1
    result = _heat(
        key=key,
        data={
            "height": height,
            "start": instant(answer["start"]).timestamp(),
            "column_s": answer["column_s"],
            "columns": columns(answer),
            "rows": rows,
            "edges_s": answer["edges_s"] or [0.001, 1.0],
            "cells": [[c["x"], c["y"], c["requests"], c["bad"], c["failed"]] for c in answer["cells"]],
            "thresholds_s": answer["thresholds_s"],
            "events": list(events),
            "lines": list(lines),
            "lanes": lanes,
            "zone": getattr(zone, "key", "UTC"),
            "selection": None if selection is None else vars(selection),
            "name": in_words(answer, zone),
        },
        height=height,
        on_brushed_change=lambda: None,
        on_zoomed_change=lambda: None,
    )
    if zoomed := result.zoomed:
        return {"zoom": tuple(datetime.fromtimestamp(zoomed[name], UTC) for name in ("t0", "t1"))}
    if not (brushed := result.brushed):
        return None
    return cleared() if brushed.get("cleared") else Selection(**brushed).in_url()


def columns(answer: Json) -> int:
    """Columns of the map: as many as its window needs."""
    window = answer["window"]
    length: float = (instant(window["end"]) - instant(answer["start"])).total_seconds()
    return max(1, round(length / float(answer["column_s"])))


def in_words(answer: Json, zone: tzinfo = UTC) -> str:
    """The map for a reader who does not see it."""
    n, bad, failed = (sum(c[name] for c in answer["cells"]) for name in ("requests", "bad", "failed"))
    what, share = MAPPED[answer["metric"]], percent(bad / n if n else None)
    words = f"{what} over time: {counted(n, 'request')}, {share} bad, "
    worst = max(by_column(answer, "bad").items(), key=lambda item: item[1], default=None)
    if worst is not None and worst[1]:
        at = instant(answer["start"]).timestamp() + worst[0] * answer["column_s"]
        moment = f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M %Z}"
        words += f"most of them at {moment} ({count(worst[1])}), "
    return f"{words}{count(failed)} failed. Arrow keys move, Shift extends, Enter selects, Escape clears."


def by_column(answer: Json, name: str) -> dict[int, float]:
    """A count summed over the rows of each column."""
    sums: dict[int, float] = {}
    for cell in answer["cells"]:
        sums[cell["x"]] = sums.get(cell["x"], 0) + cell[name]
    return sums


def percentile_line(answer: Json, quantile: float, colour: str, *, is_ghost: bool = False) -> Json:
    """A percentile of each column, from the counts of its cells: right to a row's height; None without requests."""
    width, edges = columns(answer), np.log(answer["edges_s"] or [1.0, 2.0])
    counts = np.zeros((width, len(edges) - 1))
    for cell in answer["cells"]:
        if cell["y"] is not None and cell["x"] < width:
            counts[cell["x"], cell["y"]] = cell["requests"]
    values: list[float | None] = []
    for column in counts:
        if not column.sum():
            values.append(None)
            continue
        below = np.concatenate(([0.0], np.cumsum(column))) / column.sum()
        row = max(1, int(np.searchsorted(below, quantile)))
        inside = (quantile - below[row - 1]) / (below[row] - below[row - 1])
        values.append(round(float(np.exp(edges[row - 1] + inside * (edges[row] - edges[row - 1]))), 6))
    return {"values_s": values, "colour": colour, "dotted": is_ghost}


def _short(incident: Json) -> str:
    """An incident in some words: `chat burns`, `vllm-a KV storm`."""
    name = incident.get("slo") or incident.get("instance") or ""
    return f"{name} {SHORT.get(incident['cause'], incident['cause'])}".lstrip()


def marks(incidents: Sequence[Json], changes: Sequence[Json], end: str) -> list[Json]:
    """Events for the strip above the map. What fires gets a name first, then what is short."""
    gone = {"gone": " is gone"}
    events: list[dict[str, Any]] = [
        {
            "t0": instant(one["start"]).timestamp(),
            "t1": instant(one["end"] or end).timestamp(),
            "label": _short(one),
            "colour": palette.CAUSES.get(one["cause"], palette.QUIET),
            "firing": one["end"] is None,
        }
        for one in incidents
    ] + [
        {
            "t0": (at := instant(one["at"]).timestamp()),
            "t1": at,
            "label": f"{one['service']}: {one['dimension']} {one['value']}{gone.get(one['kind'], '')}",
            "colour": palette.CHANGE,
            "firing": False,
        }
        for one in changes
        if one["dimension"] != "process"
    ]
    for one in events:
        one["label"] = one["label"] if len(one["label"]) <= LABEL else f"{one['label'][: LABEL - 1]}…"
    return sorted(events, key=lambda one: (not one["firing"], one["t1"] - one["t0"], one["t0"]))
