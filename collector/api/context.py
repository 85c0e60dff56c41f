"""The objects that every handler of the API works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collector.api.session import CURRENT
from collector.count.reader import Reader, Source
from collector.engines.engines import ClocksApart

if TYPE_CHECKING:
    from collector.metrics.clocks import Clocks


@dataclass(frozen=True)
class Context:
    """What answers are made from."""

    source: Source
    clocks: Clocks = field(repr=False)
    """The services whose clock is ahead or behind."""

    def reader(self) -> Reader:
        """A reader for the answer to the current session's caller; raises LookupError outside of one."""
        return Reader(self.source, CURRENT.get().caller.tenant)

    def clocks_apart(self, now_ns: int) -> ClocksApart:
        """How far the clocks of services are from the collector's, at this time."""
        return self.clocks.ahead_s(now_ns), self.clocks.behind_s(now_ns)
