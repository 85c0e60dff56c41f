"""A second signal is a second row: nothing in the collector names traces but that row."""

import json
import time
from collections import Counter
from dataclasses import replace

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from collector.app.service import Service
from collector.otlp.checked import Checked
from collector.otlp.errors import MalformedError
from collector.otlp.signals import LOGS, SIGNALS, TRACES, Signal
from collector.pipeline.settings import Settings
from tests.support.otlp import T0, token_body
from tests.support.stores import new_store

PROTOBUF = {"content-type": "application/x-protobuf"}
SCHEMA = """
syntax = "proto3";
message Point { fixed64 time_unix_nano = 3; double as_double = 4; }
message Gauge { repeated Point data_points = 1; }
message Metric { string name = 1; Gauge gauge = 5; }
message ScopeMetrics { repeated Metric metrics = 2; }
message ResourceMetrics { repeated ScopeMetrics scope_metrics = 2; }
message MetricsData { repeated ResourceMetrics resource_metrics = 1; }
"""
LANDING = """
CREATE TABLE landed_metrics (
    resource_metrics Array(Tuple(scope_metrics Array(Tuple(metrics Array(Tuple(
        name String, gauge Tuple(data_points Array(Tuple(time_unix_nano UInt64, as_double Float64)))))))))
) ENGINE = Null
"""
POINTS = """
CREATE TABLE points (name String, value Float64) ENGINE = MergeTree ORDER BY name
SETTINGS non_replicated_deduplication_window = 100
"""
VIEW = """
CREATE MATERIALIZED VIEW points_of_metrics TO points AS
SELECT metric.name AS name, point.as_double AS value FROM landed_metrics
ARRAY JOIN resource_metrics AS resource ARRAY JOIN resource.scope_metrics AS scope
ARRAY JOIN scope.metrics AS metric ARRAY JOIN metric.gauge.data_points AS point
"""


def check_metrics(body, limits):
    """Rejects points without a time."""
    try:
        request = ExportMetricsServiceRequest.FromString(body)
    except ValueError as error:
        raise MalformedError("no ExportMetricsServiceRequest") from error
    total, rejected = 0, 0
    for metric in (m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics):
        points = metric.gauge.data_points
        total += len(points)
        for index in reversed(range(len(points))):
            if points[index].time_unix_nano == 0:
                del points[index]
                rejected += 1
    if not rejected:
        return Checked(body, total)
    return Checked(request.SerializeToString(), total, Counter(time=rejected), f"{rejected} without a time")


def gauge(name, *values, time=T0):
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    for value in values:
        metric.gauge.data_points.add(time_unix_nano=time, as_double=value)
    return request


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """A signal of these tests, in the place of the collector's metrics."""
    schema = tmp_path_factory.mktemp("schema") / "metrics.proto"
    schema.write_text(SCHEMA)
    return Signal(
        name="metrics",
        items="data_points",
        http_path="/v1/metrics",
        grpc_service="opentelemetry.proto.collector.metrics.v1.MetricsService",
        request=ExportMetricsServiceRequest,
        response=ExportMetricsServiceResponse,
        check=check_metrics,
        without_misread=lambda payload: (payload, b""),
        halves=lambda payload: None,
        wal_folder="wal_metrics",
        landing_table="landed_metrics",
        schema_file=schema,
        schema_message="MetricsData",
    )


class Running:
    """A service with several signals on one store."""

    def __init__(self, data_dir, signals, **settings):
        free = "127.0.0.1:0"
        defaults = {"otlp_http": free, "otlp_grpc": free, "api": free, "segment_age_s": 0.05, "drain_timeout_s": 20.0}
        self.data_dir = data_dir
        if not (data_dir / "store").exists():
            new_store(data_dir / "store")
        self.service = Service(Settings(data_dir=data_dir, **(defaults | settings)), signals)
        self.http = httpx.Client(trust_env=False, timeout=120)

    def start(self):
        self.service.start()
        return self

    def post(self, path, body, **headers):
        return self.http.post(self.service.listeners["otlp-http"] + path, content=body, headers=PROTOBUF | headers)

    def ask(self, sql):
        return self.service.store.query(sql).result_rows

    def snapshot(self):
        return self.service.status.snapshot()


def started(folder, metrics, **settings):
    running = Running(folder / "data", (TRACES, LOGS, metrics), **settings)
    for statement in (LANDING, POINTS, VIEW):
        running.service.store.client().command(statement)
    return running.start()


@pytest.fixture
def run(tmp_path, metrics):
    """Starts a service, and stops it."""
    services = []

    def start(*, check=check_metrics, **settings):
        services.append(started(tmp_path, replace(metrics, check=check), **settings))
        return services[-1]

    yield start
    for running in services:
        running.service.stop()


@pytest.fixture(scope="class")
def running(tmp_path_factory, metrics):
    """A process may have one store open at a time, so a class gives it back."""
    running = started(tmp_path_factory.mktemp("running"), metrics)
    yield running
    running.service.stop()


def eventually(read, wanted, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while (found := read()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


class TestRunning:
    """One service for the tests that leave it as it is, but for rows and counts."""

    def test_a_second_signal_goes_beside_traces_from_both_receivers_to_its_own_rows(self, running):
        assert running.post("/v1/metrics", gauge("kv", 0.25, 0.5).SerializeToString()).status_code == 200
        assert running.post("/v1/traces", token_body(count=3)).status_code == 200
        with grpc.insecure_channel(running.service.listeners["otlp-grpc"].removeprefix("http://")) as channel:
            export = channel.unary_unary("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export")
            assert export(gauge("waiting", 7).SerializeToString(), timeout=120, wait_for_ready=True) == b""
        eventually(
            lambda: running.ask("SELECT name, value FROM points ORDER BY ALL"),
            [("kv", 0.25), ("kv", 0.5), ("waiting", 7)],
        )
        eventually(lambda: running.ask("SELECT count() FROM tokens"), [(3,)])
        assert dict(running.snapshot().items_received) == {"data_points": 3, "spans": 3}
        assert running.snapshot().spans_received == 3

    def test_a_second_signal_has_its_own_json_and_partial_success(self, running):
        document = {
            "resourceMetrics": [
                {
                    "scopeMetrics": [
                        {
                            "metrics": [
                                {
                                    "name": "json",
                                    "gauge": {
                                        "dataPoints": [
                                            {
                                                "timeUnixNano": str(T0),
                                                "asDouble": 1,
                                                "exemplars": [{"traceId": "ab" * 16}],
                                            },
                                            {"timeUnixNano": "0", "asDouble": 2},
                                        ]
                                    },
                                }
                            ]
                        }
                    ]
                }
            ]
        }
        answer = running.post("/v1/metrics", json.dumps(document), **{"content-type": "application/json"})
        assert answer.json() == {"partialSuccess": {"rejectedDataPoints": "1", "errorMessage": "1 without a time"}}
        eventually(lambda: running.ask("SELECT value FROM points WHERE name = 'json'"), [(1,)])
        assert running.snapshot().items_rejected["data_points"] == {"time": 1}
        assert running.snapshot().spans_rejected == {}

    def test_a_second_signal_waits_in_its_own_log_while_traces_go_on(self, running):
        running.service.store.client().command("DROP TABLE points SYNC")
        body = gauge("kv", 0.25).SerializeToString()
        assert running.post("/v1/metrics", body).status_code == 200
        eventually(lambda: running.snapshot().ready, wanted=False)
        assert "does not take data of metrics" in running.snapshot().reason
        assert running.post("/v1/traces", token_body(trace=2, count=3)).status_code == 200
        eventually(lambda: running.ask("SELECT count() FROM tokens"), [(6,)])
        eventually(lambda: running.snapshot().wal_segments_pending, 1)
        assert "does not take data of metrics" in running.snapshot().reason, "traces that go on do not hide it"
        assert len(list((running.data_dir / "wal_metrics").glob("*.wal"))) == 1
        running.service.store.client().command(POINTS)
        eventually(lambda: running.ask("SELECT name, value FROM points"), [("kv", 0.25)])
        eventually(lambda: running.snapshot().ready, wanted=True)
        assert running.post("/v1/metrics", body).status_code == 200
        assert running.snapshot().payloads_duplicate == 1

    def test_other_paths_name_every_signal(self, running):
        message = running.post("/v1/profiles", b"").json()["message"]
        assert "logs: POST an OTLP ExportLogsServiceRequest to /v1/logs" in message
        assert "traces: POST an OTLP ExportTraceServiceRequest to /v1/traces" in message
        assert "metrics: POST an OTLP ExportMetricsServiceRequest to /v1/metrics" in message


def test_a_dead_letter_names_its_signal(run):
    running = run(check=lambda body, _: Checked(body, 1))
    assert running.post("/v1/metrics", b"\x0a\x05abc").status_code == 200
    assert running.service.stop()
    (why,) = (running.data_dir / "dead_letters").glob("*.json")
    assert json.loads(why.read_text())["signal"] == "metrics"
    assert why.with_suffix(".bin").read_bytes() == b"\x0a\x05abc"


def test_stopping_drains_every_signal(run):
    running = run(segment_age_s=3600.0)
    assert running.post("/v1/metrics", gauge("kv", 1).SerializeToString()).status_code == 200
    assert running.post("/v1/traces", token_body(count=3)).status_code == 200
    assert running.service.stop()
    assert list(running.data_dir.glob("wal*/*.wal")) == []


def test_the_rows_of_the_table_do_not_share_what_must_be_their_own():
    for name in ("name", "items", "http_path", "grpc_service", "wal_folder", "landing_table"):
        assert len({getattr(signal, name) for signal in SIGNALS}) == len(SIGNALS), name
    assert TRACES.wal_folder == "wal", "where every installed collector has its log"
