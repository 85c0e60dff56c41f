"""Writes spans with attributes of any kind (requests, cold starts) as OTLP bytes, one by one.

OpenTelemetry's own encoder makes an object for each attribute, which costs many times the bytes themselves. A test
holds the two encoders equal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from opentelemetry.trace import SpanContext, SpanKind, TraceState
from opentelemetry.trace.status import Status, StatusCode

# Field numbers are those of opentelemetry/proto, {trace,common}.proto; a tag is number << 3 | wire type.
_SPANS: Final = b"\x12"  # ScopeSpans.spans
_TRACE_ID, _SPAN_ID, _TRACE_STATE, _PARENT_ID, _NAME = b"\x0a\x10", b"\x12\x08", b"\x1a", b"\x22\x08", b"\x2a"
_KIND, _TIMES, _ATTRIBUTE, _STATUS, _FLAGS = b"\x30", struct.Struct("<BQBQ").pack, b"\x4a", b"\x7a", b"\x85\x01"
_START_TAG, _END_TAG = 0x39, 0x41
_MESSAGE, _CODE = b"\x12", b"\x18"  # Status
_KEY, _VALUE = b"\x0a", b"\x12"  # KeyValue
_STRING, _TRUE, _FALSE, _INT, _DOUBLE, _ARRAY = b"\x0a", b"\x10\x01", b"\x10\x00", b"\x18", b"\x21", b"\x2a"  # AnyValue
_ITEM: Final = b"\x0a"  # ArrayValue

_UNSET: Final = _STATUS + b"\x00"
_LOCAL_PARENT, _REMOTE_PARENT = _FLAGS + struct.pack("<I", 0x100), _FLAGS + struct.pack("<I", 0x300)
_double = struct.Struct("<d").pack


class Span(NamedTuple):
    """A span to be written. Times in unix ns; attributes may have values of any type, those with None are left out."""

    name: str
    trace_id: int
    span_id: int
    parent: SpanContext | None
    attributes: Mapping[str, Any]
    start_ns: int
    end_ns: int
    kind: SpanKind = SpanKind.INTERNAL
    status: Status | None = None
    trace_state: TraceState | None = None


def span_bytes(span: Span) -> bytes:
    """A span as a field of a `ScopeSpans` message."""
    name, trace_id, span_id, parent, attributes, start_ns, end_ns, kind, status, trace_state = span
    parts = [
        b"%b%b%b%b" % (_TRACE_ID, trace_id.to_bytes(16, "big"), _SPAN_ID, span_id.to_bytes(8, "big")),
        name_bytes(name),
        kind_bytes(kind),
        _TIMES(_START_TAG, start_ns, _END_TAG, end_ns),
        attributes_bytes(attributes),
        status_bytes(status),
        context_bytes(parent, trace_state),
    ]
    return _sized(_SPANS, b"".join(parts))


def attributes_bytes(attributes: Mapping[str, Any]) -> bytes:
    """Attributes as fields of a `Span` message.

    Text becomes valid unicode, NumPy's numbers become Python's; integers over 64 bits and objects of other types become
    text.
    """
    return b"".join([attribute(key, value) for key, value in attributes.items() if value is not None])


def attribute(key: str, value: object) -> bytes:
    """An attribute as a field of a `Span` message. Texts that come again and again are kept."""
    return _WRITERS.get(type(value), fresh_attribute)(key, value)


def name_bytes(name: str) -> bytes:
    """The name as a field of a `Span` message."""
    return _sized(_NAME, _utf8(name))


def kind_bytes(kind: SpanKind) -> bytes:
    """The kind as a field of a `Span` message."""
    return _KIND + varint(kind.value + 1)


def status_bytes(status: Status | None) -> bytes:
    """The status as a field of a `Span` message. It is there also when it is not set, as OpenTelemetry writes it."""
    return _UNSET if status is None else _sized(_STATUS, _status(status))


def context_bytes(parent: SpanContext | None, trace_state: TraceState | None) -> bytes:
    """The parent, the flags that say where it is, and the trace state, as fields of a `Span` message."""
    if parent is None and not trace_state:
        return _LOCAL_PARENT
    parts = [
        b"" if parent is None else _PARENT_ID + parent.span_id.to_bytes(8, "big"),
        _REMOTE_PARENT if parent is not None and parent.is_remote else _LOCAL_PARENT,
        _trace_state(trace_state) if trace_state else b"",
    ]
    return b"".join(parts)


def fresh_attribute(key: str, value: object) -> bytes:
    """An attribute with a text that does not come again, such as an id."""
    if type(value) is str:
        written = _utf8(value)
        return _text_head(key, len(written)) + written
    return _pair(key, _any_value(value))


def text(value: object) -> str:
    """Text that can be encoded. Lone surrogates, which HTTP headers may bring in, become question marks; an object that
    cannot be shown becomes the name of its type.
    """
    return _utf8(value).decode()


def varint(value: int) -> bytes:
    """Seven bits a byte, low first, with the high bit set in all but the last."""
    if value < _SHORT:
        return _SHORT_VARINTS[value]
    low, middle = value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80
    if value < 1 << 21:
        return bytes((low, middle, value >> 14))
    if value < 1 << 28:
        return bytes((low, middle, value >> 14 & 0x7F | 0x80, value >> 21))
    if value < 1 << 35:  # 34 s in ns: most durations are written by one of these
        return bytes((low, middle, value >> 14 & 0x7F | 0x80, value >> 21 & 0x7F | 0x80, value >> 28))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT: Final = 0x4000
_SHORT_VARINTS: Final = [bytes([v] if v < 0x80 else [v & 0x7F | 0x80, v >> 7]) for v in range(_SHORT)]


_REMEMBERED: Final = 256
"""Most characters of a text that is remembered. A longer one is a prompt or an answer, which does not come again."""


def _text_attribute(key: str, value: str) -> bytes:
    return _known_text(key, value) if len(value) <= _REMEMBERED else _pair(key, _sized(_STRING, _utf8(value)))


@lru_cache(maxsize=4096)
def _known_text(key: str, value: str) -> bytes:
    """Most texts come again and again: names, models, tenants."""
    return _pair(key, _sized(_STRING, _utf8(value)))


def _int_attribute(key: str, value: int) -> bytes:
    if not -(2**63) <= value < 2**63:
        return _text_attribute(key, str(value))
    written = varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    return _head(key, _INT, len(written)) + written


def _double_attribute(key: str, value: float) -> bytes:
    return _head(key, _DOUBLE, 8) + _double(value)


def _array_attribute(key: str, values: Sequence[object]) -> bytes:
    if len(values) == 1 and type(values[0]) is str and len(values[0]) <= _REMEMBERED:
        return _text_in_array(key, values[0])
    return fresh_attribute(key, values)


@lru_cache(maxsize=256)
def _text_in_array(key: str, value: str) -> bytes:
    return fresh_attribute(key, [value])


_WRITERS: Final[dict[type, Callable[[str, Any], bytes]]] = {
    str: _text_attribute,
    int: _int_attribute,
    float: _double_attribute,
    list: _array_attribute,
    tuple: _array_attribute,
}


@lru_cache(maxsize=4096)
def _head(key: str, tag: bytes, size: int) -> bytes:
    """An attribute up to its value, which is that many bytes long."""
    return _pair(key, tag + bytes(size))[:-size]


@lru_cache(maxsize=1024)
def _text_head(key: str, size: int) -> bytes:
    """An attribute up to its text, which is that many bytes long."""
    written = _pair(key, _sized(_STRING, bytes(size)))
    return written[: len(written) - size]


def _pair(key: str, any_value: bytes) -> bytes:
    return _sized(_ATTRIBUTE, _sized(_KEY, _utf8(key)) + _sized(_VALUE, any_value))


def _any_value(value: object) -> bytes:
    if isinstance(value, str):
        return _sized(_STRING, _utf8(value))
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, Integral):
        plain = int(value)
        if -(2**63) <= plain < 2**63:
            return _INT + varint(plain & 0xFFFF_FFFF_FFFF_FFFF)
        return _sized(_STRING, str(plain).encode())
    if isinstance(value, Real):
        return _DOUBLE + _double(float(value))
    if isinstance(value, list | tuple):
        return _sized(_ARRAY, _items(value))
    return _sized(_STRING, _utf8(value))


def _items(values: Iterable[object]) -> bytes:
    return b"".join([_sized(_ITEM, _any_value(value)) for value in values if value is not None])


def _sized(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


def _utf8(value: object) -> bytes:
    try:
        plain = value if isinstance(value, str) else str(value)
    except Exception:
        plain = type(value).__name__
    try:
        return plain.encode()
    except UnicodeEncodeError:
        return plain.encode("utf-8", "replace")


def _trace_state(state: TraceState) -> bytes:
    return _sized(_TRACE_STATE, ",".join([f"{key}={value}" for key, value in state.items()]).encode())


def _status(status: Status) -> bytes:
    described = _sized(_MESSAGE, _utf8(status.description)) if status.description else b""
    return described + (_CODE + varint(status.status_code.value) if status.status_code is not StatusCode.UNSET else b"")
