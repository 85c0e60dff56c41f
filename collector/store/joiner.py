"""The joiner. The spans of some requests come in several payloads: it joins them, and the requests become rows."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from clickhouse_connect.driver.exceptions import ClickHouseError

from collector.base.once_a_minute import OnceAMinute
from collector.base.stage import ThreadStage, held
from collector.base.status import IngestStatus
from collector.base.store_errors import StoreError, reason_of
from collector.store.definitions import SQL_DIR, without_comments
from collector.store.insert import INSERT_SETTINGS, RefusedError, TooMuchError, errors_told_apart
from collector.store.part_folders import PartFolders
from collector.store.store import Store, settings_clause

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.5
_SECOND_S: Final = 1.0
"""The time of a span's arrival is stored in whole seconds."""
_DAY_S: Final = 86400
"""Spans wait for so long at most; `schema/30_held.sql` has the same time."""
_LATE_S: Final = 600
"""Rows of an insert that runs now may be some seconds old when it ends."""
_MOST_REQUESTS: Final = 500
"""Most requests of one insert."""
_MOST_PARTS: Final = 65536
"""Most parts of one request."""
_MOST_ATTEMPTS: Final = 4
"""A segment is tried so often while the store says that its rows are wrong or too large."""

_SQL: Final = {
    name: without_comments((SQL_DIR / "join" / f"{name}.sql").read_text())
    for name in ("due", "requests", "linked", "inner_spans", "insert", "mark")
}

Id = tuple[str, str, str]
"""A trace's id and a span's id, hexadecimal, and the tenant of the process: two tenants may tell the same ids."""


class _Request(NamedTuple):
    trace: str
    span: str
    tenant: str
    link: str
    is_log: bool
    is_part: bool

    @property
    def id(self) -> Id:
        return self.trace, self.span, self.tenant

    @property
    def linked(self) -> tuple[str, str]:
        """Its link, and its tenant."""
        return self.link, self.tenant


class Joiner(ThreadStage):
    """A stage that joins the requests of each segment once, when it has waited `after_s` seconds for their parts.

    The spans lie in `held_requests` and `held_spans` (collector/sql/schema/30_held.sql). The insert's token follows
    from the segment's id, so a segment that was joined just before a crash is not joined twice. Segments that
    still wait when the collector stops are joined after its next start.
    """

    def __init__(
        self,
        store: Store,
        status: IngestStatus,
        *,
        after_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("joiner")
        self._store = store
        self._part_folders = PartFolders(store.folder)
        self._status = status
        self._after_s = after_s
        self._clock = clock
        self._callbacks: list[Callable[[str], None]] = []
        self._attempts: dict[str, int] = {}
        self._since_s = 0
        self._line_due = OnceAMinute()
        self._looks_s: deque[float] = deque()
        for wait_s in (0.0, after_s + _SECOND_S):  # a process before this one may have left requests that wait
            self._look_in(wait_s)
        self._working = threading.Lock()

    def on_joined(self, callback: Callable[[str], None]) -> None:
        """Call with the `segment` value of the rows after every insert. An error in the callback is only logged."""
        self._callbacks.append(callback)

    def on_segment(self, _segment: str) -> None:
        """Look for requests once those of a segment that was inserted now have waited long enough."""
        self._look_in(self._after_s + _SECOND_S)

    def paused(self, timeout_s: float) -> AbstractContextManager[None]:
        """Wait until no segment is being joined, and hold the next one until the context ends; raises TimeoutError."""
        return held(self._working, f"the {self.name} has been at one segment", timeout_s)

    def start(self) -> None:
        """Begin to join."""
        self._thread.start()

    def run_once(self) -> bool:
        """Join all that has waited long enough; tell whether nothing failed. Raises the store's errors."""
        now_s = int(self._clock())
        late_s = int(self._after_s) + _LATE_S
        looked_s = now_s - late_s
        since_s = max(min(self._since_s, looked_s), now_s - _DAY_S)  # somebody may have set the clock back
        parameters = {"since_s": since_s, "late_s": late_s, "after_ms": round(self._after_s * 1000)}
        due = self._store.query(_SQL["due"], parameters).result_rows
        done = True
        for segment, first_s, last_s in due:
            if self._stopping.is_set():
                return False
            with self._working:
                done &= self._join_if_the_store_takes_it(segment, first_s, last_s)
        if due and done:
            self._look_in(0.0)  # one answer names 100 segments at most
        elif done:
            self._since_s = looked_s
        return done

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            if not self._looks_s or self._looks_s[0] > time.monotonic():
                continue
            while self._looks_s and self._looks_s[0] <= time.monotonic():
                self._looks_s.popleft()
            try:
                done = self.run_once()
            except (ClickHouseError, StoreError, OSError) as error:
                if self._line_due.allows("store"):
                    logger.warning("requests wait to be joined: %s (they are tried again)", reason_of(error))
                done = False
            if not done:
                self._look_in(self._after_s)

    def _look_in(self, seconds: float) -> None:
        """Plan a look at the store. A query for each look is cheap, and one every half second costs 2 % of a core."""
        self._looks_s.append(time.monotonic() + seconds)

    def _join_if_the_store_takes_it(self, segment: str, first_s: int, last_s: int) -> bool:
        refused = ""
        try:
            with errors_told_apart():
                self._join(segment, {"segment": segment, "first_s": first_s, "last_s": last_s})
        except (RefusedError, TooMuchError) as error:
            attempts = self._attempts[segment] = self._attempts.get(segment, 0) + 1
            logger.warning("the requests of segment %s cannot be joined: %s (attempt %d)", segment, error, attempts)
            if attempts < _MOST_ATTEMPTS:
                return False
            refused = str(error)
            self._status.not_joined()
        self._attempts.pop(segment, None)
        self._mark(segment, refused=refused)
        return True

    def _mark(self, segment: str, *, links: Sequence[tuple[str, str]] = (), refused: str = "") -> None:
        self._store.command(_SQL["mark"], {"segment": segment, "links": list(links), "refused": refused})

    def _join(self, segment: str, place: dict[str, Any]) -> None:
        """Insert the requests of a segment.

        A joiner may die between two inserts, and the next one may find that a request is part of one that came late:

            A inserts [1 2], dies               "segment.joined.0"
            B finds that 1 is a part: [2]       "segment.joined.0", which is there
            B inserts [3 4]                     "segment.joined.2": the others keep their places

        Log records that become requests by themselves are marked before, so that their spans do not when they come.
        """
        rows = self._store.query(_SQL["requests"], place).result_rows
        requests = [_Request(*row) for row in rows]
        to_join = set(self._once(segment, [request for request in requests if not request.is_part]))
        if links := [request.linked for request in to_join if request.is_log]:
            self._mark(f"{segment}.links", links=links)
        for first in range(0, len(requests), _MOST_REQUESTS):
            some = [request for request in requests[first : first + _MOST_REQUESTS] if request in to_join]
            if not some:
                continue
            token = f"{segment}.joined.{first}"
            parameters = {**place, "owners": self._owners(some), "most_parts": _MOST_PARTS}
            settings = INSERT_SETTINGS | {"insert_deduplication_token": token}
            sql = _SQL["insert"].replace("$settings", settings_clause(settings))
            self._store.command(sql, parameters)
            self._announce(token)
        self._part_folders.sync()  # before the mark, which says that the rows are there

    def _once(self, segment: str, requests: Sequence[_Request]) -> list[_Request]:
        """Leave out a log record when a span reports its request, and a span when its log record was joined alone.

        A log record that this segment has joined alone, before a crash, is a request also when its span has come since.
        """
        links = sorted({request.link for request in requests if request.link})
        if not links:
            return list(requests)
        rows = self._store.query(_SQL["linked"], {"links": links, "segment": segment}).result_rows
        with_span = {(link, tenant) for link, tenant, has_span, _, here in rows if has_span and not here}
        log_was_joined = {(link, tenant) for link, tenant, _, joined, _ in rows if joined}
        return [r for r in requests if r.linked not in (with_span if r.is_log else log_was_joined)]

    def _owners(self, requests: Sequence[_Request]) -> list[tuple[str, str, str, str, str]]:
        traces = sorted({request.trace for request in requests})
        inner = self._store.query(_SQL["inner_spans"], {"traces": traces}).result_rows
        parents = {(trace, span, tenant): (trace, parent, tenant) for trace, span, tenant, parent in inner}
        linked = [(request.link, "", *request.id) for request in requests if request.link]
        return linked + [(*span[:2], *request) for span, request in owners({r.id for r in requests}, parents).items()]

    def _announce(self, token: str) -> None:
        for callback in self._callbacks:
            try:
                callback(token)
            except Exception:
                logger.exception("a callback failed after %s", token)


def owners(requests: set[Id], parents: dict[Id, Id]) -> dict[Id, Id]:
    """Return the request that each span descends from. A request owns itself; a span without a request has no owner.

    requests {R}, parents {A: R, B: A, X: Y, Y: X}     →     {R: R, A: R, B: R}
    """
    known: dict[Id, Id | None] = {request: request for request in requests}
    for span in parents:
        path: dict[Id, None] = {}
        at: Id | None = span
        while at is not None and at not in known and at not in path:
            path[at] = None
            at = parents.get(at)
        owner = known.get(at) if at is not None else None
        known.update(dict.fromkeys(path, owner))
    return {span: owner for span, owner in known.items() if owner is not None}
