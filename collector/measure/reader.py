"""What one answer reads: the store as its caller may see it, at one time.

An answer of many parts asks each question to the store once:

    /summary        asks which requests are in flight at 10:00:00
    /incidents      asks the same, and gets the first one's rows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy.typing as npt

from collector.measure.times import Moment
from collector.query.past_days import Versions
from collector.query.queries import Queries
from collector.slo.burn import Windows
from collector.slo.judge import selected
from collector.slo.model import Slo
from collector.sql.fragment import TRUE, Fragment


@dataclass(frozen=True)
class Source:
    """The store's queries and the configuration that all answers depend on."""

    queries: Queries
    slos: tuple[Slo, ...]
    """The SLOs of the SLO file."""
    windows: Windows
    lost_after_ns: int
    clock: Callable[[], int] = field(repr=False)
    """Unix nanoseconds."""
    heard_until: Callable[[], int] = field(repr=False)
    """Unix nanoseconds up to which the store has everything that was received (collector.watermark)."""
    complete_until: Callable[[], int] = field(repr=False)
    """Unix nanoseconds up to which the store has the requests that ended (collector.watermark)."""
    given_up_ns: Callable[[str], int] = field(repr=False)
    """When the request of a key was counted as lost; 0 for one that was not."""


class Reader:
    """Reads a source for one answer to one caller. `tenant` is the only one whose requests it shows; empty: all are.

    It lives as long as the answer, and its times are read once. Read `complete_ns` before rows.
    """

    def __init__(self, source: Source, tenant: str) -> None:
        self._source = source
        self.tenant = tenant
        self.queries = source.queries
        self.windows = source.windows
        self.lost_after_ns = source.lost_after_ns
        self.given_up_ns = source.given_up_ns
        self.in_parts = False
        """The answer has many parts, which ask the store each question once."""
        self.open_since_ns = 2**63 - 1
        """All parts read the requests in flight that were not lost before, so the store is asked once."""

    @cached_property
    def now_ns(self) -> int:
        """Unix nanoseconds."""
        return self._source.clock()

    @cached_property
    def complete_ns(self) -> int:
        """Unix nanoseconds up to which the store has the requests that ended."""
        return self._source.complete_until()

    @cached_property
    def heard_until_ns(self) -> int:
        """Unix nanoseconds up to which the store has everything that was received."""
        return self._source.heard_until()

    @cached_property
    def slos(self) -> tuple[Slo, ...]:
        """The SLOs that the caller may see, without the names of other tenants in them."""
        if not self.tenant:
            return self._source.slos
        return tuple(
            slo.model_copy(update={"select": {**slo.select, "tenant": (self.tenant,)}})
            if "tenant" in slo.select
            else slo
            for slo in self._source.slos
            if self.tenant in slo.select.get("tenant", (self.tenant,))
        )

    @property
    def tenant_filter(self) -> Fragment:
        """Select the requests that the caller may see."""
        return selected({"tenant": [self.tenant]}, "caller") if self.tenant else TRUE

    def answer_in_parts(self, end: Moment) -> None:
        """Ask the store each question once for all parts of an answer about a window that ends so.

        Each part reads the requests in flight since another time, so they are read since the first of these times.
        """
        self.in_parts = True
        self.queries = Remembering(self.queries)
        self.open_since_ns = max(0, end.at(self.now_ns) - max((slo.window for slo in self.slos), default=0))


class Remembering(Queries):
    """The store's queries. Equal ones are run once; callers may change the rows."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._found: dict[str, Any] = {}

    def rows(
        self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any
    ) -> list[dict[str, Any]]:
        """The rows of the result, by column name."""
        found = self._once(
            ("rows", query, fragments, parameters), lambda: self._queries.rows(query, fragments, **parameters)
        )
        return [dict(row) for row in found]

    def columns(
        self, query: str, fragments: Mapping[str, Fragment] | None = None, /, **parameters: Any
    ) -> dict[str, Sequence[Any]]:
        """The columns of the result, by name."""
        found: dict[str, Sequence[Any]] = self._once(
            ("columns", query, fragments, parameters), lambda: self._queries.columns(query, fragments, **parameters)
        )
        return found.copy()

    @property
    def remembers(self) -> bool:
        """Answers about whole days are remembered."""
        return self._queries.remembers

    def versions(self) -> Versions:
        """The versions of all days."""
        return self._queries.versions()

    def may_have_rows(self, *tables: str) -> bool:
        """Tell whether one of these tables has rows, or had some earlier."""
        return self._queries.may_have_rows(*tables)

    def remembered(self, *question: Any) -> Any:
        """The answer to a question, read again when a row of the days that it reads has changed."""
        return self._queries.remembered(*question)

    def array(
        self, query: str, fragments: Mapping[str, Fragment], row: npt.DTypeLike, /, **parameters: Any
    ) -> npt.NDArray[Any]:
        """The rows of the result as an array."""
        found: npt.NDArray[Any] = self._once(
            ("array", query, fragments, row, parameters),
            lambda: self._queries.array(query, fragments, row, **parameters),
        )
        return found

    def _once(self, question: tuple[Any, ...], ask: Callable[[], Any]) -> Any:
        key = repr(question)
        if key not in self._found:
            self._found[key] = ask()
        return self._found[key]
