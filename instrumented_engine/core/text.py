"""Turns token ids into text that may be sent: whole characters, and no part of a possible stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
MAX_PENDING_TOKENS = 16
"""After this many tokens without a complete character, their bytes are broken and are sent as such."""
MAX_CHARACTER_BYTES = 4


class TextStream:
    """Detokenises one request's output as it grows; `decode` turns token ids into text.

    A character is held back until its last byte has come. Text is held back while it may be the start of a `stop`
    string. `prompt` are the last tokens before the output: some tokenizers drop a space at the start of a text.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: tuple[str, ...] = (),
        prompt: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._stop = stop
        within_character = decode(prompt).endswith(REPLACEMENT)
        self._ids: list[int] = [] if within_character else list(prompt)  # context that is not sent, then pending tokens
        self._context = len(self._ids)
        self._context_text = decode(self._ids)
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
        if not text.endswith(REPLACEMENT):
            return self._send(text, len(self._ids)) if len(text) > len(self._context_text) else ""
        if len(self._ids) - self._context < MAX_PENDING_TOKENS:
            return ""
        cut = self._cut_in_broken_bytes(text)
        return self._send(self._decode(self._ids[:cut]), cut)

    def _send(self, text: str, cut: int) -> str:
        """Return the part of `text`, the first `cut` tokens, that has not been sent. The sent tokens become context."""
        new = text[len(self._context_text) :]
        self._ids = self._ids[self._context :]
        self._context = cut - self._context
        self._context_text = self._decode(self._ids[: self._context])
        return new

    def _cut_in_broken_bytes(self, text: str) -> int:
        """A number of tokens after which the rest may be decoded alone, so that no character is cut in two."""
        end = len(self._ids)
        for cut in range(end - 1, end - MAX_CHARACTER_BYTES, -1):
            if self._decode(self._ids[:cut]) + self._decode(self._ids[cut:]) == text:
                return cut
        return end

    def _stop_position(self) -> int | None:
        return min((at for stop in self._stop if (at := self._held.find(stop)) >= 0), default=None)

    def _possible_stop_length(self) -> int:
        return max((overlap(self._held, stop) for stop in self._stop), default=0)


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
