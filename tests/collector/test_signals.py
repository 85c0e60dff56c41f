"""A second signal is a second row: nothing in the collector names traces but that row."""

import json

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from collector.receive.checked import Checked
from collector.receive.errors import MalformedError
from collector.service import Service
from collector.settings import Settings
from collector.signals import SIGNALS, TRACES, Signal
from tests.support.otlp import T0, token_body

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
TABLES = [
    """CREATE TABLE landed_metrics (resource_metrics Array(Tuple(scope_metrics Array(Tuple(metrics Array(Tuple(
           name String, gauge Tuple(data_points Array(Tuple(time_unix_nano UInt64, as_double Float64)))))))))) ENGINE = Null
    """,
    """CREATE TABLE points (name String, value Float64) ENGINE = MergeTree ORDER BY name
       SETTINGS non_replicated_deduplication_window = 100""",
    """CREATE MATERIALIZED VIEW points_of_metrics TO points AS
       SELECT metric.name AS name, point.as_double AS value FROM landed_metrics
       ARRAY JOIN resource_metrics AS resource ARRAY JOIN resource.scope_metrics AS scope
       ARRAY JOIN scope.metrics AS metric ARRAY JOIN metric.gauge.data_points AS point""",
]


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
