"""Spans as text-generation-inference's router would send them, made by hand from its source: there is no recording."""

import itertools

import pytest

from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request

TRACE = itertools.count(1)
TIMES = {
    "total_time": "1.234567s", "validation_time": "740.5µs", "queue_time": "15.2ms", "inference_time": "1.2s",
    "time_per_token": "24ms", "seed": "None",
}  # fmt: skip


def insert(store, name="generate", **changed):
    trace = next(TRACE)
    request = Request(scope="text-generation-router", **{"service.name": "llama"})
    request.span(name, trace=trace, ns=1300 * MS, attributes=TIMES | changed)
    insert_otlp(store, TRACES, request.body(), f"tgi-{trace}")
    (row,) = store.query(f"SELECT * FROM requests WHERE trace_id = unhex('{trace:032x}')").named_results()
    return row


def test_its_times_are_read_in_every_unit(engine_store):
    row = insert(engine_store)
    assert (row["engine"], row["status"], row["model"], row["operation"]) == ("tgi", "ok", "llama", "text_completion")
    assert row["e2e_ns"] == row["ttft_ns"] == 1_234_567_000
    assert row["queue_ns"] == 15_940_500
    assert row["output_tokens"] == 50
    assert (row["tpot_ns"], row["input_tokens"], row["prefill_ns"]) == (None, None, None)
    assert insert(engine_store, total_time="90ns", queue_time="1ns", validation_time="2ns")["queue_ns"] == 3


@pytest.mark.parametrize("name", ["generate_stream", "chat_completions", "completions"])
def test_a_request_that_may_have_been_streamed_has_no_ttft(engine_store, name):
    row = insert(engine_store, name)
    assert (row["ttft_ns"], row["output_tokens"], row["e2e_ns"]) == (None, 50, 1_234_567_000)


@pytest.mark.parametrize("text", ["", "-1s", "1e300s", "s", "1.2 s", "99999999999999999999s", "NaNs", "1.2min", 1.2])
def test_a_time_that_is_none_is_not_known(engine_store, text):
    row = insert(engine_store, **dict.fromkeys(("total_time", "queue_time", "inference_time", "time_per_token"), text))
    assert (row["queue_ns"], row["output_tokens"], row["ttft_ns"]) == (None, None, None)
    assert row["e2e_ns"] == 1300 * MS
