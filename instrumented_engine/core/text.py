"""Turns token ids into text that may be sent: whole characters, and no part of a possible stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"


class TextStream:
    """Detokenises one request's output as it grows; `decode` turns token ids into text.

    A character is held back until its last byte has come. Text is held back while it may be the start of a `stop`
    string.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: tuple[str, ...] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._ids: list[int] = []  # since the last clean cut, with the tokens before it for context
        self._context = 0  # how many of them are context
        self._context_text = ""
        self._held = ""

    def push(self, token: int, *, may_stop: bool = True) -> tuple[str, bool]:
        """Add a token; return the text that may be sent now, and whether a stop string is complete."""
        self._held += self._characters(token)
        if may_stop and (cut := self._stop_position()) is not None:
            text, self._held = self._held[:cut], ""
            return text, True
        keep = self._possible_stop_length()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text, False

    def flush(self) -> str:
        """Return all text that is held back, at the end of the output."""
        tail = self._decode(self._ids)[len(self._context_text) :]
        text, self._held, self._ids, self._context_text = self._held + tail, "", [], ""
        return text

    def _characters(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids)
        if len(text) <= len(self._context_text) or text.endswith(REPLACEMENT):
            return ""
        new = text[len(self._context_text) :]
        # Some tokenizers decode a token differently at the start of a text, so the tokens of this cut stay as context.
        self._ids = self._ids[self._context :]
        self._context = len(self._ids)
        self._context_text = self._decode(self._ids)
        return new

    def _stop_position(self) -> int | None:
        return min((at for stop in self._stop if (at := self._held.find(stop)) >= 0), default=None)

    def _possible_stop_length(self) -> int:
        return max((_overlap(self._held, stop) for stop in self._stop), default=0)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
