"""Requests of SGLang and Dynamo, whose spans come in several payloads."""

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request

ROOT = {"module": "sglang::request", "gen_ai.usage.completion_tokens": 2, "gen_ai.latency.time_to_first_token": 0.01}


def root(*, trace=1, span=1, parent=None, **attributes):
    request = Request(scope="sglang server")
    request.span("Req", trace=trace, span=span, parent=parent, ns=30 * MS, attributes=ROOT | attributes)
    return request


def parts(request, *, trace=1, root=1, first=2, scheduler=None):
    """A scheduler's span with a prefill of 10 ms and one decoded token of 20 ms."""
    request = request or Request(scope="sglang server")
    scheduler, decode = first, first + 1
    request.span("Scheduler", trace=trace, span=scheduler, parent=root, attributes={"thread_label": "Scheduler"})
    request.span("decode_loop", trace=trace, span=first + 2, parent=decode, start=T0 + 10 * MS, ns=20 * MS)
    request.span("decode_forward", trace=trace, span=decode, parent=scheduler, start=T0 + 10 * MS, ns=20 * MS)
    request.span("prefill_forward", trace=trace, span=first + 3, parent=scheduler, ns=10 * MS)
    return request


def insert(store, request, segment):
    insert_otlp(store, TRACES, request.body(), segment)


def make_older(store, segment, seconds):
    """Let a segment's requests have arrived so long ago."""
    older = f"SELECT * REPLACE (arrived - {seconds} AS arrived) FROM held_requests WHERE segment = '{segment}'"
    store.client().command(f"INSERT INTO held_requests {older}")
    store.client().command(
        f"DELETE FROM held_requests WHERE segment = '{segment}' AND arrived > now() - {seconds // 2}"
    )


def found(store):
    sql = "SELECT request_id, prefill_ns, decode_ns FROM requests ORDER BY ALL"
    tokens = "SELECT token_index, duration_us FROM tokens ORDER BY request_span_id, token_index"
    return store.query(sql).result_rows, store.query(tokens).result_rows


def dynamos_span(number, *, span=1):
    request = Request(scope="frontend")
    rid = f"00000000-0000-4000-8000-{number:012x}"
    attributes = {"code.module.name": "dynamo_llm", "uri": "/v1/completions", "request_id": rid}
    request.span("http-request", span=span, attributes=attributes)
    return request
