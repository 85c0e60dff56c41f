"""Recordings of a real SGLang against what its clients measured."""

import itertools
import statistics

import pytest

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request
from tests.support.recordings import (
    NS,
    Recording,
    assert_agreement,
    billed,
    e2e_differences,
    join,
    of_lines,
    phases_partition,
    requests,
    rows_of,
    spread,
    spreads_on,
    tokens_of,
    ttft_differences,
)

RUNS = ("sglang-0.5.23", "sglang-0.5.23-kv-pressure", "sglang-0.5.23-retract")
CALM, PRESSED, RETRACTED = RUNS


def request_id(line):
    return line["response_id"]


def is_sampled(line):
    return not (line["traceparent"] or "01").endswith("00")


@pytest.fixture(scope="module")
def runs(engine_store):
    """Each recording with its rows by request id."""
    found, before = {}, set()
    for name in RUNS:
        recording = Recording(f"sglang/{name}.tar.xz")
        recording.replay(engine_store)
        rows = rows_of(engine_store)
        found[name] = recording, {key: row for key, row in rows.items() if key not in before}
        before = set(rows)
    return found


def sampled(recording):
    return [line for line in recording.completed if is_sampled(line)]


def tokens(store, row):
    sql = """
        SELECT duration_us FROM tokens
        WHERE trace_id = unhex({t:String}) AND request_span_id = unhex({s:String}) ORDER BY token_index
    """
    found = store.query(sql, {"t": row["trace_id"].hex(), "s": row["span_id"].hex()}).result_rows
    return [us for (us,) in found]


@pytest.mark.parametrize(("run", "requests", "cancelled"), [(CALM, 24, 3), (PRESSED, 25, 0), (RETRACTED, 16, 0)])
def test_every_sampled_request_of_a_client_is_one_row(runs, run, requests, cancelled):
    recording, rows = runs[run]
    assert len(rows) == requests
    assert {request_id(line) for line in sampled(recording)} <= rows.keys()
    assert {row["engine"] for row in rows.values()} == {"sglang"}
    aborted = {request_id(line) for line in recording.client if line.get("aborted")}
    assert {key for key, row in rows.items() if row["status"] == "cancelled"} == aborted
    assert len(aborted) == cancelled
    assert {row["status"] for key, row in rows.items() if key not in aborted} == {"ok"}


@pytest.mark.parametrize(("run", "most_s"), [(CALM, 0.050), (PRESSED, 0.150), (RETRACTED, 0.150)])
def test_ttft_and_e2e_are_those_of_the_client(runs, run, most_s):
    recording, rows = runs[run]
    assert_agreement(ttft_differences(of_lines(sampled(recording), rows, request_id)), most_s=most_s)
    assert_agreement(e2e_differences(of_lines(sampled(recording), rows, request_id)))


def test_the_page_states_how_far_they_are_apart(runs):
    found = [of_lines(sampled(recording), rows, request_id) for recording, rows in runs.values()]
    assert [(spread(ttft_differences(run)), spread(e2e_differences(run))) for run in found] == spreads_on("sglang.md")


@pytest.mark.parametrize("run", RUNS)
def test_tokens_are_what_the_client_was_billed(runs, run):
    recording, rows = runs[run]
    for line in sampled(recording):
        row = rows[request_id(line)]
        assert tokens_of(row) == billed(line)
        assert row["cached_tokens"] == line["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert row["finish_reason"] == line["finish_reason"]
        assert row["model"] == "smollm2-135m"


@pytest.mark.parametrize("run", RUNS)
def test_every_token_has_its_time(engine_store, runs, run):
    recording, rows = runs[run]
    apart = []
    for line in sampled(recording):
        row = rows[request_id(line)]
        durations_us = tokens(engine_store, row)
        assert len(durations_us) == row["output_tokens"]
        assert durations_us[0] == row["ttft_ns"] // 1000
        if line["stream"] and len(line["chunks"]) == len(durations_us):
            made_us = itertools.accumulate(durations_us)
            sent_after_s = (line["send_unix_ns"] - row["start_ns"]) * NS
            apart += [sent_after_s + ns * NS - us * 1e-6 for ns, us in zip(line["chunks"], made_us, strict=True)]
    assert statistics.median(apart) == pytest.approx(0.006, abs=0.002)
    assert all(-0.001 < seconds < 0.4 for seconds in apart)
    assert len(apart) >= 180


def test_an_aborted_request_has_the_tokens_that_were_made(engine_store, runs):
    _, rows = runs[CALM]
    aborted = [row for row in rows.values() if row["status"] == "cancelled"]
    assert sorted(len(tokens(engine_store, row)) for row in aborted) == [3, 5, 7]


@pytest.mark.parametrize("run", RUNS)
def test_the_longest_gap_is_that_of_its_tokens(engine_store, runs, run):
    _, rows = runs[run]
    told = 0
    for row in rows.values():
        first_us, *waits = tokens(engine_store, row) or [0]
        if row["status"] != "ok":
            waits.append(row["e2e_ns"] // 1000 - first_us - sum(waits))
        if row["gap_ns"] is not None:
            assert row["gap_ns"] == 1000 * max(waits, default=0)
            assert row["gap_index"] == (1 + waits.index(max(waits)) if row["gap_ns"] else None)
            told += len(waits) > 1
    assert told >= 15


def test_phases_partition_every_request_and_are_its_columns(engine_store, runs):
    assert phases_partition(engine_store) == 24 + 25 + 16
    for _, rows in runs.values():
        for row in rows.values():
            parts = [row[f"{name}_ns"] for name in ("queue", "prefill", "decode", "preempted")]
            assert sum(parts) == row["e2e_ns"]


def test_under_pressure_requests_wait_in_the_queue(runs):
    _, rows = runs[PRESSED]
    assert max(row["queue_ns"] for row in rows.values()) * NS == pytest.approx(12.75, abs=0.01)
    assert {row["preemptions"] for row in rows.values()} == {0}


def test_a_retraction_is_a_preemption_with_its_wait(engine_store, runs):
    recording, rows = runs[RETRACTED]
    retracted = [row for row in rows.values() if row["preemptions"]]
    assert [row["preemptions"] for row in retracted] == [1] * 5
    assert all(row["preempted_ns"] > 100e6 for row in retracted)
    assert all(row["preempted_ns"] == 0 for row in rows.values() if not row["preemptions"])
    assert len(sampled(recording)) == 15


def test_nothing_is_left_unclaimed(engine_store, runs):
    assert engine_store.query("SELECT name, count() FROM spans GROUP BY name").result_rows == []


ABORTS = {  # tokens of the request that its client left while it waited, and of the one that was left while it decoded
    "sglang-0.5.23-aborts": ("tiny", 3, 414),
    "sglang-0.5.23-aborts-inside": ("sglang", 0, 417),
}


@pytest.mark.parametrize("run", ABORTS)
def test_clients_that_leave_a_waiting_and_a_decoding_request_cancel_it(engine_store, run):
    """One request runs at a time. SGLang asks itself for a token too, for its health: that is no row."""
    service, of_waiting, of_decoding = ABORTS[run]
    recording = Recording(f"sglang/{run}.tar.xz")
    recording.replay(engine_store)
    since = f"start >= fromUnixTimestamp64Nano({recording.client[0]['send_unix_ns']})"
    first, decoding, waiting, last = requests(engine_store, f"service = '{service}' AND {since}")
    assert [row["status"] for row in (first, decoding, waiting, last)] == ["ok", "cancelled", "cancelled", "ok"]
    assert [row["output_tokens"] for row in (first, decoding, waiting, last)] == [8, of_decoding, of_waiting, 8]
    assert [len(tokens(engine_store, row)) for row in (decoding, waiting)] == [of_decoding, of_waiting]
    left = {line["what"].removeprefix("left while it "): line for line in recording.client if line["aborted"]}
    assert 0 < decoding["e2e_ns"] - left["decoded"]["end_ns"] < 15e6, "the scheduler hears of it with the next token"
    assert waiting["e2e_ns"] > left["waited"]["end_ns"] + 1.9e9, "it hears of it late: SGLang looks every 4 s"
    assert (waiting["ttft_ns"] is None) == (of_waiting == 0)
    assert waiting["queue_ns"] > 2.4e9
    assert sum(row["queue_ns"] + (row["prefill_ns"] or 0) + (row["decode_ns"] or 0) for row in (decoding, waiting)) == (
        decoding["e2e_ns"] + waiting["e2e_ns"]
    )


def test_a_request_of_disaggregated_servers_is_the_decode_servers_row(engine_store, runs):
    """Spans made by hand from SGLang's source (`srt/observability/trace.py`)."""
    for span, (server, ms, tokens) in enumerate([("prefill", 40, 1), ("decode", 90, 12)], 1):
        sent = Request(scope="sglang", **{"service.name": "pd", "service.instance.id": server})
        attributes = {"module": "sglang::request", "rid": server, "bootstrap_room": "0x1f"}
        latencies = {"gen_ai.latency.time_to_first_token": ms / 2000, "gen_ai.usage.completion_tokens": tokens}
        sent.span(f"{server} Req 0123abcd", trace=span, span=span, ns=ms * MS, attributes=attributes | latencies)
        insert_otlp(engine_store, TRACES, sent.body(), server)
    join(engine_store)
    (row,) = requests(engine_store, "service = 'pd'")
    assert (row["instance"], row["ttft_ns"], row["e2e_ns"], row["output_tokens"]) == ("decode", 45 * MS, 90 * MS, 12)
    assert row["queue_ns"] is row["prefill_ns"] is row["decode_ns"] is None
