"""Reads of samples, for engines without spans of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collector.ask.template import part
from collector.ask.times import DAY_NS, SECOND_NS
from collector.ask.window import Window
from collector.base.process import Process
from collector.count.reader import Reader
from collector.count.sampled import SampledProcess, processes
from collector.sql.fragment import TRUE, Fragment, all_of

_CARRIED_NS: Final = 600 * SECOND_NS
"""A process that was not sampled for so long has no value any more, however long its intervals are."""
LOOK_BACK_NS: Final = 300 * SECOND_NS
"""Growth is the difference from the sample before: of the first one in a window, from one that is at most so old."""
_PROGRESS: Final = ("running", "waiting", "generation_tokens", "prompt_tokens", "engine_steps", "itl", "ttft")
"""Requests, and counters that grow while an engine works on them. Some engines count tokens when the request ends,
so tokens alone would call a long answer a standstill."""


def serves(window: Window) -> Fragment:
    """The filter for samples: their process's service has matching requests."""
    return TRUE if window.filter == TRUE else part("serves_service", {"filter": window.filter})


def _instead_of_spans(window: Window) -> Fragment:
    """The filter for samples that are shown in place of steps."""
    return all_of(serves(window), part("tells_no_steps", {}))


def newest(reader: Reader, window: Window) -> list[SampledProcess]:
    """The processes with samples in the window, by tenant, service and instance."""
    return processes(reader.queries, start_ns=window.start_ns, end_ns=window.end_ns, service_filter=serves(window))


def sampled(reader: Reader, window: Window, names: Sequence[str] = ()) -> list[SampledProcess]:
    """The processes with samples and without spans of steps in the window. Only `names` are read, if given."""
    return processes(
        reader.queries,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        service_filter=_instead_of_spans(window),
        names=names,
    )


def growth(
    reader: Reader, window: Window, names: Sequence[str], step_ns: int | None = None, processes: Fragment = TRUE
) -> list[dict[str, Any]]:
    """How much totals grew, by process, name and bucket; without a step the window is one bucket.

    `processes` selects them by their columns.
    """
    return _ask(
        reader,
        "sample_increases",
        window,
        processes,
        before_ns=LOOK_BACK_NS,
        names=names,
        step_ns=step_ns or 2**62,
    )


def preemptions(reader: Reader, window: Window) -> dict[Process, int]:
    """Preemptions in the window of the processes that tell them."""
    rows = growth(reader, window, ["preemptions"])
    return {Process.of(row): round(row["growth"]) for row in rows}


def gauges(
    reader: Reader, window: Window, step_ns: int, also: Collection[int], processes: Fragment = TRUE
) -> list[dict[str, Any]]:
    """KV-cache use, batch and queue over all processes, by bucket, where one was sampled; and in the buckets `also`.

    `processes` selects them by their columns.
    """
    rows = _ask(reader, "timeseries_samples", window, processes, before_ns=_CARRIED_NS, step_ns=step_ns)
    return [row for row in rows if row.pop("sampled") or row["bucket_ns"] in also]


def merged(of_spans: Iterable[Mapping[str, Any]], of_samples: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put the buckets of different processes together: the highest KV-cache use, and the sum of all else."""
    buckets: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in (*of_spans, *of_samples):
        bucket = buckets[row["bucket_ns"]]
        for name, value in row.items():
            known = bucket.get(name)
            if name == "bucket_ns" or known is None:
                bucket[name] = value
            elif value is not None:
                bucket[name] = max(known, value) if name == "kv_usage" else known + value
    return [buckets[at] for at in sorted(buckets)]


@dataclass(frozen=True)
class Stretch:
    """A stretch of time in which something was wrong with a process."""

    process: Process
    began_ns: int
    last_ns: int
    lasts: bool
    """It holds at the newest sample."""
    detail: Mapping[str, Any]


def standstills(reader: Reader, window: Window, limit: int) -> list[Stretch]:
    """Stretches as long as TOKENTRAIL_LOST_AFTER_S in which a process had requests and nothing grew."""
    return _stretches(reader, "sample_standstills", window, _instead_of_spans(window), names=[*_PROGRESS], limit=limit)


def outages(reader: Reader, window: Window, limit: int) -> list[Stretch]:
    """Stretches as long as TOKENTRAIL_LOST_AFTER_S in which every scrape of a process failed."""
    return _stretches(reader, "sample_outages", window, serves(window), limit=limit)


def _ask(reader: Reader, query: str, window: Window, processes: Fragment, **fields: Any) -> list[dict[str, Any]]:
    services = all_of(_instead_of_spans(window), processes)
    return reader.queries.rows(query, {"service_filter": services}, **window.bounds, **fields)


def _stretches(reader: Reader, query: str, window: Window, services: Fragment, **fields: Any) -> list[Stretch]:
    """The stretches that a query finds. Those that last since the first sample that it read are looked for over a day.

    Take each process from one collector: two that scrape it see the same stretches at slightly other times.
    """

    def ask(asked: Fragment, before_ns: int) -> list[dict[str, Any]]:
        parameters = {"least_ns": reader.lost_after_ns, "before_ns": before_ns, **fields}
        return reader.queries.rows(query, {"service_filter": asked}, **window.bounds, **parameters)

    rows = ask(services, 2 * reader.lost_after_ns)
    if older := sorted({Process.of(row) for row in rows if row["since_first"]}):
        of_older = Fragment(
            f"({', '.join(Process._fields)}) IN {{older:Array(Tuple(String, String, String))}}", {"older": older}
        )
        rows = [row for row in rows if Process.of(row) not in older]
        rows = sorted([*rows, *ask(of_older, DAY_NS)], key=lambda row: -int(row["last_ns"]))
    scraper: dict[Process, str] = {}
    stretches = []
    for row in rows:
        process = Process.of(row)
        if scraper.setdefault(process, row["scraper"]) == row["scraper"]:
            stretches.append(Stretch(process, row["began_ns"], row["last_ns"], bool(row["lasts"]), row))
    return stretches
