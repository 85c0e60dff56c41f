"""The fast way to check a request: long runs of spans that differ in values only.

tokentrail's SDK writes spans of one kind as records of one length, thousands of them in a row. The first record of a
run is parsed; the others are compared with it as one array: every byte that is structure (tags, lengths, names, keys)
must be equal, every byte of text must be ASCII, varints must be as long. Then what protobuf would say of the first
holds for all, and ids and times are checked as columns. Whatever does not fit is left to the parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

LEN: Final = 2
"""The wire type of strings, bytes and messages."""

_VARINT, _I64, _I32 = 0, 1, 5
_ANYTHING, _ASCII, _SAME = 0x00, 0x80, 0xFF
"""Which bits of a byte must be those of the first record; text is loosened only where the first record's is ASCII."""

_Kind: TypeAlias = "int | Mapping[int, _Kind]"
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
"""What may differ between the records of a run, by field number; fields that are not named must be equal."""

_SHORT_RUN: Final = 8
_WINDOW: Final = 256


class NotUniformError(Exception):
    """The request is not made of long runs: parse it."""


@dataclass(frozen=True)
class Shape:
    """What the records of a run have in common."""

    record: Bytes
    mask: Bytes
    """The bits of `record` that all have."""
    offsets: Mapping[int, int]
    """Where in a record the value of each of the span's own fields begins."""


_known_shapes: dict[int, Shape] = {}
"""The last shape of each record length: the same few come again and again, and finding one takes a walk in Python."""
_MOST_SHAPES: Final = 256


@dataclass(frozen=True)
class Run:
    """Span records that are alike."""

    first: bytes
    """The first record's own bytes, without tag and length."""
    rows: Bytes
    """(count, record length), tag and length included."""
    offsets: Mapping[int, int]

    def column(self, number: int, width: int) -> Bytes:
        """The bytes of a fixed-size field, (count, width)."""
        begin = self.offsets[number]
        return np.ascontiguousarray(self.rows[:, begin : begin + width])

    def times(self, number: int) -> npt.NDArray[np.uint64]:
        """A fixed64 field, (count,)."""
        return self.column(number, 8).view("<u8").ravel()


def runs(body: bytes, begin: int, end: int) -> Iterator[Run]:
    """The spans of a `ScopeSpans` that lie from `begin` to `end`, one tagged record behind the other."""
    found = spans = 0
    while begin < end:
        run = _run_at(body, begin, end)
        yield run
        begin += run.rows.size
        found, spans = found + 1, spans + len(run.rows)
        if found > _SHORT_RUN and spans < found * _SHORT_RUN:
            raise NotUniformError


def fields(body: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, where its tag, its value and the next field begin) of a message's fields."""
    while begin < end:
        tag, position = _varint(body, begin, end)
        wire_type = tag & 7
        if wire_type == LEN:
            length, value = _varint(body, position, end)
            following = value + length
        elif wire_type == _VARINT:
            value = position
            _, following = _varint(body, position, end)
        elif wire_type in (_I64, _I32):
            value = position
            following = position + (8 if wire_type == _I64 else 4)
        else:
            raise NotUniformError
        if following > end:
            raise NotUniformError
        yield tag >> 3, wire_type, begin, value, following
        begin = following


def _run_at(body: bytes, begin: int, end: int) -> Run:
    number, wire_type, _, value, following = next(fields(body, begin, end))
    if (number, wire_type) != (2, LEN):
        raise NotUniformError
    stride = following - begin
    most = (end - begin) // stride
    rows = np.frombuffer(body, np.uint8, most * stride, begin).reshape(most, stride)
    shape = _known_shapes.get(stride)
    if shape is None or ((rows[0] ^ shape.record) & shape.mask).any():
        shape = Shape(rows[0].copy(), *_mask(body, begin, value, following))
        if len(_known_shapes) >= _MOST_SHAPES:
            _known_shapes.clear()
        _known_shapes[stride] = shape
    count = _count_alike(rows, shape)
    return Run(body[value:following], rows[:count], shape.offsets)


def _count_alike(rows: Bytes, shape: Shape) -> int:
    count = 1
    while count < len(rows):
        differences = (rows[count : count + _WINDOW] ^ shape.record) & shape.mask
        if differences.max():
            return count + int(differences.any(axis=1).argmax())
        count += len(differences)
    return count


def _mask(body: bytes, begin: int, value: int, end: int) -> tuple[Bytes, dict[int, int]]:
    """Which bits of a record must be equal in all, and where the span's own fields begin."""
    mask = np.full(end - begin, _SAME, np.uint8)
    offsets: dict[int, int] = {}

    def loosen(at: int, until: int, kinds: Mapping[int, _Kind], top: bool) -> None:
        for number, wire_type, _, start, following in fields(body, at, until):
            if top and number != 9:
                if number in offsets:
                    raise NotUniformError
                offsets[number] = start - begin
            kind = kinds.get(number, _SAME)
            if isinstance(kind, Mapping):
                if wire_type != LEN:
                    raise NotUniformError
                loosen(start, following, kind, top=False)
            elif wire_type == _VARINT and kind == _ANYTHING:
                # As long as in the first record; the tenth byte holds a single bit, which protobuf checks.
                mask[start - begin : min(following, start + 9) - begin] = 0x80
            elif kind != _ASCII or body[start:following].isascii():
                mask[start - begin : following - begin] = kind

    loosen(value, end, _SPAN, top=True)
    return mask, offsets


def _varint(body: bytes, position: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while position < end and shift < 70:
        byte = body[position]
        result |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return result, position
        shift += 7
    raise NotUniformError
