"""Bodies that have many tiny messages, of which each takes up to hundreds of bytes once it is parsed.

12 00 12 00 …    64 MiB of empty spans, 64 KiB as gzip: 33 million messages, 12 GB of memory, a minute
6a 00 6a 00 …    64 MiB of empty links of one span: 33 million messages, 3 GB
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from collector.otlp.envelope import MEASURED, SCOPE_SPANS, scopes
from collector.otlp.errors import BusyError, MalformedError, TooLargeError
from collector.otlp.runs import LEN, NotUniformError, fields

_SMALL_BYTES: Final = 256 * 1024
"""A smaller body takes no more than 50 MB."""
_FREE: Final = 10_000
"""How many items, and how many resources and scopes, may be as small as they like."""
_MOST_TINY: Final = 4_000_000
"""Fields of less than 8 bytes in a body. 64 MiB of real spans have 0.6 to 2.2 million."""
_LONGEST_TINY: Final = 7
_AT_ONCE_BYTES: Final = 1024 * 1024
_PLACES: Final = (
    (1024 * 1024, threading.Semaphore(8)),
    (8 * 1024 * 1024, threading.Semaphore(1)),
    (2**63, threading.Semaphore(1)),
)
"""How many bodies up to a size are parsed at a time. A hostile body that takes long delays only bodies of its own size;
exporters send up to 8 MiB, and most of them less than 1."""
_LONGEST_WAIT_S: Final = 10.0
"""An exporter gives a request up after ten seconds, by default."""


@contextmanager
def turn_to_parse(size: int) -> Iterator[None]:
    """Let few threads at a time parse bodies of this size: each takes many times its bytes, and the GIL anyway.

    Raises `BusyError` for a body whose turn does not come within ten seconds.
    """
    places = next(places for most, places in _PLACES if size <= most)
    if not places.acquire(timeout=_LONGEST_WAIT_S):
        msg = f"other bodies of this size were checked for {_LONGEST_WAIT_S:g} s; try again"
        raise BusyError(msg)
    try:
        yield
    finally:
        places.release()


def check_count(items: int, size: int, least_bytes: int) -> None:
    """Raise `MalformedError` when a large body of this size has no bytes for so many items."""
    if size > _SMALL_BYTES:
        _refuse_bomb(items, 0, size, least_bytes)


def check_for_bomb(body: bytes, least_bytes: int) -> None:
    """Raise `MalformedError` for a body with more items than it has bytes for, when one has at least so many bytes.

    So it does for one with more than 10,000 resources and scopes that are empty. Raise `TooLargeError` for one with
    more than four million tiny fields at any depth.
    """
    if len(body) <= _SMALL_BYTES:
        return
    if tiny_fields(body) > _MOST_TINY:
        msg = f"the body has more than {_MOST_TINY} fields of less than {_LONGEST_TINY + 1} bytes; send smaller batches"
        raise TooLargeError(msg)
    items = around = 0
    try:
        for added in _items_of_scopes(body):
            around, items = around + 1, items + added
            _refuse_bomb(items, around, len(body), least_bytes)
    except NotUniformError:  # a field that OTLP does not have, as a group
        measured = MEASURED.FromString(body)
        sizes = [len(scope.spans) for _, scope in scopes(measured)]
        _refuse_bomb(sum(sizes), len(measured.resource_spans) + len(sizes), len(body), least_bytes)
    except DecodeError:
        return  # the parser of the whole body says why


def tiny_fields(body: bytes) -> int:
    """Return at least the number of texts, bytes and messages in a body that have less than 8 bytes, at any depth.

    Each has a tag whose low three bits are 2, and behind it a byte whose low seven bits are the length or, where a tag
    or a length is written with more bytes than it needs, 0. Few other places look so: one of 128 in random bytes,
    none in text.

        4a 07 0a 01 k 12 02 18 05    an attribute k = 5: three, at 4a, 0a and 12
        4a 87 00 …                   the same with a longer length
    """
    if len(body) <= 2 * _MOST_TINY:  # which has no more
        return 0
    data, n = np.frombuffer(body, np.uint8), 0
    for begin in range(0, len(data) - 1, _AT_ONCE_BYTES):
        some = data[begin : begin + _AT_ONCE_BYTES + 1]
        n += int(np.count_nonzero(((some[:-1] & 7) == LEN) & ((some[1:] & 0x7F) <= _LONGEST_TINY)))
    return n


def _items_of_scopes(body: bytes) -> Iterator[int]:
    """Yield the number of items of each scope, and 0 for each other field around them."""
    for number, kind, _, begin, end in fields(body, 0, len(body)):
        yield 0
        for inner, inner_kind, _, value, following in fields(body, begin, end) if (number, kind) == (1, LEN) else ():
            is_scope = (inner, inner_kind) == (2, LEN)
            yield len(SCOPE_SPANS.FromString(body[value:following]).spans) if is_scope else 0


def _refuse_bomb(items: int, around: int, size: int, least_bytes: int) -> None:
    if (items - _FREE) * least_bytes > size or around - _FREE > 10 * items:
        msg = f"the body has {items + around} parts or more in {size} bytes, so most of them are empty"
        raise MalformedError(msg)
