"""Recognises the next event of a stream by its bytes, without parsing it as JSON."""

from __future__ import annotations

import json
import re
from typing import Final

from tokentrail.answer import Answer

_BEGIN: Final = re.compile(rb"(?:event: (?!error\n)[^\r\n]+\n)?data: (?=\{)")
_TEXT: Final = re.compile(rb'"(?:content|text|delta|reasoning_content|reasoning|thinking)": ?"')
"""The beginning of a field that may hold a piece of the output."""
_PLAIN: Final = re.compile(rb'[^"\\\r\n]+')
"""Text without an escape, which ends where the next quotation mark stands."""
_END: Final = b"\n\n"
_MOST_LESSONS: Final = 4
"""Streams of which each event has a number of its own never repeat one; a lesson costs more than parsing an event."""


class Alike:
    r"""The last event that only brought text. Most events of a stream are equal to it but for the text.

    learn(b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n') keeps the bytes around the text:
        b'data: {"choices":[{"index":0,"delta":{"content":"' and b'"}}]}'
    texts(b'data: {"choices":[{"index":0,"delta":{"content":" there"}}]}\n\n') is then 1
    texts(b'data: {"choices":[{"index":0,"delta":{"content":""}}]}\n\n') is 0: it brings no text
    """

    __slots__ = ("_head", "_lessons", "_tail")

    def __init__(self) -> None:
        self._head = self._tail = b""
        self._lessons = 0

    def texts(self, chunk: bytes) -> int:
        """How many events are in the chunk, if each brings text for choice 0 and nothing else; else 0."""
        if not self._head:
            return 0  # nothing was learned yet
        *events, rest = chunk.split(_END)
        return 0 if rest or not all(map(self._brings_text, events)) else len(events)

    def _brings_text(self, event: bytes) -> bool:
        return (
            event.startswith(self._head)
            and event.endswith(self._tail)
            and _PLAIN.fullmatch(event, len(self._head), len(event) - len(self._tail)) is not None
        )

    def learn(self, chunk: bytes) -> None:
        """This chunk brought one event with output."""
        begin, found = _BEGIN.match(chunk), _TEXT.search(chunk)
        if begin is None or found is None or not chunk.endswith(_END) or self._lessons == _MOST_LESSONS:
            return
        self._lessons += 1
        rest = chunk[found.end() :].removesuffix(_END)
        head, tail = chunk[: found.end()], rest[rest.find(b'"') :]
        before = head[begin.end() :]
        if _only_text(before + b"x" + tail) and not _only_text(before + tail):
            self._head, self._tail = head, tail


def _only_text(data: bytes) -> bool:
    """Whether the event brings output for choice 0, and tells neither an end nor a count."""
    answer = Answer()
    try:
        choices = answer.read(json.loads(data))
    except ValueError:
        return False
    return list(choices) == [0] and not (answer.complete or answer.usage)
