"""`/spans` and `/spans/names`: the spans that no engine's mapping claims. A new mapping starts from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from collector.api.context import Context
from collector.api.parameters import Names, TimesQuery
from collector.ask.times import SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import WindowOut
from collector.sql.fragment import TRUE, Fragment, all_of

MOST_NAMES = 1000
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES = ("unset", "ok", "error")


class SpanNamesQuery(TimesQuery):
    """A window of time, and filters for its spans."""

    service: Names = Field([], description="only spans of this service; may be repeated (any of)")
    scope: Names = Field([], description="only spans of this instrumentation scope; may be repeated")
    name: Names = Field([], description="only spans of this name; may be repeated")

    @property
    def filter(self) -> Fragment:
        """The filter for rows of `spans`."""
        given = {column: getattr(self, column) for column in ("service", "scope", "name") if getattr(self, column)}
        return all_of(
            *(
                Fragment(f"{column} IN {{span_{column}:Array(String)}}", {f"span_{column}": values})
                for column, values in given.items()
            )
        )


class SpansQuery(SpanNamesQuery):
    """A page of spans."""

    limit: Annotated[int, Field(ge=1, le=1000)] = Field(100, description="spans of a page")
    offset: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(0, description="spans before this page")


class SpanEvent(Answer):
    """One event of a span."""

    time: str
    name: str
    attributes: dict[str, str]


class SpanOut(Answer):
    """One span. Values of attributes are text."""

    trace_id: str
    span_id: str
    parent_span_id: str
    service: str
    instance: str
    scope: str
    name: str
    kind: str
    status: str
    status_message: str
    start: str
    duration_s: float
    attributes: dict[str, str]
    resource: dict[str, str]
    events: list[SpanEvent]


class Spans(Answer):
    """`/spans`."""

    window: WindowOut
    spans: list[SpanOut]
    total: int


class SpanName(Answer):
    """The spans of one name, scope and service: their number, and up to 200 keys of their attributes."""

    service: str
    scope: str
    name: str
    spans: int
    attribute_keys: list[str]
    """At most 200."""


class SpanNames(Answer):
    """`/spans/names`."""

    window: WindowOut
    names: list[SpanName]


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["spans"])

    @routes.get("/spans")
    def get_spans(query: Annotated[SpansQuery, Query()]) -> Spans:
        """Spans that no engine's mapping claims and that started in the window, newest first."""
        reader = ctx.reader()
        fragments, bounds = {"filter": query.filter}, query.bounds(reader.now_ns)
        told = WindowOut.of(Window(**bounds, filter=TRUE), reader.complete_ns)
        rows = reader.queries.rows("spans", fragments, **bounds, limit=query.limit, offset=query.offset)
        total = reader.queries.count("spans", "started_in_window", query.filter, **bounds)
        return Spans(window=told, spans=[_span(row) for row in rows], total=total)

    @routes.get("/spans/names")
    def get_span_names(query: Annotated[SpanNamesQuery, Query()]) -> SpanNames:
        """Names of such spans with their number, the most frequent first, at most 1,000."""
        reader = ctx.reader()
        bounds = query.bounds(reader.now_ns)
        told = WindowOut.of(Window(**bounds, filter=TRUE), reader.complete_ns)
        rows = reader.queries.rows("span_names", {"filter": query.filter}, **bounds, limit=MOST_NAMES)
        return SpanNames(
            window=told,
            names=[SpanName.model_validate(row) for row in rows],
        )

    return routes


def _span(row: Mapping[str, Any]) -> SpanOut:
    return SpanOut.model_validate(
        {
            **row,
            "trace_id": row["trace_id_hex"],
            "span_id": row["span_id_hex"],
            "parent_span_id": row["parent_span_id_hex"],
            "kind": _word(_KINDS, row["kind"]),
            "status": _word(_STATUSES, row["status_code"]),
            "start": rfc3339(row["began_ns"]),
            "duration_s": row["duration_ns"] / SECOND_NS,
            "events": [
                SpanEvent(time=rfc3339(at_ns), name=name, attributes=attributes)
                for at_ns, name, attributes in row["span_events"]
            ],
        }
    )


def _word(words: tuple[str, ...], number: int) -> str:
    """OTLP's word for a number; a number that OTLP does not have stays one."""
    return words[number] if number < len(words) else str(number)
