"""Spans without a claim, and the names among them that an engine's mapping may start from."""

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.collector.rows import NOW, SECOND
from tests.support.otlp import MS, Request, set_attributes

ENGINE = {"service.name": "lmdeploy", "service.instance.id": "s-1", "device": "H200"}

CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


@pytest.fixture(scope="module")
def spans(module_store):
    """Three spans of an engine without a mapping, a request of it, and a span of another service."""
    engine = Request(scope="lmdeploy.scheduler", **ENGINE)
    event = Span.Event(time_unix_nano=NOW - 9 * SECOND, name="cut")
    set_attributes(event, {"blocks": 3})
    for n in range(3):
        engine.span(
            "schedule",
            trace=n + 1,
            span=n + 1,
            parent=7 if n else None,
            start=NOW - (10 - n) * SECOND,
            ns=5 * MS,
            kind=(1, 2, 6)[n],
            attributes={"batch": 8, "kv.used": 0.5, "greedy": True, "queue": ["a", "b"]} if n == 1 else {"batch": n},
            status=Status(code=2, message="out of memory") if n == 2 else Status(),
        )
    engine.scope_spans.spans[1].events.append(event)
    engine.span("chat m", trace=9, span=9, start=NOW - SECOND, attributes=CALL)
    other = Request(scope="http", **{"service.name": "gateway"})
    other.span("GET /", trace=20, start=NOW - 5 * SECOND)
    other.span("GET /", trace=21, start=NOW - 3600 * SECOND)
    for request in (engine, other):
        insert_otlp(module_store, TRACES, request.body(), f"spans {id(request)}")


def test_unclaimed_spans_come_newest_first_with_all_that_they_say(api, spans):
    answer = api("spans")
    assert answer["total"] == 4
    assert [span["name"] for span in answer["spans"]] == ["GET /", "schedule", "schedule", "schedule"]
    newest, middle, oldest = answer["spans"][1:]
    assert middle == {
        "trace_id": f"{2:032x}",
        "span_id": f"{2:016x}",
        "parent_span_id": f"{7:016x}",
        "service": "lmdeploy",
        "instance": "s-1",
        "scope": "lmdeploy.scheduler",
        "name": "schedule",
        "kind": "server",
        "status": "unset",
        "status_message": "",
        "start": "2026-11-21T09:59:51Z",
        "duration_s": 0.005,
        "attributes": {"batch": "8", "kv.used": "0.5", "greedy": "true", "queue": '["a","b"]'},
        "resource": ENGINE,
        "events": [{"time": "2026-11-21T09:59:51Z", "name": "cut", "attributes": {"blocks": "3"}}],
    }
    assert (oldest["kind"], oldest["parent_span_id"], oldest["events"]) == ("internal", "", [])
    assert (newest["kind"], newest["status"], newest["status_message"]) == ("6", "error", "out of memory")


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"service": "lmdeploy"}, [3, 2, 1]),
        ({"service": ["lmdeploy", "gateway"]}, [20, 3, 2, 1]),
        ({"scope": "http"}, [20]),
        ({"name": "schedule", "limit": 2}, [3, 2]),
        ({"name": "schedule", "limit": 2, "offset": 2}, [1]),
        ({"name": "schedule", "scope": "http"}, []),
        ({"end": "-6s"}, [3, 2, 1]),
        ({"start": "-9s", "end": "-8s"}, [2]),
        ({"start": "-2h", "service": "gateway"}, [20, 21]),
    ],
)
def test_spans_are_filtered_and_come_in_pages(api, spans, params, found):
    assert [int(span["trace_id"], 16) for span in api("spans", **params)["spans"]] == found


def test_a_total_counts_all_pages(api, spans):
    assert api("spans", name="schedule", limit=1)["total"] == 3


def test_names_are_counted_with_the_keys_that_their_spans_have(api, spans):
    first, second = api("spans/names")["names"]
    assert first == {
        "service": "lmdeploy",
        "scope": "lmdeploy.scheduler",
        "name": "schedule",
        "spans": 3,
        "attribute_keys": ["batch", "greedy", "kv.used", "queue"],
    }
    assert (second["name"], second["spans"]) == ("GET /", 1)
    assert api("spans/names", service="gateway", start="-2h")["names"][0]["spans"] == 2
    assert api("spans/names", start="-4s", end="-3s")["names"] == []


@pytest.mark.parametrize(
    "params",
    [{"model": "m"}, {"limit": 1001}, {"start": "2026-11-21T09:59:00Z", "end": "2026-11-21T09:58:00Z"}],
)
def test_a_wrong_parameter_is_refused(api, spans, params):
    assert api.client.get("/api/v1/spans", params=params).status_code == 400


def test_a_page_of_large_spans_has_a_limit_of_its_own(spans, rows, api, ingest_status):
    """A thousand spans of the largest that are taken were a page of 429 MiB, for which the collector took 2 GiB."""
    ended, asked = NOW - 86_400 * SECOND, {"start": "-25h", "end": "-23h"}
    rows.store.client().command(
        "INSERT INTO spans (start, trace_id, span_id, service, name, attributes) SELECT"
        f" fromUnixTimestamp64Nano({ended} - number, 'UTC'), toString(number), '', 'large', 'x',"
        " map('a', repeat('y', 250000), repeat('k', 250000), 'b') FROM numbers(140)"
    )
    assert len(api("spans", limit=100, **asked)["spans"]) == 100
    answer = api.client.get("/api/v1/spans", params={"limit": 140, **asked})
    assert answer.status_code == 503
    detail = "the answer has more than 64 MiB; ask for fewer (limit) or for a shorter window"
    assert answer.json()["detail"] == detail
    assert ingest_status.snapshot().api_refused == {"too_large": 1}
    rows.store.client().command(
        "INSERT INTO spans (start, trace_id, span_id, service, name, attributes) SELECT"
        f" fromUnixTimestamp64Nano({ended} - number, 'UTC'), toString(number), '', 'large', toString(number),"
        " map(repeat(toString(number % 3), 250000), '', repeat(toString(number % 3), 250001), '') FROM numbers(140)"
    )
    assert api.client.get("/api/v1/spans/names", params=asked).json()["detail"] == detail
