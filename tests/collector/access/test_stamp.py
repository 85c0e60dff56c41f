"""A key's tenant replaces every tenant that a sender claims, whatever the bytes look like."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from collector.access.stamp import stamped
from collector.otlp.checked import ItemLimits
from collector.otlp.signals import TRACES
from collector.otlp.validate import check
from collector.store.insert import insert_otlp
from tests.support.otlp import Request, set_attributes, token_body


def stamp(body, tenant="acme"):
    return stamped(body, tenant, ExportTraceServiceRequest)


def tenants(body):
    request = ExportTraceServiceRequest.FromString(body)
    return [
        [a.value.string_value for a in r.resource.attributes if a.key == "tokentrail.tenant"]
        for r in request.resource_spans
    ]


def length(size):
    head = b""
    while size > 0x7F:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size])


def field(number, content):
    return bytes([number << 3 | 2]) + length(len(content)) + content


def resource(**attributes):
    message = Resource()
    set_attributes(message, attributes)
    return message.SerializeToString()


def spans_of(body):
    """The bytes of the scope spans, as they lie in the request."""
    return ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].SerializeToString()


@pytest.mark.parametrize("count", [1, 3, 2000])
def test_only_the_resource_changes(count):
    body = token_body(count=count)
    after = stamp(body)
    assert tenants(after) == [["acme"]]
    assert spans_of(body) in after
    before, now = (ExportTraceServiceRequest.FromString(b) for b in (body, after))
    del now.resource_spans[0].resource.attributes[0]
    assert now == before


@pytest.mark.parametrize(
    "claimed", [{}, {"tokentrail.tenant": "globex"}, {"tokentrail.tenant": 7}, {"tokentrail.tenant": ""}]
)
def test_a_claim_of_the_resource_is_replaced(claimed):
    assert tenants(stamp(Request(**claimed).tokens().body())) == [["acme"]]


SPANS = field(2, Request().tokens().message.resource_spans[0].scope_spans[0].SerializeToString())
GLOBEX = resource(**{"tokentrail.tenant": "globex"})
KEY_TWICE = field(1, field(1, b"x") + field(2, field(1, b"globex")) + field(1, b"tokentrail.tenant"))


@pytest.mark.parametrize(
    "message",
    [
        SPANS,
        SPANS + field(1, GLOBEX),
        field(1, GLOBEX) + SPANS + field(1, GLOBEX),
        field(1, resource(a="b")) + SPANS + field(1, GLOBEX + GLOBEX),
        field(1, KEY_TWICE) + SPANS,
        field(1, GLOBEX) + SPANS + b"\xfb\x3e\xfc\x3e",  # an unknown field 1007 as an empty group
        field(1, GLOBEX) + SPANS + b"\x9a\x3f\x00",  # an unknown field 1011
        b"",
    ],
)
def test_no_encoding_hides_a_claim(message):
    body = field(1, message) + field(1, field(1, GLOBEX))
    assert tenants(body) != tenants(stamp(body))
    assert tenants(stamp(body)) == [["acme"], ["acme"]]


def test_a_resource_that_comes_in_two_parts_keeps_the_attributes_of_both():
    parts = field(1, resource(first="1")) + SPANS + field(1, resource(second="2"))
    (found,) = ExportTraceServiceRequest.FromString(stamp(field(1, parts))).resource_spans
    assert {a.key for a in found.resource.attributes} == {"tokentrail.tenant", "first", "second"}


@pytest.mark.parametrize("other", [field(9, b"more"), b"\x09" + field(2, b"number")], ids=["9", "1 as a number"])
def test_other_fields_of_the_request_stay(other):
    assert stamp(token_body() + other).endswith(other)


def test_two_tenants_payloads_are_two_payloads():
    assert stamp(token_body(), "acme") != stamp(token_body(), "globex")
    assert stamp(token_body()) == stamp(token_body())


GENAI = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "tokentrail.tenant": "globex"}


def claims():
    """One request of each shape whose tenant the store reads, all claiming to be globex."""
    request = Request(**{"tokentrail.tenant": "globex"})
    request.span("chat m", trace=1, span=1, kind=2, attributes={**GENAI, "tokentrail.status": "ok"})
    request.span("tokentrail.request.open", trace=2, span=2, parent=3, attributes=GENAI)
    genai = Request(scope="other", **{"tokentrail.tenant": "globex"})
    genai.span("chat m", trace=3, span=4, kind=3, attributes=GENAI)
    vllm = Request(scope="vllm.llm_engine", **{"tokentrail.tenant": "globex"})
    vllm.span("llm_request", trace=4, span=5, kind=2, attributes={**GENAI, "gen_ai.latency.e2e": 0.001})
    unknown = Request(scope="x", **{"tokentrail.tenant": "globex"})
    unknown.span("db", trace=5, span=6, attributes={"tokentrail.tenant": "globex"})
    return b"".join(r.body() for r in (request, genai, vllm, unknown))


def stored(store):
    sql = """
        SELECT tenant, count() FROM (
            SELECT tenant FROM requests UNION ALL SELECT tenant FROM open_requests
            UNION ALL SELECT resource['tokentrail.tenant'] FROM spans)
        GROUP BY tenant ORDER BY tenant"""
    return [tuple(row) for row in store.query(sql).result_rows]


def test_the_store_reads_the_stamp_and_not_the_claim(rows):
    store = rows.store
    insert_otlp(store, TRACES, stamp(check(claims(), ItemLimits()).payload), "stamped")
    assert [tenant for tenant, _ in stored(store)] == ["acme"]
    assert sum(n for _, n in stored(store)) >= 5
    store.client().command("TRUNCATE TABLE spans")


def test_without_a_stamp_the_resources_tenant_comes_before_the_spans(rows):
    request = Request(**{"tokentrail.tenant": "of the resource"})
    request.span("chat m", span=1, kind=2, attributes=GENAI)
    other = Request()
    other.span("chat m", span=2, kind=2, attributes=GENAI)
    insert_otlp(rows.store, TRACES, request.body() + other.body(), "claimed")
    found = rows.store.query("SELECT tenant FROM requests ORDER BY span_id").result_rows
    assert [tenant for (tenant,) in found] == ["of the resource", "globex"]
