"""The page Now: is the promise kept, what broke, since when, who is hit, and where to look next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import streamlit as st

from dashboard import components, filters, palette
from dashboard.api import Problem, Query, ask, ask_ahead, fetch, fetch_kept, fetch_seldom
from dashboard.components import heat, small
from dashboard.components.small import Band, Board, Chart, Line
from dashboard.filters import View, selected
from dashboard.links import from_ns, to
from dashboard.times import written
from dashboard.transform import Json, goodput, on_grid, worst_first
from dashboard.views import happened, slos
from tokentrail.shared.formatting import count, instant, plain

STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
POINTS = 96
MOST_HISTORIES = 12
"""SLOs whose history is asked for: each costs the collector 0.1 s of CPU in ten minutes."""
STRIP_HEIGHT = 180
STRIP_COLUMNS, STRIP_ROWS = 120, 24
HEIGHTS = (160, 330, 260, 180, 240)
"""Pixels of the page's parts on a screen, about."""
MOMENTS = ("change", "process")
"""Kinds of boxes that happen at a moment, and whose end nobody tells."""
ALL = "all SLOs"
WEEK = timedelta(days=7)
CHARTED = ("requests", "goodput", "attainment", "running", "waiting", "kv_usage")


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    components.refreshed(body, selected())


def body(view: View) -> None:
    """The sentence first, then the numbers behind it: each part by itself, all of one moment."""
    frame = components.frame("verdict", HEIGHTS)
    ask_ahead(ask("verdict", view.params), strip_query(view), *charted(view).values())
    told = fetch(ask("verdict", view.params))
    frame.empty()
    verdict = components.last_known("verdict", told, view)
    if verdict is None:
        return
    engines = fetch_seldom(ask("engines", start="-30d"))
    if happened.never_seen(verdict, engines):
        components.no_data()
        return
    window = verdict["window"]
    components.span(window, view.zone)
    with st.container(key="verdict"):
        happened.verdict(verdict, view, is_old=isinstance(told, Problem))
        happened.odd(verdict, view)
        if problem := verdict["slo_file_problem"]:
            st.warning(plain(f"The newest SLO file is not in use: {problem}"))
    with st.container(key="slos", border=True):
        slos.table(verdict["slos"], _histories(verdict["slos"], window), view)
    if verdict["state"] == "quiet":
        happened.quiet(verdict, view)
    else:
        strip(view, verdict)
        charts(view, verdict, engines)
    with st.container(key="happened", border=True):
        happened.happened(verdict["boxes"], view)
    happened.lines(engines.get("engines", []))


def _histories(found: list[Json], window: Json) -> Mapping[str, Json]:
    """The attainment of each SLO over its window, in steps that are over."""
    end = instant(window["end"])
    answers = {}
    for slo in worst_first(found)[:MOST_HISTORIES]:
        step_s = 3600 * slos.history_step_h(slo)
        last = datetime.fromtimestamp(end.timestamp() // step_s * step_s, UTC)
        first = last - timedelta(seconds=slo["window_s"] // step_s * step_s)
        times = [("start", written(first)), ("end", written(last)), ("step", f"{step_s}s")]
        answer = fetch_kept(ask("timeseries", times, metric="attainment", slo=slo["name"]))
        if answer:
            answers[slo["name"]] = answer
    return answers


def strip_query(view: View) -> Query:
    """The question for the strip."""
    return ask("heatmap", view.params, metric="ttft", slo=view.slo, columns=STRIP_COLUMNS, rows=STRIP_ROWS)


def charted(view: View) -> dict[str, Query]:
    """The questions for the charts, by their metric; none for a range that is none."""
    try:
        length = (instant(view.end) - instant(view.start)).total_seconds()
    except ValueError:  # the API says what is wrong with it
        return {}
    step = f"{step_s({'seconds': length})}s"
    return {name: ask("timeseries", view.params, metric=name, slo=view.slo, step=step) for name in CHARTED}


def strip(view: View, verdict: Json) -> None:
    """When and how slow, in short: a heatmap of TTFT. What is brushed becomes the range; Explore has the whole map."""
    grid = fetch(strip_query(view))
    if isinstance(grid, Problem):
        components.problem(grid)
        return
    if not grid["edges_s"]:
        return  # nobody tells a TTFT
    events = [
        {"t0": band.start.timestamp(), "t1": band.end.timestamp(), "label": band.text, "colour": band.colour}
        for band in sorted(marks(verdict), key=lambda band: (not band.firing, band.end - band.start))
    ]  # what fires gets a name first, then what is short
    with st.container(key="strip", border=True):
        title = f"**Time to first token** of {plain(view.slo)}" if view.slo else "**Time to first token**"
        st.markdown(f"{title} · [Explore]({to('explore', view, {'slo': view.slo})})")
        lines = [heat.percentile_line(grid, 0.99, palette.QUANTILES["p99"])]
        done = heat.draw(grid, view.zone, key="now-heat", height=STRIP_HEIGHT, events=events, lines=lines)
    if done and "zoom" in done:
        filters.show_range(*done["zoom"])
    elif done and done.get("t0"):
        filters.show_range(*(datetime.fromtimestamp(float(done[name]), UTC) for name in ("t0", "t1")))


def step_s(window: Json) -> int:
    """The width of the charts' buckets: a round one for 96 or fewer."""
    return next((step for step in STEPS_S if window["seconds"] <= step * POINTS), STEPS_S[-1])


def charts(view: View, verdict: Json, engines: Json) -> None:
    """Four small charts with one crosshair: requests, attainment, batches and queues, KV caches."""
    window = verdict["window"]
    asked = charted(view)
    of_processes = CHARTED[3:] if engines.get("engines") else ()
    answers = {name: fetch(asked[name]) for name in (*CHARTED[:3], *of_processes)}
    if problems := {answer.title: answer for answer in answers.values() if isinstance(answer, Problem)}:
        for problem in problems.values():
            components.problem(problem)
    known = {name: answer for name, answer in answers.items() if not isinstance(answer, Problem)}
    promised = next((float(slo["objective"]) for slo in verdict["slos"] if slo["name"] == view.slo), None)
    drawn = [chart for chart in drawable(known, window, view.slo, promised) if chart.is_known]
    if not drawn:
        return
    times = on_grid(next(iter(known.values())), ("value",), window).times
    with st.container(key="charts", border=True):
        with st.container(horizontal=True, horizontal_alignment="right"):
            week = st.toggle("Last week", key="week", bind="query-params", width="content")
        if week:
            drawn = [with_ghosts(chart, last_week(view, asked, window)) for chart in drawn]
        board = Board(times, step_s(window), window, view.zone, drawn, marks(verdict))
        chosen = small.draw(board, "now-charts")
    if chosen:
        filters.show_range(*chosen)


def last_week(view: View, asked: Mapping[str, Query], window: Json) -> dict[str, list[float | None]]:
    """What requests and attainment were in the same hours a week before, by the name of their line."""
    shifted = {name: written(instant(window[name]) - WEEK) for name in ("start", "end")}
    then = [*shifted.items(), *view.labels]
    names = {"requests": "ended", "attainment": view.slo or ALL}
    lines = {}
    for metric, line in names.items():
        step = dict(asked[metric].params)["step"]
        answer = fetch(ask("timeseries", then, metric=metric, slo=view.slo, step=step))
        if not isinstance(answer, Problem):
            of_then = on_grid(answer, ("value",), {**shifted, "complete_until": shifted["end"]})
            lines[line] = of_then.values["value"]
    return lines


def with_ghosts(chart: Chart, then: Mapping[str, list[float | None]]) -> Chart:
    """The chart with dotted lines of an earlier time, of as many buckets."""
    lines = [
        replace(line, ghost=then[line.name]) if len(then.get(line.name, ())) == len(line.values) else line
        for line in chart.lines
    ]
    return replace(chart, lines=lines)


def drawable(known: Mapping[str, Json], window: Json, slo: str | None, promised: float | None) -> list[Chart]:
    """The charts, also those without a value."""
    series = {
        name: on_grid(answer, ("value",), window, missing=0.0 if name == "requests" else None)
        for name, answer in known.items()
    }
    if "requests" in series and "goodput" in series:
        series["goodput"] = goodput(known["goodput"], series["requests"], window)

    def lines(*of: tuple[str, str, str]) -> list[Line]:
        return [small.line(series[name], "value", title, colour) for name, title, colour in of if name in series]

    return [
        Chart("Requests", "rate", lines(("requests", "ended", palette.QUIET), ("goodput", "good", palette.MAIN))),
        Chart(
            "Attainment",
            "ratio",
            lines(("attainment", slo or ALL, palette.MAIN)),
            top=1.0,
            limits=[] if promised is None else [("promised", promised)],
        ),
        Chart(
            "Requests in engines",
            "count",
            lines(("running", "running", palette.MAIN), ("waiting", "waiting", palette.WARN)),
            log=True,  # a burst makes a queue of thousands
        ),
        Chart("KV cache", "ratio", lines(("kv_usage", "fullest", palette.MAIN)), top=1.0),
    ]


def marks(verdict: Json) -> list[Band]:
    """What stands above the strip and the charts."""
    window = verdict["window"]
    return [*bands(verdict["boxes"], window), *bad_now(verdict["slos"], window)]


def bands(boxes: list[Json], window: Json) -> list[Band]:
    """What happened, as bands above the charts: causes and changes, and burns that nothing explains."""
    start, end = instant(window["start"]), instant(window["end"])
    drawn = []
    known = happened.folded(boxes)
    burns = [box for box in known if box["kind"] == "slo_burn"]
    for box in known:
        if box in burns and any(one["bad"] > box["bad"] and happened.overlap(one, box) for one in burns):
            continue  # of burns at one time, that with the most bad requests says why
        first = from_ns(box["since_ns"])
        last = from_ns(box["until_ns"]) if box["until_ns"] is not None else first if box["kind"] in MOMENTS else end
        if last >= start and first <= end:
            colour = palette.CAUSES.get(box["kind"], palette.QUIET)
            drawn.append(Band(max(first, start), last, _short(box), colour, happened.fires(box)))
    return drawn


def bad_now(slos: list[Json], window: Json) -> list[Band]:
    """A mark at the end of the time for requests that are bad before they end: those of the SLO with most of them."""
    worst = max(slos, key=lambda slo: slo["requests"]["in_flight_violations"], default=None)
    if worst is None or not (n := worst["requests"]["in_flight_violations"]):
        return []
    end = instant(window["end"])
    text = f"{count(n)} bad now"
    return [Band(end - timedelta(seconds=step_s(window)), end, text, palette.BAD, firing=True)]


def _short(box: Json) -> str:
    """The name of a band: `KV storm vllm-a`."""
    if box["kind"] == "slo_burn":
        return str(box["group"] or f"{box['slo']} burns")
    if box["dimension"] in ("model", "variant"):
        return f"{box['service']}: {box['dimension']} {box['value']}"
    if box["kind"] in MOMENTS:
        return str(box["title"])
    return f"{happened.KINDS.get(box['kind'], box['kind'])} {box['instance'] or box['service'] or ''}".strip()
