"""Writes a tenant into the resources of an OTLP request, in place of the tenant that the sender claims.

Spans, scopes and all other bytes stay as they were received; only resources are encoded again.

    0a 40                       resource_spans, 64 bytes    0a 5c          grows by the attribute
       0a 10 service.name=e     resource                    0a 2c          service.name=e, tokentrail.tenant=a
       12 2c …                  scope_spans                 12 2c …        the same bytes
"""

from __future__ import annotations

from typing import Any, Final

from clickhouse_connect.driver.common import write_leb128
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from collector.otlp import runs
from tokentrail.semconv import TENANT

_FIELD_1: Final = b"\x0a"
"""The tag of field 1 with a length: `resource_spans` of a request and `resource` of its messages, for every signal."""


def stamped(payload: bytes, tenant: str, request: type[Any]) -> bytes:
    """Return the request with `tenant` in every resource, and without any tenant that was there.

    The views of the store prefer a resource's tenant to a span's. `payload` must be a valid `request`.
    """
    try:
        parts = [
            _message(payload, value, following, tenant) if (number, kind) == (1, runs.LEN) else payload[at:following]
            for number, kind, at, value, following in runs.fields(payload, 0, len(payload))
        ]
    except runs.NotUniformError:  # a field that OTLP does not have, as a group
        return _stamped_parsed(request.FromString(payload), tenant)
    return b"".join(parts)


def _message(payload: bytes, begin: int, end: int, tenant: str) -> bytes:
    resource, rest = bytearray(), []
    for number, wire_type, at, value, following in runs.fields(payload, begin, end):
        if (number, wire_type) == (1, runs.LEN):
            resource += payload[value:following]  # a message that comes twice is merged, as Protobuf has it
        else:
            rest.append(payload[at:following])
    stamp = Resource.FromString(bytes(resource))
    _set_tenant(stamp, tenant)
    return _with_length(_with_length(stamp.SerializeToString()) + b"".join(rest))


def _with_length(message: bytes) -> bytes:
    head = bytearray(_FIELD_1)
    write_leb128(len(message), head)  # which Protobuf calls a varint
    return bytes(head) + message


def _stamped_parsed(request: Any, tenant: str) -> bytes:
    for message in getattr(request, request.DESCRIPTOR.fields_by_number[1].name):
        _set_tenant(message.resource, tenant)
    encoded: bytes = request.SerializeToString()
    return encoded


def _set_tenant(resource: Resource, tenant: str) -> None:
    kept = [attribute for attribute in resource.attributes if attribute.key != TENANT]
    del resource.attributes[:]
    resource.attributes.add(key=TENANT).value.string_value = tenant
    resource.attributes.extend(kept)
