"""The KV cache, batch and queue of engine processes, by their newest steps or samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from collector.ask.times import SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.base.process import Process
from collector.count import samples
from collector.count.answers import WindowOut
from collector.count.evaluation import process_filter
from collector.count.reader import Reader

OLD_STEP_NS: Final = 60 * SECOND_NS
"""A step that began this long before the window's end no longer says how many requests run."""
_NO_EVENTS: Final = {"evicted_blocks": 0, "evictions": 0, "preemptions": 0}
_NO_STEP: Final = dict.fromkeys(("blocks_used", "blocks_total", "running_now", "waiting_now"))


class KvEngine(Answer):
    """One engine process: its newest step or sample in the window, and sums over the window.

    Null: it does not tell, or its newest step is old.
    """

    source: Literal["spans", "samples"]
    """`samples`: an engine without steps in the window, by its metrics."""
    service: str
    instance: str
    process_tenant: str
    variant: str
    seen: str
    blocks_used: int | None
    blocks_total: int | None
    usage: float | None
    """Blocks in use, 0 to 1; null without a KV cache."""
    running: int | None
    waiting: int | None
    evicted_blocks: int | None
    """Taken by `evictions` events in the window."""
    evictions: int | None
    preemptions: int | None
    """The evictions that took a running request's blocks."""
    up: bool | None = None
    """Whether the last scrape was answered; null when nobody scrapes it."""


class Kv(Answer):
    """`/kv`."""

    window: WindowOut
    engines: list[KvEngine]


def kv(reader: Reader, window: Window) -> Kv:
    """KV-cache use and evictions per engine process."""
    told = WindowOut.of(window, reader.complete_ns)
    fragments = {"process_filter": process_filter(window)}
    events = {Process.of(row): row for row in reader.queries.rows("kv_event_sums", fragments, **window.bounds)}
    steps = reader.queries.rows("newest_steps", fragments, **window.bounds)
    known_from_ns = window.end_ns - OLD_STEP_NS
    of_steps = [_kv_engine(row, events.pop(Process.of(row), _NO_EVENTS), known_from_ns) for row in steps]
    of_samples = list(_sampled_caches(reader, window, events))
    of_events = [_kv_engine(_NO_STEP | row, row, known_from_ns) for row in events.values()]
    of_spans = sorted(
        [*of_steps, *of_events], key=lambda engine: (engine.service, engine.instance, engine.process_tenant)
    )
    return Kv(window=told, engines=[*of_spans, *of_samples])


def _kv_engine(row: dict[str, Any], sums: dict[str, Any], known_from_ns: int) -> KvEngine:
    """A step before `known_from_ns` says nothing of now: an idle engine makes none, and its last had a request."""
    is_old = row["seen_ns"] < known_from_ns
    used, running, waiting = (None if is_old else row[name] for name in ("blocks_used", "running_now", "waiting_now"))
    total = row["blocks_total"]
    return KvEngine(
        source="spans",
        **Process.of(row)._asdict(),
        variant=row["variant_now"],
        seen=rfc3339(row["seen_ns"]),
        blocks_used=used,
        blocks_total=total,
        usage=used / total if total and used is not None else None,
        running=running,
        waiting=waiting,
        **{name: sums[name] for name in _NO_EVENTS},
    )


def _sampled_caches(reader: Reader, window: Window, events: dict[Process, dict[str, Any]]) -> Iterator[KvEngine]:
    """Yield the processes of engines, and take their `events`.

    The samples of GPUs and failed first scrapes tell nothing of requests.
    """
    preemptions = samples.preemptions(reader, window)
    for process in samples.sampled(reader, window):
        values = process.values
        if process.up is not False and not {"running", "waiting", "kv_usage"} & values.keys():
            continue
        sums = events.pop(process.process, {})
        yield KvEngine(
            source="samples",
            **process.process._asdict(),
            variant="",
            seen=rfc3339(process.seen_ns),
            blocks_used=None,
            blocks_total=None,
            usage=values.get("kv_usage"),
            running=process.count("running"),
            waiting=process.count("waiting"),
            evicted_blocks=sums.get("evicted_blocks"),
            evictions=sums.get("evictions"),
            preemptions=preemptions.get(process.process, sums.get("preemptions")),
            up=process.up,
        )
