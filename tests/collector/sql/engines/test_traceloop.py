"""Traceloop's instrumentation of the openai client, recorded, against the client's own clock."""

import itertools

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request
from tests.support.recordings import (
    NS,
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

RUN = "traceloop-0.62"
IDS = itertools.count(2**40)
CHUNK = "gen_ai.content.completion.chunk"


@pytest.fixture(scope="module")
def pairs(module_store):
    replay(module_store, RUN)
    return by_response_id(requests(module_store, "service = 'chat-client-traceloop'"), client_lines(RUN))


@pytest.fixture(scope="module")
def edges(module_store):
    replay(module_store, RUN, "edges")
    return {row["service"]: row for row in requests(module_store, "service != 'chat-client-traceloop'")}


def arrivals_us(store, row):
    sql = """
        SELECT token_index, sum(duration_us) OVER (ORDER BY token_index) FROM tokens
        WHERE request_span_id = unhex('{}') ORDER BY token_index
    """
    found = store.query(sql.format(row["span_id"].hex())).result_rows
    assert [index for index, _ in found] == list(range(len(found)))
    return [at for _, at in found]


def test_every_completed_request_is_one_row(pairs, module_store):
    assert len(pairs) == 18
    others = requests(module_store, "service = 'chat-client-traceloop' AND status != 'ok'")
    assert [(row["model"], row["status"], row["error_type"]) for row in others] == [
        ("no-such-model", "error", "NotFoundError")
    ] * 2
    assert module_store.query("SELECT DISTINCT name FROM spans WHERE service LIKE 'chat-%'").result_rows == [
        ("chat-turn",)
    ]
    assert {(row["engine"], row["vantage"], row["operation"], row["model"]) for row, _ in pairs} == {
        ("traceloop", "client", "chat", "smollm2-135m-instruct")
    }


def test_times_and_tokens_are_the_clients(pairs):
    assert len(ttft_differences(pairs)) == 14
    assert spread(ttft_differences(pairs)) == (0, 2)
    assert spread(e2e_differences(pairs)) == (0, 1)
    assert all(tokens_of(row) == billed(line) for row, line in pairs)
    assert all(row["finish_reason"] == line["finish_reason"] for row, line in pairs)
    assert all(row["ttft_ns"] == row["e2e_ns"] for row, line in pairs if line["mode"] == "plain")


def test_every_chunk_of_the_client_is_a_token_at_its_time(pairs, module_store):
    late = []
    for row, line in pairs:
        arrivals = arrivals_us(module_store, row)
        chunks = line.get("chunks", [])
        assert len(arrivals) == len(chunks)
        assert not arrivals or arrivals[0] == row["ttft_ns"] // 1000
        late += [(ns - us * 1000) * NS for ns, us in zip(chunks, arrivals, strict=True)]
    assert len(late) == 215
    assert spread(late) == (0, 2)


def test_outcomes(edges):
    given_up = dict.fromkeys(["abandon_close", "abandon_gc", "abandon_ctx", "acancel", "sse_error"], "cancelled")
    ended = ["stream", "nousage", "plain", "long150", "completion", "completion_stream"]
    expected = {**dict.fromkeys(ended, "ok"), "404": "error", "timeout": "error", **given_up}
    assert {name: row["status"] for name, row in edges.items()} == expected
    assert edges["completion"]["operation"] == "text_completion"


def test_of_more_than_128_chunks_the_first_are_lost_so_ttft_is_not_known(edges, module_store):
    row = edges["long150"]
    assert (row["output_tokens"], row["ttft_ns"], row["tpot_ns"]) == (150, None, None)
    assert arrivals_us(module_store, row) == []


CHUNKS_AND_TOKENS = {
    "a chunk each": ([20, 30, 50], 3, 20, 3),
    "and one with usage": ([20, 30, 50, 51], 3, 20, 3),
    "tokens not known": ([20, 30, 50], None, 20, 3),
    "out of order": ([50, 20, 30], 3, 20, 3),
    "several in a chunk": ([20, 30, 50], 9, 20, 0),
    "too many chunks": ([20, 30, 50, 51, 52], 3, 20, 0),
    "before the start": ([-5, 20, 30], 3, None, 0),
    "after the end": ([20, 30, 601], 3, None, 0),
    "128 and usage": (range(1, 129), 127, 1, 127),
    "128": (range(1, 129), 128, 1, 128),
    "one was dropped": (range(1, 129), 129, None, 0),
    "perhaps dropped": (range(1, 129), None, None, 0),
    "none dropped": (range(1, 128), None, 1, 127),
    "no events": ([], 3, None, 0),
}
"""The times of chunks in ms and the number of tokens that a span says, then its TTFT in ms and its rows of tokens."""


@pytest.fixture(scope="module")
def streams(module_store):
    """The row of a stream for each of CHUNKS_AND_TOKENS."""
    request = Request(scope="opentelemetry.instrumentation.openai.v1")
    tokens = {name: next(IDS) for name in CHUNKS_AND_TOKENS}
    for name, (offsets_ms, n, _, _) in CHUNKS_AND_TOKENS.items():
        said = {"gen_ai.operation.name": "chat", "gen_ai.is_streaming": True}
        said |= {"gen_ai.response.finish_reasons": ["stop"]} | ({} if n is None else {"gen_ai.usage.output_tokens": n})
        token = tokens[name]
        span = request.span("openai.chat", trace=token, span=token, ns=600 * MS, kind=3, attributes=said)
        for offset in offsets_ms:
            span.events.add(time_unix_nano=T0 + offset * MS, name=CHUNK)
    insert_otlp(module_store, TRACES, request.body(), "streams")
    found = {row["span_id"]: row for row in requests(module_store, f"span_id >= unhex('{min(tokens.values()):016x}')")}
    return {name: found[token.to_bytes(8, "big")] for name, token in tokens.items()}


@pytest.mark.parametrize(
    ("name", "gap_ms", "index"),
    [
        ("a chunk each", 20, 2),
        ("and one with usage", 20, 2),
        ("out of order", 20, 2),
        ("several in a chunk", 20, 2),
        ("too many chunks", 20, 2),
        ("128 and usage", 1, 1),
        ("no events", None, None),
        ("one was dropped", None, None),
    ],
)
def test_the_longest_gap_is_that_between_chunks(streams, name, gap_ms, index):
    row = streams[name]
    assert (row["gap_ns"], row["gap_index"]) == (None if gap_ms is None else gap_ms * MS, index)


def test_a_stream_that_was_left_waited_for_its_next_chunk(module_store, edges):
    of_chunks = {"ok": 0, "cancelled": 0}
    for row in edges.values():
        arrived = arrivals_us(module_store, row)
        if len(arrived) > 1 and row["status"] in of_chunks:
            until = [*arrived, *([row["e2e_ns"] // 1000] if row["status"] != "ok" else [])]
            waits = [after - before for before, after in itertools.pairwise(until)]
            assert (row["gap_ns"], row["gap_index"]) == (1000 * max(waits), 1 + waits.index(max(waits)))
            of_chunks[row["status"]] += 1
    assert all(of_chunks.values())


@pytest.mark.parametrize("name", CHUNKS_AND_TOKENS)
def test_chunks_are_tokens_unless_the_span_says_otherwise(module_store, streams, name):
    _, _, ttft_ms, tokens = CHUNKS_AND_TOKENS[name]
    assert streams[name]["ttft_ns"] == (None if ttft_ms is None else ttft_ms * MS)
    assert len(arrivals_us(module_store, streams[name])) == tokens


def test_an_error_without_a_status_is_one(module_store):
    request = Request(scope="opentelemetry.instrumentation.openai.v1")
    said = {"gen_ai.operation.name": "chat", "gen_ai.is_streaming": True, "error.type": "APIError"}
    request.span("openai.chat", span=77, attributes=said)
    request.span("openai.chat", span=78, attributes=said, status=Status(code=Status.STATUS_CODE_ERROR))
    request.span("openai.chat", span=79, attributes=said | {"error.type": "asyncio.exceptions.CancelledError"})
    insert_otlp(module_store, TRACES, request.body(), "errors")
    found = [requests(module_store, f"span_id = unhex('{span:016x}')")[0]["status"] for span in (77, 78, 79)]
    assert found == ["error", "error", "cancelled"]
