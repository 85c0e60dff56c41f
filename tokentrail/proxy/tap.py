"""Reads a copy of the bytes that pass, after they have passed. No fault here reaches them."""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable
from typing import Any, Final

from tokentrail._host.guard import Throttle
from tokentrail.clients.answer import other_output
from tokentrail.clients.delta import names_a_heartbeat
from tokentrail.clients.recording import Recording
from tokentrail.proxy.alike import Alike
from tokentrail.proxy.headers import READ_ENCODINGS
from tokentrail.proxy.sse import Events

logger = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 4 << 20
"""A larger body of an answer that is not streamed passes without being read."""
MAX_INFLATED: Final = 1 << 20
"""The most bytes that one compressed chunk may unfold to."""
_LONGEST_NAME: Final = 64
"""Characters of an event's name that are looked at."""
_NAMES: Final = frozenset({"choices", "type", "object", "error"})
"""Each event of the APIs that are read has one of these."""
_COMMENT: Final = re.compile(rb"\s*:[^\r\n]*[\r\n]")
"""A line by which OpenRouter keeps a connection alive, also before an answer that is no stream."""
_FIELD: Final = re.compile(rb"\s*(?:data|event|id|retry):")
"""The beginning of a stream of events, whatever type its server names."""
_THROTTLE: Final = Throttle()


class Tap:
    """Reads one answer for a recording. `unread` gets the reason of each thing that could not be read, `held` the
    seconds that each chunk took from its arrival to its passing.
    """

    def __init__(
        self,
        recording: Recording,
        content_type: str,
        encoding: str,
        unread: Callable[[str], object],
        held: Callable[[float], object],
    ) -> None:
        self._held = held
        self._recording = recording
        self._unread = unread
        plain = encoding in ("", "identity")
        self._inflate = zlib.decompressobj(wbits=47) if encoding in READ_ENCODINGS and not plain else None
        self._events: Events | None = None
        self._alike = Alike()
        self._body: list[bytes] | None = None
        self._body_size = 0
        self._readable = True
        self._foreign = self._closed = False
        self._began = self._page = False
        kind = content_type.partition(";")[0].strip().lower()
        if not plain and self._inflate is None:
            self._give_up("encoding")
        elif kind == "text/event-stream":
            self._events = Events()
        elif kind == "application/json" or kind.endswith("+json"):
            self._body = []
        else:
            self._page = kind == "text/html"
            self._give_up("content_type")

    @property
    def over(self) -> bool:
        """The answer said that it is over, or could not be read to its end."""
        return self._closed or self._recording.answer.complete or not self._readable

    @property
    def whole(self) -> bool:
        """It is over, and something was answered, as far as it could be read. A page for people is no answer."""
        accepted = self._events is None and self._recording.answer.accepted
        return self.over and (self._recording.is_whole or accepted or not self._readable) and not self._page

    def read(self, chunk: bytes, at_ns: int, passed_ns: int) -> None:
        """Reads a chunk that arrived and passed at these times (unix ns)."""
        self._held((passed_ns - at_ns) / 1e9)
        if not self._readable:
            return
        try:
            if self._inflate is not None:
                chunk = self._inflate.decompress(chunk, MAX_INFLATED)
                if self._inflate.unconsumed_tail:
                    self._give_up("too_large")
                elif self._inflate.unused_data:
                    self._give_up("encoding")  # a second gzip member, or rubbish
            if not self._began and chunk.strip():
                self._began = True
                self._correct(chunk.lstrip())
            if self._events is not None:
                self._stream(self._events, chunk, at_ns)
            elif self._body is not None:
                self._body_size += len(chunk)
                if self._body_size > MAX_BODY_BYTES:
                    self._body = None
                    self._give_up("too_large")
                else:
                    self._body.append(chunk)
        except zlib.error:  # `deflate` without its header, as some servers send it
            self._give_up("encoding")
        except Exception as error:
            self._failed(error)

    def finish(self, at_ns: int) -> None:
        """The last byte passed at `at_ns`. An answer that is not streamed arrives now, as a whole."""
        if not self._readable:
            return
        try:
            if self._events is not None:
                self._stream(self._events, b"\n\n", at_ns)  # for a last event without its empty line
                if self._foreign and not (self._recording.arrivals or self._recording.answer.model):
                    self._give_up("format")
            elif self._body is not None:
                self._event(_without_comments(b"".join(self._body)), at_ns)
                self._closed = True
                if self._foreign and not self._recording.is_whole:
                    self._give_up("format")
        except Exception as error:
            self._failed(error)

    def _correct(self, first: bytes) -> None:
        """Some servers name the type of a stream for a JSON body, or the other way round: the first bytes decide."""
        if self._events is not None and first.startswith(b"{"):
            self._events, self._body = None, []
        elif self._body is not None and _FIELD.match(first):
            self._events, self._body = Events(), None

    def flush(self) -> None:
        """The arrivals that wait go to the trail."""
        self._recording.flush()

    def _stream(self, events: Events, chunk: bytes, at_ns: int) -> None:
        whole = events.between
        if whole and (texts := self._alike.texts(chunk)):
            for output in texts:
                self._recording.arrived(*output, at_ns)
            return
        arrivals = self._recording.arrivals
        for name, data in events.feed(chunk):
            if data == b"[DONE]":
                self._closed = True
            elif name != b"message" and names_a_heartbeat(name[:_LONGEST_NAME].decode(errors="replace")):
                continue  # whatever it holds
            else:
                event = self._event(data, at_ns)
                if name == b"error" and not self._recording.answer.error_type:
                    self._recording.answer.fail(event)
        while events.skipped:
            events.skipped -= 1
            self._readable_in_part()
        if whole and self._recording.arrivals == arrivals + 1:
            self._alike.learn(chunk)

    def _event(self, data: bytes, at_ns: int) -> Any:
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            self._recording.event(event, at_ns)
            self._foreign = self._foreign or (_NAMES.isdisjoint(event) and other_output(event))
        else:
            self._unread("malformed")
        return event

    def _readable_in_part(self) -> None:
        """An event was skipped. It may have been the last one."""
        self._unread("too_large")
        self._recording.answer.complete = True

    def _give_up(self, reason: str) -> None:
        self._readable = False
        self._unread(reason)

    def _failed(self, error: Exception) -> None:
        self._give_up("fault")
        if _THROTTLE.allows(type(error).__name__):
            logger.warning("the proxy cannot read an answer, which passes nevertheless: %s", type(error).__name__)


def _without_comments(body: bytes) -> bytes:
    r"""A body without the comments before it: b": PROCESSING\n\n{}" is b"\n{}"."""
    while comment := _COMMENT.match(body):
        body = body[comment.end() :]
    return body
