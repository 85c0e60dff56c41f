"""OTLP's JSON: protobuf's JSON mapping, except that trace and span ids are hexadecimal."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.receive.validate import MalformedError

_ID_FIELDS: Final = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")


def parse_json(body: bytes) -> ExportTraceServiceRequest:
    """Parse an OTLP/JSON request; raises `MalformedError` that says what is wrong."""
    try:
        document = json.loads(body)
        for span in _spans(document):
            for holder in (span, *span.get("links", ())):
                _ids_to_base64(holder)
        request = ExportTraceServiceRequest()
        json_format.ParseDict(document, request, ignore_unknown_fields=True)
    except (ValueError, TypeError, AttributeError, RecursionError, json_format.ParseError) as error:
        msg = f"the body is not OTLP/JSON: {error}"
        raise MalformedError(msg) from error
    return request


def _spans(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        span
        for resource_spans in _field(document, "resourceSpans", "resource_spans")
        for scope_spans in _field(resource_spans, "scopeSpans", "scope_spans")
        for span in scope_spans.get("spans", ())
    ]


def _field(holder: dict[str, Any], name: str, alias: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = holder.get(name) or holder.get(alias) or []
    return found


def _ids_to_base64(holder: dict[str, Any]) -> None:
    for name in _ID_FIELDS:
        if name in holder:
            try:
                holder[name] = base64.b64encode(bytes.fromhex(holder[name])).decode()
            except (ValueError, TypeError, binascii.Error) as error:
                msg = f"{name} {str(holder[name])[:64]!r} is not hexadecimal ({error})"
                raise ValueError(msg) from None
