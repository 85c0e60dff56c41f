"""Divides an answer into hidden reasoning, which stands between two markers, and the text behind it."""

from __future__ import annotations

from typing import NamedTuple

from instrumented_engine.core.text import overlap


class Markers(NamedTuple):
    """The strings before and behind the reasoning of a model."""

    start: str
    end: str


class Reasoning:
    """Divides one answer as its text grows. Only an answer that begins with the start marker has reasoning.

    So does every answer to a prompt that ends with the marker.

        markers "<think>" and "</think>", and the pieces "<thi", "nk>a", "b</th", "ink>c"
        reasoning is "", "a", "b", "" and visible "", "", "", "c"; all four tokens count, since the last
        completes the marker
    """

    def __init__(self, markers: Markers, prompt: str = "") -> None:
        self.num_tokens = 0
        """Tokens of the reasoning and its markers so far."""
        self.ended = False
        """Whether visible text may follow."""
        self._markers = markers
        self._begun = prompt.rstrip().endswith(markers.start)
        self._held = ""

    def push(self, text: str, *, final: bool = False) -> tuple[str, str]:
        """Add the text that one token released; return the reasoning and the visible text that may be sent now."""
        if self.ended:
            return "", text
        self.num_tokens += 1
        self._held += text
        if not self._begun:
            lead = self._held.lstrip()
            if lead.startswith(self._markers.start):
                self._begun, self._held = True, lead.removeprefix(self._markers.start)
            elif final or not self._markers.start.startswith(lead):
                self.ended, self.num_tokens = True, 0
                return "", self._take(len(self._held))
            else:
                return "", ""
        return self._divide(final=final)

    def _divide(self, *, final: bool) -> tuple[str, str]:
        end = self._markers.end
        at = self._held.find(end)
        if at >= 0:
            self.ended = True
            reasoning = self._take(at)
            return reasoning, self._take(len(self._held)).removeprefix(end)
        keep = 0 if final else overlap(self._held, end)
        return self._take(len(self._held) - keep), ""

    def _take(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text
