"""The page Explore: when and how slow as a heatmap, and of what is selected in it the requests and what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import isclose

import streamlit as st

from dashboard import address, components, filters, palette
from dashboard.api import Problem, ask, ask_ahead, fetch, fetch_seldom
from dashboard.components import heat
from dashboard.components.heat import Selection
from dashboard.filters import View, selected
from dashboard.times import written
from dashboard.transform import Json
from dashboard.views import differing, happened, requests, waiting
from tokentrail.shared.formatting import MAPPED, clock, count, counted, duration, instant, percent, plain

METRICS = {words: name for name, words in MAPPED.items()}
COLUMNS, ROWS = 144, 36
FEWEST = 200
"""Fewer others of the same time than these say little: then the selected are compared with all others of the range."""
WEEK = timedelta(days=7)


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now and nothing is selected."""
    components.refreshed(body, selected())


def body(view: View) -> None:
    """Draw the map, and below it the requests and the differences of what is selected."""
    metric = _metric(view.slo)
    chosen = Selection.of_url(view.start, view.end)
    shown = replace(view, labels=(*view.labels, *differing.chosen_lengths()))
    mapped = ask("heatmap", shown.params, metric=metric, slo=view.slo, columns=COLUMNS, rows=ROWS)
    ask_ahead(mapped, *(ask(path, view.params) for path in ("incidents", "changes")))
    with st.container(border=True, key="map"):
        told = fetch(mapped)
        grid = components.last_known(f"heatmap {metric}", told, view)
        if grid is not None and grid["cells"]:
            draw_map(grid, view, metric, chosen)
        elif grid is not None:
            nothing(grid["window"], view)
            if address.get("status") not in ("in_flight", "lost"):
                return
    if isinstance(told, Problem) and told.status is None:
        return  # nobody answers: the other parts would say so again
    if chosen is None:  # of a selection, the others are chosen by their number
        ask_ahead(ask("differences", shown.params, slo=view.slo))
    if grid is not None:
        st.markdown(sentence(grid, metric, chosen, view))
    left, right = st.columns([6, 5], gap="medium")
    with left:
        panel(lambda: requests.draw(shown, chosen, metric))
    with right:
        panel(lambda: differing.draw(*compared(shown, metric, chosen)))
    panel(lambda: waiting.draw(shown))


def nothing(window: Json, view: View) -> None:
    """Say that no request ended in the range, and lead to the last one, or to how an engine sends some."""
    told = fetch(ask("verdict", view.params))
    if isinstance(told, Problem):
        components.problem(told)
        return
    if not view.labels and happened.never_seen(told, fetch_seldom(ask("engines", start="-30d"))):
        components.no_data()
        return
    st.info(f"No request ended from {clock(window['start'], view.zone)} to {clock(window['end'], view.zone)}.")
    happened.quiet(told, view)


def panel(draw: Callable[[], None]) -> None:
    """Draw a part of the page that fails alone."""
    components.explained(draw)


def latency(slo: str | None) -> str:
    """The latency of the map: that of the URL, or what the SLO promises first."""
    if (asked := address.get("metric")) in METRICS.values():
        return str(asked)
    slos = fetch_seldom(ask("slos")).get("slos", ())
    promised: Json = next((one["thresholds"] for one in slos if one["name"] == slo), {})
    return next((name for name in METRICS.values() if promised.get(f"{name}_s") is not None), "ttft")


def _metric(slo: str | None) -> str:
    """Draw the choice of the latency; the one that is chosen."""
    names = list(METRICS)
    asked = latency(slo)
    known = next(name for name, metric in METRICS.items() if metric == asked)
    with st.container(horizontal=True, vertical_alignment="center", key="metrics"):
        st.session_state["latency"] = known
        picked = st.segmented_control(
            "Latency", names, key="latency", required=True, label_visibility="collapsed", on_change=_pick
        )
        st.toggle("P99 of last week", key="week", bind="query-params", width="content")
        differing.chips()
        st.caption(
            "Blue-grey: good, amber: some bad, red with a stroke: most bad. Drag selects, a double click zooms.",
            width="content",
        )
    return METRICS[picked or names[0]]


def _pick() -> None:
    """Another latency has other heights: what was selected by them is selected no more, the time is."""
    metric = METRICS[st.session_state["latency"]]
    address.put(metric=metric, lo=None, hi=None)


def draw_map(answer: Json, view: View, metric: str, chosen: Selection | None) -> None:
    """Draw the map, and take what the reader has done in it."""
    lines = [
        heat.percentile_line(answer, 0.5, palette.QUANTILES["p50"]),
        heat.percentile_line(answer, 0.99, palette.QUANTILES["p99"]),
    ]
    if st.session_state["week"]:
        lines += last_week(answer, view, metric)
    done = heat.draw(
        answer, view.zone, key="heat", events=events(view, answer["window"]["end"]), lines=lines, selection=chosen
    )
    if done and "zoom" in done:
        filters.show_range(*done["zoom"])
    if done:
        address.choose(**done)


def last_week(answer: Json, view: View, metric: str) -> list[Json]:
    """P99 of the same hours a week before, in the columns of this map; empty where nothing is known of them."""
    begin, end = (instant(answer["window"][name]) - WEEK for name in ("start", "end"))
    params = (
        ("start", written(begin)),
        ("end", written(end)),
        *view.labels,
        *differing.chosen_lengths(),
    )
    earlier = fetch(ask("heatmap", params, metric=metric, slo=view.slo, columns=COLUMNS, rows=ROWS))
    if isinstance(earlier, Problem) or not earlier["cells"]:
        st.caption(f"Last week: {plain(earlier.title) if isinstance(earlier, Problem) else 'no request ended then'}.")
        return []
    return [heat.percentile_line(earlier, 0.99, palette.QUANTILES["p99"], is_ghost=True)]


def events(view: View, end: str) -> list[Json]:
    """Incidents and changes of the range; those that the key may not read, or that nobody answers, are left out."""
    told = [fetch(ask(path, view.params)) for path in ("incidents", "changes")]
    incidents, changes = ({} if isinstance(one, Problem) else one for one in told)
    return heat.marks(incidents.get("incidents", []), changes.get("changes", []), end)


def compared(view: View, metric: str, chosen: Selection | None) -> tuple[Json | Problem, str]:
    """The answer of `/differences`, and the words for the other requests.

    Those are the others of the same time, or of the whole range if there are fewer than `FEWEST` of them.
    """
    if chosen is None:
        return fetch(ask("differences", view.params, slo=view.slo)), "the good ones"
    selected = {"select.status": "error"} if chosen.failed else chosen.bounds(metric)
    begin, end = chosen.times()
    if selected:
        same_time = (("start", begin), ("end", end), *view.labels)
        answer = fetch(ask("differences", same_time, slo=view.slo, **selected))
        if isinstance(answer, Problem) or answer["others"] >= FEWEST:
            return answer, "the others of the same time"
    whole = {**selected, "select.start": begin, "select.end": end}
    return fetch(ask("differences", view.params, slo=view.slo, **whole)), "all others of the range"


def sentence(found: Json, metric: str, chosen: Selection | None, view: View) -> str:
    """What is shown, in words: `**1 204 requests** · 12:03 – 12:40 · TTFT 1.2 s – 11 s · 93 % bad`."""
    inside = [cell for cell in found["cells"] if chosen is None or _is_inside(found, cell, chosen)]
    of = "failed" if chosen and chosen.failed else "requests"
    n, bad = sum(cell[of] for cell in inside), sum(cell["bad"] for cell in inside)
    if chosen is None:
        return f"**{counted(n, 'request')}** of the range · {percent(bad / n if n else None)} bad"
    begin, end = (datetime.fromtimestamp(at, UTC).astimezone(view.zone) for at in (chosen.t0, chosen.t1))
    day = "%b %d " if begin.date() != datetime.now(view.zone).date() else ""
    about = "" if all(_is_edge(found, bound) for bound in (chosen.lo, chosen.hi)) else "≈ "
    parts = [
        f"**{about}{count(n)} {'failed ' if chosen.failed else ''}requests**",
        f"{begin:{day}%H:%M:%S} – {end:%H:%M:%S}",
    ]
    if chosen.bounds(metric):
        above = f"{duration(chosen.lo or 0.0)} – {duration(chosen.hi)}" if chosen.hi else f"≥ {duration(chosen.lo)}"
        parts.append(f"{metric.upper()} {above}")
    if not chosen.failed:
        parts.append(f"{percent(bad / n if n else None)} bad")
    return " · ".join(parts)


def _is_edge(answer: Json, bound: float | None) -> bool:
    """Cells are counted whole: a bound between two edges is that of the list alone."""
    return bound is None or any(isclose(bound, edge, rel_tol=1e-3) for edge in answer["edges_s"])


def _is_inside(answer: Json, cell: Json, chosen: Selection) -> bool:
    """The middle of a cell lies in the selection."""
    at = instant(answer["start"]).timestamp() + (cell["x"] + 0.5) * answer["column_s"]
    if not chosen.t0 <= at < chosen.t1:
        return False
    if chosen.failed or (chosen.lo is None and chosen.hi is None):
        return True
    if cell["y"] is None:
        return False
    low, high = answer["edges_s"][cell["y"]], answer["edges_s"][cell["y"] + 1]
    middle = (low * high) ** 0.5
    return bool((chosen.lo or 0.0) <= middle <= (chosen.hi or float("inf")))
