"""Trace requests whose spans stay bytes, so that spans are counted, measured and sorted without decoding them."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass


def _envelopes() -> tuple[type[Any], type[Any]]:
    """Declare the messages of opentelemetry/proto/trace/v1/trace.proto with `repeated bytes spans`."""
    file = FileDescriptorProto(name="envelope.proto", package="collector", syntax="proto3")
    fields = [
        ("Request", "resource_spans", 1, ".collector.ResourceSpans"),
        ("ResourceSpans", "scope_spans", 2, ".collector.ScopeSpans"),
        ("ScopeSpans", "spans", 2, None),
    ]
    for message, field, number, kind in fields:
        file.message_type.add(name=message).field.add(
            name=field,
            number=number,
            label=Field.LABEL_REPEATED,
            type=Field.TYPE_MESSAGE if kind else Field.TYPE_BYTES,
            type_name=kind,
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    request, scope_spans = (pool.FindMessageTypeByName(f"collector.{name}") for name in ("Request", "ScopeSpans"))
    return GetMessageClass(request), GetMessageClass(scope_spans)


_ENVELOPES: Final[tuple[type[Any], type[Any]]] = _envelopes()
REQUEST: Final = _ENVELOPES[0]
SCOPE_SPANS: Final = _ENVELOPES[1]
