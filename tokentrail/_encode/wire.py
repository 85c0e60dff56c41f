"""Writes spans as OTLP bytes: NumPy fills spans of a fixed length, block by block.

The layout of a span is not written here by hand. OpenTelemetry's own encoder serialises a specimen span once, and a
template remembers where in those bytes the ids, times and integers lie; filling it for n spans is a handful of array
assignments. Integers keep a fixed width by padding their varints with continuation bits, which protobuf parsers accept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from tokentrail._encode.encode import varint

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

NARROW: Final = 4
WIDE: Final = 8
"""Bytes of a padded varint: 28 or 56 bits, each one aligned integer to NumPy. Larger values saturate."""

NO_RESOURCE: Final = Resource.get_empty()
"""The envelope names the resource. A span without any would make OpenTelemetry detect the process's for each span."""

_TRACE, _SPAN, _PARENT = 0xD1E2C3B4A5968778695A4B3C2D1E0F11, 0xF7E6D5C4B3A29181, 0xE9D8C7B6A5948372
_START, _END = 0x8F9EADBCCBDAE9F8, 0x9AABBCCDDEEFF01C
_DOUBLE: Final = 1.2345678901234567
MAX_BUFFER_BYTES: Final = 16 << 20
"""A larger batch takes fresh memory, so that one burst does not hold memory for ever."""
_HEAD: Final = 1 + NARROW
"""Bytes of the tag and the length of a span."""


class Buffer:
    """Memory for the blocks of one batch, which those of the next batch take again. The pages of fresh memory cost more
    than filling them.
    """

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        self._used = 0

    def reset(self) -> None:
        """Takes the memory of all blocks back, and grows to the size that they needed."""
        if len(self._bytes) < self._used <= MAX_BUFFER_BYTES:
            self._bytes = np.empty(self._used + self._used // 4, np.uint8)
        self._used = 0

    def rows(self, count: int, size: int) -> npt.NDArray[np.uint8]:
        """Memory for so many spans of so many bytes. Beyond the buffer's size it is fresh."""
        begin = self._used
        self._used += count * size
        if self._used > len(self._bytes):
            return np.empty((count, size), np.uint8)
        return self._bytes[begin : self._used].reshape(count, size)


@dataclass(frozen=True, slots=True)
class Block:
    """`count` serialised spans, one after the other, of `size` bytes each or else with these `ends`."""

    data: bytes | memoryview
    count: int
    size: int
    ends: Sequence[int] = ()

    def end(self, spans: int) -> int:
        """Bytes of the first so many spans."""
        return (self.ends[spans - 1] if spans else 0) if self.ends else spans * self.size

    def fitting(self, done: int, room: int) -> int:
        """Spans after the first `done` that fit in so many bytes."""
        return bisect_right(self.ends, self.end(done) + room) - done if self.ends else room // self.size


def joined(spans: Sequence[bytes]) -> list[Block]:
    """Spans of different lengths as one block; none without spans."""
    return [Block(b"".join(spans), len(spans), 0, list(accumulate(map(len, spans))))] if spans else []


class Columns(NamedTuple):
    """n spans, column by column. Times in unix ns; `trace` is (high, low) 64 bits; `ints` and `doubles` in the
    template's order. With `lengths`, so many spans in a row share each trace and parent.
    """

    trace: tuple[U64, U64]
    span: U64
    parent: U64 | None
    start: I64
    end: I64
    ints: Sequence[I64] = ()
    doubles: Sequence[npt.NDArray[np.float64]] = ()
    lengths: I64 | None = None


class SpanTemplate:
    """Writes spans that differ only in ids, times and number attributes, and in a tail: kind and more attributes."""

    def __init__(
        self,
        name: str,
        ints: Sequence[str],
        texts: Mapping[str, str],
        doubles: Sequence[str] = (),
        *,
        child: bool,
        width: int,
        tailed: bool = False,
    ) -> None:
        largest = _saturated(width)
        context = SpanContext(_TRACE, _SPAN, is_remote=False)
        parent = SpanContext(_TRACE, _PARENT, is_remote=False) if child else None
        attributes: dict[str, str | int | float] = {
            **texts,
            **dict.fromkeys(ints, largest),
            **dict.fromkeys(doubles, _DOUBLE),
        }
        span = ReadableSpan(
            name,
            context,
            parent,
            attributes=attributes,
            resource=NO_RESOURCE,
            start_time=_START,
            end_time=_END,
        )
        record = _span_record(span, tailed=tailed)
        fields = {
            **({"size": ("<u4", 1)} if tailed else {}),
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
        for key in doubles:
            pair = KeyValue(key=key, value=AnyValue(double_value=_DOUBLE)).SerializeToString()
            fields[key] = ("<f8", record.index(pair) + len(pair) - 8)
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
        self._doubles = tuple(doubles)

    def fill(self, columns: Columns, ints: npt.NDArray[Any], tails: Sequence[bytes], buffer: Buffer) -> Block:
        """The columns as one block of serialised spans; each span ends with its tail, where there are tails. `ints` are
        the packed integers, a row for each.
        """
        count, size = len(columns.span), len(self._bytes)
        raw = buffer.rows(count, size)
        if columns.lengths is None:
            self._begin(raw, columns)
        else:
            heads = np.empty((len(columns.lengths), size), np.uint8)
            self._begin(heads, columns)
            np.take(heads, np.repeat(np.arange(len(heads)), columns.lengths), axis=0, out=raw, mode="clip")
        out = raw.view(self._dtype)[:, 0]
        out["span"] = columns.span
        out["start"], out["end"] = columns.start, columns.end
        for key, values in zip(self._ints, ints, strict=True):
            out[key] = values
        for key, seconds in zip(self._doubles, columns.doubles, strict=True):
            out[key] = seconds
        if not tails:
            return Block(raw.data.cast("B"), count, size)
        lengths = np.fromiter(map(len, tails), np.int64, count)
        out["size"] = padded_varint(lengths + size - _HEAD, NARROW)
        written = raw.tobytes()
        (block,) = joined([written[i * size : (i + 1) * size] + tail for i, tail in enumerate(tails)])
        return block

    def _begin(self, rows: npt.NDArray[np.uint8], columns: Columns) -> None:
        """Writes all that does not differ between spans of one parent."""
        rows[:] = self._bytes
        out = rows.view(self._dtype)[:, 0]
        out["trace_high"], out["trace_low"] = columns.trace
        if columns.parent is not None:
            out["parent"] = columns.parent


def fill(
    columns: Columns,
    name: str,
    ints: Sequence[str],
    texts: tuple[tuple[str, str], ...] = (),
    doubles: Sequence[str] = (),
    tails: Sequence[bytes] = (),
    *,
    buffer: Buffer | None = None,
) -> Block:
    """Serialises spans of one name, with the narrowest template that holds all their integers. The block lies in
    `buffer`, if there is one, and is gone after its `reset`.
    """
    values = np.array(columns.ints, np.int64).reshape(len(ints), len(columns.span))
    width = NARROW if values.max(initial=0) <= _saturated(NARROW) else WIDE
    template = _template(name, tuple(ints), texts, tuple(doubles), columns.parent is not None, width, bool(tails))
    return template.fill(columns, padded_varint(values, width), tails, buffer or Buffer())


@lru_cache(maxsize=256)
def _template(
    name: str,
    ints: tuple[str, ...],
    texts: tuple[tuple[str, str], ...],
    doubles: tuple[str, ...],
    child: bool,
    width: int,
    tailed: bool,
) -> SpanTemplate:
    return SpanTemplate(name, ints, dict(texts), doubles, child=child, width=width, tailed=tailed)


def padded_varint(values: I64, width: int) -> npt.NDArray[np.unsignedinteger]:
    """Each value as `width` (4 or 8) varint bytes in one little-endian integer: seven bits a byte, continuation bits
    set in all but the last. Values are clipped to 0 … 2**(7·width) - 1.

        300 = 0b10_0101100, width 4
        seven bits a byte, low first:  0101100  0000010  0000000  0000000
        with continuation bits:        ac       82       80       00
        a plain varint is ac 02; parsers read both as 300

    Bits move apart by halves: the upper 14 of 28 bits by two places, then the upper 7 of each 14 by one.
    """
    out: npt.NDArray[Any] = np.minimum(np.maximum(values, 0), _saturated(width)).astype(f"u{width}")
    for half in (28, 14, 7) if width == WIDE else (14, 7):
        low = _groups(half, width)
        out = (out & low) | ((out & (low << half)) << (half // 7))
    out |= int.from_bytes(b"\x80" * (width - 1), "little")
    return out


@lru_cache
def _groups(half: int, width: int) -> int:
    """The lower `half` bits of each group of 2 * `half` bits; a group of n * 7 bits is n bytes apart from the next."""
    return sum(((1 << half) - 1) << start for start in range(0, 8 * width, 16 * half // 7))


def _saturated(width: int) -> int:
    return (1 << 7 * width) - 1


def _span_record(span: ReadableSpan, *, tailed: bool) -> bytes:
    """A span as a field of a `ScopeSpans` message, written by OpenTelemetry's encoder. A tail will say its kind and add
    to its length, which has a fixed width for that.
    """
    (resource,) = encode_spans([span]).resource_spans
    message = resource.scope_spans[0].spans[0]
    message.ClearField("flags")
    message.ClearField("status")
    if tailed:
        message.ClearField("kind")
    body: bytes = message.SerializeToString()
    return b"\x12" + (padded_varint(np.array([len(body)]), NARROW).tobytes() if tailed else varint(len(body))) + body
