"""The first lines of the page Request: what was missed and why, what leads on from it, and its numbers."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import streamlit as st

from dashboard import address, why
from dashboard.api import Params, Problem, ask, fetch
from dashboard.filters import View, selected
from dashboard.help_texts import HELP
from dashboard.links import to
from dashboard.times import written
from dashboard.transform import Json
from tokentrail.shared import otlp_json, perfetto
from tokentrail.shared.formatting import THRESHOLDS, UNDEFINED, clock, count, duration, instant, of_tenant, plain, tpot

AROUND = timedelta(minutes=15)


def head(trail: Json) -> None:
    """What was missed and why, the request's labels and times, what leads on, and its numbers."""
    request, explained = trail["request"], trail["explained"]
    states = {one["verdict"] for one in request["verdicts"]}
    colour = next((VERDICT_COLOURS[state] for state in ("bad", "pending", "good") if state in states), "gray")
    with st.container(key="verdict", gap="small"):
        st.markdown(f"##### :{colour}[●] {why.verdict(request)}. {why.why(request, explained)}")
        if beside := why.typical(request, explained):
            st.caption(beside)
    leads(trail)
    names = [
        request["operation"],
        request["model"],
        of_tenant(request["service"] or request["engine"], request),
        request["instance"],
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
                st.metric(label, value, help=HELP[label])


VERDICT_COLOURS: dict[str, Any] = {"good": "green", "bad": "red", "pending": "blue"}


def leads(trail: Json) -> None:
    """Links to requests like this one and to its process, the next slower and faster one, and downloads."""
    request, view = trail["request"], selected()
    like = {name: request[name] for name in ("model", "slo_class") if request[name]}
    missed = [miss["threshold"] for one in request["verdicts"] for miss in one["missed"]]
    metric_of = missed[0] if missed else "e2e"
    begin = instant(request["start"])
    around = {"start": written(begin - AROUND), "end": written(begin + AROUND)}
    mapped = metric_of if missed else None  # the map of what was missed, and not of what its SLO names first
    like_it = to("explore", view, {**like, **around, "metric": mapped}, filtered=False)
    with st.container(horizontal=True, gap="small", key="leads", vertical_alignment="center"):
        st.link_button("Like this one", like_it, icon=":material/grid_on:")
        if request["instance"]:
            process = {name: request[name] for name in ("service", "instance", "process_tenant")}
            then = to("engines", view, {**process, **around, "at": request["start"]}, filtered=False)
            st.link_button("Its process then", then, icon=":material/memory:")
        for name, title, other in neighbours(listed(view, request), request, metric_of):
            with st.container(key=name, width="content"):
                by = f"the next one by {THRESHOLDS[metric_of]} in the range"
                if st.button(title, disabled=other is None, help=by) and other:
                    st.query_params.update(other)
                    st.rerun()
        st.download_button(
            "Perfetto",
            data=lambda: json.dumps(perfetto.trace(trail)),
            file_name=f"{request['trace_id']}.perfetto.json",
            mime="application/json",
            icon=":material/download:",
            help="a trace that ui.perfetto.dev opens",
        )
        st.download_button(
            "OTLP",
            data=lambda: json.dumps(otlp_json.spans(trail)),
            file_name=f"{request['trace_id']}.otlp.json",
            mime="application/json",
            icon=":material/download:",
            help="spans as OTLP in JSON, which a collector takes at /v1/traces",
        )


def listed(view: View, request: Json) -> list[tuple[str, str]]:
    """The requests among which the buttons move: those of the header's range, or around a request outside of it."""
    fixed = view.at(address.moment())
    try:
        is_inside = instant(fixed.start) <= instant(request["end"] or request["start"]) < instant(fixed.end)
    except ValueError:  # a time that is none
        is_inside = False
    begin = instant(request["start"])
    times = (fixed.start, fixed.end) if is_inside else (written(begin - AROUND), written(begin + AROUND))
    return [("start", times[0]), ("end", times[1]), *view.labels, *([("slo", view.slo)] if view.slo else [])]


def neighbours(params: Params, request: Json, by: str) -> list[tuple[str, str, dict[str, str] | None]]:
    """Key and title of two buttons, and the request to which each leads: the next slower and the next faster one."""
    value = request.get(f"{by}_s")
    both: list[Json | None] = [None, None]
    if value is not None:
        for place, (bound, order, ns) in enumerate((("at_least", "asc", 1), ("at_most", "desc", -1))):
            beyond = f"{round(value * 1e9) + ns}ns"
            asked = fetch(ask("requests", params, metric=by, sort=by, order=order, limit=1, **{bound: beyond}))
            both[place] = None if isinstance(asked, Problem) else next(iter(asked["requests"]), None)
    return [
        (name, title, None if one is None else {"trace_id": one["trace_id"], "span_id": one["span_id"]})
        for (name, title), one in zip((("previous", "‹ slower"), ("next", "faster ›")), both, strict=True)
    ]


def hop(one: Json) -> str:
    """A reporter of the request, and the time that it added: `app (client): E2E 1.00 s, 50 ms added`."""
    added = "" if one["added_e2e_s"] is None else f", {duration(one['added_e2e_s'])} added"
    return f"{one['service'] or one['engine']} ({one['vantage']}): E2E {duration(one['e2e_s'])}{added}"


def outcome(request: Json) -> str:
    """Status with its reason: `ok (stop)`, `error (engine_died)`, `in_flight`."""
    reason = request["error_type"] or request["finish_reason"]
    return f"{request['status']} ({reason})" if reason else str(request["status"])
