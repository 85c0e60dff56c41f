"""Requests that have not ended, by engine process, with the present state of its steps: the incident of the moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import numpy as np

from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.base.process import Process
from collector.causes.answer.answer import WaitingOut
from collector.count.in_flight import InFlight, last_steps
from collector.count.reader import Reader
from collector.slo.judged import Bools
from collector.sql.fragment import Fragment
from tokentrail.shared.formatting import duration

_MOST_PROCESSES = 100
_RECENT_NS = 300 * SECOND_NS
"""A step that is older has no present counts."""


def waiting(reader: Reader, window: Window, in_flight: InFlight, bad: Bools) -> list[WaitingOut]:
    """The processes with requests in flight, those with the longest wait for a first token first."""
    places: dict[Process, list[int]] = defaultdict(list)
    for i, process in enumerate(in_flight.processes):
        places[process].append(i)
    steps = _newest_steps(reader, window, places)
    told = [_of_process(process, in_flight, np.array(of), bad, steps, window.end_ns) for process, of in places.items()]
    return sorted(told, key=lambda one: (-(one.longest_wait_s or 0), one.service, one.instance))[:_MOST_PROCESSES]


def _of_process(
    process: Process, in_flight: InFlight, of: Any, bad: Bools, steps: dict[Process, dict[str, Any]], now_ns: int
) -> WaitingOut:
    lost = in_flight.is_lost[of]
    without = ~lost & (in_flight.ttft_ns[of] < 0) & ~in_flight.unmeasured[of]
    longest = None
    if without.any():
        longest = float(now_ns - in_flight.began_ns[of][without].min()) / SECOND_NS
    step = steps.get(process) or steps.get(process.of_all_tenants)
    ago = None if step is None else max(0.0, (now_ns - step["seen_ns"]) / SECOND_NS)
    out = WaitingOut(
        **process._asdict(),
        requests=int((~lost).sum()),
        lost=int(lost.sum()),
        bad=int(bad[of].sum()),
        without_token=int(without.sum()),
        longest_wait_s=longest,
        step_s_ago=ago,
        running=None if step is None else step["running_now"],
        waiting=None if step is None else step["waiting_now"],
        text="",
    )
    return out.model_copy(update={"text": _text(process, out, told=step is not None)})


def _text(process: Process, out: WaitingOut, *, told: bool) -> str:
    parts = []
    if out.without_token and out.longest_wait_s is not None:
        waits = "1 request waits" if out.without_token == 1 else f"{out.without_token} requests wait"
        parts.append(f"{waits} for a first token, the longest for {duration(out.longest_wait_s)}")
    decoding = out.requests - out.without_token
    if decoding:
        parts.append(f"{decoding} more {'is' if decoding == 1 else 'are'} answered")
    if out.lost:
        parts.append(f"{out.lost} {'was' if out.lost == 1 else 'were'} lost: nothing is heard of the process")
    if out.step_s_ago is not None:
        state = f"its last step began {duration(out.step_s_ago)} ago"
        if out.running is not None:
            state += f" with {out.running} running"
            state += "" if out.waiting is None else f" and {out.waiting} waiting"
        parts.append(state)
    elif not told:
        parts.append("nothing is known of its steps")
    return f"{process.title}: {'; '.join(parts)}"


def _newest_steps(reader: Reader, window: Window, of: Collection[Process]) -> dict[Process, dict[str, Any]]:
    """The newest step of each process of the last day. Steps serve all tenants, so a caller of one sees none."""
    if reader.tenant or not of:
        return {}
    names = {*of, *(process.of_all_tenants for process in of)}
    chosen = Fragment(
        f"({', '.join(Process._fields)}) IN {{waiting_processes:Array(Tuple(String, String, String))}}",
        {"waiting_processes": sorted(names)},
    )
    since_ns = max(0, window.end_ns - _RECENT_NS)
    rows = reader.queries.rows("newest_steps", {"process_filter": chosen}, start_ns=since_ns, end_ns=window.end_ns)
    newest = {Process.of(row): row for row in rows}
    older = last_steps(reader.queries, names - newest.keys(), window.end_ns)
    unknown = {"running_now": None, "waiting_now": None}
    return newest | {process: {"seen_ns": last_ns, **unknown} for process, last_ns in older.items()}
