"""Divides a trace request that the store refuses: the spans at fault from the others, or one half from the other."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def without_misread(payload: bytes) -> tuple[bytes, bytes]:
    """Return the request without its misread spans, and one of them alone; either is empty when it has no span.

    A span is misread when it, its scope or its resource has a field of OTLP with a wrong wire type. Protobuf's parser
    takes that for an unknown field and drops its value; ClickHouse refuses the whole payload.

        2a 02 'h' 'i'   name = "hi"            field 5 of a span as bytes, as OTLP has it
        28 05           field 5 as a varint    misread: the parser would say that the span has no name
        f8 07 01        field 127              not misread: OTLP has no such field, and both parsers skip it
    """
    if not is_misread(ExportTraceServiceRequest.FromString(payload)):
        return payload, b""
    return _spans(payload, lambda misread, _: not misread), _spans(payload, lambda misread, _: misread)


def halves(payload: bytes) -> tuple[bytes, bytes] | None:
    """Return the first and the second half of the spans, in order; None when there is only one span."""
    request = ExportTraceServiceRequest.FromString(payload)
    count = sum(len(scope_spans.spans) for r in request.resource_spans for scope_spans in r.scope_spans)
    if count < 2:
        return None
    return _spans(payload, lambda _, index: index < count // 2), _spans(payload, lambda _, index: index >= count // 2)


def _spans(payload: bytes, keep: Callable[[bool, int], bool]) -> bytes:
    """Encode the spans for which `keep(misread, index)` is true, with their scopes and resources."""
    request, divided, index = ExportTraceServiceRequest.FromString(payload), ExportTraceServiceRequest(), 0
    for resource_spans in request.resource_spans:
        in_resource = is_misread(resource_spans.resource)
        for scope_spans in resource_spans.scope_spans:
            in_scope = in_resource or is_misread(scope_spans.scope)
            chosen = [span for n, span in enumerate(scope_spans.spans, index) if keep(in_scope or is_misread(span), n)]
            index += len(scope_spans.spans)
            if chosen:
                added = divided.resource_spans.add()
                added.resource.CopyFrom(resource_spans.resource)
                added.scope_spans.add(scope=scope_spans.scope, spans=chosen, schema_url=scope_spans.schema_url)
                added.schema_url = resource_spans.schema_url
    encoded: bytes = divided.SerializeToString()
    return encoded


def is_misread(message: Message) -> bool:
    """Tell whether the message, or one inside it, has a field of OTLP with a wrong wire type."""
    known = message.DESCRIPTOR.fields_by_number
    if any(field.field_number in known for field in UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type and any(is_misread(item) for item in (value if field.is_repeated else [value])):
            return True
    return False
