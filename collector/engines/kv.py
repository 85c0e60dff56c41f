"""The KV cache, batch and queue of engine processes, by their newest steps or samples."""

from __future__ import annotations

from typing import Final, NamedTuple

from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.base.process import Process
from collector.count import samples
from collector.count.evaluation import process_filter
from collector.count.reader import Reader

OLD_STEP_NS: Final = 60 * SECOND_NS
"""A step that began this long before the window's end no longer says how many requests run."""


class Cache(NamedTuple):
    """Batch and KV cache of a process, by its newest step or sample. None: it does not tell, or the step is old."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Blocks in use, 0 to 1; None without a KV cache."""
    preemptions: int | None = None
    """The evictions of the window that took a running request's blocks."""


def caches(reader: Reader, window: Window) -> dict[Process, Cache]:
    """The cache of each process that made steps, evicted blocks or was sampled in the window."""
    fragments = {"process_filter": process_filter(window)}
    rows = reader.queries.rows("kv_preemptions", fragments, **window.bounds)
    told = {Process.of(row): int(row["preemptions"]) for row in rows}
    grown = samples.preemptions(reader, window)
    found = {process: Cache(preemptions=n) for process, n in told.items()}
    found |= {
        one.process: Cache(
            running=one.count("running"),
            waiting=one.count("waiting"),
            kv_usage=one.values.get("kv_usage"),
            preemptions=grown.get(one.process, told.get(one.process)),
        )
        for one in samples.sampled(reader, window)
    }
    for row in reader.queries.rows("newest_steps", fragments, **window.bounds):
        process, total = Process.of(row), row["blocks_total"]
        preemptions = told.get(process, 0)
        if row["seen_ns"] < window.end_ns - OLD_STEP_NS:  # an idle engine makes none, and its last one had a request
            found[process] = Cache(preemptions=preemptions)
            continue
        usage = row["blocks_used"] / total if total and row["blocks_used"] is not None else None
        found[process] = Cache(row["running_now"], row["waiting_now"], usage, preemptions)
    return found
