"""The OTLP signals that the collector receives: one row each in `SIGNALS`.

The service runs one chain of log, commit and writer for each row, and both receivers answer for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from collector.otlp import divide, logs, tokens, validate
from collector.otlp import metrics as samples
from collector.otlp.checked import Checked, ItemLimits
from collector.otlp.runs import Body
from collector.otlp.tokens import Columns

_SCHEMA: Final = Path(__file__).parents[1] / "sql" / "schema"


@dataclass(frozen=True, eq=False)
class PlainRows:
    """Rows of one table that the collector reads as columns. They are those that the views would make."""

    table: str
    types: Mapping[str, str]
    """ClickHouse's types of the columns, by name."""
    apart: Callable[[Body], tuple[Columns | None, bytes]]
    """Returns the columns of such rows of a request, if it has any, and the rest, which the store must decode."""


@dataclass(frozen=True)
class Signal:
    """One OTLP signal: how its requests arrive, are checked, wait in a log and are inserted."""

    name: str
    """OpenTelemetry's name of the signal. Log lines, dead letters and readiness reasons carry it."""
    items: str
    """The parts of a request that are counted and rejected singly; `partial_success` has a field `rejected_ITEMS`."""
    http_path: str
    grpc_service: str
    request: type[Any]
    """Protobuf class of a request, without which the receivers cannot read JSON."""
    response: type[Any]
    check: Callable[[bytes, ItemLimits], Checked]
    """Takes the items out that cannot be stored; raises `MalformedError` when the bytes are not a request."""
    without_misread: Callable[[bytes], tuple[bytes, bytes]]
    """Divides a payload that the store cannot read: the request without the items at fault, and one of them alone."""
    halves: Callable[[bytes], tuple[bytes, bytes] | None]
    """Divides a payload that is too large for the store's memory; None when it has one item."""
    wal_folder: str
    """Folder of the signal's write-ahead log in the data folder. A rename loses the payloads that wait in it."""
    landing_table: str
    """The table that requests are inserted into; materialised views read it."""
    schema_file: Path
    """Protobuf schema by which ClickHouse decodes a request."""
    schema_message: str
    """The message of a request in it."""
    plain: PlainRows | None = None
    brings_samples: bool = False
    """Its segments bring samples of engines and no requests. Those of the other signals bring no samples."""


TRACES: Final = Signal(
    name="traces",
    items="spans",
    http_path="/v1/traces",
    grpc_service="opentelemetry.proto.collector.trace.v1.TraceService",
    request=ExportTraceServiceRequest,
    response=ExportTraceServiceResponse,
    check=validate.check,
    without_misread=divide.without_misread,
    halves=divide.halves,
    wal_folder="wal",
    landing_table="otlp_traces",
    schema_file=_SCHEMA / "otlp_traces.proto",
    schema_message="TracesData",
    plain=PlainRows(tokens.TABLE, tokens.TYPES, tokens.tokens_apart),
)

LOGS: Final = Signal(
    name="logs",
    items="log_records",
    http_path="/v1/logs",
    grpc_service="opentelemetry.proto.collector.logs.v1.LogsService",
    request=ExportLogsServiceRequest,
    response=ExportLogsServiceResponse,
    check=logs.check,
    without_misread=partial(divide.without_misread, request=ExportLogsServiceRequest),
    halves=partial(divide.halves, request=ExportLogsServiceRequest),
    wal_folder="wal_logs",
    landing_table="otlp_logs",
    schema_file=_SCHEMA / "otlp_logs.proto",
    schema_message="LogsData",
)

METRICS: Final = Signal(
    name="metrics",
    items="data_points",
    http_path="/v1/metrics",
    grpc_service="opentelemetry.proto.collector.metrics.v1.MetricsService",
    request=ExportMetricsServiceRequest,
    response=ExportMetricsServiceResponse,
    check=samples.check,
    without_misread=samples.without_misread,
    halves=samples.halves,
    wal_folder="wal_metrics",
    landing_table="otlp_metrics",
    schema_file=_SCHEMA / "otlp_metrics.proto",
    schema_message="MetricsData",
    brings_samples=True,
)

SIGNALS: Final = (TRACES, LOGS, METRICS)
