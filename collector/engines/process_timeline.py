"""What one engine process did in a short time: its steps, and the requests that ran in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.base.process import Process
from collector.count.answers import PhaseOut, WindowOut, seconds
from collector.count.evaluation import open_requests
from collector.count.in_flight import known_ns
from collector.count.reader import Reader

LONGEST_NS: Final = 3600 * SECOND_NS
MOST_STEPS: Final = 10_000
MOST_REQUESTS: Final = 100
_COLUMNS: Final = ("prefill_tokens", "decode_tokens", "running", "waiting", "kv_blocks_used", "kv_blocks_total")

Counts = Sequence[int | None]


class StepColumns(Answer):
    """Steps in the order of time, a column for each number. Null: the engine does not tell it."""

    offset_s: Sequence[float]
    """From the window's begin."""
    duration_s: Sequence[float]
    step: Counts
    prefill_tokens: Counts
    decode_tokens: Counts
    running: Counts
    waiting: Counts
    kv_blocks_used: Counts
    kv_blocks_total: Counts


class Lane(Answer):
    """One request of the process."""

    trace_id: str
    span_id: str
    offset_s: float
    """Of its arrival, from the window's begin."""
    e2e_s: float
    """Until now, of a request that has not ended."""
    ttft_s: float | None
    status: str
    tenant: str
    input_tokens: int | None
    output_tokens: int | None
    phases: Sequence[PhaseOut]
    """From its arrival on. Those of a request in flight are not known yet."""


class ProcessTimeline(Answer):
    """`/processes/timeline`."""

    window: WindowOut
    steps: StepColumns
    """The newest 10,000."""
    steps_total: int
    requests: Sequence[Lane]
    """The newest 100, in the order of their arrival."""
    requests_total: int


def process_timeline(reader: Reader, window: Window, process: Process) -> ProcessTimeline:
    """The steps and requests of one process in a window."""
    asked: dict[str, Any] = {**process._asdict(), **window.bounds}
    steps = reader.queries.rows("process_timeline_steps", {}, **asked, limit=MOST_STEPS)
    ended = reader.queries.rows("process_timeline_requests", {}, **asked, limit=MOST_REQUESTS)
    phases = defaultdict(list)
    ids = [row["trace_id"] + row["span_id"] for row in ended]
    asked_phases = {**window.bounds, "ids": ids, "process_tenant": process.process_tenant}
    for row in reader.queries.rows("process_timeline_phases", {}, **asked_phases) if ids else ():
        phases[row["key"]].append(row)
    lanes = [_lane(row, phases[row["trace_id"] + row["span_id"]], window.start_ns) for row in ended]
    known = {(lane.trace_id, lane.span_id) for lane in lanes}
    still_open = [lane for lane in _in_flight(reader, window, process) if (lane.trace_id, lane.span_id) not in known]
    return ProcessTimeline(
        window=WindowOut.of(window, reader.complete_ns),
        steps=_columns(steps[::-1], window.start_ns),
        steps_total=steps[0]["steps_total"] if steps else 0,
        requests=sorted([*lanes, *still_open], key=lambda lane: lane.offset_s)[-MOST_REQUESTS:],
        requests_total=(ended[0]["requests_total"] if ended else 0) + len(still_open),
    )


def _columns(rows: Sequence[dict[str, Any]], begin_ns: int) -> StepColumns:
    counts = {name: [row[name] for row in rows] for name in ("step", *_COLUMNS)}
    offsets = [(row["start_ns"] - begin_ns) / SECOND_NS for row in rows]
    return StepColumns(offset_s=offsets, duration_s=[row["duration_ns"] / SECOND_NS for row in rows], **counts)


def _lane(row: dict[str, Any], phases: Sequence[dict[str, Any]], begin_ns: int) -> Lane:
    start_ns = row["start_ns"]
    names = ("trace_id", "span_id", "status", "tenant", "input_tokens", "output_tokens")
    return Lane(
        **{name: row[name] for name in names},
        offset_s=(start_ns - begin_ns) / SECOND_NS,
        e2e_s=row["e2e_ns"] / SECOND_NS,
        ttft_s=seconds(row["ttft_ns"]),
        phases=[
            PhaseOut(
                name=one["name"],
                offset_s=(one["start_ns"] - start_ns) / SECOND_NS,
                duration_s=one["duration_ns"] / SECOND_NS,
            )
            for one in phases
        ],
    )


def _in_flight(reader: Reader, window: Window, process: Process) -> list[Lane]:
    in_flight = open_requests(reader, window)
    columns = in_flight.columns
    return [
        Lane(
            trace_id=columns["trace_id"][i].hex(),
            span_id=columns["span_id"][i].hex(),
            offset_s=(int(in_flight.began_ns[i]) - window.start_ns) / SECOND_NS,
            e2e_s=int(in_flight.elapsed_ns[i]) / SECOND_NS,
            ttft_s=seconds(known_ns(in_flight.ttft_ns[i])),
            status="lost" if in_flight.is_lost[i] else "in_flight",
            tenant=columns["tenant"][i],
            input_tokens=None,
            output_tokens=None,
            phases=[],
        )
        for i in range(in_flight.size)
        if in_flight.processes[i] == process
    ]
