"""Recordings of a real Dynamo, around its mock engine, against what its clients measured."""

import json

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.otlp.checked import ItemLimits
from collector.otlp.logs import check
from collector.otlp.signals import LOGS
from collector.store.insert import insert_otlp
from tests.collector.otlp.test_logs import UNREAD_RECORDS
from tests.collector.otlp.test_logs import request as log_record
from tests.support.otlp import MS, T0, set_attributes
from tests.support.recordings import (
    Recording,
    assert_agreement,
    billed,
    e2e_differences,
    join,
    of_lines,
    requests,
    rows_of,
    spread,
    spreads_on,
    tokens_of,
    ttft_differences,
)

RUNS = ("agg", "kv-pressure", "disagg", "disagg-overload")
AGG, PRESSED, DISAGG, OVERLOADED = RUNS


def request_id(line):
    return line["response_id"]


def is_sampled(line):
    return not (line["traceparent"] or "01").endswith("00")


@pytest.fixture(scope="module")
def runs(engine_store):
    found, before = {}, set()
    for name in RUNS:
        recording = Recording(f"dynamo/dynamo-1.6.1-{name}.tar.xz")
        recording.replay(engine_store)
        rows = rows_of(engine_store)
        found[name] = recording, {key: row for key, row in rows.items() if key not in before}
        before = set(rows)
    return found


def sampled(recording):
    return [line for line in recording.completed if is_sampled(line)]


@pytest.mark.parametrize(
    ("run", "requests", "failed", "cancelled"),
    [
        (AGG, 38, {"400"}, 2),
        (PRESSED, 48, set(), 3),
        (DISAGG, 30, set(), 2),
        (OVERLOADED, 38, {"400", "404", "500", "503"}, 2),
    ],
)
def test_every_request_is_one_row_with_its_status(runs, run, requests, failed, cancelled):
    recording, rows = runs[run]
    assert len(rows) == requests
    assert {row["engine"] for row in rows.values()} == {"dynamo"}
    assert {request_id(line) for line in sampled(recording)} <= rows.keys()
    aborted = {request_id(line) for line in recording.client if line.get("aborted")}
    assert {key for key, row in rows.items() if row["status"] == "cancelled"} == aborted
    assert len(aborted) == cancelled
    errors = [row["error_type"] for row in rows.values() if row["status"] == "error"]
    refused = [line for line in recording.client if line["status"] >= 400 and is_sampled(line)]
    assert sorted(errors) == sorted(str(line["status"]) for line in refused)
    assert set(errors) == failed


@pytest.mark.parametrize(
    ("run", "ttft_s", "e2e_s"),
    [(AGG, 0.050, 0.050), (PRESSED, 0.180, 0.180), (DISAGG, 0.080, 0.120), (OVERLOADED, 0.490, 0.170)],
)
def test_ttft_and_e2e_are_those_of_the_client(runs, run, ttft_s, e2e_s):
    recording, rows = runs[run]
    assert_agreement(ttft_differences(of_lines(sampled(recording), rows, request_id)), most_s=ttft_s)
    assert_agreement(e2e_differences(of_lines(sampled(recording), rows, request_id)), most_s=e2e_s)


@pytest.mark.parametrize("run", [PRESSED, OVERLOADED])
def test_with_lifecycle_tracing_an_aborted_request_has_its_ttft(runs, run):
    recording, rows = runs[run]
    aborted = [line for line in recording.client if line.get("aborted")]
    assert_agreement(ttft_differences(of_lines(aborted, rows, request_id)))


def test_the_page_states_how_far_they_are_apart(runs):
    found = [of_lines(sampled(recording), rows, request_id) for recording, rows in runs.values()]
    assert [(spread(ttft_differences(run)), spread(e2e_differences(run))) for run in found] == spreads_on("dynamo.md")


@pytest.mark.parametrize("run", RUNS)
def test_tokens_are_what_the_client_was_billed(runs, run):
    recording, rows = runs[run]
    for line in sampled(recording):
        row = rows[request_id(line)]
        assert tokens_of(row) == billed(line)
        if run in (AGG, PRESSED):  # the usage of divided workers is the decode worker's, which has no prefix cache
            assert row["cached_tokens"] == line["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert row["model"] == "smollm2-135m"
        assert row["decode_ns"] == row["e2e_ns"] - row["ttft_ns"]
        assert row["queue_ns"] is None
        assert row["preemptions"] is None


def test_a_request_whose_trace_is_not_sampled_is_a_row_of_its_log_record(runs):
    recording, rows = runs[AGG]
    lines = [line for line in recording.completed if not is_sampled(line)]
    assert len(lines) == 6

    def bare(line):
        return line["response_id"].split("-", 1)[1]

    for line in lines:
        row = rows[bare(line)]
        assert row["trace_id"] == bytes.fromhex(bare(line).replace("-", ""))
        assert (row["status"], row["model"]) == ("ok", "")
        assert tokens_of(row) == billed(line)
    # A record's times have whole ms, and it begins when the body has been read.
    assert_agreement(ttft_differences(of_lines(lines, rows, bare)), median_s=0.030, most_s=0.180)
    assert_agreement(e2e_differences(of_lines(lines, rows, bare)), median_s=0.030, most_s=0.180)


def test_a_request_that_was_left_before_its_answer_lasts_until_then(engine_store):
    """With lifecycle tracing its span ends after some milliseconds. A streamed text completion said 0 input tokens."""
    recording = Recording("dynamo/dynamo-1.6.1-left.tar.xz")
    recording.replay(engine_store)
    rows = requests(engine_store, f"start >= fromUnixTimestamp64Nano({recording.client[0]['send_unix_ns']})")
    assert [row["status"] for row in rows] == [line["status"] for line in recording.client]
    assert [row["input_tokens"] for row in rows] == [138, 5, 138, 138]
    for row, line in zip(rows, recording.client, strict=True):
        assert 0 <= line["end_ns"] - row["e2e_ns"] < 80 * MS, line["what"]
        assert (row["end"] - row["start"]).total_seconds() == pytest.approx(row["e2e_ns"] / 1e9, abs=1e-6)
        assert row["ttft_ns"] < row["e2e_ns"]
    messages = [ExportTraceServiceRequest.FromString(body) for body in recording.bodies["traces"]]
    spans = {span.span_id: span for m in messages for r in m.resource_spans for s in r.scope_spans for span in s.spans}
    whole = spans[rows[0]["span_id"]]
    assert rows[0]["e2e_ns"] == whole.end_time_unix_nano - whole.start_time_unix_nano, "that of an answer is its span's"


def test_of_divided_workers_a_log_record_alone_has_no_ttft(engine_store):
    recording = Recording(f"dynamo/dynamo-1.6.1-{DISAGG}.tar.xz")
    for table in ("requests", "held_requests", "held_spans", "joined_segments"):
        engine_store.client().command(f"TRUNCATE TABLE {table}")
    recording.bodies["logs"] = [b"".join(recording.bodies["logs"]) + ExportLogsServiceRequest().SerializeToString()]
    recording.file = "logs alone"
    recording.replay(engine_store, {"logs"})
    rows = rows_of(engine_store)
    assert len(rows) == 30
    assert {row["ttft_ns"] for row in rows.values()} == {None}
    assert {row["tpot_ns"] for row in rows.values()} == {None}
    # The spans come after the records became rows: they are not counted again.
    recording.replay(engine_store, {"traces"})
    assert len(rows_of(engine_store)) == 30


def test_nothing_is_left_unclaimed(engine_store, runs):
    assert engine_store.query("SELECT name, count() FROM spans GROUP BY name").result_rows == []


PAYLOADS = [
    ("no JSON", 0),
    ("{}", 0),
    (json.dumps({"request": {"total_time_ms": "1e400", "ttft_ms": 5, "output_tokens": 7}}), 0),
    (json.dumps({"request": {"total_time_ms": -1, "ttft_ms": 5, "output_tokens": 7}}), 0),
    (json.dumps({"request": {"total_time_ms": 1e12, "ttft_ms": -1, "worker": "x"}}), 0),
    (json.dumps({"request": {"total_time_ms": 1e300}}), 0),
    (json.dumps({"request": "x" * 1000}), 0),
    (json.dumps({"request": {"total_time_ms": 9, "ttft_ms": [1], "output_tokens": -1, "input_tokens": 1e300}}), 1),
    (json.dumps({"request": {"total_time_ms": 9, "ttft_ms": 10, "worker": "x"}}), 1),
]
"""Payloads of log records, and how many requests each is."""


@pytest.fixture(scope="module")
def hostile(engine_store):
    """Insert each payload with three ids, of which the first is its own and one that names a trace: the rows of all."""
    for table in ("requests", "held_requests", "held_spans", "joined_segments"):
        engine_store.client().command(f"TRUNCATE TABLE {table}")
    message = ExportLogsServiceRequest()
    scoped = message.resource_logs.add().scope_logs.add()
    scoped.scope.name = "dynamo.request_trace"
    for n, (payload, _) in enumerate(PAYLOADS):
        for rid in (f"00000000-0000-4000-8000-{n:012x}", "no uuid", "00000000-0000-0000-0000-000000000000"):
            record = scoped.log_records.add(time_unix_nano=1_795_000_000_000_000_000)
            for key, value in {"event_type": "request_end", "rid": rid, "payload": payload}.items():
                record.attributes.add(key=key).value.string_value = value
                record.attributes.add(key=key).value.string_value = "again"
    insert_otlp(engine_store, LOGS, message.SerializeToString(), "hostile")
    join(engine_store)
    return requests(engine_store)


def test_hostile_log_records_are_the_requests_of_good_ids_alone(hostile):
    traces = {bytes.fromhex(f"00000000000040008000{n:012x}") for n in range(len(PAYLOADS))}
    assert {row["trace_id"] for row in hostile} <= traces


@pytest.mark.parametrize("n", range(len(PAYLOADS)))
def test_a_hostile_log_record_neither_fails_nor_lies(hostile, n):
    found = [row for row in hostile if row["trace_id"].hex() == f"00000000000040008000{n:012x}"]
    assert len(found) == PAYLOADS[n][1], "an E2E that is not known is not 0"
    assert {(*tokens_of(row), row["ttft_ns"]) for row in found} <= {(None, None, None)}


def test_the_check_of_log_records_reads_those_that_the_views_read(engine_store):
    messages = [log_record(T0), *(log_record(T0, **attributes) for attributes in UNREAD_RECORDS)]
    twice = log_record(T0)
    set_attributes(twice.resource_logs[0].scope_logs[0].log_records[0], {"event_type": "x", "rid": ""})
    messages.append(twice)
    for n, message in enumerate(messages):
        engine_store.client().command("TRUNCATE TABLE held_spans")
        insert_otlp(engine_store, LOGS, message.SerializeToString(), f"record {n}")
        sql = "SELECT count() FROM held_spans WHERE claim = 'dynamo.held.log'"
        (read,) = engine_store.query(sql).result_rows[0]
        assert read == (check(message.SerializeToString(), ItemLimits()).unwanted.total() == 0), message
