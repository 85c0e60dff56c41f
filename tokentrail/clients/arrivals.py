"""How many tokens came one after another, as far as the chunks of an answer and its usage tell."""

from __future__ import annotations

from typing import Final

TOGETHER_NS: Final = 1_000_000
"""What arrives so soon after the first output of an answer came together with it: one read may not hold all of it."""
_FEW: Final = 10
"""One of so many tokens may be wrong: a stream has no text for the token that ends it."""
_BYTES: Final = 2
"""The text of a token has about four bytes. Text with less than these has no room for all tokens: some never came."""


class Arrivals:
    """The arrivals of output of one answer, or of each of several.

    TPOT is the time from the first arrival to the last, divided by the tokens that came in this time. An answer tells
    the number of its tokens, and that can be too large: hidden reasoning never comes, what comes of it may be a
    summary, and the first arrival may bring many tokens. For 21 tokens told:

        21 arrivals of one word                        20 came after the first
        7 arrivals of three words                      20, since the first has no large part of the text
        1 arrival of 12 words, 9 arrivals of one       not known; 9 or more
        3 arrivals of one word                         not known, since 18 have no text; 2 or more
    """

    __slots__ = ("_at_first", "_first_ns", "_later", "_later_thoughts", "_visible_ns", "said", "thought", "total")

    def __init__(self) -> None:
        self.total = 0
        self.said = self.thought = 0  # bytes
        self._first_ns: dict[int, int] = {}  # by choice
        self._visible_ns: int | None = None  # of the first text
        self._at_first = 0  # bytes that came with the first arrival of a choice
        self._later = self._later_thoughts = 0  # arrivals after that with text, and those with reasoning alone

    def add(self, choice: int, said: int, thought: int, at_ns: int) -> None:
        """Output arrived at `at_ns`, with so many bytes of text and of reasoning."""
        self.total += 1
        self.said += said
        self.thought += thought
        if said and self._visible_ns is None:
            self._visible_ns = at_ns
        if at_ns - self._first_ns.setdefault(choice, at_ns) < TOGETHER_NS:
            self._at_first += said + thought
        elif said:
            self._later += 1
        elif thought:
            self._later_thoughts += 1

    @property
    def visible_ns(self) -> int | None:
        """When the first text came (unix ns). An answer that came as a whole is seen then; None: not known."""
        is_whole = self.total == 1 and not self.thought
        return min(self._first_ns.values()) if is_whole else self._visible_ns

    @property
    def choices(self) -> int:
        """How many answers got output."""
        return len(self._first_ns)

    def are_tokens(self, tokens: int, reasoning: int | None) -> bool:
        """Whether so many tokens, `reasoning` among them, came one after another. None: nobody told those of reasoning.

        The first arrival may bring a tenth of the tokens: TPOT is wrong by so much then, and no more.
        """
        gaps = tokens - self.choices
        if (self._later + self._later_thoughts) * _FEW >= gaps * (_FEW - 1):
            return True
        if not self.hold(tokens, reasoning):
            return False
        at_first = tokens * self._at_first / (self.said + self.thought) - self.choices
        return at_first * _FEW <= gaps

    def hold(self, tokens: int, reasoning: int | None) -> bool:
        """Whether the text that arrived has room for so many tokens, and its reasoning for theirs."""
        return self.said + self.thought >= tokens * _BYTES and (
            not self.thought or self.thought >= (reasoning or 0) * _BYTES
        )

    def later(self, *, with_thoughts: bool) -> int:
        """How many arrivals after the first brought a token or more. A summary of thoughts is no token."""
        return self._later + self._later_thoughts * with_thoughts
