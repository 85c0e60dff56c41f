"""Langfuse's client for openai, recorded, against the client's own clock. Its SDK sends to Langfuse's own path."""

import itertools
import json

import pytest

from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request
from tests.support.recordings import (
    NS,
    billed,
    client_lines,
    e2e_differences,
    replay,
    requests,
    spread,
    tokens_of,
    ttft_differences,
)

RUN = "langfuse-5.0"
IDS = itertools.count(2**40)


@pytest.fixture(scope="module")
def pairs(module_store):
    """Langfuse sends no response id, so a row belongs to the line that was sent last before its start."""
    replay(module_store, RUN)
    rows, lines = requests(module_store, "service = 'chat-client-langfuse'"), client_lines(RUN)
    assert len(rows) == len(lines) == 18
    assert all(0 <= row["start_ns"] - line["send_unix_ns"] < 0.02 / NS for row, line in zip(rows, lines, strict=True))
    return list(zip(rows, lines, strict=True))


def test_every_completed_request_is_one_row(pairs, module_store):
    assert {(row["engine"], row["vantage"], row["operation"], row["model"], row["status"]) for row, _ in pairs} == {
        ("langfuse", "client", "chat", "smollm2-135m-instruct", "ok")
    }
    assert module_store.query("SELECT count() FROM spans").result_rows == [(0,)]


def test_times_and_tokens_are_the_clients(pairs):
    assert len(ttft_differences(pairs)) == 14
    assert spread(ttft_differences(pairs)) == (0, 1)
    assert spread(e2e_differences(pairs)) == (0, 1)
    assert all(tokens_of(row) == billed(line) for row, line in pairs)
    assert all(row["ttft_ns"] == row["e2e_ns"] for row, line in pairs if line["mode"] == "plain")
    assert all(row["finish_reason"] == line["finish_reason"] for row, line in pairs if line["mode"] != "plain")


def test_outcomes(module_store):
    replay(module_store, RUN, "edges")
    rows = {row["service"]: row for row in requests(module_store, "service != 'chat-client-langfuse'")}
    given_up = dict.fromkeys(["abandon_close", "abandon_gc", "abandon_ctx", "acancel", "sse_error"], "cancelled")
    ended = ["stream", "nousage", "plain", "long150", "completion", "completion_stream"]
    expected = {**dict.fromkeys(ended, "ok"), "404": "error", "timeout": "error", **given_up}
    assert {name: row["status"] for name, row in rows.items()} == expected
    assert rows["404"]["error_type"] == "404"
    assert rows["completion_stream"]["operation"] == "text_completion"
    names = module_store.query("SELECT name FROM spans WHERE service = 'embeddings'").result_rows
    assert names == [("OpenAI-embedding",)]


def generation(store, token, name="OpenAI-generation", parent=None, **attributes):
    request = Request(scope="langfuse-sdk")
    said = {"langfuse.observation.type": "generation"}
    said |= {f"langfuse.observation.{key}": value for key, value in attributes.items()}
    request.span(name, trace=token, span=token, parent=parent, ns=600 * MS, attributes=said)
    insert_otlp(store, TRACES, request.body(), f"langfuse-{token}")
    (row,) = requests(store, f"span_id = unhex('{token:016x}')")
    return row


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4)),
        ({"input": 3, "output": 4, "total": 7}, (3, 4)),
        ({"prompt_tokens": -1, "completion_tokens": "4"}, (None, None)),
        ({"prompt_tokens": 1e30, "completion_tokens": None}, (None, None)),
        ("[1, 2]", (None, None)),
        ("{broken", (None, None)),
    ],
    ids=str,
)
def test_tokens_come_from_json(module_store, usage, tokens):
    token = next(IDS)
    row = generation(module_store, token, usage_details=usage if isinstance(usage, str) else json.dumps(usage))
    assert (row["input_tokens"], row["output_tokens"]) == tokens


@pytest.mark.parametrize(
    ("first", "ttft"),
    [
        ('"2026-11-18T11:06:40.250000Z"', 250 * MS),
        ('"2026-11-18T13:06:40.250000+02:00"', 250 * MS),
        ('"2026-11-18T11:06:39.999Z"', None),
        ('"2026-11-18T11:06:40.601Z"', None),
        ('"soon"', None),
        ("null", None),
    ],
)
def test_the_first_chunk_is_a_time_within_the_span(module_store, first, ttft):
    token = next(IDS)
    row = generation(module_store, token, completion_start_time=first, usage_details='{"output": 4}')
    assert row["ttft_ns"] == ttft
    assert row["status"] == "ok"


def test_a_generation_that_an_application_makes_itself_is_not_taken_for_an_abandoned_stream(module_store):
    said = {"input": "[]", "completion_start_time": '"2026-11-18T11:06:40.250Z"'}
    own = generation(module_store, 2**33, "my-agent", **said)
    assert (own["status"], own["operation"], own["ttft_ns"]) == ("ok", "chat", 250 * MS)
    assert generation(module_store, 2**33 + 1, **said)["status"] == "cancelled"
    not_streamed = generation(module_store, 2**33 + 2, "my-agent", usage_details='{"output": 4}')
    assert not_streamed["ttft_ns"] is None
