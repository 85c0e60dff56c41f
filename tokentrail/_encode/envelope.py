"""Payloads: OTLP request bodies around the blocks of spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from tokentrail._encode.encode import varint
from tokentrail._encode.wire import Block


class Rank(IntEnum):
    """The spans of a payload by their worth. A full queue drops those of the lowest rank first."""

    TOKENS = 0
    STEPS = 1
    REQUESTS = 2


class Payload(NamedTuple):
    """One OTLP request body (`ExportTraceServiceRequest`), compressed or not, and the number of spans in it."""

    body: bytes
    spans: int
    rank: Rank = Rank.REQUESTS


class Envelope:
    """The bytes around the spans of every payload: the resource and the instrumentation scope."""

    def __init__(self, resource: Resource, scope: str, version: str, schema_url: str = "") -> None:
        specimen = ReadableSpan("", SpanContext(1, 1, False), resource=resource)
        (encoded,) = encode_spans([specimen]).resource_spans
        self._resource = ResourceSpans(resource=encoded.resource, schema_url=schema_url).SerializeToString()
        named = InstrumentationScope(name=scope, version=version)
        self._scope = ScopeSpans(scope=named, schema_url=schema_url).SerializeToString()

    def payloads(self, blocks: Iterable[Block], *, max_spans: int, max_bytes: int) -> Iterator[Payload]:
        """The blocks, in order, cut into payloads within both limits (a single larger span travels alone)."""
        parts: list[bytes | memoryview] = []
        spans = size = 0
        for block in blocks:
            done = 0
            while done < block.count:
                room = min(max_spans - spans, block.fitting(done, max_bytes - size))
                if room <= 0 and spans:
                    yield self._payload(parts, spans)
                    parts, spans, size = [], 0, 0
                    continue
                taken = min(max(room, 1), block.count - done)
                part = block.data[block.end(done) : block.end(done + taken)]
                parts.append(part)
                done, spans, size = done + taken, spans + taken, size + len(part)
        if spans:
            yield self._payload(parts, spans)

    def _payload(self, parts: list[bytes | memoryview], spans: int) -> Payload:
        scoped = len(self._scope) + sum(map(len, parts))
        scope_head = b"\x12" + varint(scoped) + self._scope  # ResourceSpans.scope_spans
        head = b"\x0a" + varint(len(self._resource) + len(scope_head) - len(self._scope) + scoped)  # .resource_spans
        return Payload(b"".join([head, self._resource, scope_head, *parts]), spans)
