"""Divides a request that the store refuses: the items at fault from the others, or one half from the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.otlp.errors import MalformedError


def without_misread(payload: bytes, request: type[Any] = ExportTraceServiceRequest) -> tuple[bytes, bytes]:
    """Return the request without its misread items, and one of them alone; either is empty when it has no item.

    An item (a span, or a log record) is misread when it, its scope or its resource has a field of OTLP with a wrong
    wire type. Protobuf's parser takes that for an unknown field and drops its value; ClickHouse refuses the whole
    payload.

        2a 02 'h' 'i'   name = "hi"            field 5 of a span as bytes, as OTLP has it
        28 05           field 5 as a varint    misread: the parser would say that the span has no name
        f8 07 01        field 127              not misread: OTLP has no such field, and both parsers skip it

    The result is encoded anew, with the values that Protobuf reads and without unknown fields. ClickHouse refuses
    a group, a bool that is written as another number than 0 and 1, which Protobuf reads as true, an enumeration of
    more than 32 bits, and two values of an attribute, of which Protobuf takes the last:

        0a 01 'a' 18 05     an attribute's value, "a" and 5
        18 05               5, the last one

    A request that Protobuf cannot read, which an older collector may have taken, stays as it is.
    """
    try:
        message = request.FromString(payload)
    except DecodeError:
        return payload, b""
    good, misread = payload, b""
    if is_misread(message):
        good, misread = _items(message, lambda bad, _: not bad), _items(message, lambda bad, _: bad)
    return encoded_anew(request.FromString(good)), misread


def encoded_anew(request: Message) -> bytes:
    """Encode a parsed request anew, without the fields that Protobuf does not know; they are taken out of it.

    Where a text comes twice, also with another wire type, Protobuf reads the last text that is one, and ClickHouse an
    empty text. A row would have no trace id, or an attribute no key.
    """
    request.DiscardUnknownFields()
    payload: bytes = request.SerializeToString()
    return payload


def halves(payload: bytes, request: type[Any] = ExportTraceServiceRequest) -> tuple[bytes, bytes] | None:
    """Return the first and the second half of the items, in order; None when there is only one, or none can be read."""
    try:
        message = request.FromString(payload)
    except DecodeError:
        return None
    count = sum(len(_list(scoped)) for of_resource in _list(message, 1) for scoped in _list(of_resource))
    if count < 2:
        return None
    return _items(message, lambda _, index: index < count // 2), _items(message, lambda _, index: index >= count // 2)


def _list(message: Message, number: int = 2) -> Any:
    """Return a repeated field. A request has resources in field 1, which have scopes in field 2, and they items."""
    return getattr(message, message.DESCRIPTOR.fields_by_number[number].name)


def _items(message: Message, keep: Callable[[bool, int], bool]) -> bytes:
    """Encode the items for which `keep(misread, index)` is true, with their scopes and resources."""
    divided, index = type(message)(), 0
    for of_resource in _list(message, 1):
        in_resource = is_misread(of_resource.resource)
        for scoped in _list(of_resource):
            in_scope = in_resource or is_misread(scoped.scope)
            chosen = [item for n, item in enumerate(_list(scoped), index) if keep(in_scope or is_misread(item), n)]
            index += len(_list(scoped))
            if chosen:
                added = _list(divided, 1).add(resource=of_resource.resource, schema_url=of_resource.schema_url)
                kept = _list(added).add(scope=scoped.scope, schema_url=scoped.schema_url)
                _list(kept).extend(chosen)
    encoded: bytes = divided.SerializeToString()
    return encoded


def is_misread_itself(message: Message) -> bool:
    """Tell whether the message has a field of OTLP with a wrong wire type."""
    known = message.DESCRIPTOR.fields_by_number
    return any(field.field_number in known for field in UnknownFieldSet(message))


def check_envelope(*messages: Message) -> None:
    """Raise `MalformedError` for a misread message around items: ClickHouse takes such a field for an empty item."""
    for message in messages:
        if is_misread_itself(message):
            msg = f"a field of {message.DESCRIPTOR.name} has a wrong wire type"
            raise MalformedError(msg)


def is_misread(message: Message) -> bool:
    """Tell whether the message, or one inside it, has a field of OTLP with a wrong wire type."""
    if is_misread_itself(message):
        return True
    for field, value in message.ListFields():
        if field.message_type and any(is_misread(item) for item in (value if field.is_repeated else [value])):
            return True
    return False
