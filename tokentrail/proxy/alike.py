"""Recognises the next event of a stream by its bytes, without parsing it as JSON."""

from __future__ import annotations

import json
import re
from typing import Final

from tokentrail.clients.answer import Answer, Output

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
    texts(b'data: {"choices":[{"index":0,"delta":{"content":" there"}}]}\n\n') is then [Output(said=6)]
    texts(b'data: {"choices":[{"index":0,"delta":{"content":""}}]}\n\n') is []: it brings no text
    """

    __slots__ = ("_head", "_lessons", "_tail", "_thinks")

    def __init__(self) -> None:
        self._head = self._tail = b""
        self._lessons = 0
        self._thinks = False  # the text is reasoning

    def texts(self, chunk: bytes) -> list[Output]:
        """The output of each event in the chunk, if each brings text for choice 0 and nothing else; else none."""
        if not self._head:
            return []  # nothing was learned yet
        *events, rest = chunk.split(_END)
        if rest or not all(map(self._brings_text, events)):
            return []
        around = len(self._head) + len(self._tail)
        sizes = [len(event) - around for event in events]
        return [Output(0, 0, size) if self._thinks else Output(0, size, 0) for size in sizes]

    def _brings_text(self, event: bytes) -> bool:
        return (
            event.startswith(self._head)
            and event.endswith(self._tail)
            and _PLAIN.fullmatch(event, len(self._head), len(event) - len(self._tail)) is not None
        )

    def learn(self, chunk: bytes) -> None:
        """This chunk brought one event with output."""
        begin, text = _BEGIN.match(chunk), _TEXT.search(chunk)
        if begin is None or text is None or not chunk.endswith(_END) or self._lessons == _MOST_LESSONS:
            return
        self._lessons += 1
        rest = chunk[text.end() :].removesuffix(_END)
        head, tail = chunk[: text.end()], rest[rest.find(b'"') :]
        before = head[begin.end() :]
        output = _only_text(before + b"x" + tail)
        if output is not None and _only_text(before + tail) is None:
            self._head, self._tail, self._thinks = head, tail, output.thought > 0


def _only_text(data: bytes) -> Output | None:
    """The output of an event that brings some for choice 0, and tells neither an end nor a count."""
    answer = Answer()
    answer.began = True  # so that a piece without text is one too
    try:
        outputs = answer.read(json.loads(data))
    except ValueError:
        return None
    only = len(outputs) == 1 and outputs[0].choice == 0 and not (answer.complete or answer.usage.is_told)
    return outputs[0] if only else None
