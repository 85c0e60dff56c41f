"""The Request page: the waterfall of one request, its numbers, its phases and its longest waits."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import streamlit as st

from dashboard import address, bars, components, tracks, why
from dashboard.api import Problem, ask, fetch
from dashboard.components import trail as picture
from dashboard.filters import selected
from dashboard.help_texts import HELP
from dashboard.links import to
from dashboard.times import written
from dashboard.transform import Json, phase_totals, placed
from dashboard.views import request_head
from tokentrail.shared.formatting import (
    MINUS,
    UNDEFINED,
    count,
    duration,
    instant,
    percent,
    prefill_interference,
    wait_reasons,
)

TRACE_ID = re.compile(r"[0-9a-f]{32}")
FIRST_DIGITS = re.compile(r"[0-9a-f]{8,31}")
SPAN_ID = re.compile(r"[0-9a-f]{16}")
OPEN_REFRESH_S = 2.0
LOOK_BACK = "-30d"
LISTED = 1000
"""Requests of a trace that the API lists at most."""
LONGEST_S = 3600.0
"""The collector tells an hour of a process at most."""
LEVELS = {
    "steps": "Found by the steps of its process.",
    "estimated": "Estimated from requests of its process: the engine does not tell its steps.",
    "phases": "Found by the phases alone.",
    "none": "Its engine tells no phases, so nothing is known beyond TTFT and the rest.",
}


def page() -> None:
    """Draw the page for the URL's `trace_id`, and its `span_id` when one trace holds several requests."""
    view = selected()
    asked = (address.get("trace_id") or "").strip()
    span_id = st.query_params.get("span_id", "").strip().lower()
    if not asked:
        st.info("Type an id into the box above, or choose a request in Explore.", icon=":material/search:")
        return
    ids = (asked.lower(), "") if TRACE_ID.fullmatch(asked.lower()) else ids_of(asked)
    if isinstance(ids, Problem):
        components.problem(ids)
        return
    trace_id, span_id = ids[0], span_id or ids[1]
    components.title(f"Request {trace_id[:8]}")
    if span_id and not SPAN_ID.fullmatch(span_id):
        components.problem(
            Problem("That is not a span id", "A span id has 16 hex digits. Copy the link from the list in Explore.")
        )
        return
    trail = _trail(trace_id, span_id)
    if isinstance(trail, Problem):
        components.problem(unknown(trace_id) if trail.status == 404 else trail)
        return
    is_open = trail["request"]["status"] == "in_flight"
    components.refreshed(lambda _: body(trace_id, span_id), view, OPEN_REFRESH_S if is_open else 0)


def ids_of(asked: str) -> tuple[str, str] | Problem:
    """The newest trace with an id that begins so, as the list shows it; or trace and span of this request id."""
    names = ("trace_id", "request_id") if FIRST_DIGITS.fullmatch(asked.lower()) else ("request_id",)
    for name in names:
        answer = fetch(ask("requests", [(name, asked)], start=LOOK_BACK, limit=1))
        if isinstance(answer, Problem):
            return answer
        if answer["requests"]:
            row = answer["requests"][0]
            return row["trace_id"], row["span_id"] if name == "request_id" else ""
    return Problem(
        "No such request",
        f"No request that ended in the last 30 days has the id {asked}, and no trace id begins with it.",
    )


def unknown(trace_id: str) -> Problem:
    """The Problem that nothing is stored under this id."""
    return Problem(
        "No such request",
        f"The collector has nothing of trace {trace_id}. It may not have been sampled or have arrived yet, "
        "be older than the retention time, or have gone to another collector.",
        404,
    )


def body(trace_id: str, span_id: str) -> None:
    """Draw the request as it is known now."""
    trail = _trail(trace_id, span_id)
    if isinstance(trail, Problem):
        components.problem(trail)
        return
    request_head.head(trail)
    with st.container(border=True, key="waterfall"):
        waterfall(trail)
    left, right = st.columns(2)
    with left:
        causes(trail)
        phases(trail)
    with right:
        waits(trail)
    others(trail)


def waterfall(trail: Json) -> None:
    """The tracks of the request, with the other requests of its process. A click on one of them opens it."""
    drawn = tracks.of_request(trail, timeline(trail["request"]), datetime.now(UTC))
    if drawn is not None:
        opened = picture.draw(drawn, "trail", selected().zone)
        st.caption(
            "Wheel: zoom · drag: move · double click: all · click on another request: open it"
            + (f" · {count(drawn.lanes_left_out)} more requests ran here" if drawn.lanes_left_out else "")
        )
        st.html(bars.legend({*drawn.legend}, bars.Palette(drawn.legend, {})))
        if opened:
            st.query_params.update({"trace_id": opened[0], "span_id": opened[1]})
            st.rerun()
    if not trail["tokens"]:
        st.caption(
            "No token is known yet: tokens of a request come with its end."
            if trail["request"]["status"] in ("in_flight", "lost")
            else "No single tokens are recorded: its engine sends one span per request, or no token was emitted."
        )
    if behind := len(trail["tokens"]) - len(placed(trail["tokens"])):
        st.caption(
            f"{count(behind)} tokens are not drawn: a token before them is missing, so their times are not known."
        )
    for name in ("steps", "events"):
        if (all_of_them := trail[f"{name}_total"] or 0) > (shown := len(trail[name])):
            st.caption(
                f"This page has {count(shown)} of {count(all_of_them)} {name}. The tables below count only these."
            )


def timeline(request: Json) -> Json | None:
    """What the engine process did during the request. None: it is not known, or the key may not see it."""
    begin = instant(request["start"])
    seconds = min(request["e2e_s"] or (datetime.now(UTC) - begin).total_seconds(), LONGEST_S)
    if not request["instance"] or seconds <= 0:
        return None
    asked = {name: request[name] for name in ("service", "instance", "process_tenant")}
    answer = fetch(
        ask("processes/timeline", **asked, start=request["start"], end=written(begin + timedelta(seconds=seconds)))
    )
    return None if isinstance(answer, Problem) else answer


def _trail(trace_id: str, span_id: str | None) -> Json | Problem:
    """The request's trail. A key of one tenant may not see the engine's steps, which are then none."""
    trail = fetch(ask(f"requests/{trace_id}", span_id=span_id or None))
    return trail if isinstance(trail, Problem) else {**trail, "steps": trail["steps"] or []}


def causes(trail: Json) -> None:
    """The table of causes: what people call them, the time before and after the first token, and beyond typical."""
    explained = trail["explained"]
    if not explained or not explained["causes"]:
        return
    st.subheader("Why it took so long", help=HELP["Why it took so long"])
    rows = [
        {
            "cause": group.name,
            "to the first token": duration(group.ttft_s) if group.ttft_s else UNDEFINED,
            "after it": duration(group.rest_s) if group.rest_s else UNDEFINED,
            "beyond typical": UNDEFINED if group.excess_s is None else signed(group.excess_s),
        }
        for group in why.groups(explained)
    ]
    with st.container(key="causes"):
        components.table(rows)
        st.caption(LEVELS.get(explained["level"], ""))


def signed(seconds: float) -> str:
    """A difference in seconds: `1.2 s`, `−3 ms`. A spreadsheet would take `+` for the begin of a formula."""
    return ("" if seconds >= 0 else MINUS) + duration(abs(seconds))


def phases(trail: Json) -> None:
    """The table of phases: time, share and number of stretches of each."""
    st.subheader("Phases", help="The phases neither overlap nor leave a gap: together they are E2E.")
    rows = [
        {
            "phase": total.name,
            "time": duration(total.seconds),
            "share": percent(total.share),
            "stretches": total.stretches,
        }
        for total in phase_totals(trail["phases"])
    ]
    with st.container(key="phases"):
        if rows:
            components.table(rows)
        else:
            st.caption(
                "Its phases come with its end."
                if trail["request"]["status"] in ("in_flight", "lost")
                else "This engine does not report phases."
            )
        st.caption(f"Why it waited: {wait_reasons(trail)}", help=HELP["Why it waited"])


def waits(trail: Json) -> None:
    """The table of the longest waits between tokens, and the prefill interference."""
    st.subheader("Longest waits between tokens", help=HELP["ITL"])
    rows = [
        {
            "token": row["index"],
            "wait": duration(row["duration_s"]),
            "at": duration(row["offset_s"]),
            "in": row["phase"] or UNDEFINED,
            "step": row["step"],
            "prefilled": count(row["prefill_tokens"]),
            "KV evicted": count(row["kv_blocks_evicted"]),
        }
        for row in trail["longest_waits"]
    ]
    with st.container(key="waits"):
        if rows:
            components.table(rows, placeholder=UNDEFINED)
        if sentence := prefill_interference(trail):
            st.caption(f"{sentence} (shaded above).", help=HELP["Prefill interference"])
        elif not rows:
            emitted = trail["request"]["output_tokens"]
            unrecorded = len(trail["tokens"]) < 2 and (emitted is None or emitted > 1)
            is_open = trail["request"]["status"] in ("in_flight", "lost")
            unknown_why = "No token is known yet." if is_open else "No single tokens are recorded."
            st.caption(unknown_why if unrecorded else "Fewer than two tokens.")


def others(trail: Json) -> None:
    """Links to the other requests of the same trace. The ids are hex digits, so they cannot hold markup."""
    request, view = trail["request"], selected()
    rest = [span for span in trail["span_ids"] if span != request["span_id"]]
    if rest:
        ids = [{"slo": view.slo, "trace_id": request["trace_id"], "span_id": span} for span in rest[:20]]
        links = [f"[{one['span_id']}]({to('request', view, one)})" for one in ids]
        most = "At least " if len(trail["span_ids"]) == LISTED else ""
        st.caption(f"{most}{count(len(rest))} more of this trace: {' '.join(links)}")
