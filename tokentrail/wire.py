"""Writes spans as OTLP bytes: NumPy fills spans of a fixed length, and a payload is their bytes joined.

The layout of a span is not written here by hand. OpenTelemetry's own encoder serialises a specimen span once, and a
template remembers where in those bytes the ids, times and integers lie; filling it for n spans is a handful of array
assignments. Integers keep a fixed width by padding their varints with continuation bits, which protobuf parsers accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

NARROW: Final = 4
WIDE: Final = 8
"""Bytes of a padded varint: 28 or 56 bits, each one aligned integer to NumPy. Larger values saturate."""

NO_RESOURCE: Final = Resource.get_empty()
"""The envelope names the resource. A span without any would make OpenTelemetry detect the process's for each span."""

_TRACE, _SPAN, _PARENT = 0xD1E2C3B4A5968778695A4B3C2D1E0F11, 0xF7E6D5C4B3A29181, 0xE9D8C7B6A5948372
_START, _END = 0x8F9EADBCCBDAE9F8, 0x9AABBCCDDEEFF01C


@dataclass(frozen=True, slots=True)
class Block:
    """`count` serialised spans of `size` bytes each, one after the other."""

    data: bytes | memoryview
    count: int
    size: int


class Payload(NamedTuple):
    """One OTLP request body (`ExportTraceServiceRequest`) and the number of spans in it."""

    body: bytes
    spans: int


class Columns(NamedTuple):
    """n spans, column by column. Times in unix ns; `trace` is (high, low) 64 bits; `ints` in the template's order."""

    trace: tuple[U64, U64]
    span: U64
    parent: U64 | None
    start: I64
    end: I64
    ints: Sequence[I64] = ()


class SpanTemplate:
    """Writes spans that differ only in ids, times and integer attributes."""

    def __init__(self, name: str, ints: Sequence[str], texts: Mapping[str, str], *, child: bool, width: int) -> None:
        largest = _saturated(width)
        context = SpanContext(_TRACE, _SPAN, is_remote=False)
        parent = SpanContext(_TRACE, _PARENT, is_remote=False) if child else None
        attributes: dict[str, str | int] = {**texts, **dict.fromkeys(ints, largest)}
        span = ReadableSpan(
            name,
            context,
            parent,
            attributes=attributes,
            resource=NO_RESOURCE,
            start_time=_START,
            end_time=_END,
        )
        record = span_bytes(span)
        fields = {
            "trace_high": (">u8", record.index(_TRACE.to_bytes(16, "big"))),
            "trace_low": (">u8", record.index(_TRACE.to_bytes(16, "big")) + 8),
            "span": (">u8", record.index(_SPAN.to_bytes(8, "big"))),
            "start": ("<u8", record.index(_START.to_bytes(8, "little"))),
            "end": ("<u8", record.index(_END.to_bytes(8, "little"))),
        }
        if child:
            fields["parent"] = (">u8", record.index(_PARENT.to_bytes(8, "big")))
        for key in ints:
            pair = KeyValue(key=key, value=AnyValue(int_value=largest)).SerializeToString()
            fields[key] = (f"<u{width}", record.index(pair) + len(pair) - width)
        self._dtype = np.dtype(
            {
                "names": list(fields),
                "formats": [kind for kind, _ in fields.values()],
                "offsets": [offset for _, offset in fields.values()],
                "itemsize": len(record),
            }
        )
        self._bytes = np.frombuffer(record, np.uint8)
        self._ints = tuple(ints)
        self._width = width

    def fill(self, columns: Columns) -> Block:
        """The columns as one block of serialised spans."""
        count, size = len(columns.span), len(self._bytes)
        raw = np.empty((count, size), np.uint8)
        raw[:] = self._bytes
        out = raw.view(self._dtype)[:, 0]
        out["trace_high"], out["trace_low"] = columns.trace
        out["span"] = columns.span
        if columns.parent is not None:
            out["parent"] = columns.parent
        out["start"], out["end"] = columns.start, columns.end
        for key, values in zip(self._ints, columns.ints, strict=True):
            out[key] = padded_varint(values, self._width)
        return Block(raw.data.cast("B"), count, size)


def fill(columns: Columns, name: str, ints: Sequence[str], texts: tuple[tuple[str, str], ...] = ()) -> Block:
    """Serialises spans of one name, with the narrowest template that holds all their integers."""
    width = NARROW if all(values.max(initial=0) <= _saturated(NARROW) for values in columns.ints) else WIDE
    return _template(name, tuple(ints), texts, columns.parent is not None, width).fill(columns)


@lru_cache(maxsize=256)
def _template(
    name: str, ints: tuple[str, ...], texts: tuple[tuple[str, str], ...], child: bool, width: int
) -> SpanTemplate:
    return SpanTemplate(name, ints, dict(texts), child=child, width=width)


def padded_varint(values: I64, width: int) -> npt.NDArray[np.unsignedinteger]:
    """Each value as `width` (4 or 8) varint bytes in one little-endian integer: seven bits a byte, continuation bits
    set in all but the last. Values are clipped to 0 … 2**(7·width) - 1.

        300 = 0b10_0101100, width 4
        seven bits a byte, low first:  0101100  0000010  0000000  0000000
        with continuation bits:        ac       82       80       00
        a plain varint is ac 02; parsers read both as 300
    """
    kind = np.dtype(f"u{width}")
    left = np.clip(values, 0, _saturated(width)).astype(kind)
    out: npt.NDArray[np.unsignedinteger] = left & kind.type(0x7F)
    for byte in range(1, width):
        out |= (left & kind.type(0x7F << 7 * byte)) << kind.type(byte)
    out |= kind.type(int.from_bytes(b"\x80" * (width - 1), "little"))
    return out


def _saturated(width: int) -> int:
    return (1 << 7 * width) - 1


def span_bytes(*spans: ReadableSpan) -> bytes:
    """Spans as fields of a `ScopeSpans` message, written by OpenTelemetry's encoder."""
    return b"".join(
        ScopeSpans(spans=scoped.spans).SerializeToString()
        for resource in encode_spans(spans).resource_spans
        for scoped in resource.scope_spans
    )


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
                room = min(max_spans - spans, (max_bytes - size) // block.size)
                if room <= 0 and spans:
                    yield self._payload(parts, spans)
                    parts, spans, size = [], 0, 0
                    continue
                taken = min(max(room, 1), block.count - done)
                parts.append(block.data[done * block.size : (done + taken) * block.size])
                done, spans, size = done + taken, spans + taken, size + taken * block.size
        if spans:
            yield self._payload(parts, spans)

    def _payload(self, parts: list[bytes | memoryview], spans: int) -> Payload:
        scoped = len(self._scope) + sum(map(len, parts))
        scope_head = b"\x12" + _varint(scoped) + self._scope  # ResourceSpans.scope_spans
        head = b"\x0a" + _varint(len(self._resource) + len(scope_head) - len(self._scope) + scoped)  # .resource_spans
        return Payload(b"".join([head, self._resource, scope_head, *parts]), spans)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
