"""The part of Explore that says how long clients should wait: `/timeouts` as sentences, and the curve of one wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import streamlit as st

from dashboard import charts, components, palette
from dashboard.api import Problem, ask, fetch
from dashboard.filters import View
from dashboard.transform import Json
from tokentrail.shared.formatting import count, kind_of_group, percent, plain, timeout_cells

WAITS: Final = {"first_token": "First token", "first_visible": "First visible", "gap": "Gap", "e2e": "Whole request"}
_COLUMNS: Final = ("time-out", "healthy cut", "dead caught", "saved for each", "")


def draw(view: View) -> None:
    """A switch; when it is on, what `/timeouts` says about the requests of the page that began in its range."""
    if not st.toggle("How long should clients wait?", key="waits", bind="query-params"):
        return
    with st.spinner("Reading what requests waited …"):
        answer = fetch(ask("timeouts", view.params))
    if isinstance(answer, Problem):
        components.problem(answer)
        return
    st.caption(
        f"{plain(answer['summary'])}. Requests that began in this range, healthy cut: {percent(answer['kill'])}."
    )
    groups = {
        f"{kind_of_group(group)}: {count(group['requests'])}": group for group in answer["groups"] if group["waits"]
    }
    if not groups:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="of-waits"):
        named = st.selectbox("Requests", [*groups], key="waits-of") if len(groups) > 1 else next(iter(groups))
        waits = {WAITS[wait["wait"]]: wait for wait in groups[named]["waits"]}
        picked = st.segmented_control("Wait", [*waits], default=next(iter(waits)), key="waits-wait", required=True)
    for sentence in sentences(groups[named], waits[picked]):
        st.markdown(sentence)
    st.plotly_chart(figure(waits[picked]), key="waits-curve", **charts.show_options())
    components.table([row(point) for point in waits[picked]["curve"]], width="stretch", key="waits-table")


def sentences(group: Json, wait: Json) -> list[str]:
    """What is suggested for a wait, or why nothing is, and what a second request would do."""
    hedging = [one["summary"] for one in group["hedging"] if one["wait"] == wait["wait"]]
    return [f"- {plain(text)}" for text in (wait["summary"], *hedging)]


def row(point: Json) -> Mapping[str, str]:
    """A time-out as a row of the table."""
    note = "longer than any wait that was answered" if point["beyond_observed"] else ""
    return dict(zip(_COLUMNS, (*timeout_cells(point), note), strict=True))


def figure(wait: Json) -> Json:
    """The share of healthy requests that a time-out cuts, with its interval, and of dead ones that it catches."""
    points = wait["curve"]
    x = [point["timeout_s"] for point in points]
    cut = [point["healthy_cut"] for point in points]
    low, high = ([100 * one[bound] for one in cut] for bound in ("low", "high"))
    band = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    traces: list[Json] = [
        {**band, "x": x, "y": low},
        {**band, "x": x, "y": high, "fill": "tonexty", "fillcolor": f"{palette.BAD}33"},
        _line("healthy cut", palette.BAD, x, [one["share"] for one in cut]),
    ]
    if any(point["dead_caught"] for point in points):
        caught = [(point["dead_caught"] or {}).get("share") for point in points]
        traces.append({**_line("dead caught", palette.GOOD, x, caught), "yaxis": "y2"})
    layout: Json = {
        "height": 280,
        "margin": {"t": 24},
        "xaxis": {"type": "log", "title": {"text": "time-out"}, **charts.seconds(max(x, default=0.0))},
        "yaxis": {"title": {"text": "healthy cut"}, "ticksuffix": " %", "rangemode": "tozero"},
        "yaxis2": {
            "title": {"text": "dead caught"}, "ticksuffix": " %", "range": [0, 105], "overlaying": "y", "side": "right",
        },
        "shapes": [_upright(suggested["timeout_s"])] if (suggested := wait["suggested"]) else [],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _line(name: str, colour: str, x: list[float], shares: list[float | None]) -> Json:
    y = [None if one is None else 100 * one for one in shares]
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "line": {"color": colour}}


def _upright(at: float) -> Json:
    return {
        "type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": palette.MAIN, "dash": "dot"},
    }  # fmt: skip
