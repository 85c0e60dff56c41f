"""LiteLLM's proxy with its two OpenTelemetry integrations, recorded, against the clock of its clients."""

import gzip
import itertools
import json
import operator

import pytest

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request
from tests.support.recordings import (
    DATA,
    billed,
    by_response_id,
    client_lines,
    e2e_differences,
    replay,
    requests,
    spread,
    tokens_of,
    ttft_differences,
)

V1, V2 = "litellm-1.108-otel-v1", "litellm-1.108-otel-v2"
STREAMS = {"warm2", "stream", "n2 stream", "think stream", "retry stream", "fallback stream", "left", "cache s"}
"""The calls of the proxy that were streamed and did not fail. v1's recording lacks the usage that tells their end."""
IDS = itertools.count(2**40)
LATER = 250 * MS
"""By how much the proxy's client sees a token or an end later than LiteLLM, on the busy machine of the recording."""
RETRIED = ["error", "ok"]
"""An attempt that failed and the call that ended well. Attempts between them are no rows."""
CALLS = {
    "warm": ["ok"], "warm2": ["ok"], "whole": ["ok"], "stream": ["ok"], "n2 whole": ["ok"], "n2 stream": ["ok"],
    "think stream": ["ok"], "think whole": ["ok"], "retry whole": RETRIED, "retry stream": RETRIED,
    "fallback whole": RETRIED, "fallback stream": RETRIED, "400": ["error"], "429 stream": ["error"],
    "break": ["error"], "errev": ["error"], "left": ["ok"], "left whole": ["ok"], "hang": ["error"],
    "cache": ["ok"], "cache hit": [], "cache s": ["ok"], "cache s hit": [],
    "unknown": ["error"], "tenant": ["ok"], "emb": [],
}  # fmt: skip
"""Calls of the proxy, and the ends of their rows. That a client left a call that is not streamed is not seen."""


@pytest.fixture(scope="module")
def recorded(module_store):
    found = {}
    for run in (V1, V2):
        module_store.client().command("TRUNCATE TABLE requests")
        replay(module_store, run)
        found[run] = requests(module_store)
    return found


@pytest.mark.parametrize(
    ("run", "ttft_ms", "e2e_ms"), [(V1, None, (63, 6520)), (V2, (66, 2851), (82, 2825))], ids=["v1", "v2"]
)
class TestRecording:
    def test_every_request_is_one_row(self, recorded, run, ttft_ms, e2e_ms):
        rows = recorded[run]
        assert len(rows) == len(client_lines(run)) == 26
        assert len(by_response_id(rows, client_lines(run))) == 24
        assert {(row["engine"], row["vantage"], row["operation"]) for row in rows} == {("litellm", "client", "chat")}
        assert {row["model"] for row in rows if row["status"] == "ok"} == {"smollm2-135m"}

    def test_refused_requests_are_errors_without_tokens(self, recorded, run, ttft_ms, e2e_ms):
        refused = [row for row in recorded[run] if row["status"] != "ok"]
        unknown = "ProxyModelNotFoundError" if run == V1 else "ProxyException"
        assert [(row["model"], row["status"], row["error_type"]) for row in refused] == [
            ("no-such-model", "error", unknown),
            ("smollm2-135m", "error", "BadRequestError"),
        ]
        assert {(row["input_tokens"], row["output_tokens"], row["ttft_ns"]) for row in refused} == {(None, None, None)}

    def test_the_proxys_own_time_is_outside(self, recorded, run, ttft_ms, e2e_ms):
        pairs = by_response_id(recorded[run], client_lines(run))
        differences = ttft_differences(pairs)
        assert all(difference > 0 for difference in differences + e2e_differences(pairs))
        assert len(differences) == (18 if ttft_ms else 0)
        assert not ttft_ms or spread(differences) == ttft_ms
        assert spread(e2e_differences(pairs)) == e2e_ms
        not_streamed = [row for row, line in pairs if not line["stream"]]
        assert all(row["ttft_ns"] == row["e2e_ns"] for row in not_streamed)

    def test_no_client_had_a_longer_tpot_than_the_bound(self, recorded, run, ttft_ms, e2e_ms):
        pairs = [(row, line) for row, line in by_response_id(recorded[run], client_lines(run)) if line["stream"]]
        seen = [(line["chunks"][-1] - line["chunks"][0]) / (row["output_tokens"] - 1) for row, line in pairs]
        bounds = [row["tpot_at_most_ns"] for row, _ in pairs]
        assert {row["tpot_ns"] for row, _ in pairs} == {None}
        assert bounds == [None] * 18 if run == V1 else all(map(operator.lt, seen, bounds))

    def test_tokens_and_finish_reasons_are_the_clients(self, recorded, run, ttft_ms, e2e_ms):
        pairs = by_response_id(recorded[run], client_lines(run))
        assert all(tokens_of(row) == billed(line) for row, line in pairs)
        assert all(row["finish_reason"] == line["finish_reason"] for row, line in pairs)


def test_no_call_of_a_model_is_left_unclaimed(recorded, module_store):
    sql = "SELECT DISTINCT splitByChar(' ', name)[1] FROM spans ORDER BY 1"
    assert [name for (name,) in module_store.query(sql).result_rows] == [
        "Failed", "GET", "POST", "Received", "auth", "fastapi.dependencies", "fastapi.endpoint",
        "fastapi.serialization", "proxy_pre_call", "raw_gen_ai_request", "route", "router", "self",
    ]  # fmt: skip


def insert_each(store, *spans):
    """Insert spans of their own traces, all in one segment: name and what differs. For each, the rows of its span."""
    tokens, bodies = [next(IDS) for _ in spans], []
    for token, (name, given) in zip(tokens, spans, strict=True):
        fields = {"kind": 1, "scope": "litellm", "events": (), "attributes": {}} | given
        request = Request(scope=fields["scope"])
        span = request.span(
            name, trace=token, span=token, ns=600 * MS, kind=fields["kind"], attributes=fields["attributes"]
        )
        for event in fields["events"]:
            span.events.add(name=event)
        bodies.append(request.body())
    insert_otlp(store, TRACES, b"".join(bodies), f"litellm-{tokens[0]}")
    rows = requests(store, f"span_id BETWEEN unhex('{tokens[0]:016x}') AND unhex('{tokens[-1]:016x}')")
    return [[row for row in rows if int.from_bytes(row["span_id"], "big") == token] for token in tokens]


def test_calls_of_v1_that_generate_text_are_requests(module_store):
    operations = {
        "completion": ["chat"],
        "atext_completion": ["text_completion"],
        "aresponses": ["chat"],
        "anthropic_messages": ["chat"],
        "agenerate_content_stream": ["generate_content"],
        "aembedding": [],
        "aimage_generation": [],
        "_arealtime": [],
    }
    calls = [("litellm_request", {"attributes": {"gen_ai.operation.name": call}}) for call in operations]
    found = insert_each(module_store, *calls)
    assert [[row["operation"] for row in rows] for rows in found] == list(operations.values())


def test_a_stream_without_a_finish_reason_was_given_up(module_store):
    v1 = {"gen_ai.operation.name": "acompletion", "llm.is_streaming": "True"}
    v2 = {"gen_ai.operation.name": "chat", "litellm.request.streaming": True}
    ended = v2 | {"gen_ai.response.finish_reasons": ["stop"]}
    spans = [
        ("litellm_request", {"attributes": v1}),
        ("chat m", {"kind": 3, "attributes": v2}),
        ("chat m", {"kind": 3, "attributes": ended}),
    ]
    found = [row["status"] for (row,) in insert_each(module_store, *spans)]
    assert found == ["cancelled", "cancelled", "ok"]


def test_a_stream_of_v2_that_broke_has_the_time_of_its_first_chunk_and_no_estimates(module_store):
    """Its span does not say that it was a stream, and has LiteLLM's own count of the tokens."""
    known = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 8, "gen_ai.usage.output_tokens": 5}
    streamed = known | {"gen_ai.response.time_to_first_chunk": 0.2}
    failed = {"error.type": "APIError"}
    spans = [("chat m", {"kind": 3, "attributes": said}) for said in (streamed | failed, known | failed, known)]
    rows = [row for (row,) in insert_each(module_store, *spans)]
    assert [(row["status"], row["ttft_ns"], row["tpot_ns"], row["output_tokens"]) for row in rows] == [
        ("error", 200 * MS, None, None),
        ("error", None, None, None),
        ("ok", 600 * MS, None, 5),
    ]


@pytest.mark.parametrize("run", ["v1", "v2"])
def test_a_stream_that_its_client_left_is_cancelled(module_store, run):
    """Five streams that ended, the last without usage, and four that their client left after a third."""
    module_store.client().command("TRUNCATE TABLE requests")
    replay(module_store, "litellm-1.108-aborts", run)
    found = [(row["status"], row["output_tokens"], row["finish_reason"]) for row in requests(module_store)]
    assert found == [("ok", 20, "stop")] * 4 + [("ok", 21, "stop")] + [("cancelled", None, "stop")] * 4


@pytest.mark.parametrize(
    ("run", "ends"), [("v1", ["unknown"] * 5), ("v2", ["ok", "cancelled", "cancelled", "ok", "cancelled"])]
)
def test_streams_of_1_106_that_ended_and_that_were_left(module_store, run, ends):
    """The usage is cut out of v1's spans. FastAPI's own span tells a client that left, and is kept beside."""
    for table in ("requests", "spans"):
        module_store.client().command(f"TRUNCATE TABLE {table}")
    replay(module_store, "litellm-1.106-aborts", run)
    assert [row["status"] for row in requests(module_store)] == ends
    sql = """SELECT start, trace_id FROM spans WHERE kind = 2 AND attributes['error.type'] = 'ConnectionError'
             AND trace_id IN (SELECT trace_id FROM requests) AND attributes['http.response.status_code'] = '200'"""
    assert len(module_store.query(sql).result_rows) == (3 if run == "v1" else 0)


USAGE = "{'completion_tokens': 5, 'prompt_tokens': 7, 'total_tokens': 12, 'prompt_tokens_details': None%s}"
WRITES = ", 'cache_read_input_tokens': 0, 'cache_creation_input_tokens': 0"


@pytest.mark.parametrize(
    ("system", "operation", "usage", "status"),
    [
        ("openai", "acompletion", USAGE % "", "ok"),
        ("openai", "acompletion", USAGE % WRITES, "cancelled"),
        ("azure", "atext_completion", USAGE % WRITES, "cancelled"),
        # Anthropic's server tells both counts, so nothing tells the end.
        ("anthropic", "acompletion", USAGE % WRITES, "unknown"),
        ("anthropic", "acompletion", USAGE % "", "ok"),
        ("openai", "acompletion", "", "unknown"),
        ("openai", "aresponses", USAGE % "", "unknown"),
        ("openai", "anthropic_messages", USAGE % "", "unknown"),
    ],
)
def test_what_the_usage_tells_of_the_end_of_a_stream(module_store, system, operation, usage, status):
    """v1 has the usage as a text of Python's, v2 the counts."""
    reasons = {"gen_ai.system": system, "gen_ai.response.finish_reasons": ["stop"]}
    v1 = reasons | {"gen_ai.operation.name": operation, "metadata.usage_object": usage}
    v2 = reasons | {"gen_ai.operation.name": "chat", "litellm.call_type": operation}
    if WRITES in usage:
        v2 |= {"gen_ai.usage.cache_creation.input_tokens": 0, "gen_ai.usage.cache_read.input_tokens": 0}
    spans = [
        ("litellm_request", {"attributes": v1 | {"llm.is_streaming": "True"}}),
        ("litellm_request", {"attributes": v1 | {"llm.is_streaming": "False"}}),
        ("chat m", {"kind": 3, "attributes": v2 | {"litellm.request.streaming": True}}),
        ("chat m", {"kind": 3, "attributes": v2}),
    ]
    found = [row["status"] for (row,) in insert_each(module_store, *spans)]
    assert found == [status, "ok", status if usage else "ok", "ok"]


def test_a_stream_of_v2_has_a_bound_of_tpot(module_store):
    """Its span ends after the last chunk, up to half a second later."""
    stream = {"gen_ai.operation.name": "chat", "gen_ai.response.finish_reasons": ["stop"],
              "litellm.request.streaming": True, "gen_ai.response.time_to_first_chunk": 0.2,
              "gen_ai.usage.output_tokens": 5}  # fmt: skip
    left = {"gen_ai.usage.cache_creation.input_tokens": 0, "gen_ai.system": "openai"}
    spans = [("chat m", {"kind": 3, "attributes": stream | other}) for other in ({}, left)]
    rows = [row for (row,) in insert_each(module_store, *spans)]
    assert [(row["status"], row["tpot_ns"], row["tpot_at_most_ns"]) for row in rows] == [
        ("ok", None, 100 * MS), ("cancelled", None, None),
    ]  # fmt: skip


def test_a_request_that_v2_refused_before_any_call_is_a_row(module_store):
    refused = {
        "http.route": "/v1/chat/completions", "litellm.call_id": "1", "error.type": "ProxyException",
        "gen_ai.request.model": "m",
    }  # fmt: skip
    span = {"kind": 2, "scope": "opentelemetry.instrumentation.fastapi"}
    other = [
        {"events": ["litellm.request.deployment_selected"], "attributes": refused},
        {"attributes": refused | {"http.route": "/metrics/{path}"}},
        {"attributes": refused | {"http.route": "/v1/embeddings"}},
        {"attributes": refused | {"litellm.call_id": ""}},
        {"attributes": refused | {"error.type": ""}},
        {"kind": 1, "attributes": refused},
    ]
    spans = [("POST /v1/chat/completions", span | each) for each in ({"attributes": refused}, *other)]
    (row,), *rows = insert_each(module_store, *spans)
    assert (row["status"], row["error_type"], row["model"]) == ("error", "ProxyException", "m")
    assert rows == [[]] * len(other)


def test_values_of_another_type_are_not_known(module_store):
    said = {"gen_ai.operation.name": "acompletion", "gen_ai.usage.output_tokens": "twelve",
            "gen_ai.usage.input_tokens": -1, "llm.is_streaming": "maybe"}  # fmt: skip
    ((row,),) = insert_each(module_store, ("litellm_request", {"attributes": said}))
    assert (row["input_tokens"], row["output_tokens"], row["ttft_ns"], row["status"]) == (None, None, None, "ok")


@pytest.fixture(scope="module", params=["v1", "v2", "v2-1.110"])
def proxied(request, module_store):
    """The version, and by the name of each call of the proxy's client its line and the rows that started meanwhile."""
    name = f"litellm-proxy-{request.param}"
    module_store.client().command("TRUNCATE TABLE requests")
    replay(module_store, "clients-2026", name)
    rows = requests(module_store, f"service = '{name}'")
    lines = map(json.loads, gzip.decompress((DATA / "clients-2026/truth.jsonl.gz").read_bytes()).splitlines())
    calls = {}
    for line in (line for line in lines if line["service"] == name):
        what = line["what"] + (" hit" if line["what"] in calls else "")
        started = range(line["send_unix_ns"], line["send_unix_ns"] + line["end_ns"])
        calls[what] = (line, sorted((row for row in rows if row["start_ns"] in started), key=lambda row: row["status"]))
    assert sum(len(found) for _, found in calls.values()) == len(rows)
    return request.param, calls


def test_each_call_of_the_proxy_is_a_row_and_no_embedding_nor_answer_of_the_cache(proxied):
    version, calls = proxied
    of_v1 = {what: [{"ok": "unknown"}.get(end, end) for end in ends] for what, ends in CALLS.items() if what in STREAMS}
    expected = CALLS | (of_v1 | {"cache s hit": ["ok"]} if version == "v1" else {"left": ["cancelled"]})
    assert {what: [row["status"] for row in rows] for what, (_, rows) in calls.items()} == expected
    assert {row["engine"] for _, rows in calls.values() for row in rows} == {"litellm"}


def test_a_call_of_the_proxy_ends_when_its_client_sees_it(proxied):
    _, calls = proxied
    for what in ("stream", "whole", "think stream", "retry stream", "fallback stream", "fallback whole", "errev"):
        line, rows = calls[what]
        later = line["send_unix_ns"] + line["end_ns"] - rows[-1]["start_ns"] - rows[-1]["e2e_ns"]
        assert 0 <= later <= LATER, what


def test_the_first_token_is_the_clients_but_for_fallbacks_before_1_110(proxied):
    """v1 tells none. v2 told the time since the last attempt, in the E2E of several."""
    version, calls = proxied
    late = {}
    for what in ("stream", "think stream", "retry stream", "fallback stream"):
        line, rows = calls[what]
        assert (rows[-1]["ttft_ns"] is None) == (version == "v1")
        if version != "v1":
            late[what] = line["send_unix_ns"] + line["first_ns"] - rows[-1]["start_ns"] - rows[-1]["ttft_ns"]
    assert version != "v2" or late.pop("fallback stream") > 4_000 * MS
    assert all(0 <= later <= LATER for later in late.values())


def test_langfuses_words_tell_the_reasoning_tokens_of_the_proxy(proxied):
    version, calls = proxied
    (row,) = calls["think stream"][1]
    assert (row["reasoning_tokens"], row["tpot_ns"]) == (None if version == "v1" else 20, None)


def test_a_time_of_the_first_token_counts_within_a_stream(module_store):
    """The request lasts 600 ms from T0, which is 2026-11-18 11:06:40 UTC."""
    call = {"gen_ai.operation.name": "chat", "gen_ai.response.finish_reasons": ["stop"]}
    stream = call | {"litellm.request.streaming": True, "gen_ai.response.time_to_first_chunk": 0.1}
    key = "langfuse.observation.completion_start_time"
    said = [
        stream | {key: '"2026-11-18T11:06:40.400000+00:00"'},
        stream | {key: '"2026-11-18T11:06:39.900000+00:00"'},
        stream | {key: '"2026-11-18T11:06:40.700000+00:00"'},
        stream | {key: "soon"},
        call | {key: '"2026-11-18T11:06:40.400000+00:00"', "error.type": "APIError"},
    ]
    found = insert_each(module_store, *(("chat m", {"kind": 3, "attributes": each}) for each in said))
    assert [row["ttft_ns"] for (row,) in found] == [400 * MS, 100 * MS, 100 * MS, 100 * MS, None]


def test_only_litellms_spans_are_answers_of_its_cache(module_store):
    said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "litellm.cache_hit": True}
    spans = [("chat m", {"kind": 3, "scope": scope, "attributes": said}) for scope in ("litellm", "other")]
    assert [len(rows) for rows in insert_each(module_store, *spans)] == [0, 1]
