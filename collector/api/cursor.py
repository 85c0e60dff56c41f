"""Cursors: the place in an order of rows at which the next page begins. Rows that come or go do not move it.

page 1    rows 1 … 100, "next": "eyJ…"    the cursor holds the sort key of row 100
page 2    cursor=eyJ…                      rows after that key, in the same order
"""

from __future__ import annotations

import base64
import json
import re
from typing import NamedTuple

from collector.api.problems import bad_parameter

_MOST = 2**63


class Cursor(NamedTuple):
    """The sort key of the last row of a page, in the order `sort`."""

    sort: str
    value: int | None
    """The value that the rows are sorted by; None: not known, as in the last rows."""
    at_ns: int
    trace_id: str
    span_id: str

    def text(self) -> str:
        """The cursor as answers carry it."""
        return base64.urlsafe_b64encode(json.dumps(self).encode()).decode().rstrip("=")


def read(text: str | None, sort: str) -> Cursor | None:
    """The cursor in a query. Raises Problem unless an answer in the same order gave it."""
    if text is None:
        return None
    try:
        cursor = Cursor(*json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
    except (ValueError, TypeError, RecursionError):
        raise bad_parameter("cursor", "is not the `next` of an answer") from None
    numbers = [cursor.at_ns, *([] if cursor.value is None else [cursor.value])]
    ids = ((cursor.trace_id, 32), (cursor.span_id, 16))
    if not all(type(n) is int and 0 <= n < _MOST for n in numbers) or not all(
        isinstance(id_, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", id_) for id_, digits in ids
    ):
        raise bad_parameter("cursor", "is not the `next` of an answer")
    if cursor.sort != sort:
        raise bad_parameter("cursor", "is of another order: leave it out to begin at the first page")
    return cursor
