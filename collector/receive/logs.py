"""Checks of log records before they are stored."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from collector.receive.checked import Checked, ItemLimits
from collector.receive.errors import MalformedError
from collector.receive.validate import DAY_NS, EARLIEST_NS, LATEST_NS


class Reason(StrEnum):
    """The reasons for which a log record is not stored."""

    TIME = "time"
    FUTURE = "future"
    TOO_MANY_ATTRIBUTES = "too_many_attributes"
    TOO_LARGE = "too_large"


EXPLANATION: Final = {
    Reason.TIME: "its time, or the time of its observation, must be unix nanoseconds between the years 2000 and 2100",
    Reason.FUTURE: "its time is later than TOKENTRAIL_MAX_FUTURE_S from now; is the sender's clock right?",
    Reason.TOO_MANY_ATTRIBUTES: "more attributes than TOKENTRAIL_MAX_SPAN_ATTRIBUTES",
    Reason.TOO_LARGE: "larger than TOKENTRAIL_MAX_SPAN_BYTES",
}


def check(body: bytes, limits: ItemLimits) -> Checked:
    """Take out the records of a request that cannot be stored; raises `MalformedError`."""
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError as error:
        msg = f"the body is not an OTLP ExportLogsServiceRequest: {error}"
        raise MalformedError(msg) from error
    latest_ns = limits.latest_ns()
    total = 0
    rejected: Counter[str] = Counter()
    days: set[int] = set()
    for resource_logs in request.resource_logs:
        for scope_logs in resource_logs.scope_logs:
            records = scope_logs.log_records
            total += len(records)
            for index in range(len(records) - 1, -1, -1):
                if reason := _reason(records[index], limits, latest_ns):
                    rejected[reason] += 1
                    del records[index]
                else:
                    days.add(time_of(records[index]) // DAY_NS)
    if rejected:
        body = request.SerializeToString() if rejected.total() < total else b""
    message = "; ".join(
        f"{count} log records: {EXPLANATION[Reason(reason)]}" for reason, count in sorted(rejected.items())
    )
    return Checked(body if total else b"", total, rejected, message, (min(days), max(days)) if days else (0, 0))


def time_of(record: LogRecord) -> int:
    """Return when it happened, or when it was observed if the sender does not say; unix nanoseconds."""
    return record.time_unix_nano or record.observed_time_unix_nano


def _reason(record: LogRecord, limits: ItemLimits, latest_ns: int) -> Reason | None:
    if not EARLIEST_NS <= time_of(record) < LATEST_NS:
        return Reason.TIME
    if time_of(record) > latest_ns:
        return Reason.FUTURE
    if len(record.attributes) > limits.max_attributes:
        return Reason.TOO_MANY_ATTRIBUTES
    return Reason.TOO_LARGE if record.ByteSize() > limits.max_bytes else None
