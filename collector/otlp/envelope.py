"""Requests with their items as bytes, to count, measure and sort the items without decoding them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

LEAST_SPAN_BYTES: Final = 46
"""Two ids and two times, with their tags."""


def _envelopes(package: str, *, measured: bool) -> tuple[type[Any], type[Any]]:
    """Declare the messages of opentelemetry/proto/trace/v1/trace.proto with `repeated bytes spans`.

    With `measured`, a resource and a scope are bytes as well. Requests of other signals have the same numbers.
    """
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    fields = [
        ("Request", "resource_spans", 1, f".{package}.ResourceSpans"),
        ("ResourceSpans", "scope_spans", 2, f".{package}.ScopeSpans"),
        ("ScopeSpans", "spans", 2, None),
    ]
    messages = {name: file.message_type.add(name=name) for name, *_ in fields}
    if measured:
        fields += [("ResourceSpans", "resource", 1, None), ("ScopeSpans", "scope", 1, None)]
    for message, field, number, kind in fields:
        messages[message].field.add(
            name=field,
            number=number,
            label=Field.LABEL_REPEATED,
            type=Field.TYPE_MESSAGE if kind else Field.TYPE_BYTES,
            type_name=kind,
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    request, scope_spans = (pool.FindMessageTypeByName(f"{package}.{name}") for name in ("Request", "ScopeSpans"))
    return GetMessageClass(request), GetMessageClass(scope_spans)


SCOPE_SPANS: Final = _envelopes("collector", measured=False)[1]
MEASURED: Final = _envelopes("measured", measured=True)[0]


def scopes(measured: Any) -> Iterator[tuple[int, Any]]:
    """Each scope of a `MEASURED` request, with the bytes of itself and its resource, which the store repeats."""
    for resource_spans in measured.resource_spans:
        of_resource = sum(map(len, resource_spans.resource))
        for scope_spans in resource_spans.scope_spans:
            yield of_resource + sum(map(len, scope_spans.scope)), scope_spans


def repeats_more(payloads: Collection[bytes | memoryview], most: int) -> bool:
    """Tell whether the store makes more bytes than these of resources and scopes, which it repeats for each item.

        a resource of 1 MB and 4,000 spans of 200 bytes    1.8 MB as sent, 4 GB in the memory of the store

    Half of a payload may be a resource, and the other half the smallest spans: that is cheap to exclude.
    """
    if sum(len(payload) ** 2 for payload in payloads) <= most * 4 * LEAST_SPAN_BYTES:
        return False
    requests = (MEASURED.FromString(bytes(payload)) for payload in payloads)
    return sum(size * len(scope.spans) for request in requests for size, scope in scopes(request)) > most
