"""The Requests page: the slowest or newest requests of the range, each with a link to its waterfall."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import streamlit as st

from dashboard import components
from dashboard.api import Problem, ask, fetch
from dashboard.filters import selected
from dashboard.transform import Json
from tokentrail.formatting import UNDEFINED, count, instant

SORTS = {"TTFT": "ttft", "TPOT": "tpot", "E2E": "e2e", "newest": "end"}
STATUSES = ("ok", "error", "cancelled")
LIMIT = 200
MILLISECONDS = ("ttft", "tpot", "e2e", "queue", "prefill", "decode", "preempted", "stalled")


def page() -> None:
    """Draw the page."""
    view = selected()
    st.title("Requests")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        sort = st.segmented_control(
            "Slowest first by", list(SORTS), default="TTFT", required=True, key="sort", bind="query-params"
        )
        status = st.selectbox(
            "Status", STATUSES, index=None, placeholder="any", key="status", bind="query-params", width=160
        )
        wanted = st.text_input(
            "Request id",
            key="request_id",
            bind="query-params",
            width=320,
            placeholder="as the client saw it: chatcmpl-…",
        )
        number = st.number_input("Page", min_value=1, value=1, step=1, key="page", bind="query-params", width=120)
    query = ask(
        "requests",
        view.params,
        sort=SORTS[sort],
        limit=LIMIT,
        offset=LIMIT * (number - 1),
        status=status,
        request_id=wanted.strip() or None,
    )
    found = fetch({"requests": query})["requests"]
    if isinstance(found, Problem):
        components.problem(found)
        return
    if not found["requests"] and found["total"]:
        st.info(f"There is no page {number}: {count(found['total'])} requests match, {LIMIT} to a page.")
        return
    if not found["requests"]:
        st.info(
            "No request matches. A request belongs to the range in which it ended: try a longer one, or fewer filters."
        )
        return
    first = LIMIT * (number - 1) + 1
    last = first + len(found["requests"]) - 1
    st.caption(
        f"{count(first)} to {count(last)} of {count(found['total'])} requests, times in ms. "
        "A request's link opens its waterfall."
    )
    st.dataframe(
        table(found["requests"]),
        hide_index=True,
        height=640,
        placeholder=UNDEFINED,
        column_config=columns(),
        key="requests-table",
    )


def table(rows: list[Json]) -> list[dict[str, Any]]:
    """Request rows as rows of the table; latencies in ms."""
    return [
        {
            "open": link(row),
            "ended": instant(row["end"]),
            "status": row["error_type"] or row["status"],
            **{f"{name} ms": _ms(row.get(f"{name}_s")) for name in MILLISECONDS},
            "in": row["input_tokens"],
            "out": row["output_tokens"],
            "cached": row["cached_tokens"],
            "preemptions": row["preemptions"],
            "model": row["model"],
            "tenant": row["tenant"],
            "variant": row["variant"],
            "class": row["slo_class"],
            "vantage": row["vantage"],
            "service": row["service"] or row["engine"],
            "request id": row["request_id"],
            "trace id": row["trace_id"],
        }
        for row in rows
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def link(row: Json) -> str:
    """URL of a request's waterfall, relative to this page."""
    return "request?" + urlencode({"trace_id": row["trace_id"], "span_id": row["span_id"]})


def columns() -> dict[str, Any]:
    """Formats of the table's columns."""
    shown: dict[str, Any] = {f"{name} ms": st.column_config.NumberColumn(format="%.1f") for name in MILLISECONDS}
    shown["open"] = st.column_config.LinkColumn("trace", display_text=r"trace_id=(\w{8})", pinned=True)
    shown["ended"] = st.column_config.DatetimeColumn("ended (UTC)", format="MM-DD HH:mm:ss", timezone="UTC")
    return shown
