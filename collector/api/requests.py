"""`/requests`: request rows with their verdicts, in pages."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import numpy as np
from fastapi import APIRouter, Query
from pydantic import Field

from collector.api import cursor
from collector.api.context import Context
from collector.api.cursor import Cursor
from collector.api.latency import LatencyQuery
from collector.api.parameters import Name, Time, find_slo
from collector.api.problems import bad_parameter
from collector.ask.template import part
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.causes.answer.row_causes import RowCauses, causes_of_rows
from collector.count import verdicts
from collector.count.answers import WindowOut
from collector.count.evaluation import open_requests
from collector.count.hops import read_hops, without_doubles
from collector.count.in_flight import InFlight, known_ns
from collector.count.reader import Reader
from collector.count.request_rows import UNKNOWN_IN_FLIGHT, RequestRow, request_row
from collector.incidents.held_up import by_kv
from collector.slo.model import Slo
from collector.sql.fragment import FALSE, TRUE, Fragment, all_of
from tokentrail.shared.parameters import MEANING, Cause, Sort, Status, Threshold, Verdict

_ORDER: Mapping[Sort, str] = {"end": "end", **{name: f"{name}_ns" for name in get_args(Threshold)}}
_SMALLEST_FIRST: Mapping[Sort, str] = {
    "end": "-toUnixTimestamp64Nano(end)",
    **{name: f"-{name}_ns" for name in get_args(Threshold)},
}
"""What is ordered by, the largest first."""
_KEYS: Mapping[Sort, str] = {**_ORDER, "tpot": "reinterpretAsUInt64(tpot_ns)"}
"""Integers in the same order. The bits of a float that is not negative are one, and a cursor holds them exactly."""


class RequestsQuery(LatencyQuery):
    """Filters, order and page of request rows."""

    sort: Sort = Field("end", description=MEANING["sort"])
    order: Literal["desc", "asc"] = Field("desc", description="`asc`: of requests that ended, the smallest first")
    limit: Annotated[int, Field(ge=1, le=1000)] = Field(100, description="rows of a page")
    cursor: Annotated[str, Field(max_length=512)] | None = Field(None, description="`next` of the page before")
    status: Status | None = Field(None, description=MEANING["status"])
    slo: Name | None = Field(None, description=MEANING["slo"])
    verdict: Verdict | None = Field(None, description=MEANING["verdict"])
    missed: Threshold | None = Field(None, description=MEANING["missed"])
    process_tenant: Name | None = Field(
        None, description="only requests to processes of this tenant; empty: to those that belong to all tenants"
    )
    cause: Cause | None = Field(None, description=MEANING["cause"])
    cause_start: Time | None = Field(None, description="of `cause`: from then on. Without it, from the window's start")
    cause_end: Time | None = Field(None, description="of `cause`: until then. Without it, until the window's end")
    request_id: Name | None = Field(None, description="the response id, as the client received it")
    trace_id: Annotated[str, Field(pattern="^[0-9a-fA-F]{4,32}$")] | None = Field(
        None, description="the first four hex digits of the trace id or more"
    )
    explained: bool = Field(False, description="with the causes of the time of each row")


class Requests(Answer):
    """`/requests`."""

    window: WindowOut
    requests: list[RequestRow]
    total: int
    """The rows of all pages."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""
    explained: list[RowCauses | None]
    """Of each row, in their order, where its time went; null: it has not ended, or is not explained yet. Empty unless
    it is asked for."""


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/requests")
    def get_requests(query: Annotated[RequestsQuery, Query()]) -> Requests:
        """Request rows, newest or slowest first; those that have not ended, oldest first."""
        reader = ctx.reader()
        for name in ("cause_start", "cause_end"):
            if query.cause is None and getattr(query, name) is not None:
                raise bad_parameter(name, "is the time of a cause: give cause=kv_eviction, kv_wait or cold_start too")
        slo = None if query.slo is None else find_slo(reader.slos, query.slo)
        asked = window = query.as_reported(reader)
        told = WindowOut.of(window, reader.complete_ns)
        for column in ("process_tenant", "request_id"):
            if (value := getattr(query, column)) is not None:
                same = Fragment(f"{column} = {{asked_{column}:String}}", {f"asked_{column}": value})
                window = replace(window, filter=all_of(window.filter, same))
        if query.trace_id is not None:
            begins_so = Fragment(
                "startsWith(hex(trace_id), {asked_trace:String})", {"asked_trace": query.trace_id.upper()}
            )
            window = replace(window, filter=all_of(window.filter, begins_so))
        if between := query.between():
            if query.status in ("in_flight", "lost"):
                raise bad_parameter("metric", "requests that have not ended have no latency: leave it or status out")
            window = replace(window, filter=all_of(window.filter, *between))
        if slo is None:  # an SLO selects one vantage, so that it counts each request once
            window = without_doubles(reader, window, query.vantages)
        if query.cause is not None:
            window = replace(window, filter=all_of(window.filter, _caused(query, window, reader.now_ns)))
        if query.status in ("in_flight", "lost"):
            return Requests(window=told, **_not_ended(reader, window, query, slo))
        wanted, total = verdicts.wanted(reader, asked, slo, query.verdict, query.missed)
        is_all = window == asked and query.status is None
        window = replace(window, filter=all_of(window.filter, wanted))
        return Requests(window=told, **_ended(reader, window, query, total if is_all else None))

    return routes


def _caused(query: RequestsQuery, window: Window, now_ns: int) -> Fragment:
    """The requests that a cause touched. An announcement does not tell for what its request waits."""
    if query.cause != "kv_eviction" and query.status in ("in_flight", "lost"):
        return FALSE
    start_ns = window.start_ns if query.cause_start is None else query.cause_start.at(now_ns)
    end_ns = window.end_ns if query.cause_end is None else query.cause_end.at(now_ns)
    if query.cause == "kv_wait":
        return by_kv(start_ns, end_ns)
    touched = part("lost_kv_blocks", {}) if query.cause == "kv_eviction" else part("waited_for_cold_start", {})
    return Fragment(touched.sql, {"cause_start_ns": start_ns, "cause_end_ns": end_ns})


def _ended(reader: Reader, window: Window, query: RequestsQuery, total: int | None) -> dict[str, Any]:
    """`total` is the number of rows of all pages, if it is known."""
    chosen = window.filter
    if query.status is not None:
        chosen = all_of(chosen, Fragment("status = {asked_status:String}", {"asked_status": query.status}))
    last = cursor.read(query.cursor, query.sort)
    rows = reader.queries.rows(
        "requests",
        {
            "filter": chosen,
            "after": TRUE if last is None else _after(query, last),
            "judged": verdicts.column(reader.slos),
            "order": Fragment((_ORDER if query.order == "desc" else _SMALLEST_FIRST)[query.sort]),
        },
        **window.bounds,
        limit=query.limit + 1,
    )
    page = rows[: query.limit]
    requests = [
        request_row(row, judgement, hops)
        for row, judgement, hops in zip(
            page, verdicts.of_ended(reader.slos, page), read_hops(reader, page), strict=True
        )
    ]
    goes_on = len(rows) > len(page)
    if not goes_on and last is None:
        total = len(rows)
    elif total is None:
        total = reader.queries.count("requests", "ended_in_window", chosen, **window.bounds)
    explained = causes_of_rows(reader, page) if query.explained else []
    following = _cursor(query.sort, page[-1]).text() if goes_on else None
    return {"requests": requests, "total": total, "next": following, "explained": explained}


def _cursor(sort: Sort, row: Mapping[str, Any]) -> Cursor:
    value = row["ended_ns" if sort == "end" else f"{sort}_ns"]
    if isinstance(value, float):
        (value,) = struct.unpack("<q", struct.pack("<d", value))
    return Cursor(sort, value, row["ended_ns"], row["trace_id_hex"], row["span_id_hex"])


def _after(query: RequestsQuery, last: Cursor) -> Fragment:
    """Rows that come after the cursor in the order of the query `requests`."""
    beyond, by_end = "<" if query.order == "desc" else ">", query.sort == "end"
    ties = (
        f"(end {beyond if by_end else '<'} fromUnixTimestamp64Nano({{after_end:Int64}})"
        " OR end = fromUnixTimestamp64Nano({after_end:Int64}) AND "
        "(trace_id, span_id) > (toFixedString(unhex({after_trace:String}), 16), "
        "toFixedString(unhex({after_span:String}), 8)))"
    )
    parameters = {"after_end": last.at_ns, "after_trace": last.trace_id, "after_span": last.span_id}
    key = _KEYS[query.sort]
    if by_end:
        return Fragment(f"end {beyond}= fromUnixTimestamp64Nano({{after_end:Int64}}) AND {ties}", parameters)
    if last.value is None:
        return Fragment(f"{_ORDER[query.sort]} IS NULL AND {ties}", parameters)
    value = "{after_value:UInt64}"
    return Fragment(
        f"ifNull({key} {beyond} {value} OR {key} = {value} AND {ties}, true)", {**parameters, "after_value": last.value}
    )


def _not_ended(reader: Reader, window: Window, query: RequestsQuery, slo: Slo | None) -> dict[str, Any]:
    in_flight = open_requests(reader, window)
    chosen = verdicts.in_flight_with_verdict(in_flight, reader.slos, slo, query.verdict, query.missed)
    chosen &= in_flight.is_lost if query.status == "lost" else ~in_flight.is_lost
    order = sorted((int(in_flight.began_ns[i]), in_flight.key(i), i) for i in np.flatnonzero(chosen).tolist())
    last = cursor.read(query.cursor, query.sort)
    rest = [one for one in order if last is None or one[:2] > (last.at_ns, last.trace_id + last.span_id)]
    page = rest[: query.limit]
    judged = verdicts.of_open(reader.slos, in_flight, [i for *_, i in page])
    rows = _announced(reader, in_flight, [i for *_, i in page], str(query.status))
    following = None
    if len(rest) > len(page):
        began_ns, key, _ = page[-1]
        following = Cursor(query.sort, None, began_ns, key[:32], key[32:]).text()
    requests = [request_row(row, judgement) for row, judgement in zip(rows, judged, strict=True)]
    explained = [None] * len(requests) if query.explained else []
    return {"requests": requests, "total": len(order), "next": following, "explained": explained}


def _announced(reader: Reader, in_flight: InFlight, places: list[int], status: str) -> list[dict[str, Any]]:
    """Rows of requests that have not ended, from their latest announcements."""
    if not places:
        return []
    began = [int(in_flight.began_ns[i]) for i in places]
    keys = [in_flight.key(i) for i in places]
    announced = reader.queries.rows(
        "announcements", first_ns=min(began), last_ns=max(began), trace_ids=sorted({key[:32] for key in keys})
    )
    known = {row["key"]: row for row in announced}
    return [
        {name: values[i] for name, values in in_flight.columns.items()}
        | UNKNOWN_IN_FLIGHT
        | {"status": status, "trace_id_hex": key[:32], "span_id_hex": key[32:48], "began_ns": began_ns}
        | {"gap_ns": known_ns(in_flight.gap_ns[i])}
        | {name: known[key][name] if key in known else other for name, other in _ONLY_ANNOUNCED.items()}
        for i, key, began_ns in zip(places, keys, began, strict=True)
    ]


_ONLY_ANNOUNCED: Mapping[str, Any] = {"request_id": "", "input_tokens": None}
"""Columns that only announcements have, with the values that stand for an announcement that is not found."""
