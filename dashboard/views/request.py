"""The Request page: the waterfall of one request, its numbers, its phases and its longest waits."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

from dashboard import address, charts, components, waterfall
from dashboard.api import Problem, ask, fetch
from dashboard.components import metric
from dashboard.filters import selected
from dashboard.help_texts import HELP
from dashboard.transform import Json, missed, phase_totals, placed
from tokentrail.shared.formatting import (
    UNDEFINED,
    clock,
    count,
    duration,
    of_tenant,
    percent,
    plain,
    prefill_interference,
    tpot,
    wait_reasons,
)

TRACE_ID = re.compile(r"[0-9a-f]{32}")
FIRST_DIGITS = re.compile(r"[0-9a-f]{8,31}")
SPAN_ID = re.compile(r"[0-9a-f]{16}")
OPEN_REFRESH_S = 2.0
LOOK_BACK = "-30d"
LISTED = 1000
"""Requests of a trace that the API lists at most."""


def page() -> None:
    """Draw the page for the URL's `trace_id`, and its `span_id` when one trace holds several requests."""
    view = selected()
    asked = (address.get("trace_id") or "").strip()
    span_id = st.query_params.get("span_id", "").strip().lower()
    if not asked:
        st.info("Type an id into the box above, or choose a request in Explore.", icon=":material/search:")
        return
    found = (asked.lower(), "") if TRACE_ID.fullmatch(asked.lower()) else ids_of(asked)
    if isinstance(found, Problem):
        components.problem(found)
        return
    trace_id, span_id = found[0], span_id or found[1]
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
        found = fetch(ask("requests", [(name, asked)], start=LOOK_BACK, limit=1))
        if isinstance(found, Problem):
            return found
        if found["requests"]:
            row = found["requests"][0]
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
    head(trail)
    with st.container(border=True, key="waterfall"):
        if (figure := waterfall.figure(trail)) is not None:
            st.plotly_chart(figure, key="chart-waterfall", **charts.show_options())
        if not trail["tokens"]:
            st.caption(
                "No single tokens are recorded: its engine sends one span per request, or no token was emitted yet."
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
    left, right = st.columns(2)
    with left:
        phases(trail)
    with right:
        waits(trail)
    others(trail)


def _trail(trace_id: str, span_id: str | None) -> Json | Problem:
    """The request's trail. A key of one tenant may not see the engine's steps, which are then none."""
    trail = fetch(ask(f"requests/{trace_id}", span_id=span_id or None))
    return trail if isinstance(trail, Problem) else {**trail, "steps": trail["steps"] or []}


def head(trail: Json) -> None:
    """The request's labels, times, outcome and numbers."""
    request = trail["request"]
    names = [
        request["operation"],
        request["model"],
        of_tenant(request["service"] or request["engine"], request),
        request["variant"],
        request["tenant"],
    ]
    st.markdown(plain(" · ".join(name for name in names if name)))
    st.caption(
        plain(
            f"{request['request_id'] or UNDEFINED} · arrived {clock(request['start'], selected().zone)} · "
            f"{outcome(request)}"
        )
    )
    if request["hops"]:
        st.caption(plain(" → ".join(hop(one) for one in request["hops"])))
    verdicts(request)
    numbers = [
        ("TTFT", duration(request["ttft_s"])),
        ("TPOT", tpot(request)),
        ("E2E", duration(request["e2e_s"])),
        ("Queue", duration(request["queue_s"])),
        ("Input tokens", count(request["input_tokens"])),
        ("Cached tokens", count(request["cached_tokens"])),
        ("Output tokens", count(request["output_tokens"])),
        ("Preemptions", count(request["preemptions"])),
    ]
    with st.container(border=True, key="request-numbers"):
        for column, (label, value) in zip(st.columns(len(numbers)), numbers, strict=True):
            with column:
                metric(label, value)


VERDICT_COLOURS: dict[str, Any] = {"good": "green", "bad": "red", "pending": "blue"}


def verdicts(request: Json) -> None:
    """A badge for each SLO that selects the request, and the thresholds that it missed."""
    if not request["verdicts"]:
        st.caption("No SLO selects this request.")
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="verdicts"):
        for one in request["verdicts"]:
            st.badge(f"{one['slo']}: {one['verdict']}", color=VERDICT_COLOURS.get(one["verdict"], "gray"))
        for sentence in missed(request["verdicts"]):
            st.caption(plain(sentence), width="content")


def hop(one: Json) -> str:
    """A reporter of the request, and the time that it added: `app (client): E2E 1.00 s, 50 ms added`."""
    added = "" if one["added_e2e_s"] is None else f", {duration(one['added_e2e_s'])} added"
    return f"{one['service'] or one['engine']} ({one['vantage']}): E2E {duration(one['e2e_s'])}{added}"


def outcome(request: Json) -> str:
    """Status with its reason: `ok (stop)`, `error (engine_died)`, `in_flight`."""
    reason = request["error_type"] or request["finish_reason"]
    return f"{request['status']} ({reason})" if reason else str(request["status"])


def phases(trail: Json) -> None:
    """The table of phases: time, share and number of stretches of each."""
    st.subheader("Where the time went", help="The phases neither overlap nor leave a gap: together they are E2E.")
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
            st.caption("This engine does not report phases.")
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
            st.caption("No single tokens are recorded." if unrecorded else "Fewer than two tokens.")


def others(trail: Json) -> None:
    """Links to the other requests of the same trace. The ids are hex digits, so they cannot hold markup."""
    request = trail["request"]
    rest = [span for span in trail["span_ids"] if span != request["span_id"]]
    if rest:
        links = [f"[{span}](/request?trace_id={request['trace_id']}&span_id={span})" for span in rest[:20]]
        most = "At least " if len(trail["span_ids"]) == LISTED else ""
        st.caption(f"{most}{count(len(rest))} more of this trace: {' '.join(links)}")
