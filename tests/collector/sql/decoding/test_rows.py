"""Spans of each kind become rows of their tables."""

import time

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status as OtlpStatus

from tests.collector.sql.decoding.stored import SECOND, by_trace, insert, one, rows, times
from tests.support.otlp import MS, T0, Request, token_body
from tokentrail import semconv
from tokentrail.semconv import Limit


def test_tokens(store):
    insert(store, token_body(trace=7, parent=9, count=3, first_step=40, ns=20 * MS))
    minute = T0 // 10**9 // 60 * 60
    found = rows(store, "tokens", "toUnixTimestamp(minute), trace_id, request_span_id, token_index, duration_us, step")
    assert found == [
        (minute, (7).to_bytes(16, "big"), (9).to_bytes(8, "big"), index, 20_000, 40 + index) for index in range(3)
    ]
    assert rows(store, "spans") == []


def test_a_token_without_a_sensible_step_has_none(store):
    request = Request()
    steps: list[dict[str, float]] = [{semconv.STEP: 0}, {}, {semconv.STEP: -1}, {semconv.STEP: 7.0}]
    for index, step in enumerate(steps):
        attributes = {semconv.TOKEN_INDEX: index, **step}
        request.span(semconv.TOKEN_SPAN, span=9 + index, parent=9, ns=MS, attributes=attributes)
    insert(store, request)
    assert rows(store, "tokens", "token_index, step") == [(0, 0), (1, None), (2, None), (3, None)]


def test_ttft_is_our_own_or_else_the_standard_one(store):
    ours, standard = {semconv.TIME_TO_FIRST_TOKEN: 0.25}, {semconv.TIME_TO_FIRST_CHUNK: 0.2}
    request = Request()
    for trace, attributes in enumerate((ours, ours | standard, standard), start=1):
        said = {semconv.OPERATION_NAME: "chat", semconv.OUTPUT_TOKENS: 3} | attributes
        request.span("chat m", trace=trace, ns=600 * MS, kind=2, attributes=said)
        request.span(semconv.OPEN_SPAN, trace=10 + trace, span=3, parent=4, ns=600 * MS, attributes=said)
    insert(store, request)
    expected = [250 * MS, 250 * MS, 200 * MS]
    assert by_trace(store, "requests", "ttft_ns") == expected
    assert by_trace(store, "open_requests", "ttft_ns") == expected * 2


def test_a_request_of_ours(store):
    request = Request(**{semconv.VARIANT: "int8"})
    attributes = {
        semconv.OPERATION_NAME: "chat",
        semconv.REQUEST_MODEL: "small",
        semconv.RESPONSE_ID: "id-1",
        semconv.TENANT: "acme",
        semconv.SLO_CLASS: "chat",
        semconv.STATUS: "ok",
        semconv.FINISH_REASON: "stop",
        semconv.FINISH_REASONS: ["stop"],
        semconv.INPUT_TOKENS: 40,
        semconv.OUTPUT_TOKENS: 5,
        semconv.CACHED_TOKENS: 32,
        semconv.REASONING_TOKENS: 2,
        semconv.PREEMPTIONS: 1,
        semconv.TIME_TO_FIRST_CHUNK: 0.2,
        semconv.TIME_TO_LAST_TOKEN: 0.6,
        semconv.PHASE_TIME_PREFIX + "queued": 50 * MS,
        semconv.PHASE_TIME_PREFIX + "prefill": 150 * MS,
        semconv.PHASE_TIME_PREFIX + "decode": 400 * MS,
    }
    request.span("chat small", trace=1, span=2, parent=3, ns=600 * MS, kind=2, attributes=attributes)
    insert(store, request, "segment-of-the-request")
    row = one(store, "requests")
    assert times(store, "requests", "start", "end") == (T0, T0 + 600 * MS)
    expected = {
        "trace_id": (1).to_bytes(16, "big"), "span_id": (2).to_bytes(8, "big"), "request_id": "id-1",
        "engine": "tokentrail", "service": "chat", "instance": "i-1", "variant": "int8", "vantage": "server",
        "operation": "chat", "model": "small", "tenant": "acme", "slo_class": "chat", "status": "ok", "error_type": "",
        "finish_reason": "stop", "input_tokens": 40, "output_tokens": 5, "cached_tokens": 32, "reasoning_tokens": 2,
        "preemptions": 1, "ttft_ns": 200 * MS, "tpot_ns": 100.0 * MS, "e2e_ns": 600 * MS, "queue_ns": 50 * MS,
        "cold_start_ns": 0, "prefill_ns": 150 * MS, "decode_ns": 400 * MS, "preempted_ns": 0, "kv_transfer_ns": 0,
        "stalled_ns": 0, "segment": "segment-of-the-request",
    }  # fmt: skip
    assert {key: row[key] for key in expected} == expected


def test_tpot_is_undefined_below_two_tokens_and_ttft_without_one(span_rows):
    ttft = {semconv.TIME_TO_FIRST_CHUNK: 0.2}
    said = [{semconv.OUTPUT_TOKENS: 1} | ttft, {semconv.OUTPUT_TOKENS: 0}, {semconv.OUTPUT_TOKENS: 3} | ttft]
    found = span_rows(["tokentrail"], said, "tpot_ns, ttft_ns")
    assert found == [(None, 200 * MS), (None, None), (200 * MS, 200 * MS)]


def test_tpot_of_a_request_with_choices_is_that_of_the_gaps_within_them(span_rows):
    cases = {
        "two": (2, 0.3, 100 * MS),
        "one token each": (5, 0.0, None),
        "one": (1, 0.4, 100 * MS),
        "longer than the request": (2, 1.3, None),
        "none": (0, 0.3, None),
        "not a number": (float("nan"), 0.3, None),
    }
    said = [
        {
            semconv.OUTPUT_TOKENS: 5,
            semconv.TIME_TO_FIRST_TOKEN: 0.2,
            semconv.CHOICES: choices,
            semconv.TIME_BETWEEN_TOKENS: between,
        }
        for choices, between, _ in cases.values()
    ]
    found = span_rows(["tokentrail"], said, "tpot_ns, ttft_ns")
    assert dict(zip(cases, found, strict=True)) == {name: (tpot, 200 * MS) for name, (_, _, tpot) in cases.items()}


def test_status_is_what_the_request_says_or_else_the_span_status(store):
    request = Request()
    for trace, (said, code) in enumerate([("cancelled", 0), ("error", 2), ("", 2), ("odd", 0)], start=1):
        attributes = {semconv.OPERATION_NAME: "chat", semconv.STATUS: said}
        request.span("chat m", trace=trace, kind=2, attributes=attributes, status=OtlpStatus(code=code))
    insert(store, request)
    assert by_trace(store, "requests", "status") == ["cancelled", "error", "error", "ok"]


def test_phases_steps_kv_events_and_cold_starts(store):
    request = Request()
    request.span(
        semconv.PHASE_SPAN, parent=5, ns=30 * MS, attributes={semconv.PHASE_NAME: "prefill", semconv.PHASE_TOKENS: 70}
    )
    counts = {name: n for n, name in enumerate(semconv.STEP_ATTRIBUTES + semconv.STEP_DETAILS, start=1)}
    request.span(semconv.STEP_SPAN, ns=40 * MS, attributes=counts)
    attributes = {semconv.KV_BLOCKS: 4, semconv.KV_REASON: "preemption", semconv.STEP: 17}
    served = {semconv.KV_BYTES: 2**33, semconv.KV_BENEFICIARY: "ab" * 16}
    request.span("tokentrail.kv.evict", parent=5, ns=2 * MS, attributes=attributes | served)
    request.span("tokentrail.cold_start", span=8, ns=3 * SECOND, attributes={semconv.REQUEST_MODEL: "small"})
    request.span("tokentrail.cold_start.load_weights", parent=8, ns=2 * SECOND)
    insert(store, request, "s")
    assert rows(store, "phases", "request_span_id, toUnixTimestamp64Nano(start), name, duration_ns, tokens") == [
        ((5).to_bytes(8, "big"), T0, "prefill", 30 * MS, 70)
    ]
    assert store.query("SELECT * EXCEPT (start, process_tenant) FROM steps").result_rows == [
        ("chat", "i-1", "", 1, 40 * MS, *range(2, 21))
    ]
    parent = (5).to_bytes(8, "big")
    found = store.query("SELECT kind, reason, blocks, duration_ns, step, hex(request_span_id), segment FROM kv_events")
    assert found.result_rows == [("evict", "preemption", 4, 2 * MS, 17, parent.hex().upper(), "s")]
    assert rows(store, "kv_events", "bytes, beneficiary") == [(2**33, "ab" * 16)]
    found = rows(store, "cold_starts", "phase, duration_ns, engine, model, status, segment")
    assert found == [
        ("", 3 * SECOND, "tokentrail", "small", "ok", "s"),
        ("load_weights", 2 * SECOND, "tokentrail", "", "ok", "s"),
    ]
    assert rows(store, "spans") == []


def test_the_limits_of_an_engine_stand_in_its_start(store):
    request = Request()
    limits = {
        Limit.MAX_SEQS: 64, Limit.MAX_BATCHED_TOKENS: 512, Limit.BLOCK_SIZE: 16, Limit.KV_BLOCKS: 600,
        Limit.WATERMARK_BLOCKS: 2, Limit.CHUNKED_PREFILL: True, Limit.PREFIX_CACHING: False, Limit.POLICY: "fcfs",
    }  # fmt: skip
    told = {semconv.LIMIT_PREFIX + name: value for name, value in limits.items()}
    request.span("tokentrail.cold_start", span=8, attributes=told)
    odd = {f"{semconv.LIMIT_PREFIX}{name}": value for name, value in ((Limit.MAX_SEQS, -1), (Limit.PREFIX_CACHING, 7))}
    request.span("tokentrail.cold_start", span=9, attributes=odd)
    insert(store, request, "s")
    assert sorted(rows(store, "cold_starts", ", ".join(Limit)), key=str) == [
        (64, 512, 16, 600, 2, True, False, "fcfs"),
        (None, None, None, None, None, None, None, ""),
    ]


def test_an_announcement_is_of_the_request_that_will_follow(store):
    attributes = {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: "small", semconv.INPUT_TOKENS: 40}
    for seen, more in ((1, {}), (5, {semconv.OUTPUT_TOKENS: 3, semconv.TIME_TO_FIRST_CHUNK: 0.5})):
        request = Request()
        request.span(semconv.OPEN_SPAN, span=100 + seen, parent=5, ns=seen * SECOND, attributes=attributes | more)
        insert(store, request)
    found = store.query(
        "SELECT span_id, toUnixTimestamp64Nano(seen), model, input_tokens, output_tokens, ttft_ns"
        " FROM open_requests FINAL"
    )
    assert found.result_rows == [((5).to_bytes(8, "big"), T0 + 5 * SECOND, "small", 40, 3, 500 * MS)]
    assert rows(store, "requests") == []


def test_an_announcement_is_heard_when_it_is_stored(store):
    """Its sender's clock may be wrong, the store's up to a minute behind. One of more than a day ago is no news."""
    before = time.time_ns()
    ends = [before + seconds * SECOND for seconds in (-25 * 3600, -23 * 3600, 50, 3600)]
    request = Request()
    for trace, end in enumerate(ends, 1):
        request.span(semconv.OPEN_SPAN, trace=trace, span=3, parent=4, start=end - SECOND, ns=SECOND)
    insert(store, request)
    day_ago, behind, ahead, far_ahead = by_trace(store, "open_requests", "toUnixTimestamp64Nano(heard)")
    assert (day_ago, ahead) == (ends[0], ends[2])
    assert before <= behind <= time.time_ns()
    assert before <= far_ahead - 60 * SECOND <= time.time_ns()


@pytest.mark.parametrize(("reasons", "tpot_ns"), [(["length"], 100.0 * MS), (["length", "stop"], None)])
def test_a_plain_genai_span_is_a_request(store, reasons, tpot_ns):
    """Several answers are streams beside each other, so their tokens have no common TPOT."""
    request = Request(scope="opentelemetry.instrumentation.openai_v2")
    attributes = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "asked", "gen_ai.response.model": "answered",
        "gen_ai.response.finish_reasons": reasons, "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5, "gen_ai.response.time_to_first_chunk": 0.2,
    }  # fmt: skip
    request.span("chat asked", ns=600 * MS, kind=3, attributes=attributes)
    request.span("embeddings m", span=2, kind=3, attributes={"gen_ai.operation.name": "embeddings"})
    insert(store, request)
    found = rows(store, "requests", "engine, vantage, model, finish_reason, ttft_ns, tpot_ns, queue_ns")
    assert found == [("genai", "client", "answered", "length", 200 * MS, tpot_ns, None)]
    assert rows(store, "spans", "name") == [("embeddings m",)]


def test_a_span_of_vllm_that_is_neither_a_request_nor_of_a_start_is_not_taken_for_a_genai_request(store):
    request = Request(scope="vllm.other")
    request.span("chat m", kind=3, attributes={"gen_ai.operation.name": "chat"})
    insert(store, request)
    assert rows(store, "requests") == []
    assert rows(store, "spans", "name") == [("chat m",)]


def test_without_streaming_the_first_token_comes_with_the_last(span_rows):
    tokens = {"gen_ai.usage.output_tokens": 5}
    said = [tokens | {"gen_ai.request.stream": False}, tokens | {"gen_ai.request.stream": True}, tokens]
    assert span_rows(["other"], said, "ttft_ns", kind=3) == [(600 * MS,), (None,), (None,)]


def test_a_span_that_nobody_claims_is_kept_whole(store):
    request = Request(scope="app", **{"process.name": "p"})
    attributes = {"s": "text", "i": -7, "d": 0.5, "b": False, "y": b"\x00\xff", "list": ["a", "b"], "empty": ""}
    status = OtlpStatus(code=OtlpStatus.STATUS_CODE_ERROR, message="boom")
    span = request.span("GET /", span=2, parent=1, ns=3 * MS, kind=2, attributes=attributes, status=status)
    event = span.events.add(time_unix_nano=T0 + MS, name="exception")
    event.attributes.add(key="exception.type").value.string_value = "ValueError"
    insert(store, request)
    row = one(store, "spans")
    assert row["attributes"] == {
        "s": "text", "i": "-7", "d": "0.5", "b": "false", "y": "AP8=", "list": '["a","b"]', "empty": "",
    }  # fmt: skip
    assert row["resource"]["process.name"] == "p"
    assert (row["scope"], row["name"], row["kind"], row["duration_ns"]) == ("app", "GET /", 2, 3 * MS)
    assert (row["status_code"], row["status_message"]) == (2, "boom")
    ((_, name, event_attributes),) = [
        tuple(event.values()) if isinstance(event, dict) else event for event in row["events"]
    ]
    assert (name, event_attributes) == ("exception", {"exception.type": "ValueError"})


def test_requests_of_different_resources_in_one_segment_keep_their_own(store):
    bodies = []
    for n in range(3):
        request = Request(**{"service.name": f"service-{n}"})
        request.span("chat m", trace=n + 1, kind=2, attributes={semconv.OPERATION_NAME: "chat"})
        bodies.append(request.body())
    insert(store, b"".join(bodies))
    assert rows(store, "requests", "service") == [("service-0",), ("service-1",), ("service-2",)]
