"""The present state of the processes that are scraped, or that send their metrics, from the newest samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, Final

from collector.ask.queries import Queries
from collector.base.process import Process
from collector.otlp.metric_names import UP, common_names
from collector.sql.fragment import TRUE, Fragment

PUSH_NS: Final = 90 * 10**9
"""Metrics are sent once a minute by default: a sent series that is older than this beside the newest is gone."""


@dataclass
class SampledProcess:
    """One process, at its newest sample."""

    process: Process
    engine: str
    first_answer_ns: int
    """When it first answered a scrape, or sent its metrics; 0: it did neither in the window."""
    last_answer_ns: int
    seen_ns: int
    """The newest sample, which may say that a scrape failed."""
    up: bool | None = None
    """False: the last scrape failed, and there are no values. None: it sends its metrics itself."""
    reason: str = ""
    """Why the last scrape failed."""
    models: set[str] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)
    """By common name, over all series. Totals that are sent as deltas are absent."""

    def count(self, name: str) -> int | None:
        """A value as a whole number; None when it is not known."""
        value = self.values.get(name)
        return None if value is None else round(value)


def processes(
    queries: Queries, *, start_ns: int, end_ns: int, service_filter: Fragment = TRUE, names: Sequence[str] = ()
) -> list[SampledProcess]:
    """Return the processes with samples in the window, by tenant, service and instance.

    `names`, if given, are all that is read.
    """
    rows = queries.rows(
        "newest_samples",
        {"service_filter": service_filter},
        start_ns=start_ns,
        end_ns=end_ns,
        before_ns=0,
        names=[*names],
    )
    by_process: dict[Process, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_process[Process.of(row)].append(row)
    return [_sampled(process, rows) for process, rows in by_process.items()]


def _sampled(process: Process, rows: list[Mapping[str, Any]]) -> SampledProcess:
    newest = max(rows, key=lambda row: int(row["seen_ns"]))
    made = SampledProcess(
        process,
        engine=newest["product"] or next((row["product"] for row in rows if row["product"]), ""),
        first_answer_ns=min((ns for row in rows if (ns := row["first_answer_ns"])), default=0),
        last_answer_ns=max(row["last_answer_ns"] for row in rows),
        seen_ns=newest["seen_ns"],
        models={model for row in rows if (model := _model(row["newest_labels"]))},
    )
    present = list(_present(rows, newest["scraper"], made.seen_ns))
    for row in present:
        if row["name"] == UP:
            made.up = bool(row["newest"])
            made.reason = row["newest_labels"].get("reason", "")
    if made.up is not False:
        made.values = _values(present)
    return made


def _present(rows: Iterable[Mapping[str, Any]], scraper: str, seen_ns: int) -> Iterator[Mapping[str, Any]]:
    """Yield the series of the newest scrape, or of the newest metrics that were sent."""
    oldest_ns = seen_ns if scraper else seen_ns - PUSH_NS
    return (row for row in rows if row["scraper"] == scraper and row["seen_ns"] >= oldest_ns)


def _values(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for row in rows:
        name, value = row["name"], float(row["newest"])
        common = common_names().get(name)
        if common is None or row["newest_kind"] == "delta":
            continue
        values[name] = (max if common.across == "max" else add)(values[name], value) if name in values else value
    return values


def _model(labels: Mapping[str, str]) -> str:
    return labels.get("model_name") or labels.get("model") or ""
