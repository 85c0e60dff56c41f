"""Splits the bytes of a server-sent event stream into events, however they are cut."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_EVENT_BYTES: Final = 1 << 20
"""A larger event is skipped and counted. The bytes that pass are not affected."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """The name of an event (`message` when it has none) and its data."""

    name: bytes
    data: bytes


class Events:
    r"""An incremental parser of the WHATWG event stream format. `skipped` counts the events that were too large.

    feed(b"data: a\r\n\r"), feed(b"\ndata: b") and feed(b"\n\n") give [a], [] and [b]
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.skipped = 0
        self._max = max_event_bytes
        self._parts: list[bytes] = []  # of the line that has not ended
        self._size = 0  # of the event that has not ended
        self._after_return = False
        self._name = b""
        self._data: list[bytes] = []

    @property
    def between(self) -> bool:
        """No event has begun and not ended."""
        return not self._size and not self._after_return

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that end in this chunk."""
        if self._after_return and chunk:
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF that was cut
        *lines, rest = _LINE_END.split(chunk)
        self._after_return = chunk.endswith(b"\r")
        events = []
        for line in lines:
            self._size += len(line)
            if self._parts:
                line, self._parts = b"".join([*self._parts, line]), []
            if line:
                self._field(line)
            elif event := self._dispatch():
                events.append(event)
        if rest:
            self._size += len(rest)
            if self._size <= self._max:
                self._parts.append(rest)
            else:
                self._parts = [b":"]  # the rest of this line is read as a comment
        return events

    def _field(self, line: bytes) -> None:
        if self._size > self._max:
            self._data.clear()
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data" or name == b"\xef\xbb\xbfdata":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        elif name == b"error":  # a field of llama.cpp's own, until September 2025
            self._name = name
            self._data.append(value)

    def _dispatch(self) -> Event | None:
        event = Event(self._name or b"message", b"\n".join(self._data)) if self._data else None
        if self._size > self._max:
            self.skipped += 1
            event = None
        self._name, self._size = b"", 0
        self._data.clear()
        return event
