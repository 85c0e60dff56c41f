"""The page Tail: where the time of the slow requests went, beside typical ones, and what each cause costs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import streamlit as st

from dashboard import bars, components
from dashboard.api import Problem, Query, ask, ask_ahead, fetch, fetch_seldom
from dashboard.bars import Bar, Column, Cost, Palette
from dashboard.components import small
from dashboard.filters import View, selected
from dashboard.links import anchor, text, to
from dashboard.times import written
from dashboard.transform import Json, Series, thresholds
from tokentrail.shared.formatting import THRESHOLDS, count, duration, instant, percent, plain

STRIP = 96
"""Buckets of the strip of time."""
STRIP_HEIGHT = 74
SLOWEST = 40
HEIGHTS = (152, 120, 400, 260)
"""Pixels of the page's parts on a screen, about."""
MOST_MODELS = 5
QUANTILE = 0.99
_RED = "#e1323c"
_LEFT_OUT = "#94a3b8"


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    view = selected()
    of = st.segmented_control(
        "Latency",
        list(THRESHOLDS),
        format_func=THRESHOLDS.__getitem__,
        default="ttft",
        required=True,
        key="of",
        bind="query-params",
        label_visibility="collapsed",
    )
    components.refreshed(lambda now: body(now, of), view)


def body(view: View, of: str) -> None:
    """Ask about the bad requests and about the slowest ones, and draw both."""
    out = left_out()
    more = [("leave_out", f"{written(start)}/{written(end)}") for start, end in out]
    frame = components.frame("tail-bad", HEIGHTS)
    of_bad = ask("explain", [*view.params, *more], slo=view.slo)
    of_slow = ask("explain", [*view.params, *more], slo=view.slo, metric=of, quantile=QUANTILE, slowest=SLOWEST)
    ask_ahead(of_bad, of_slow, strip_query(view, of))
    bad = _known("tail-bad", of_bad, view)
    frame.empty()
    if bad is None:
        return
    components.span(bad["window"], view.zone)
    slow = _known("tail-slow", of_slow, view)
    slos = fetch_seldom(ask("slos")).get("slos", [])
    st.markdown(said(bad, slow, of, slos))
    strip(view, of, out)
    if slow is None:
        return
    palette = Palette.of(bad, slow)
    left, right = st.columns([5, 7])
    with left.container(border=True, key="tail-bars"):
        st.markdown(f"**Where the time went** · {THRESHOLDS[of]}, share of each group's time")
        if slow["parts"]:
            st.html(bars.stacked(groups_of(slow, palette), palette))
        else:
            st.caption(plain(slow["note"] or slow["sentence"]))
    with right.container(border=True, key="tail-causes"):
        st.markdown("**What each cause costs** · attainment of all requests if it had not been")
        causes(bad, palette, view)
    if slow["slowest"]:
        with st.container(border=True, key="tail-slowest"):
            st.markdown(f"**The slowest {len(slow['slowest'])}**, one bar each: a click opens the request")
            limits = thresholds(slos, of, view.slo).values()
            columns = [column(one, palette, view) for one in slow["slowest"]]
            st.html(bars.upright(columns, palette, min(limits, default=None)))
    if slow["levels"] and (ways := [level["more"] for level in slow["levels"] if level["more"]]):
        with st.expander("How to explain more of the time"):
            st.markdown("\n".join(f"- {plain(way)}" for way in dict.fromkeys(ways)))


def _known(name: str, query: Query, view: View) -> Json | None:
    return components.last_known(name, fetch(query), view)


def said(bad: Json, slow: Json | None, of: str, slos: Sequence[Json]) -> str:
    """What the page says first, as Markdown."""
    name, kept = bad["slo"], bad["attainment"]
    objective = next((float(slo["objective"]) for slo in slos if slo["name"] == name), None)
    who = f"{plain(name)} kept" if name else "All SLOs together kept"
    promise = "" if objective is None else f"; it promises {percent(objective)}"
    words = [] if kept is None else [f"**{who} {percent(kept)} of {'its' if name else 'the'} requests{promise}.**"]
    if slow is not None and slow["value_s"] is not None:
        words.append(
            f"The slowest 1 % ({count(slow['selected']['requests'])}) had a {THRESHOLDS[of]} of "
            f"{duration(slow['value_s'])} or more{_typical(slow, of)}."
        )
    words.append(plain(bad["sentence"]))
    if failed := bad["selected"]["failed"]:
        words.append(f"{count(failed)} of the bad requests failed.")
    return " ".join(words)


def _typical(slow: Json, of: str) -> str:
    typical = slow["typical"]
    if typical is None or typical.get(f"{of}_from_s") is None:
        return ""
    return f", typical ones {duration(typical[f'{of}_from_s'])} to {duration(typical[f'{of}_to_s'])}"


def groups_of(slow: Json, palette: Palette) -> list[Bar]:
    """The slowest 1 %, those of each model, and as many typical requests."""

    def bar(name: str, n: float, parts: Json) -> Bar:
        by_group = palette.by_group(parts)
        mean_s = sum(by_group.values()) / n if n else 0.0
        return Bar(name, f"{count(n)} · mean {duration(mean_s)}", by_group, n or 1)

    n = slow["selected"]["explained"]
    drawn = [bar("slowest 1 %", n, {part["cause"]: part["time_s"] for part in slow["parts"]})]
    models = [one for one in slow["by_model"] if one["time_s"]]
    if len(models) > 1:
        drawn += [bar(one["model"] or "no model", one["requests"], one["parts"]) for one in models[:MOST_MODELS]]
    typical = {part["cause"]: part["typical_s"] for part in slow["parts"] if part["typical_s"]}
    if typical:
        as_many = bar("typical", n, typical)
        drawn.append(Bar("typical", f"P25 to P75 · mean {duration(sum(typical.values()) / n)}", as_many.parts, n))
    return drawn


def column(one: Json, palette: Palette, view: View) -> Column:
    """One of the slowest requests."""
    ended = instant(one["end"]).astimezone(view.zone)
    href = _request(one, view)
    names = [name for name in (one["model"], one["tenant"]) if name]
    return Column(f"{ended:%H:%M:%S} {' '.join(names)}", href, palette.by_group(one["parts"]))


def causes(bad: Json, palette: Palette, view: View) -> None:
    """The table of what each cause costs, by what it is worth."""
    if not bad["groups"]:
        st.caption(plain(bad["note"] or bad["sentence"]))
        return
    parts = {part["cause"]: part for part in bad["parts"]}
    rows = [
        Cost(
            group,
            where(group, [parts[cause] for cause in group["causes"]], view),
            " ".join(dict.fromkeys(parts[cause]["advice"] for cause in group["causes"] if parts[cause]["advice"])),
        )
        for group in bad["groups"]
        if group["time_s"] >= bars.SHOWN / 4 * bad["selected"]["time_s"]
    ]
    st.html(bars.costs(rows, palette))
    if bad["without_hidden"]:
        st.caption(f"What would have been without a cause is not shown: {plain(bad['without_hidden'])}.")
    else:
        st.caption(
            f"Now {percent(bad['attainment'])}. Each bad request's own time is taken away, and all else stays as it "
            "is; a request can have several causes, so the points do not add up. Failed requests stay bad."
        )
    if bad["typical"]:
        st.caption(f"Typical: {plain(bad['typical']['text'])}.")
    if bad["note"]:
        st.caption(plain(bad["note"]))


def where(group: Json, parts: Sequence[Json], view: View) -> str:
    """Who, where and when, with links, as HTML."""
    culprits = sorted(
        (one for part in parts for one in part["culprits"] if (one["share"] or 0.0) >= 0.1),
        key=lambda one: -one["share"],
    )
    said = [_culprit(one, view) for one in {(one["by"], one["name"]): one for one in culprits}.values()][:4]
    if group["start"] is not None:
        start, end = instant(group["start"]), instant(group["end"])
        first, last = (f"{at.astimezone(view.zone):%H:%M}" for at in (start, end))
        when = first if first == last else f"{first} to {last}"
        times = {"start": written(start), "end": written(end + timedelta(seconds=1))}
        href = to("explore", view, {"slo": view.slo, **times, "verdict": "bad"})
        said.append(anchor(f"all bad requests of {when}", href))
    examples = [one for part in parts for one in part["exemplars"]][:3]
    links = ", ".join(
        anchor(duration(one["time_s"]), _request(one, view)) for one in sorted(examples, key=lambda one: -one["time_s"])
    )
    return " · ".join([*said, *([f"such as {links}"] if links else [])])


def _request(one: Json, view: View) -> str:
    return to("request", view, {"slo": view.slo, "trace_id": one["trace_id"], "span_id": one["span_id"]})


def _culprit(one: Json, view: View) -> str:
    share = f' <span class="tt-q">{one["share"]:.0%}</span>'
    if one["trace_id"]:
        return anchor(one["name"], _request(one, view)) + share
    if one["by"] in ("tenant", "model"):
        return (
            anchor(f"{one['by']} {one['name']}", to("explore", view, {"slo": view.slo, one["by"]: one["name"]})) + share
        )
    return f"{'prompts of ' if one['by'] == 'length' else ''}{text(one['name'])}{share}"


Stretch = tuple[datetime, datetime]


def left_out() -> list[Stretch]:
    """The stretches of time that the URL leaves out; what is none there is ignored."""
    stretches = []
    for stretch in st.query_params.get_all("out"):
        first, _, last = stretch.partition("/")
        try:
            start, end = instant(first), instant(last)
        except ValueError:
            continue
        if start < end:
            stretches.append((start, end))
    return stretches


def toggled(out: Sequence[Stretch], chosen: Stretch) -> list[Stretch]:
    """The stretches with another one; without those that it touches, if a click was on one of them."""
    start, end = chosen
    hit = [one for one in out if one[0] < end and start < one[1]]
    if any(one[0] <= start and end <= one[1] for one in hit):
        return [one for one in out if one not in hit]
    whole = (min([start, *(one[0] for one in hit)]), max([end, *(one[1] for one in hit)]))
    return sorted([*(one for one in out if one not in hit), whole])


def strip_query(view: View, of: str) -> Query:
    """The question for the strip."""
    return ask("heatmap", view.params, metric=of, columns=STRIP, rows=1, slo=view.slo)


def strip(view: View, of: str, out: Sequence[Stretch]) -> None:
    """The bad requests over time. A click or a drag leaves a part out, and a second click takes it back."""
    grid = fetch(strip_query(view, of))
    if isinstance(grid, Problem):
        components.problem(grid)
        return
    with st.container(border=True, key="tail-strip"):
        series = by_column(grid)
        chart = small.Chart(
            "Bad requests: click or drag to leave a time out",
            "count",
            [small.line(series, "bad", "bad", _RED)],
            bars=True,
            log=True,  # beside a burst, some bad requests would not be seen
        )
        bands = [small.Band(start, end, "left out", _LEFT_OUT) for start, end in out]
        board = small.Board(series.times, grid["column_s"], grid["window"], view.zone, [chart], bands, clicks=True)
        chosen = small.draw(board, "strip", STRIP_HEIGHT)
        if chosen:
            _leave_out(toggled(out, chosen))
        if out:
            first = ", ".join(" to ".join(f"{at.astimezone(view.zone):%H:%M}" for at in one) for one in out)
            if st.button(f"Left out: {first}. Take all back", type="tertiary", key="take-back"):
                _leave_out([])


def _leave_out(stretches: Sequence[Stretch]) -> None:
    st.query_params["out"] = [f"{written(start)}/{written(end)}" for start, end in stretches]
    st.rerun()


def by_column(heatmap: Json) -> Series:
    """The bad requests in each column of a heatmap, failed ones included."""
    start, step_s = instant(heatmap["start"]), heatmap["column_s"]
    n = max(1, round((instant(heatmap["window"]["end"]) - start).total_seconds() / step_s))
    bad: list[float | None] = [0.0] * n
    for cell in heatmap["cells"]:
        if cell["x"] < n:
            bad[cell["x"]] = (bad[cell["x"]] or 0.0) + cell["bad"]
    return Series([start + timedelta(seconds=i * step_s) for i in range(n)], {"bad": bad})
