"""The page Explore: requests of the range with their verdicts, each with a link to its waterfall."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from dashboard import components
from dashboard.api import Problem, Query, ask, fetch
from dashboard.filters import selected
from dashboard.transform import Json, missed_by
from tokentrail.shared.formatting import UNDEFINED, clock, count, instant, of_tenant, plain

SORTS = {"TTFT": "ttft", "TPOT": "tpot", "E2E": "e2e", "newest": "end"}
STATUSES = ("ok", "error", "cancelled", "unknown", "in_flight", "lost")
VERDICTS = ("good", "bad", "undetermined", "excused", "unselected", "pending")
CAUSES = {
    "kv_eviction": "lost KV-cache blocks",
    "kv_wait": "waited for KV-cache blocks",
    "cold_start": "waited for a cold start",
}
ROWS = (20, 50, 200, 1000)
"""Rows on a page."""
MILLISECONDS = {
    "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "queue": "queued", "cold_start": "cold start", "prefill": "prefill",
    "decode": "decode", "preempted": "preempted", "kv_transfer": "KV transfer", "stalled": "stalled",
}  # fmt: skip
"""Columns of latencies by the name of their field."""
PLACE = "requests-place"
"""Key of the session's state: the list that is shown, and the cursor of its page."""


def page() -> None:
    """Draw the page."""
    view = selected()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        sort = st.segmented_control(
            "Sort by", list(SORTS), default="TTFT", required=True, key="sort", bind="query-params"
        )
        status = _choice("Status", STATUSES, "ended")
        verdict = _choice("Verdict", VERDICTS, "any")
        cause = _choice("Cause", tuple(CAUSES), "any")
        wanted = st.text_input(
            "Request id",
            key="request_id",
            bind="query-params",
            width=320,
            placeholder="as the client saw it: chatcmpl-…",
        )
        service, instance = (
            st.text_input(label, key=label.lower(), bind="query-params", width=160) for label in ("Service", "Instance")
        )
        rows = st.selectbox("Rows", ROWS, index=ROWS.index(200), key="rows", bind="query-params", width=110)
    during = {name: st.query_params.get(name) for name in ("cause_start", "cause_end")} if cause else {}
    tenant = st.query_params.get("process_tenant") if service.strip() or instance.strip() else None
    first_page = ask(
        "requests",
        view.params,
        sort=SORTS[sort],
        limit=rows,
        status=status,
        slo=view.slo,
        verdict=verdict,
        request_id=wanted.strip() or None,
        service=service.strip() or None,
        instance=instance.strip() or None,
        process_tenant=tenant,
        cause=cause,
        **during,
    )
    cursor = _cursor(first_page)
    found = fetch(ask("requests", first_page.params, cursor=cursor))
    if isinstance(found, Problem):
        components.problem(found)
        return
    if cause:
        words = dict(zip(("from", "until"), during.values(), strict=True))
        since, until = (f" {word} {_when(at, view.zone)}" if at else "" for word, at in words.items())
        st.caption(f"Only requests that {CAUSES[cause]}{since}{until}.")
    if tenant is not None:
        st.caption(f"Only processes that belong to {plain(tenant) or 'all tenants'}.")
    components.span(found["window"], view.zone)
    if not found["requests"]:
        st.info(
            "No request matches. A request belongs to the range in which it ended: try a longer one, or fewer filters."
        )
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            f"{count(len(found['requests']))} of {count(found['total'])} requests, times in ms. "
            "A request's link opens its waterfall."
        )
        st.button("First page", disabled=cursor is None, on_click=_go, args=(first_page, None))
        st.button("Next page", disabled=found["next"] is None, on_click=_go, args=(first_page, found["next"]))
    components.table(
        table(found["requests"]),
        height=640,
        placeholder=UNDEFINED,
        column_config=columns(view.zone),
        key="requests-table",
    )


def _when(text: str, zone: tzinfo) -> str:
    """A link's time on the reader's clock; unix seconds and relative times as they are."""
    try:
        return clock(text, zone)
    except ValueError:
        return plain(text)


def _choice(label: str, options: tuple[str, ...], none: str) -> str | None:
    return st.selectbox(label, options, index=None, placeholder=none, key=label.lower(), bind="query-params", width=160)


def _cursor(shown: Query) -> str | None:
    """The cursor of the page that is shown; another list begins at its first page."""
    of, cursor = st.session_state.get(PLACE, (None, None))
    return cursor if of == shown else None


def _go(shown: Query, cursor: str | None) -> None:
    st.session_state[PLACE] = (shown, cursor)


def table(rows: list[Json]) -> list[dict[str, Any]]:
    """Request rows as rows of the table; latencies in ms."""
    return [
        {
            "open": link(row),
            "ended": instant(row["end"]),
            "status": f"{row['status']} {row['error_type']}".rstrip(),  # an error may be of the type `ok`
            "verdict": row["verdict"],
            "missed": missed_by(row["verdicts"]),
            **{f"{name} ms": _ms(row.get(f"{key}_s")) for key, name in MILLISECONDS.items()},
            "in": row["input_tokens"],
            "out": row["output_tokens"],
            "cached": row["cached_tokens"],
            "preemptions": row["preemptions"],
            "model": row["model"],
            "tenant": row["tenant"],
            "variant": row["variant"],
            "class": row["slo_class"],
            "vantage": row["vantage"],
            "service": of_tenant(row["service"] or row["engine"], row),
            "request id": row["request_id"],
            "trace id": row["trace_id"],
        }
        for row in rows
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def link(row: Json) -> str:
    """URL of a request's waterfall, relative to this page."""
    return "/request?" + urlencode({"trace_id": row["trace_id"], "span_id": row["span_id"]})


def columns(zone: tzinfo) -> dict[str, Any]:
    """Formats of the table's columns."""
    shown: dict[str, Any] = {
        f"{name} ms": st.column_config.NumberColumn(format="%.1f") for name in MILLISECONDS.values()
    }
    shown["open"] = st.column_config.LinkColumn("trace", display_text=r"trace_id=(\w{8})", pinned=True)
    shown["ended"] = st.column_config.DatetimeColumn(f"ended ({zone})", format="MM-DD HH:mm:ss", timezone=str(zone))
    return shown
