"""Rows that ClickHouse decodes from OTLP, table by table."""

import itertools

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status as OtlpStatus

from collector.signals import TRACES
from collector.store.insert import RefusedError, insert_otlp
from collector.store.schema import TIME_COLUMNS, apply_schema
from collector.store.store import Store, StoreError
from tests.support.otlp import MS, T0, Request, token_body
from tokentrail import semconv

SECOND = 1000 * MS


@pytest.fixture
def store(module_store):
    for table in TIME_COLUMNS:
        module_store.client().command(f"TRUNCATE TABLE {table}")
    return module_store


SEGMENTS = itertools.count()


def insert(store, request, token=None):
    body = request if isinstance(request, bytes) else request.body()
    insert_otlp(store, TRACES, body, token or f"segment-{next(SEGMENTS)}")


def rows(store, table, columns="*"):
    return store.query(f"SELECT {columns} FROM {table} ORDER BY ALL").result_rows


def one(store, table):
    (row,) = store.query(f"SELECT * FROM {table}").named_results()
    return row


def by_trace(store, table, column):
    return [value for (value,) in store.query(f"SELECT {column} FROM {table} ORDER BY trace_id").result_rows]


def times(store, table, *columns):
    listed = ", ".join(f"toUnixTimestamp64Nano({column})" for column in columns)
    return store.query(f"SELECT {listed} FROM {table}").result_rows[0]


@pytest.fixture
def span_rows(store):
    """Insert a request span of 600 ms for each of `said` in each scope, all in one segment, which costs 0.1 s of CPU.

    span_rows(["tokentrail"], [{"gen_ai.usage.output_tokens": 5}, {}], "output_tokens") → [(5,), (None,)]
    """

    def insert_spans(scopes, said, columns, kind=2):
        bodies = []
        for trace, (scope, attributes) in enumerate(itertools.product(scopes, said), start=1):
            request = Request(scope=scope)
            name = "llm_request" if scope.startswith("vllm.") else "chat m"
            known = {semconv.OPERATION_NAME: "chat"} | attributes
            request.span(name, trace=trace, ns=600 * MS, kind=kind, attributes=known)
            bodies.append(request.body())
        insert(store, b"".join(bodies))
        return store.query(f"SELECT {columns} FROM requests ORDER BY trace_id").result_rows

    return insert_spans


def test_tokens(store):
    insert(store, token_body(trace=7, parent=9, count=3, first_step=40, ns=20 * MS))
    minute = T0 // 10**9 // 60 * 60
    found = rows(store, "tokens", "toUnixTimestamp(minute), trace_id, request_span_id, token_index, duration_us, step")
    assert found == [
        (minute, (7).to_bytes(16, "big"), (9).to_bytes(8, "big"), index, 20_000, 40 + index) for index in range(3)
    ]
    assert rows(store, "spans") == []


def test_tokens_of_an_older_sdk(store):
    request = Request()
    for index in range(3):
        attributes = {semconv.OLD_TOKEN_INDEX: index, semconv.STEP: 5}
        request.span(semconv.TOKEN_SPAN, span=9 + index, parent=9, ns=MS, attributes=attributes)
    insert(store, request)
    assert rows(store, "tokens", "token_index, step") == [(0, 5), (1, 5), (2, 5)]


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
        "not a number": (NAN, 0.3, None),
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
    request.span(semconv.PHASE_SPAN, parent=5, ns=30 * MS, attributes={semconv.PHASE_NAME: "prefill"})
    counts = {name: n for n, name in enumerate(semconv.STEP_ATTRIBUTES + semconv.STEP_DETAILS, start=1)}
    request.span(semconv.STEP_SPAN, ns=40 * MS, attributes=counts)
    attributes = {semconv.KV_BLOCKS: 4, semconv.KV_REASON: "preemption", semconv.STEP: 17}
    served = {semconv.KV_BYTES: 2**33, semconv.KV_BENEFICIARY: "ab" * 16}
    request.span("tokentrail.kv.evict", parent=5, ns=2 * MS, attributes=attributes | served)
    request.span("tokentrail.cold_start", span=8, ns=3 * SECOND, attributes={semconv.REQUEST_MODEL: "small"})
    request.span("tokentrail.cold_start.load_weights", parent=8, ns=2 * SECOND)
    insert(store, request, "s")
    assert rows(store, "phases", "request_span_id, toUnixTimestamp64Nano(start), name, duration_ns") == [
        ((5).to_bytes(8, "big"), T0, "prefill", 30 * MS)
    ]
    assert store.query("SELECT * EXCEPT start FROM steps").result_rows == [
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


def test_a_plain_genai_span_is_a_request(store):
    request = Request(scope="opentelemetry.instrumentation.openai_v2")
    attributes = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "asked", "gen_ai.response.model": "answered",
        "gen_ai.response.finish_reasons": ["length", "stop"], "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5, "gen_ai.response.time_to_first_chunk": 0.2,
    }  # fmt: skip
    request.span("chat asked", ns=600 * MS, kind=3, attributes=attributes)
    request.span("embeddings m", span=2, kind=3, attributes={"gen_ai.operation.name": "embeddings"})
    insert(store, request)
    found = rows(store, "requests", "engine, vantage, model, finish_reason, ttft_ns, tpot_ns, queue_ns")
    assert found == [("genai", "client", "answered", "length", 200 * MS, 100.0 * MS, None)]
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


def test_hostile_numbers_do_not_stop_a_segment(store):
    request = Request(scope="vllm.tracing.otel")
    keys = ("e2e", "time_to_first_token", "time_in_model_prefill", "time_in_model_decode")
    for trace, value in enumerate([NAN, float("inf"), -1.0, 1e300], start=1):
        attributes = {f"gen_ai.latency.{key}": value for key in keys} | {"gen_ai.usage.completion_tokens": -5}
        request.span("llm_request", trace=trace, kind=2, attributes=attributes)
        known = {semconv.OPERATION_NAME: "chat", semconv.TIME_TO_FIRST_CHUNK: value}
        request.span("chat m", trace=trace, span=2, kind=2, attributes=known)
    insert(store, request.body() + token_body(count=2))
    assert len(rows(store, "tokens")) == 2
    found = store.query("SELECT trace_id, count() FROM requests WHERE end < '2100-01-01' GROUP BY ALL ORDER BY ALL")
    assert found.result_rows == [(trace.to_bytes(16, "big"), 1) for trace in range(1, 5)]


NAN = float("nan")
NOT_LATENCIES = [NAN, float("inf"), -1.0, 1e12, 0.601, "0.2"]
NOT_COUNTS = [NAN, -5, 2**32, 5.5, "5"]
COUNTS = "input_tokens, output_tokens, cached_tokens, reasoning_tokens, preemptions"
LATENCIES = "ttft_ns, tpot_ns, queue_ns, prefill_ns, decode_ns"
VLLM = "vllm.tracing.otel"


def test_a_ttft_that_is_no_latency_is_unknown_and_so_is_its_tpot(span_rows):
    known = {semconv.OUTPUT_TOKENS: 5, "gen_ai.request.stream": False}
    said = [known | {semconv.TIME_TO_FIRST_CHUNK: value} for value in NOT_LATENCIES]
    found = span_rows(["tokentrail", "other"], said, "ttft_ns, tpot_ns, output_tokens")
    assert found == [(None, None, 5)] * 2 * len(said)


def test_a_ttft_as_long_as_its_span_to_the_nanosecond_is_known(span_rows):
    said = [{semconv.OUTPUT_TOKENS: 2, semconv.TIME_TO_FIRST_CHUNK: ttft} for ttft in (0.6, 0.6000000004)]
    assert span_rows(["tokentrail"], said, "ttft_ns, tpot_ns") == [(600 * MS, 0)] * 2


def test_a_latency_of_vllm_that_is_none_is_unknown(span_rows):
    keys = ("time_to_first_token", "time_in_model_prefill", "time_in_model_decode")
    said = [{}, *({f"gen_ai.latency.{key}": value for key in keys} for value in NOT_LATENCIES)]
    known = {"gen_ai.latency.e2e": 0.6, semconv.OUTPUT_TOKENS: 5}
    found = span_rows([VLLM], [known | attributes for attributes in said], LATENCIES)
    assert found == [(None,) * 5] * len(said)


def test_without_an_e2e_of_its_own_vllms_span_says_how_long_it_took(span_rows):
    said = [{}, *({"gen_ai.latency.e2e": value} for value in (NAN, float("inf"), -1.0, 1e12, "0.2"))]
    known = {"gen_ai.latency.time_to_first_token": 0.2, semconv.OUTPUT_TOKENS: 5}
    ends = "toUnixTimestamp64Nano(start), toUnixTimestamp64Nano(end)"
    found = span_rows([VLLM], [known | attributes for attributes in said], f"e2e_ns, ttft_ns, tpot_ns, {ends}")
    assert found == [(600 * MS, 200 * MS, 100.0 * MS, T0, T0 + 600 * MS)] * len(said)


def test_phases_of_vllm_need_both_times(span_rows, store):
    said = [{"gen_ai.latency.e2e": 0.5, "gen_ai.latency.time_in_model_prefill": 0.2}]
    assert span_rows([VLLM], said, LATENCIES) == [(None, None, None, 200 * MS, None)]
    assert rows(store, "phases") == []


def test_a_vllm_request_whose_parts_are_longer_than_the_whole_has_not_waited(span_rows):
    keys = ("e2e", "time_in_model_prefill", "time_in_model_decode")
    parts = [(0.6, 0.2, 0.3), (0.6, 0.3, 0.3), (0.6, 0.5, 0.4)]
    said = [{f"gen_ai.latency.{key}": s for key, s in zip(keys, each, strict=True)} for each in parts]
    assert span_rows([VLLM], said, "queue_ns, e2e_ns") == [(100 * MS, 600 * MS), (0, 600 * MS), (0, 600 * MS)]


SCOPES = ["tokentrail", VLLM, "other"]


def test_a_count_that_is_none_is_unknown(span_rows):
    keys = (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, semconv.REASONING_TOKENS)
    said = [dict.fromkeys((*keys, semconv.PREEMPTIONS), value) for value in NOT_COUNTS]
    assert span_rows(SCOPES, said, COUNTS) == [(None,) * 5] * 3 * len(said)


def test_the_largest_count_is_known(span_rows):
    assert span_rows(["other"], [{semconv.OUTPUT_TOKENS: 2**32 - 1}], "output_tokens") == [(2**32 - 1,)]


def test_a_count_that_no_attribute_gives_is_unknown_but_our_sdk_counts_preemptions_itself(span_rows):
    assert span_rows(SCOPES, [{}], COUNTS) == [(None, None, None, None, 0), (None,) * 5, (None,) * 5]


def test_a_proxy_or_a_client_does_not_know_what_happens_inside_the_engine(span_rows):
    said = {semconv.ARRIVALS: 2, semconv.PHASE_TIME_PREFIX + "prefill": 100 * MS}
    columns = "queue_ns, prefill_ns, decode_ns, preempted_ns, preemptions"
    assert span_rows(["tokentrail"], [said], columns) == [(None,) * 5]


def test_a_count_of_0_is_known(span_rows):
    said = dict.fromkeys((semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS), 0)
    assert span_rows(SCOPES, [said], "input_tokens, output_tokens, cached_tokens") == [(0, 0, 0)] * 3


def test_the_old_names_of_token_counts_are_read_and_the_new_ones_go_first(span_rows):
    old = {"gen_ai.usage.prompt_tokens": 7, "gen_ai.usage.completion_tokens": 8}
    new = {semconv.INPUT_TOKENS: 0, semconv.OUTPUT_TOKENS: 2}
    assert span_rows([VLLM, "other"], [old, old | new], "input_tokens, output_tokens") == [(7, 8), (0, 2)] * 2


def test_a_phase_time_that_is_none_is_unknown_and_an_absent_one_is_0(span_rows):
    keys = [semconv.PHASE_TIME_PREFIX + phase for phase in ("queued", "prefill")]
    said = [dict.fromkeys(keys, value) for value in (NAN, -1, 601 * MS, "5")]
    assert span_rows(["tokentrail"], said, LATENCIES) == [(None, None, None, None, 0)] * 4


def test_counts_of_steps_and_kv_events_that_are_none_or_absent_are_unknown(store):
    request = Request()
    for number, value in enumerate([None, NAN, -1, 1.5, 2**32, "5"]):
        known = dict.fromkeys(semconv.STEP_ATTRIBUTES + semconv.STEP_DETAILS[:-3], value)
        counts = {} if value is None else known
        request.span(semconv.STEP_SPAN, span=2 * number + 1, attributes=counts | {semconv.STEP: number})
        blocks = {} if value is None else {semconv.KV_BLOCKS: value, semconv.KV_BENEFICIARY: "no trace id"}
        request.span("tokentrail.kv.evict", span=2 * number + 2, attributes={semconv.STEP: number} | blocks)
    insert(store, request)
    found = store.query("SELECT * EXCEPT (start, service, instance, variant, duration_ns) FROM steps ORDER BY step")
    assert found.result_rows == [(number,) + (None,) * 19 for number in range(6)]
    assert rows(store, "kv_events", "step, blocks, bytes, beneficiary") == [(n, None, None, "") for n in range(6)]


def test_a_time_of_a_step_that_is_none_or_absent_is_unknown(store):
    request, times = Request(), semconv.STEP_DETAILS[-3:]
    request.span(semconv.STEP_SPAN, attributes=dict.fromkeys(times, 2**40) | {semconv.STEP: 0})
    for step, value in enumerate([None, NAN, -1, 1.5, "5"], start=1):
        told = {} if value is None else dict.fromkeys(times, value)
        request.span(semconv.STEP_SPAN, span=1 + step, attributes=told | {semconv.STEP: step})
    insert(store, request)
    found = rows(store, "steps", "step, device_ns, compute_ns, memory_ns")
    assert found == [(0, *(2**40,) * 3), *((step, None, None, None) for step in range(1, 6))]


def test_the_times_for_which_a_request_waited_for_a_reason_are_parts_of_it(span_rows):
    keys = [semconv.WAIT_TIME_PREFIX + reason for reason in ("batch", "tokens", "kv", "priority")]
    said = [{}, *(dict.fromkeys(keys, value) for value in (7, 0, NAN, -1, 601 * MS))]
    found = span_rows(["tokentrail"], said, "wait_batch_ns, wait_tokens_ns, wait_kv_ns, wait_priority_ns")
    assert found == [(stored,) * 4 for stored in (None, 7, 0, None, None, None)]


def test_the_first_visible_token_and_the_drafts_of_a_request_are_stored(span_rows):
    told = [
        {semconv.TIME_TO_FIRST_VISIBLE_TOKEN: 0.25, semconv.DRAFTED_TOKENS: 9},
        {semconv.TIME_TO_FIRST_VISIBLE_TOKEN: 0.7, semconv.DRAFTED_TOKENS: -1},
    ]
    found = span_rows(["tokentrail"], told, "first_visible_ns, drafted_tokens, accepted_tokens")
    assert found == [(250 * MS, 9, None), (None, None, None)]


def test_how_sure_the_model_was_is_stored(span_rows):
    both = [(7.5, 1.5), (1, 0), (0.9, -0.1), (NAN, float("inf"))]
    told = [{semconv.PERPLEXITY: perplexity, semconv.MEAN_ENTROPY: entropy} for perplexity, entropy in both]
    found = span_rows(["tokentrail"], told, "perplexity, mean_entropy")
    assert found == [(7.5, 1.5), (1, 0), (None, None), (None, None)]


def test_a_step_without_a_number_is_kept(store):
    request = Request()
    for number, value in enumerate([None, NAN, -1, 1.5, "5"]):
        attributes = {semconv.STEP_RUNNING: number} | ({} if value is None else {semconv.STEP: value})
        request.span(semconv.STEP_SPAN, span=2 * number + 1, attributes=attributes)
        request.span("tokentrail.kv.evict", span=2 * number + 2, attributes=attributes | {semconv.KV_BLOCKS: number})
    insert(store, request)
    assert rows(store, "steps", "running, step") == [(number, None) for number in range(5)]
    assert rows(store, "kv_events", "blocks, step") == [(number, None) for number in range(5)]


def test_an_announcement_and_its_end_have_the_vantage_of_their_kind(store):
    request = Request()
    for kind in (1, 2, 3):
        request.span(semconv.OPEN_SPAN, trace=kind, span=7, parent=5, kind=kind)
        request.span("chat m", trace=kind, span=6, kind=kind, attributes={semconv.OPERATION_NAME: "chat"})
    insert(store, request)
    assert by_trace(store, "requests", "vantage") == ["server", "server", "client"]
    assert by_trace(store, "open_requests", "vantage") == ["server"] * 4 + ["client"] * 2


def test_an_announcement_without_usage_has_unknown_counts(store):
    request = Request()
    request.span(semconv.OPEN_SPAN, parent=5, attributes={semconv.INPUT_TOKENS: -1, semconv.TIME_TO_FIRST_CHUNK: NAN})
    insert(store, request)
    assert rows(store, "open_requests", "input_tokens, output_tokens, ttft_ns") == [(None, None, None)]


def test_an_insert_that_is_repeated_adds_nothing_anywhere(store):
    request = Request()
    request.tokens(count=5)
    request.span("chat m", span=9, kind=2, attributes={semconv.OPERATION_NAME: "chat"})
    request.span(semconv.PHASE_SPAN, span=10, parent=9, attributes={semconv.PHASE_NAME: "decode"})
    request.span("unclaimed", span=11)
    for _ in range(3):
        insert(store, request, "the same segment")
    counts = {table: len(rows(store, table)) for table in ("tokens", "requests", "phases", "spans")}
    assert counts == {"tokens": 5, "requests": 1, "phases": 1, "spans": 1}


def test_the_same_bytes_in_another_segment_are_other_rows(store):
    insert(store, token_body(count=2), "one")
    insert(store, token_body(count=2), "two")
    assert len(rows(store, "tokens")) == 4


def test_data_that_the_store_cannot_read_is_refused_and_leaves_no_rows(store):
    for body in (b"\xff\xff\xff", token_body()[:-2], token_body().replace((1).to_bytes(16, "big"), b"")):
        with pytest.raises(RefusedError):
            insert(store, token_body(trace=5) + body)
    assert rows(store, "tokens") == []


def test_applying_the_schema_again_changes_nothing_and_replaces_views_that_differ(store):
    def views():
        sql = "SELECT name, comment, as_select FROM system.tables WHERE engine = 'MaterializedView' ORDER BY name"
        return store.query(sql).result_rows

    before = views()
    apply_schema(store)
    assert views() == before
    store.client().command(
        "CREATE OR REPLACE MATERIALIZED VIEW tokentrail_tokens TO tokens AS SELECT now() AS minute FROM otlp_traces"
        " COMMENT 'of an older collector'"
    )
    apply_schema(store)
    assert views() == before
    insert(store, token_body(count=2))
    assert len(rows(store, "tokens")) == 2


def test_a_ttl_of_an_older_collector_is_removed(store):
    store.client().command("ALTER TABLE tokens MODIFY TTL toDateTime(minute) + toIntervalDay(30)")
    apply_schema(store)
    assert "TTL" not in store.query("SHOW CREATE TABLE tokens").result_rows[0][0]


def test_a_server_that_is_not_there_is_named_without_its_password():
    with pytest.raises(StoreError, match=r"127.0.0.1:1") as refused:
        Store.open("http://user:secret@127.0.0.1:1/default", connect_timeout_s=1.0)
    assert "secret" not in str(refused.value)
