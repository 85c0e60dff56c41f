"""Checks of log records before they are stored."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from collector.otlp.checked import Checked, ItemLimits
from collector.otlp.divide import check_envelope, encoded_anew
from collector.otlp.errors import MalformedError
from collector.otlp.names import Cutter, cut
from collector.otlp.parse_bombs import check_for_bomb
from collector.otlp.validate import DAY_NS, EARLIEST_NS, LATEST_NS

_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _is_end_of_request(record: LogRecord) -> bool:
    """Tell whether a record is of a request's end and has its UUID, as the WHERE of `dynamo_flatten_logs` does."""
    text: dict[str, str] = {}
    for attribute in record.attributes:
        text.setdefault(attribute.key, attribute.value.string_value)
    rid = text.get("rid", "")
    return text.get("event_type") == "request_end" and bool(_UUID.fullmatch(rid)) and rid.strip("0-") != ""


CLAIMED: Final[dict[str, Callable[[LogRecord], bool]]] = {"dynamo.request_trace": _is_end_of_request}
"""By scope: whether an engine's views read a record of it. Tests compare this with the SQL."""
UNCLAIMED: Final = "unclaimed"
_LEAST_RECORD_BYTES: Final = 11
"""A time, with its tag, and those of the record."""
_MOST_NAMED_SCOPES: Final = 50
_named_scopes: set[str] = set()

logger = logging.getLogger(__name__)


class Reason(StrEnum):
    """The reasons for which a log record is not stored."""

    TIME = "time"
    FUTURE = "future"
    TOO_MANY_DAYS = "too_many_days"
    TOO_MANY_ATTRIBUTES = "too_many_attributes"
    TOO_LARGE = "too_large"


EXPLANATION: Final = {
    Reason.TIME: "its time, or the time of its observation, must be unix nanoseconds between the years 2000 and 2100",
    Reason.FUTURE: "its time is later than TOKENTRAIL_MAX_FUTURE_S from now; is the sender's clock right?",
    Reason.TOO_MANY_DAYS: "the other records have TOKENTRAIL_MAX_PAYLOAD_DAYS other days; send smaller batches",
    Reason.TOO_MANY_ATTRIBUTES: "more attributes than TOKENTRAIL_MAX_SPAN_ATTRIBUTES",
    Reason.TOO_LARGE: "larger than TOKENTRAIL_MAX_SPAN_BYTES",
}


def check(body: bytes, limits: ItemLimits) -> Checked:
    """Take out the records of a request that cannot be stored, or that nothing reads; raises `MalformedError`."""
    check_for_bomb(body, _LEAST_RECORD_BYTES)
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError as error:
        msg = f"the body is not an OTLP ExportLogsServiceRequest: {error}"
        raise MalformedError(msg) from error
    latest_ns = limits.latest_ns()
    total = 0
    rejected: Counter[str] = Counter()
    unwanted: Counter[str] = Counter()
    days: set[int] = set()
    cutter = Cutter(limits.names)
    for resource_logs in request.resource_logs:
        cutter.resource(resource_logs.resource)
        for scope_logs in resource_logs.scope_logs:
            check_envelope(request, resource_logs, scope_logs)
            records = scope_logs.log_records
            total += len(records)
            is_read = CLAIMED.get(scope_logs.scope.name)
            if records and is_read is None:
                unwanted[UNCLAIMED] += len(records)
                _name_once(scope_logs.scope.name)
                del records[:]
            for index in range(len(records) - 1, -1, -1):
                if is_read and not is_read(records[index]):
                    unwanted[UNCLAIMED] += 1
                    del records[index]
                elif reason := _reason(records[index], limits, latest_ns) or _reason_of_day(
                    records[index], days, limits
                ):
                    rejected[reason] += 1
                    del records[index]
    payload = encoded_anew(request) if rejected.total() + unwanted.total() < total else b""
    message = "; ".join(
        f"{count} log records: {EXPLANATION[Reason(reason)]}" for reason, count in sorted(rejected.items())
    )
    of_days = (min(days), max(days)) if days else (0, 0)
    return Checked(payload, total, rejected, message, of_days, unwanted, cutter.count)


def _name_once(scope: str) -> None:
    """Log a scope without a mapping, the first 50 of them, so that an operator can see which records are left out."""
    scope = cut(scope)
    if scope not in _named_scopes and len(_named_scopes) < _MOST_NAMED_SCOPES:
        _named_scopes.add(scope)
        logger.info("log records of the scope %.200r are counted and not stored: no engine's mapping reads them", scope)


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


def _reason_of_day(record: LogRecord, days: set[int], limits: ItemLimits) -> Reason | None:
    """Add the record's day to those of the others, unless they become too many: the store's partitions are days."""
    day = time_of(record) // DAY_NS
    if day not in days and len(days) >= limits.max_days:
        return Reason.TOO_MANY_DAYS
    days.add(day)
    return None
