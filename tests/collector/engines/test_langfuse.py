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


OURS = "OpenAI-generation"


def generations(store, *given):
    """Insert generations of their own traces, all in one segment: name and attributes. Return their rows."""
    tokens, request = [next(IDS) for _ in given], Request(scope="langfuse-sdk")
    for token, (name, attributes) in zip(tokens, given, strict=True):
        said = {"langfuse.observation.type": "generation"}
        said |= {f"langfuse.observation.{key}": value for key, value in attributes.items()}
        request.span(name, trace=token, span=token, ns=600 * MS, attributes=said)
    insert_otlp(store, TRACES, request.body(), f"langfuse-{tokens[0]}")
    own = f"span_id BETWEEN unhex('{tokens[0]:016x}') AND unhex('{tokens[-1]:016x}')"
    rows = {row["span_id"]: row for row in requests(store, own)}
    assert len(rows) == len(given)
    return [rows[token.to_bytes(8, "big")] for token in tokens]


def test_tokens_come_from_json(module_store):
    usages = [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4)),
        ({"input": 3, "output": 4, "total": 7}, (3, 4)),
        ({"prompt_tokens": -1, "completion_tokens": "4"}, (None, None)),
        ({"prompt_tokens": 1e30, "completion_tokens": None}, (None, None)),
        ("[1, 2]", (None, None)),
        ("{broken", (None, None)),
    ]
    texts = [usage if isinstance(usage, str) else json.dumps(usage) for usage, _ in usages]
    rows = generations(module_store, *((OURS, {"usage_details": text}) for text in texts))
    assert [tokens_of(row) for row in rows] == [tokens for _, tokens in usages]


def test_tokens_of_pictures_and_sound_come_from_json(module_store):
    usages = [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"image_tokens": 3, "audio_tokens": 10}}, (3, None, None, None)),
        ({"input_tokens": 9, "output_tokens": 9, "input_tokens_details": {"audio_tokens": 2},
          "output_tokens_details": {"image_tokens": 9}}, (None, 2, 9, None)),
        ({"completion_tokens": 9, "completion_tokens_details": {"audio_tokens": 0}}, (None, None, None, 0)),
        ({"input": 4, "input_image": 5, "output": 1, "output_audio": 6}, (5, None, None, 6)),
        ({"prompt_tokens": 9, "completion_tokens": 9}, (None,) * 4),
    ]  # fmt: skip
    rows = generations(module_store, *((OURS, {"usage_details": json.dumps(usage)}) for usage, _ in usages))
    names = [f"{kind}_{side}_tokens" for side in ("input", "output") for kind in ("image", "audio")]
    assert [tuple(row[name] for name in names) for row in rows] == [known for _, known in usages]


def test_a_generation_without_a_sign_of_a_call_is_no_request(module_store):
    key, name = next(IDS), "langfuse.observation."
    signs = [{"model.name": "m"}, {"usage_details": '{"input": 1}'},
             {"completion_start_time": '"2026-11-18T11:06:40.250Z"'},
             {"metadata.finish_reason": '"stop"'}, {"level": "ERROR"}]  # fmt: skip
    none = [{}, {"input": "[]"}, {"usage_details": "{}"}, {"model.name": "null", "completion_start_time": "null"}]
    request = Request(scope="langfuse-sdk")
    for number, said in enumerate([*signs, *none]):
        attributes = {f"{name}type": "generation"} | {f"{name}{one}": value for one, value in said.items()}
        request.span("prompt", trace=key * 100 + number, ns=600 * MS, attributes=attributes)
    insert_otlp(module_store, TRACES, request.body(), f"signs-{key}")
    traces = [f"{key * 100 + number:032x}" for number in range(len(signs) + len(none))]
    found = requests(module_store, f"lower(hex(trace_id)) IN {tuple(traces)}")
    assert {row["trace_id"].hex() for row in found} == {*traces[: len(signs)]}


def test_the_first_chunk_is_a_time_within_the_span(module_store):
    firsts = [
        ('"2026-11-18T11:06:40.250000Z"', 250 * MS),
        ('"2026-11-18T13:06:40.250000+02:00"', 250 * MS),
        ('"2026-11-18T11:06:39.999Z"', None),
        ('"2026-11-18T11:06:40.601Z"', None),
        ('"soon"', None),
        ("null", None),
        (1795.5, None),
        ("", None),
    ]
    said = [{"completion_start_time": first, "usage_details": '{"output": 4}'} for first, _ in firsts]
    rows = generations(module_store, *((OURS, attributes) for attributes in said))
    assert [(row["ttft_ns"], row["status"]) for row in rows] == [(ttft, "ok") for _, ttft in firsts]


def test_a_generation_that_an_application_makes_itself_is_not_taken_for_an_abandoned_stream(module_store):
    said = {"input": "[]", "completion_start_time": '"2026-11-18T11:06:40.250Z"'}
    given = ("my-agent", said), (OURS, said), ("my-agent", {"usage_details": '{"output": 4}'})
    own, abandoned, not_streamed = generations(module_store, *given)
    assert (own["status"], own["operation"], own["ttft_ns"]) == ("ok", "chat", 250 * MS)
    assert abandoned["status"] == "cancelled"
    assert not_streamed["ttft_ns"] is None
