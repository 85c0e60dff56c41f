"""The page Engines: each process beside its siblings, and what one of them did step by step."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import streamlit as st

from dashboard import address, components, filters, palette, tracks
from dashboard.api import Problem, ask, ask_ahead, fetch
from dashboard.components import trail
from dashboard.filters import View, selected
from dashboard.links import process_id
from dashboard.times import written
from dashboard.transform import Json
from dashboard.views import events, tiles
from tokentrail.shared.formatting import (
    clock,
    count,
    counted,
    instant,
    of_tenant,
    plain,
)

LOOK: Final = timedelta(minutes=2)
"""How much of a process is shown step by step."""
_CLOSED: Final = "processes-closed"
"""How often the reader has closed a process. The table is a new one then, in which no row is chosen."""
_WIDTH: Final = 84
_HEIGHT: Final = 22


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    components.refreshed(body, selected())


def body(view: View) -> None:
    """Ask for the processes, and draw them."""
    ask_ahead(*(ask(name, view.params) for name in ("processes", "engines", "cold_starts")))
    answer = components.last_known("processes", fetch(ask("processes", view.params)), view)
    if answer is None:
        return
    components.span(answer["window"], view.zone)
    shown = answer["processes"]
    if not shown:
        st.info("No engine process gave a sign of life in this range.", icon=":material/memory:")
        return
    st.markdown(f"##### {sentence(shown)}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="tiles-head"):
        wanted = st.text_input(
            "Filter processes", key="processes", bind="query-params", placeholder="name, service, model, slow, quiet …",
            label_visibility="collapsed", width=260,
        )  # fmt: skip
        as_table = st.toggle("As a table", key="table", bind="query-params", width="content")
    shown = tiles.matching(shown, wanted or "")
    engines = fetch(ask("engines", view.params))
    known = [] if isinstance(engines, Problem) else engines["engines"]
    with st.container(key="engines"):
        chosen = None
        if as_table:
            chosen = table(shown, answer["window"]["end"], view, known)
        elif shown:
            st.html(tiles.of_services(shown, answer["window"]["end"], view))
        else:
            st.caption("No process matches.")
    if (left := answer["processes_total"] - len(answer["processes"])) > 0:
        st.caption(f"{count(left)} more processes are not shown: choose a shorter range or filters.")
    if chosen is not None and process_id(chosen) != address.get("sel"):
        address.choose(sel=process_id(chosen), at=None)
    opened = next((one for one in answer["processes"] if process_id(one) == address.get("sel")), None)
    if opened is not None:
        steps(opened, view)
    events.untold(known)
    starts = fetch(ask("cold_starts", view.params))
    if not isinstance(starts, Problem):
        events.cold_starts(starts["cold_starts"], view)


def sentence(shown: Sequence[Json]) -> str:
    """The processes in one sentence, as Markdown: which are in trouble, and how many are well."""
    trouble = [one for one in shown if one["state"] in ("hangs", "lost")]
    slow = [one for one in shown if one not in trouble and one["beside"] and one["beside"]["is_slow"]]
    named_slow = "; ".join(f"{plain(one['instance'])} takes {tiles.slower(one['beside'])}" for one in slow[:2])
    also = f" {named_slow}{f'; and {len(slow) - 2} more' if len(slow) > 2 else ''}." if slow else ""
    counts = {state: sum(one["state"] == state for one in shown) for state in ("ok", "quiet")}
    rest = f"{counts['ok']} work, {counts['quiet']} are quiet" if counts["quiet"] else f"{counts['ok']} work"
    if not trouble:
        return f"{':orange[●] ' if slow else ''}{counted(len(shown), 'process', 'processes')}: {rest}.{also}"
    words = {"hangs": "makes no step", "lost": "went silent"}
    named = "; ".join(
        f"{plain(one['instance'] or one['service'])} {words[one['state']]}, {counted(one['in_flight'], 'request')} open"
        for one in trouble[:3]
    )
    others = counted(len(shown) - len(trouble), "process", "processes")
    return f":red[●] {named}. Of the other {others}, {rest}.{also}"


def table(shown: Sequence[Json], end: str, view: View, known: Sequence[Json]) -> Json | None:
    """The table with a row for each process. Returns the process that the reader has chosen in it."""
    missing = {
        (engine["service"], engine["process_tenant"]): [one["what"] for one in engine["tells"] if one["told"] == "none"]
        for engine in known
    }
    rows = [
        {"process": name}
        | row(one, end, view)
        | {"does not tell": ", ".join(missing.get((one["service"], one["process_tenant"]), []))}
        for one, name in zip(shown, names(shown), strict=True)
    ]
    image, number = st.column_config.ImageColumn, st.column_config.NumberColumn
    event: Any = st.dataframe(
        rows,
        hide_index=True,
        row_height=34,
        on_select="rerun",
        selection_mode=["single-row", "single-cell"],
        key=f"processes-{st.session_state.get(_CLOSED, 0)}",
        column_config={
            "batch": image("batch", width=_WIDTH + 20, help="The largest batch of each fortieth of the range."),
            "KV": image("KV", width=_WIDTH + 20, help="The largest share of KV blocks in use."),
            "queue": image("queue", width=_WIDTH + 20, help="The most requests that waited."),
            **{name: number(name, format="%.3g s") for name in ("step P50", "step P99", "TTFT P99")},
            **{name: number(name, format="%.5g %%") for name in ("KV used", "good")},
            "tokens/s": number("tokens/s", format="%.3g"),
        },
    )
    places = event.selection.rows or [place for place, _ in event.selection.cells]
    return shown[places[0]] if places and places[0] < len(shown) else None


def row(one: Json, end: str, view: View) -> dict[str, Any]:
    """One process as a row of the table."""
    state = tiles.STATES[one["state"]]
    if one["since"] and one["state"] != "ok":
        state += f" {tiles.since(one['since'], end)}"
    return {
        "state": state,
        "service": one["service"],
        "variant": one["variant"],
        "batch": curve(one["running_curve"], palette.MAIN, one["running"], "running"),
        "running": one["running"],
        "queue": curve(one["waiting_curve"], palette.WARN, one["waiting"], "waiting"),
        "open": one["in_flight"],
        "KV": curve(one["kv_curve"], "#14b8a6", one["kv_usage"], "KV used", top=1.0),
        "KV used": _percents(one["kv_usage"]),
        "preempted": one["preemptions"],
        "step P50": one["step_p50_s"],
        "step P99": one["step_p99_s"],
        "TTFT P99": one["ttft_p99_s"],
        "good": _percents(one["attainment"]),
        "tokens/s": one["output_tokens_per_s"],
        "requests": one["requests"],
        "engine": one["engine"],
        "model": ", ".join(one["models"]),
        "first seen": clock(one["first_seen"], view.zone),
        "instance": one["instance"],
    }


def _percents(share: float | None) -> float | None:
    return None if share is None else 100 * share


def names(shown: Sequence[Json]) -> list[str]:
    """What tells each process from the others: its name without the long beginning that those of its service share."""
    of_service: dict[str, list[int]] = {}
    for place, one in enumerate(shown):
        of_service.setdefault(one["service"], []).append(place)
    told = [""] * len(shown)
    for places in of_service.values():
        for place, (faded, rest) in zip(places, tiles.split([shown[place] for place in places]), strict=True):
            told[place] = of_tenant(f"…{rest}" if faded.endswith("…") else faded + rest, shown[place])
    return told


def curve(values: Sequence[float | None], colour: str, now: float | None, name: str, top: float | None = None) -> str:
    """A small curve as an inline SVG image. Gaps are times of which nothing is known."""
    most = top or max((value for value in values if value is not None), default=0) or 1
    step, paths, on = _WIDTH / max(len(values), 1), [], False
    for place, value in enumerate(values):
        if value is None:
            on = False
            continue
        y = _HEIGHT - 2 - (_HEIGHT - 4) * min(value / most, 1)
        paths.append(f"{'L' if on else 'M'}{place * step:.1f} {y:.1f}h{step:.1f}")
        on = True
    title = f"{name}: at most {most:.3g}" + ("" if now is None else f", now {now:.3g}")
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"><title>{title}</title>'
        f'<path d="{"".join(paths)}" fill="none" stroke="{colour}" stroke-width="1.5"/></svg>'
    )
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"


def steps(process: Json, view: View) -> None:
    """What a process did in two minutes: cold starts, requests, steps and KV cache. A click on a request opens it."""
    end = address.get("at") or process["since"] or process["last_seen"]
    try:
        until = instant(end) + LOOK / 2
    except ValueError:
        until = instant(process["last_seen"]) + LOOK / 2
    begin = until - LOOK
    names = {name: process[name] for name in ("service", "instance", "process_tenant")}
    answer = fetch(ask("processes/timeline", **names, start=written(begin), end=written(until)))
    with st.container(border=True, key="steps"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            name = plain(process["instance"] or process["service"])
            st.markdown(f"**{name}**, two minutes from {clock(written(begin), view.zone)} on")
            for title, by in (("‹ earlier", -LOOK), ("later ›", LOOK)):
                if st.button(title, key=f"steps-{title}"):
                    address.choose(at=written(until - LOOK / 2 + by))
            if st.button("close", key="steps-close"):
                st.session_state[_CLOSED] = st.session_state.get(_CLOSED, 0) + 1
                address.choose(sel=None, at=None)
        if isinstance(answer, Problem):
            components.problem(answer)
            return
        starts = fetch(ask("cold_starts", start=written(begin), end=written(until)))
        of_process = (
            []
            if isinstance(starts, Problem)
            else [one for one in starts["cold_starts"] if all(one[name] == value for name, value in names.items())]
        )
        picture = tracks.of_process(answer, of_process)
        if picture is None:
            st.caption("Nothing is known of the process in these minutes: no step, no request, no start.")
            return
        opened = trail.draw(picture, "process-trail", view.zone)
        if answer["steps_total"] > len(answer["steps"]["step"]):
            shown, all_steps = count(len(answer["steps"]["step"])), counted(answer["steps_total"], "step")
            st.caption(f"The newest {shown} of {all_steps} are drawn.")
        if opened:
            pages = st.session_state["pages"]
            st.switch_page(pages["request"], query_params=filters.of_request(*opened))
