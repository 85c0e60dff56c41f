"""Bodies that have many tiny messages, of which each takes hundreds of bytes once it is parsed.

12 00 12 00 …    64 MiB of empty spans, 64 KiB as gzip: 33 million messages, 12 GB of memory, a minute
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from google.protobuf.message import DecodeError

from collector.receive.envelope import MEASURED, SCOPE_SPANS, scopes
from collector.receive.errors import MalformedError
from collector.receive.runs import LEN, NotUniformError, fields

_SMALL_BYTES: Final = 256 * 1024
"""A smaller body takes no more than 50 MB."""
_FREE: Final = 10_000
"""So many items, and so many resources and scopes, may be as small as they like."""
_LARGE_BYTES: Final = 8 * 1024 * 1024
"""Exporters send less. So a hostile body that takes long holds up no usual one."""
_large: Final = threading.Lock()


@contextmanager
def one_at_a_time(size: int) -> Iterator[None]:
    """Let only one thread at a time parse a large body: it takes many times its bytes, and the GIL anyway."""
    if size <= _LARGE_BYTES:
        yield
        return
    with _large:
        yield


def check_number(items: int, size: int, least_bytes: int) -> None:
    """Raise `MalformedError` when a large body of this size has no bytes for so many items."""
    if size > _SMALL_BYTES:
        _refuse_if_dense(items, 0, size, least_bytes)


def check_density(body: bytes, least_bytes: int) -> None:
    """Raise `MalformedError` for a body with more items than it has bytes for, when one has at least so many bytes.

    So it does for one with more than 10,000 resources and scopes that are empty.
    """
    if len(body) <= _SMALL_BYTES:
        return
    items = around = 0
    try:
        for added in _items_of_scopes(body):
            around, items = around + 1, items + added
            _refuse_if_dense(items, around, len(body), least_bytes)
    except NotUniformError:  # a field that OTLP does not have, as a group
        sizes = [len(scope.spans) for _, scope in scopes(MEASURED.FromString(body))]
        _refuse_if_dense(sum(sizes), len(sizes), len(body), least_bytes)
    except DecodeError:
        return  # the parser of the whole body says why


def _items_of_scopes(body: bytes) -> Iterator[int]:
    """Yield the number of items of each scope, and 0 for each other field around them."""
    for number, kind, _, begin, end in fields(body, 0, len(body)):
        yield 0
        for inner, inner_kind, _, value, following in fields(body, begin, end) if (number, kind) == (1, LEN) else ():
            is_scope = (inner, inner_kind) == (2, LEN)
            yield len(SCOPE_SPANS.FromString(body[value:following]).spans) if is_scope else 0


def _refuse_if_dense(items: int, around: int, size: int, least_bytes: int) -> None:
    if (items - _FREE) * least_bytes > size or around - _FREE > 10 * items:
        msg = f"the body has {items + around} parts or more in {size} bytes, so most of them are empty"
        raise MalformedError(msg)
