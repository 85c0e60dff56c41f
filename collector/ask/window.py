"""The stretch of time that an answer is about, and the requests that it is about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from collector.ask.times import SECOND_NS
from collector.sql.fragment import Fragment

LONGEST_NAME: Final = 256
"""Characters of a name that a filter asks for."""


@dataclass(frozen=True)
class Window:
    """A half-open stretch of time, [start, end), in unix nanoseconds, with a filter for its requests."""

    start_ns: int
    end_ns: int
    filter: Fragment

    @property
    def bounds(self) -> dict[str, int]:
        """The bounds as parameters of a query."""
        return {"start_ns": self.start_ns, "end_ns": self.end_ns}

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return (self.end_ns - self.start_ns) / SECOND_NS

    def complete(self, complete_ns: int) -> Window:
        """The part of the window before this time; it may be empty."""
        return replace(self, end_ns=max(self.start_ns, min(self.end_ns, complete_ns)))
