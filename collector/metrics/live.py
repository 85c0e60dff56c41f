"""Reads the store in the background, so that a scrape is answered from memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Metric as Family

from collector.ask.queries import Queries
from collector.base.once_a_minute import OnceAMinute
from collector.base.stage import ThreadStage
from collector.base.store_errors import is_unavailable, reason_of
from collector.keep.usage import Usage
from collector.metrics import metrics
from collector.metrics.present import Processes, expose_reasons, expose_samples, expose_slos, expose_tables
from collector.metrics.series import SECOND_NS, Series
from collector.metrics.store_counters import StoreCounters
from collector.slo.model import Slo
from collector.store.damage import damage_of

if TYPE_CHECKING:
    from collector.incidents.top_cause import Reason
    from collector.numbers.slos import SloOut

logger = logging.getLogger(__name__)

LEAST_PAUSE_S: Final = 1.0
MOST_PAUSE_S: Final = 15.0
_SHARE: Final = 100
"""A pause is this many times as long as the refresh before it, so that refreshes take 1 % of the time at most."""
_SHARE_OF_EVALUATIONS: Final = 20
"""A pause between two evaluations of the SLOs is this many times as long as the evaluation."""
EVALUATE_EVERY_NS: Final = 60 * SECOND_NS
_EVALUATE_UNKNOWN_EVERY_NS: Final = 15 * SECOND_NS
"""While nothing is known of why an SLO burns, since its page comes within a minute …"""
_MOST_UNKNOWN: Final = 12
"""… so many times in a row, since requests that failed or hang never tell."""
READ_TABLES_EVERY_NS: Final = 15 * SECOND_NS
READ_SAMPLES_EVERY_NS: Final = 5 * SECOND_NS


class Live(ThreadStage):
    """The metrics of requests, SLOs, engine processes and the store, as of the latest refresh.

    `refresh` counts first, then writes the counters down, then publishes them. It asks the store only when a segment
    was stored since, when requests are in flight, when samples of engines are exposed, or when other collectors write
    to the store too. A segment of metrics brings samples alone, and the others bring none. When the store fails, the
    state before stays, and `state_at_s` tells its age.
    """

    def __init__(
        self,
        counters: StoreCounters,
        processes: Processes,
        queries: Queries,
        usage: Usage,
        slos: Callable[[], Sequence[Slo]],
        evaluate: Callable[[], list[SloOut]],
        reasons: Callable[[list[SloOut]], list[Reason]],
        *,
        clock: Callable[[], int],
        heard_until: Callable[[], int],
        shared_store: bool,
    ) -> None:
        """`slos` are those of the newest SLO file; `counters` have counted for them so far."""
        super().__init__("metrics")
        self.counters = counters
        self._processes = processes
        self._queries = queries
        self._usage = usage
        self._newest_slos, self._slos = slos, slos()
        self._evaluate = evaluate
        self._reasons = reasons
        self._clock = clock
        self._heard_until = heard_until
        self._shared_store = shared_store
        self._refreshing = threading.Lock()
        self._tables, self._tables_at_ns = Series(), 0
        self._samples, self._samples_at_ns = Series(), 0
        self._samples_stored, self._samples_read = 0, -1
        self._processes_dropped = 0
        self._of_slos, self._evaluated_ns = Series(), 0
        self._evaluation_s = 0.0
        self._times_unknown = 0
        self._is_behind = True
        self._scraped = False
        self._line_due = OnceAMinute()
        self._keys: set[Any] = set()
        self.families: tuple[list[Family], list[Family]] = counters.families()[0], []
        """The last published text: counters, which change only when something happens, and gauges."""
        self.state_at_s = 0.0
        self.store_up = False

    def start(self) -> None:
        """Begin to refresh."""
        self._thread.start()

    def on_samples(self, _segment: str) -> None:
        """Read the samples at a next refresh: a segment of metrics was stored. It brings no requests to count."""
        self._samples_stored += 1

    def stop(self, timeout_s: float) -> bool:
        """Refresh once more, which counts the last stored rows; False when that is not done in time."""
        return super().stop(timeout_s) and not self.counters.pending

    def _run(self) -> None:
        while True:
            stopping = self._stopping.is_set()
            began_s = time.monotonic()
            self.try_refresh()
            if stopping:
                return
            pause_s = (time.monotonic() - began_s) * _SHARE
            self._stopping.wait(min(max(pause_s, LEAST_PAUSE_S), MOST_PAUSE_S))

    def try_refresh(self) -> None:
        """Refresh; an error is logged once a minute, and the state stays as it was."""
        try:
            self.refresh()
        except Exception as error:
            self.store_up = False
            if not self._line_due.allows(type(error).__name__):
                return
            what = "the metrics of requests and engines stay as they were"
            if is_unavailable(error):
                logger.warning("%s: %s", what, reason_of(error))
            elif damage := damage_of(error):
                logger.error("%s: %s", what, damage)
            else:
                logger.exception(what)

    def refresh(self) -> None:
        """Bring everything up to date; raises the store's errors."""
        with self._refreshing:
            now, heard_until = self._clock(), self._heard_until()
            slos = self._newest_slos()
            if slos != self._slos:
                self.counters.count_segments()  # what came before the change, for the SLOs of then
                self.counters.use(slos)
                self._slos, self._evaluated_ns, self._is_behind = slos, 0, True
            if self.counters.pending or self._shared_store or self._processes.has_open_requests:
                self._is_behind = True
            if has_news := self._is_behind:
                # Segments first: a request that ends in between is then in flight no more, and is not counted twice.
                self.counters.count_segments()
                self._processes.read(now_ns=now, heard_until_ns=heard_until, since_ns=self.counters.lost_since_ns)
                self._is_behind = False
            in_flight = self._processes.in_flight(now_ns=now, heard_until_ns=heard_until)
            self.counters.count_in_flight(in_flight, heard_until)
            gauges = Series()
            self._processes.expose(gauges, self.counters, in_flight, now_ns=now)
            if _is_due(self._tables_at_ns, READ_TABLES_EVERY_NS, now):
                tables = Series()
                expose_tables(tables, self._usage)
                self._tables, self._tables_at_ns = tables, now
            stored = self._samples_stored
            # Samples that are exposed must go when they grow old.
            may_differ = stored != self._samples_read or self._shared_store or self._samples != Series()
            if may_differ and _is_due(self._samples_at_ns, READ_SAMPLES_EVERY_NS, now):
                samples = Series()
                self._processes_dropped = expose_samples(samples, self._queries, now_ns=now)
                self._samples, self._samples_at_ns, self._samples_read = samples, now, stored
            gauges.set(metrics.PROCESSES_DROPPED, (), self._processes_dropped)
            has_news |= self._evaluate_slos(now)
            if self._scraped:
                has_news |= self.counters.scraped(self._keys)
            self.counters.save()
            counted = self.families[0]
            if has_news:
                counted, self._keys = self.counters.families()
                self._scraped = False
            self.families = (
                counted,
                [f for s in (gauges, self._tables, self._samples, self._of_slos) for f in s.families()],
            )
            self.state_at_s = now / SECOND_NS
            self.store_up = True

    def scraped(self, counted: list[Family]) -> None:
        """A scrape has seen these families, if they are still those that were published last."""
        self._scraped |= counted is self.families[0]

    def _evaluate_slos(self, now: int) -> bool:
        every_ns = _EVALUATE_UNKNOWN_EVERY_NS if 0 < self._times_unknown <= _MOST_UNKNOWN else EVALUATE_EVERY_NS
        pause_ns = max(every_ns, round(self._evaluation_s * _SHARE_OF_EVALUATIONS * SECOND_NS))
        if not _is_due(self._evaluated_ns, pause_ns, now):
            return False
        began_s = time.monotonic()
        series = Series()
        for slo in self._slos:
            series.set(metrics.SLO_INFO, (slo.name, slo.hash, slo.owner, slo.team), 1)
            series.set(metrics.SLO_OBJECTIVE, (slo.name,), float(slo.objective))
        evaluated = self._evaluate()
        expose_slos(series, evaluated)
        reasons = self._reasons(evaluated)
        expose_reasons(series, reasons)
        self._times_unknown = self._times_unknown + 1 if any(not one.shares for one in reasons) else 0
        series.set(metrics.SLO_EVALUATED, (), now / SECOND_NS)
        self._of_slos, self._evaluated_ns = series, now
        self._evaluation_s = time.monotonic() - began_s
        return True


def _is_due(last_ns: int, pause_ns: int, now_ns: int) -> bool:
    """Tell whether the pause after `last_ns` is over. It is when the clock was set back behind its begin."""
    return not last_ns <= now_ns < last_ns + pause_ns
