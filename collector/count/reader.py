"""What one answer reads: the store as its caller may see it, at one time.

The parts of an answer ask the store each question once:

    the summary        asks which requests are in flight at 10:00:00
    the incidents      ask the same, and get the summary's
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from collector.ask.queries import Queries
from collector.count.in_flight import InFlight
from collector.slo.burn import Windows
from collector.slo.file import SloChange, SloFile
from collector.slo.judge import selected
from collector.slo.model import Slo
from collector.sql.fragment import TRUE, Fragment


@dataclass(frozen=True)
class Source:
    """The store's queries and the configuration that all answers depend on."""

    queries: Queries
    slo_file: SloFile
    windows: Windows
    lost_after_ns: int
    clock: Callable[[], int] = field(repr=False)
    """Unix nanoseconds."""
    heard_until: Callable[[], int] = field(repr=False)
    """Unix nanoseconds up to which the store has everything that was received (collector.base.watermark)."""
    complete_until: Callable[[], int] = field(repr=False)
    """Unix nanoseconds up to which the store has the requests that ended (collector.base.watermark)."""
    given_up_ns: Callable[[str], int] = field(repr=False)
    """When the request of a key was counted as lost; 0 for one that was not."""


class Reader:
    """Reads a source for one answer to one caller. `tenant` is the only one whose requests it shows; empty: all are.

    It lives as long as the answer, and its times are read once.
    """

    def __init__(self, source: Source, tenant: str) -> None:
        self._source = source
        self.tenant = tenant
        self.queries = source.queries.for_one_answer()
        self.windows = source.windows
        self.lost_after_ns = source.lost_after_ns
        self.given_up_ns = source.given_up_ns
        self.not_ended: dict[str, tuple[int, InFlight]] = {}
        """What `evaluation.open_requests` has read, by its filter and end: since when, and the requests."""
        self.complete_ns = source.complete_until()
        """Unix nanoseconds up to which the store has the requests that ended: had, before any row was read."""

    @cached_property
    def now_ns(self) -> int:
        """Unix nanoseconds."""
        return self._source.clock()

    @cached_property
    def heard_until_ns(self) -> int:
        """Unix nanoseconds up to which the store has everything that was received."""
        return self._source.heard_until()

    @cached_property
    def slos(self) -> tuple[Slo, ...]:
        """The SLOs that the caller may see, without the names of other tenants in them."""
        slos = self._source.slo_file.slos()
        if not self.tenant:
            return slos
        return tuple(
            slo.model_copy(update={"select": {**slo.select, "tenant": (self.tenant,)}})
            if "tenant" in slo.select
            else slo
            for slo in slos
            if self.tenant in slo.select.get("tenant", (self.tenant,))
        )

    @property
    def slo_file_problem(self) -> str:
        """Why the newest SLO file is not in use, on one line; empty while it is."""
        lines = self._source.slo_file.problem.splitlines()
        problem = "; ".join(line.strip() for line in lines if line.strip(" ^"))
        return "The SLO file cannot be used; the collector's log says why." if problem and self.tenant else problem

    def slo_changes(self, start_ns: int, end_ns: int) -> list[SloChange]:
        """The changes of the SLOs that the caller may see, the earliest first."""
        changes = self._source.slo_file.changes(start_ns, end_ns)
        return [one for one in changes if not (self.tenant and one.tenants) or self.tenant in one.tenants]

    @property
    def tenant_filter(self) -> Fragment:
        """Select the requests that the caller may see."""
        return selected({"tenant": [self.tenant]}, "caller") if self.tenant else TRUE
