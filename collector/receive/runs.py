"""The fast way to check a request: long runs of spans that differ in values only.

tokentrail's SDK writes spans of one kind as records of one length, thousands of them in a row. The first record of a
run is parsed; the others are compared with it as one array. Every byte of structure (tags, lengths, names, keys) must
be equal, every byte of text must be ASCII, and varints must have the same length. Then the parser's result for the
first record holds for all, and ids and times are checked as columns. A request that does not fit is parsed.

Example, with a name (tag 2a, text), a start (tag 39, here cut to 2 bytes) and a kind (tag 30, varint):

    first record  2a 02 'h' 'i'  39 10 27  30 02
    mask          ff ff ff  ff   ff 00 00  ff 80    a bit is 1 where all records must agree
    second        2a 02 'h' 'i'  39 d8 27  30 03    alike: it differs in the start and in the kind's low bits only
    third         2a 02 'h' 'o'  39 d8 27  30 03    not alike, because names must be equal: a new run begins
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
"""Masks of the bits of a byte that must equal the first record's. `_ASCII` is used only where its text is ASCII."""

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
"""Masks by field number of a span. A field that is not named must be equal in all records of a run."""

_SHORT_RUN: Final = 8
_WINDOW: Final = 256


class NotUniformError(Exception):
    """The request does not consist of long runs and must be parsed."""


@dataclass(frozen=True)
class Shape:
    """The structure that all records of a run share."""

    record: Bytes
    mask: Bytes
    """The bits of `record` that are the same in all records."""
    offsets: Mapping[int, int]
    """By number of the span's own fields: where in a record the value begins."""


_known_shapes: dict[int, Shape] = {}
"""The last shape of each record length. The same few return in every request, and finding one is a walk in Python."""
_MOST_SHAPES: Final = 256


@dataclass(frozen=True)
class Run:
    """Consecutive span records of one shape."""

    first: bytes
    """The first record's own bytes, without tag and length."""
    rows: Bytes
    """(count, record length), tag and length included."""
    offsets: Mapping[int, int]

    def column(self, number: int, width: int) -> Bytes:
        """Return the bytes of a fixed-size field, (count, width)."""
        begin = self.offsets[number]
        return np.ascontiguousarray(self.rows[:, begin : begin + width])

    def times(self, number: int) -> npt.NDArray[np.uint64]:
        """Return a fixed64 field, (count,)."""
        return self.column(number, 8).view("<u8").ravel()


def runs(body: bytes, begin: int, end: int) -> Iterator[Run]:
    """Yield the runs of spans in `body[begin:end]`, which holds the spans of a `ScopeSpans` one after another."""
    found = spans = 0
    while begin < end:
        run = _run_at(body, begin, end)
        yield run
        begin += run.rows.size
        found, spans = found + 1, spans + len(run.rows)
        if found > _SHORT_RUN and spans < found * _SHORT_RUN:
            raise NotUniformError


def fields(body: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield for each field: number, wire type, and where its tag, its value and the next field begin."""
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
    """Build the mask of a record, and find where the values of the span's own fields begin."""
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
                # The same length as in the first record. A tenth byte has only one valid bit, so it must be equal.
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
