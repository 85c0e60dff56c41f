"""Requests that wait for blocks of the KV cache: which ones, and the times in which a process lets many wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from collector.ask.template import part
from collector.ask.times import SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.process import Process
from collector.causes.answer.request_times import of_causes
from collector.causes.split.names import PARTS
from collector.count.reader import Reader
from collector.incidents.incident import Incident, incident, request_list
from collector.slo.conditions import load_conditions
from collector.sql.fragment import Fragment

WAITED: Final = " + ".join(f"toUInt64(ttft_{name}_us)" for name in PARTS)
"""SQL of `causes`: microseconds until the first token, or until the end of a request without one."""
_BUCKET_NS: Final = 30 * SECOND_NS


def held_up(reason: str) -> str:
    """SQL of `causes`: whether a request waited for a reason for half of the time until its first token, or longer."""
    time = f"ttft_wait_{reason}_us"
    return f"{time} > 0 AND 2 * toUInt64({time}) >= {WAITED}"


def by_kv(start_ns: int, end_ns: int) -> Fragment:
    """Requests that KV blocks held up, and that ended between two moments."""
    held = part("held_up_by_kv", {"held": Fragment(held_up("kv"))})
    return Fragment(held.sql, {**held.parameters, "cause_start_ns": start_ns, "cause_end_ns": end_ns})


def kv_waits(reader: Reader, window: Window) -> Iterator[Incident]:
    """Find the times in which the alert's rule held for a process: by the last minutes, at the end of each bucket."""
    condition = load_conditions()["kv_wait"]
    wide = condition.over // _BUCKET_NS
    rows = reader.queries.rows(
        "kv_waits",
        {"filter": of_causes(window), "held": Fragment(held_up("kv")), "waited": Fragment(WAITED)},
        start_ns=max(0, window.start_ns - condition.over),
        end_ns=window.end_ns,
        bucket_ns=_BUCKET_NS,
        least=condition.least,
    )
    by_process: dict[Process, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_process[Process.of(row)].append(row)
    for process, of_process in by_process.items():
        places = np.array([row["bucket"] for row in of_process])  # 0 is the last one of the window
        sums = {}
        for name in ("waited_us", "waited_kv_us", "held", "n"):
            values = np.zeros(int(places.max()) + 2 * wide)
            values[places] = [row[name] for row in of_process]
            after = np.append(np.cumsum(values[::-1])[::-1], 0.0)
            sums[name] = values, after[: len(values) - wide] - after[wide : len(values)]
        holds = (sums["held"][1] >= condition.least) & (
            sums["waited_kv_us"][1] > float(condition.ratio or 0) * sums["waited_us"][1]
        )
        stretches = [[*some] for is_on, some in groupby(range(len(holds)), key=lambda i: holds[i]) if is_on]
        for newest, *older in stretches:
            oldest = older[-1] if older else newest
            touched = np.flatnonzero(sums["n"][0][newest : oldest + wide]) + newest
            began_ns = window.end_ns - (int(touched[-1]) + 1) * _BUCKET_NS
            last_ns = window.end_ns - int(touched[0]) * _BUCKET_NS
            if last_ns <= window.start_ns:
                continue
            inside = slice(int(touched[0]), int(touched[-1]) + 1)
            share = sums["waited_kv_us"][0][inside].sum() / sums["waited_us"][0][inside].sum()
            n = int(sums["n"][0][inside].sum())
            asked = {
                "cause": "kv_wait",
                "cause_start": rfc3339(began_ns),
                "cause_end": rfc3339(last_ns),
                **process._asdict(),
            }
            listed = replace(window, start_ns=min(window.start_ns, began_ns))
            yield incident(
                "kv_wait",
                title=f"Requests wait for KV blocks at {process.title}",
                detail=f"{100 * share:.0f} % of the time until first tokens was a wait for KV blocks. {n} requests"
                " waited for them for half of that time or longer.",
                start_ns=began_ns,
                end_ns=last_ns if newest else None,
                **process._asdict(),
                requests_affected=n,
                requests=request_list(listed, n, **asked),
            )
