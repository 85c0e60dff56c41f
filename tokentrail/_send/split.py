"""Splits a payload that a collector does not take whole."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tokentrail._encode.envelope import Payload
from tokentrail._send.compression import compressor, decompressor


def halves(compression: Compression, payload: Payload) -> list[Payload]:
    """The first and the second half of a payload's spans."""
    body = decompressor(compression)(payload.body)
    resources = ExportTraceServiceRequest.FromString(body).resource_spans  # several, but alike, when it was joined
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    resource = resources[0]
    (scope,) = resource.scope_spans
    middle = len(spans) // 2
    made = []
    for part in (spans[:middle], spans[middle:]):
        del scope.spans[:]
        scope.spans.extend(part)
        half = ExportTraceServiceRequest(resource_spans=[resource]).SerializeToString()
        made.append(Payload(compressor(compression)(half), len(part), payload.rank))
    return made
