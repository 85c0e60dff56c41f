"""The fast way to check a request: runs of spans that differ in values only.

tokentrail's SDK writes spans of one kind as records of one length, thousands of them in a row. Other senders' integers
take as few bytes as they can, so that records of a few lengths take turns; those are sorted by length first. The first
record of a run is parsed; the others are compared with it as one array. Every byte of structure (tags, lengths, names,
keys) must be equal, every byte of text must be ASCII, and varints must have the same length. Then the parser's result
for the first record holds for all, and ids and times are checked as columns. A request that does not fit is parsed.

Example, with a name (tag 2a, text), a start (tag 39, here cut to 2 bytes) and a kind (tag 30, varint):

    first record  2a 02 'h' 'i'  39 10 27  30 02
    mask          ff ff ff  ff   ff 00 00  ff 80    a bit is 1 where all records must agree
    second        2a 02 'h' 'i'  39 d8 27  30 03    alike: it differs in the start and in the kind's low bits only
    third         2a 02 'h' 'o'  39 d8 27  30 03    not alike, because names must be equal: a new run begins
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collector.otlp.divide import is_misread
from collector.otlp.envelope import SCOPE_SPANS
from collector.otlp.names import has_long

Body: TypeAlias = "bytes | memoryview"
Bytes: TypeAlias = npt.NDArray[np.uint8]
U64: TypeAlias = npt.NDArray[np.uint64]

LEN: Final = 2
"""The wire type of strings, bytes and messages."""

VARINT: Final = 0
I64: Final = 1
I32: Final = 5
_ANYTHING, _ASCII, _SAME = 0x00, 0x80, 0xFF
"""Masks of the bits of a byte that must equal the first record's. `_ASCII` is used only where its text is ASCII."""

_Kind: TypeAlias = "int | Mapping[int, _Kind]"
_Read: TypeAlias = Callable[[bytes], object]
_STATUS: Final[Mapping[int, _Kind]] = {2: _ASCII, 3: _ANYTHING}
_ANY_VALUE: Final[Mapping[int, _Kind]] = {1: _ASCII, 2: _ANYTHING, 3: _ANYTHING, 4: _ANYTHING, 7: _ANYTHING}
_KEY_VALUE: Final[Mapping[int, _Kind]] = {1: _SAME, 2: _ANY_VALUE}
_SPAN: Final[Mapping[int, _Kind]] = {
    1: _ANYTHING,
    2: _ANYTHING,
    4: _ANYTHING,
    5: _SAME,
    6: _ANYTHING,
    7: _ANYTHING,
    8: _ANYTHING,
    9: _KEY_VALUE,
    15: _STATUS,
    16: _ANYTHING,
}
"""Masks by field number of a span. A field that is not named must be equal in all records of a run."""

_ATTRIBUTES: Final = 9
_SHORT_RUN: Final = 8
"""The least average length of runs as they stand. To parse short ones costs less than to compare them."""
_SHORT_SORTED_RUN: Final = 32
"""The least average length of runs that must be sorted first. Their shape is often new."""
_WINDOW: Final = 256
"""Most records that are compared at once."""
_WINDOW_BYTES: Final = 64 * 1024
_MOST_RECORD_BYTES: Final = 4096
"""To parse longer ones costs no more than to compare them, and what is remembered of a shape has its length."""
MOST_ENVELOPE_BYTES: Final = 4096
"""Of a resource, a scope or a text. One of so many bytes is no burden."""
_MOST_MESSAGES: Final = 10_000
"""Resources of a request, or scopes of a resource. To walk over millions of empty ones takes half a minute."""
_MOST_HEAD_BYTES: Final = 5
"""Of a tag or a length. Protobuf's parser refuses longer ones, and must be able to read each payload of the log."""


class NotUniformError(Exception):
    """The request does not consist of long runs and must be parsed."""


@dataclass(frozen=True, eq=False)
class Shape:
    """The structure that all records of a run share."""

    record: Bytes
    mask: Bytes
    """The bits of `record` that are the same in all records."""
    offsets: Mapping[int, int]
    """By number of the span's own fields: where in a record the value begins."""

    @cached_property
    def at_once(self) -> int:
        """How many records are compared at once."""
        return min(_WINDOW, _WINDOW_BYTES // len(self.record))

    @cached_property
    def window(self) -> tuple[bytes, Bytes]:
        """The bits that all records share, and `mask`, again and again: as many as are compared at once."""
        return np.tile(self.record & self.mask, self.at_once).tobytes(), np.tile(self.mask, self.at_once)

    def fits(self, record: Bytes) -> bool:
        """Tell whether a record of the same length has this shape."""
        return not ((record ^ self.record) & self.mask).any()


_known_shapes: dict[int, tuple[Shape, ...]] = {}
"""The last shapes of each record length. The same few return in every request, and finding one is a walk in Python."""
_MOST_LENGTHS: Final = 64
_MOST_SHAPES: Final = 8
"""Of one length."""


@dataclass(frozen=True)
class Run:
    """Span records of one shape."""

    first: bytes
    """The first record's own bytes, without tag and length."""
    rows: Bytes
    """(count, record length), tag and length included."""
    shape: Shape

    def words(self, number: int, skip: int = 0) -> U64:
        """Return 8 bytes of a field, behind its first `skip`, as little-endian numbers of all records, (count,)."""
        return self.words_at(self.shape.offsets[number] + skip)

    def words_at(self, begin: int) -> U64:
        """Return 8 bytes of each record, (count,)."""
        return self.rows[:, begin : begin + 8].view("<u8").ravel()


def runs(body: Body, names: frozenset[str] | None = None) -> Iterator[Run]:
    """Yield the runs of spans of a request; raises `NotUniformError` when the request must be parsed.

    With `names`, that is also so when a resource or a scope has a name that is too long; these are attributes' keys.
    """
    for resource in _messages(body, (0, len(body)), {1: None}, names):
        for scope in _messages(body, resource, {1: Resource.FromString, 2: None, 3: bytes.decode}, names):
            yield from _runs(body, *scope, names)


def _messages(
    body: Body, where: tuple[int, int], known: Mapping[int, _Read | None], names: frozenset[str] | None
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each message of the field that is None in `known`; other fields must be read well."""
    seen: set[int] = set()
    for place, (number, wire_type, _, begin, end) in enumerate(fields(body, *where)):
        if wire_type != LEN or number not in known or place >= _MOST_MESSAGES:
            raise NotUniformError
        read = known[number]
        if read is None:
            yield begin, end
        else:
            _must_be_new(number, seen)
            _check_envelope(body, begin, end, read, names)


def _runs(body: Body, begin: int, end: int, names: frozenset[str] | None) -> Iterator[Run]:
    """Yield the runs of a `ScopeSpans`. Its spans come behind its other fields."""
    before_spans: Mapping[int, _Read] = {1: InstrumentationScope.FromString, 3: bytes.decode}
    seen: set[int] = set()
    for number, wire_type, at, value, following in fields(body, begin, end):
        if wire_type != LEN or number not in before_spans:
            begin = at
            break
        _must_be_new(number, seen)
        _check_envelope(body, value, following, before_spans[number], names)
        begin = following
    count = spans = 0
    while begin < end:
        run = _run_at(body, begin, end)
        yield run
        begin += run.rows.size
        count, spans = count + 1, spans + len(run.rows)
        if spans < count * _SHORT_RUN and begin < end:
            yield from _sorted_runs(bytes(body[begin:end]))
            return


def _sorted_runs(records: bytes) -> Iterator[Run]:
    """Yield the runs of span records that are sorted by length, from the most frequent length on.

    records  104 B, 105 B, 104 B, 105 B, 104 B    two shapes that take turns
    runs     three of 104 B, two of 105 B
    """
    by_length: dict[int, list[bytes]] = defaultdict(list)
    try:
        for span in SCOPE_SPANS.FromString(records).spans:
            by_length[len(span)].append(span)
    except DecodeError as error:
        raise NotUniformError from error
    sorted_records = {
        length: SCOPE_SPANS(spans=spans).SerializeToString()
        for length, spans in sorted(by_length.items(), key=lambda item: -len(item[1]))
    }
    if sum(map(len, sorted_records.values())) != len(records):
        raise NotUniformError  # a field that is no span, or a length that is written with too many bytes
    count = spans = 0
    for length, alike in sorted_records.items():
        rows = np.frombuffer(alike, np.uint8).reshape(len(by_length[length]), -1)
        while len(rows):
            value = rows.shape[1] - length
            shape = _shape_of(rows[0], value)
            fits = ~((rows ^ shape.record) & shape.mask).any(axis=1)
            yield Run(rows[0, value:].tobytes(), rows[fits], shape)
            count, spans = count + 1, spans + int(fits.sum())
            if spans < count * _SHORT_SORTED_RUN:
                raise NotUniformError
            rows = rows[~fits]


def _must_be_new(number: int, seen: set[int]) -> None:
    """Raise `NotUniformError` for a field that comes twice: Protobuf reads the last one, and ClickHouse no text."""
    if number in seen:
        raise NotUniformError
    seen.add(number)


def _check_envelope(body: Body, begin: int, end: int, read: _Read, names: frozenset[str] | None) -> None:
    if end - begin > MOST_ENVELOPE_BYTES or not _is_well_read(bytes(body[begin:end]), read, names):
        raise NotUniformError


@lru_cache(maxsize=256)
def _is_well_read(data: bytes, read: _Read, names: frozenset[str] | None) -> bool:
    """Tell whether all parsers read a resource, a scope or a text alike, and none of `names` is too long."""
    try:
        parsed = read(data)
    except (DecodeError, UnicodeDecodeError):
        return False
    if not isinstance(parsed, Message):
        return True
    return parsed.ByteSize() == len(data) and not is_misread(parsed) and not (names and has_long(parsed, names))


def fields(body: Body, begin: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield for each field: number, wire type, and where its tag, its value and the next field begin."""
    while begin < end:
        tag, position = _varint(body, begin, end, _MOST_HEAD_BYTES)
        wire_type = tag & 7
        if wire_type == LEN:
            length, value = _varint(body, position, end, _MOST_HEAD_BYTES)
            following = value + length
        elif wire_type == VARINT:
            value = position
            _, following = _varint(body, position, end)
        elif wire_type in (I64, I32):
            value = position
            following = position + (8 if wire_type == I64 else 4)
        else:
            raise NotUniformError
        if following > end:
            raise NotUniformError
        yield tag >> 3, wire_type, begin, value, following
        begin = following


def _run_at(body: Body, begin: int, end: int) -> Run:
    number, wire_type, _, value, following = next(fields(body, begin, end))
    if (number, wire_type) != (2, LEN):
        raise NotUniformError
    stride = following - begin
    most = (end - begin) // stride
    rows = np.frombuffer(body, np.uint8, most * stride, begin).reshape(most, stride)
    shape = _shape_of(rows[0], value - begin)
    count = _count_alike(rows, shape)
    return Run(bytes(body[value:following]), rows[:count], shape)


def _count_alike(rows: Bytes, shape: Shape) -> int:
    """Count the first records that have this shape. Bytes are compared by `startswith`, which NumPy cannot match."""
    if len(rows) == 1:
        return 1
    shared, mask = shape.window
    masked = bytearray(rows[: shape.at_once].size)
    bits = np.frombuffer(masked, np.uint8)
    for begin in range(0, len(rows), shape.at_once):
        some = rows[begin : begin + shape.at_once]
        np.bitwise_and(some.reshape(-1), mask[: some.size], out=bits[: some.size])
        if not masked.startswith(shared[: some.size]):
            differences = bits[: some.size] ^ np.frombuffer(shared, np.uint8, some.size)
            return begin + int(differences.reshape(some.shape).any(axis=1).argmax())
    return len(rows)


def _shape_of(record: Bytes, value: int) -> Shape:
    """Return the shape of a record: one that is known, or else a new one. Its span begins at `value`.

    Raises `NotUniformError` for a long record, and for one that has a field with a wrong wire type.
    """
    if len(record) > _MOST_RECORD_BYTES:
        raise NotUniformError
    known = _known_shapes.get(len(record), ())
    for shape in known:
        if shape.fits(record):
            return shape
    if not _is_well_typed(record[value:].tobytes()):
        raise NotUniformError
    mask, offsets = _mask(record.tobytes(), 0, value, len(record))
    shape = Shape(record.copy(), mask, offsets)
    if len(_known_shapes) >= _MOST_LENGTHS:
        _known_shapes.clear()
    _known_shapes[len(record)] = (shape, *known[: _MOST_SHAPES - 1])
    return shape


def _is_well_typed(span: bytes) -> bool:
    try:
        return not is_misread(Span.FromString(span))
    except DecodeError:
        return False


def _mask(body: Body, begin: int, value: int, end: int) -> tuple[Bytes, dict[int, int]]:
    """Build the mask of a record, and find where the values of the span's own fields begin."""
    mask = np.full(end - begin, _SAME, np.uint8)
    offsets: dict[int, int] = {}

    def loosen(at: int, until: int, kinds: Mapping[int, _Kind], top: bool) -> None:
        seen: set[int] = set()
        for number, wire_type, _, start, following in fields(body, at, until):
            if not top or number != _ATTRIBUTES:
                _must_be_new(number, seen)
            if top:
                offsets[number] = start - begin
            kind = kinds.get(number, _SAME)
            if isinstance(kind, Mapping):
                if wire_type != LEN:
                    raise NotUniformError
                loosen(start, following, kind, top=False)
            elif wire_type == VARINT and kind == _ANYTHING:
                # The same length as in the first record. A tenth byte has only one valid bit, so it must be equal.
                mask[start - begin : min(following, start + 9) - begin] = 0x80
            elif kind != _ASCII or bytes(body[start:following]).isascii():
                mask[start - begin : following - begin] = kind

    loosen(value, end, _SPAN, top=True)
    return mask, offsets


def _varint(body: Body, position: int, end: int, most_bytes: int = 10) -> tuple[int, int]:
    result = shift = 0
    while position < end and shift < 7 * most_bytes:
        byte = body[position]
        result |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return result, position
        shift += 7
    raise NotUniformError
