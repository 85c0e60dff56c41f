"""Token spans as columns of the table `tokens`, so that the store need not decode them.

The rows are those that the view `tokentrail_tokens` makes of the same spans. Only requests of plain token spans are
read here: long runs of one shape. Each of their attributes appears once and has the type that OTLP gives it. For any
other request the answer is None, and the store decodes it.

    payload   one run of 2,560 records of 104 bytes, all of the same shape
    layout    trace id at 4, span id at 22, parent at 32, end at 70, step at 100 (a varint of 4 bytes), …
    columns   rows[:, 4:20], rows[:, 32:40], …: a slice of the array for each column

The SDK sends no index, since a token's span id tells it.

A segment that a crash cut off from its release is divided and inserted again, under the same tokens. So a version that
takes other requests for plain ones than the version before it must not read frames of that version here; `Frame` tells
them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from collector.otlp.runs import I32, I64, LEN, U64, VARINT, Body, NotUniformError, Run, Shape, fields, runs
from tokentrail import semconv

Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]

TABLE: Final = "tokens"
TYPES: Final = {
    "minute": "DateTime('UTC')",
    "trace_id": "FixedString(16)",
    "request_span_id": "FixedString(8)",
    "choice": "UInt16",
    "token_index": "UInt32",
    "duration_us": "UInt64",
    "step": "Nullable(UInt64)",
}
"""ClickHouse's types of the columns. A `Nullable` column has another beside it: `step` has `NULLS["step"]`."""
NULLS: Final = {"step": "step is null"}
"""Columns of bytes by the name of their column: 1 where its value is not known."""

_NAME, _INDEX, _STEP, _CHOICE = (
    name.encode()
    for name in (
        semconv.TOKEN_SPAN,
        semconv.TOKEN_INDEX,
        semconv.STEP,
        semconv.CHOICE_INDEX,
    )
)
_MINUTE_NS: Final = 60 * 10**9
_FIXED: Final = {1: (LEN, 16), 2: (LEN, 8), 4: (LEN, 8), 7: (I64, 8), 8: (I64, 8), 16: (I32, 4)}
"""Wire types and bytes of the fields of a span that have a fixed size: ids, times and flags."""
_VALUES: Final = {1: LEN, 2: VARINT, 3: VARINT, 4: I64}
"""Wire types of an attribute's value: text, boolean, integer, double."""
_INT_VALUE: Final = 3
_MOST_VARINT_BYTES: Final = 8


@dataclass(frozen=True)
class _Varint:
    """The place of an integer in a record."""

    begin: int
    width: int


def token_columns(payload: Body) -> Columns | None:
    """Return the columns of a request's tokens by name; None unless it has plain token spans and nothing else."""
    try:
        parts = [_columns(run) for run in runs(payload)]
    except NotUniformError:
        return None
    return joined(parts) if parts else None


def tokens_apart(payload: Body) -> tuple[Columns | None, bytes]:
    """Return the columns of the resources that have plain token spans and nothing else, and the other resources.

    A sender may have joined its payloads: tokens, steps, requests. The columns are None when no resource has only
    tokens, and the rest is empty when all have.
    """
    columns, rest = [], []
    body = bytes(payload)
    if _NAME not in body:  # this costs a twentieth of looking for runs
        return None, body
    try:
        for _, _, begin, _, end in fields(body, 0, len(body)):
            of_tokens = token_columns(body[begin:end])
            if of_tokens:
                columns.append(of_tokens)
            else:
                rest.append(body[begin:end])
    except NotUniformError:
        return None, body
    return joined(columns) if columns else None, b"".join(rest)


def joined(parts: Sequence[Columns]) -> Columns:
    """Put the rows of several requests under each other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if len(parts) > 1 else parts[0]


def _columns(run: Run) -> Columns:
    attributes = _attributes(run.shape)
    start, end = run.words(7), run.words(8)
    choice = _numbers(run, attributes.get(_CHOICE))
    return {
        "minute": (end // _MINUTE_NS * 60).astype("<u4"),
        "trace_id": np.stack([run.words(1), run.words(1, skip=8)], axis=1),
        "request_span_id": run.words(4),
        "choice": choice.astype("<u2"),
        "token_index": _indices(run, attributes, choice).astype("<u4"),
        "duration_us": (end - start) // 1000,
        "step": _numbers(run, attributes.get(_STEP)),
        NULLS["step"]: np.full(len(run.rows), _STEP not in attributes, np.uint8),
    }


def _indices(run: Run, attributes: Mapping[bytes, _Varint | None], choice: U64) -> U64:
    """Return the tokens' places in their answers: the attribute, or else the number that the span ids tell.

    Raises `NotUniformError` for ids that tell no index.

    span id - request's    strides             choice    index
    1 · stride             1                   none      0
    570 · stride           570                 none      569
    (2³³ + 1) · stride     2 · 2³² + 1         1         0
    """
    if place := attributes.get(_INDEX):
        return _numbers(run, place)
    strides = (run.words(2).byteswap() - run.words(4).byteswap()) * np.uint64(semconv.TOKEN_ID_INVERSE)
    _expect(bool((strides >> np.uint64(32) == (choice + np.uint64(1) if _CHOICE in attributes else 0)).all()))
    index = strides & np.uint64(0xFFFF_FFFF)
    _expect(bool(index.all()))
    return index - np.uint64(1)


def _numbers(run: Run, place: _Varint | None) -> U64:
    """Decode a varint of up to 8 bytes in all records.

    bytes   b9 84 80 00         the varint of 569, padded to 4 bytes
    words   …00008004b9         read with the bytes behind it, which are cut off
    bits    0000 0004 39        seven bits of each byte
    number  4 · 128 + 57
    """
    if place is None:
        return np.zeros(len(run.rows), np.uint64)
    begin = min(place.begin, run.rows.shape[1] - 8)
    words = run.words_at(begin) >> np.uint64(8 * (place.begin - begin))
    words &= np.uint64(0x7F7F7F7F7F7F7F7F >> 8 * (8 - place.width))
    for bits, low in ((7, 0x00FF00FF00FF00FF), (14, 0x0000FFFF0000FFFF), (28, 0x00000000FFFFFFFF)):
        high = (words >> np.uint64(8 * bits // 7)) & np.uint64(low)
        words = (words & np.uint64(low)) | (high << np.uint64(bits))
    return words


@lru_cache(maxsize=64)
def _attributes(shape: Shape) -> Mapping[bytes, _Varint | None]:
    """Find the attributes of a plain token span, by key; the integers have a place.

    Raises `NotUniformError` for another span.
    """
    record = shape.record.tobytes()
    (_, _, _, begin, end) = next(fields(record, 0, len(record)))
    attributes: dict[bytes, _Varint | None] = {}
    seen: set[int] = set()
    for number, wire_type, _, value, following in fields(record, begin, end):
        if number == 9:
            key, place = _attribute(record, value, following)
            _expect(wire_type == LEN and key not in attributes)
            attributes[key] = place
            continue
        _expect(number not in seen)
        seen.add(number)
        if number == 5:
            _expect(record[value:following] == _NAME)
        elif number == 6:
            _expect(wire_type == VARINT)
        elif number == 15:
            _expect(wire_type == LEN and value == following)
        else:
            _expect(_FIXED.get(number) == (wire_type, following - value))
    _expect({1, 2, 4, 5, 7, 8} <= seen)
    _expect(all(attributes[key] is not None for key in (_INDEX, _STEP, _CHOICE) if key in attributes))
    return attributes


def _attribute(record: bytes, begin: int, end: int) -> tuple[bytes, _Varint | None]:
    """Read one attribute: its key, and the place of its value when that is an integer."""
    parts = list(fields(record, begin, end))
    _expect([part[:2] for part in parts] == [(1, LEN), (2, LEN)])
    (_, _, _, key_begin, key_end), (_, _, _, value_begin, value_end) = parts
    values = list(fields(record, value_begin, value_end))
    _expect(len(values) == 1)
    number, wire_type, _, at, following = values[0]
    _expect(_VALUES.get(number) == wire_type)
    place = _Varint(at, following - at) if number == _INT_VALUE else None
    _expect(place is None or place.width <= _MOST_VARINT_BYTES)
    return record[key_begin:key_end], place


def _expect(holds: bool) -> None:
    if not holds:
        raise NotUniformError
