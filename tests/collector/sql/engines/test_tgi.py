"""Spans as text-generation-inference's router would send them, made by hand from its source: there is no recording."""

import itertools

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request

TRACE = itertools.count(1)
TIMES = {
    "total_time": "1.234567s", "validation_time": "740.5µs", "queue_time": "15.2ms", "inference_time": "1.2s",
    "time_per_token": "24ms", "seed": "None",
}  # fmt: skip


def insert(store, *given):
    """Insert spans of their own traces, all in one segment: name and what differs from TIMES. Return their rows."""
    traces = [next(TRACE) for _ in given]
    request = Request(scope="text-generation-router", **{"service.name": "llama"})
    for trace, (name, changed) in zip(traces, given, strict=True):
        request.span(name, trace=trace, ns=1300 * MS, attributes=TIMES | changed)
    insert_otlp(store, TRACES, request.body(), f"tgi-{traces[0]}")
    sql = f"SELECT * FROM requests WHERE trace_id >= unhex('{traces[0]:032x}') ORDER BY trace_id"
    rows = list(store.query(sql).named_results())
    assert len(rows) == len(given)
    return rows


def test_its_times_are_read_in_every_unit(engine_store):
    short = {"total_time": "90ns", "queue_time": "1ns", "validation_time": "2ns"}
    row, of_short = insert(engine_store, ("generate", {}), ("generate", short))
    assert (row["engine"], row["status"], row["model"], row["operation"]) == ("tgi", "ok", "llama", "text_completion")
    assert row["e2e_ns"] == row["ttft_ns"] == 1_234_567_000
    assert row["queue_ns"] == 15_940_500
    assert row["output_tokens"] == 50
    assert (row["tpot_ns"], row["input_tokens"], row["prefill_ns"]) == (None, None, None)
    assert of_short["queue_ns"] == 3


def test_a_request_that_may_have_been_streamed_has_no_ttft(engine_store):
    rows = insert(engine_store, *((name, {}) for name in ("generate_stream", "chat_completions", "completions")))
    assert {(row["ttft_ns"], row["output_tokens"], row["e2e_ns"]) for row in rows} == {(None, 50, 1_234_567_000)}


def test_a_request_does_not_end_long_after_its_span(engine_store):
    (row,) = insert(engine_store, ("generate", {"total_time": "2.4s"}))
    assert row["e2e_ns"] == 1300 * MS


def test_a_time_that_is_none_is_not_known(engine_store):
    texts = ["", "-1s", "1e300s", "s", "1.2 s", "99999999999999999999s", "NaNs", "1.2min", 1.2]
    names = ("total_time", "queue_time", "inference_time", "time_per_token")
    rows = insert(engine_store, *(("generate", dict.fromkeys(names, text)) for text in texts))
    found = [(row["queue_ns"], row["output_tokens"], row["ttft_ns"], row["e2e_ns"]) for row in rows]
    assert found == [(None, None, None, 1300 * MS)] * len(texts)
