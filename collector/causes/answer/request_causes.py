"""The causes of one request's time, beside typical requests of its model and class that ended in the hour before it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal, get_args

import numpy as np

from collector.ask.times import HOUR_NS, SECOND_NS
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.causes.answer import request_times as explained
from collector.causes.answer.answer import Culprit, Level
from collector.causes.answer.beyond import Beyond
from collector.causes.answer.culprits import OF_PROMPTS, of_kv, of_victim
from collector.causes.answer.request_times import Rows
from collector.causes.answer.typical import good_ones, typical_of
from collector.causes.split.names import PARTS, load_causes
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.sql.fragment import Fragment, all_of

_LIKE_IT: Final = ("model", "slo_class", "vantage")
_BEHIND_NS: Final = SECOND_NS
_OF_KV: Final = ("preempted", "recompute")


class RequestCause(Answer):
    """What a request spent on one cause, before its first token or after it."""

    cause: str
    group: str
    """What people call it."""
    colour: str
    of: Literal["ttft", "rest"]
    time_s: float
    excess_s: float | None
    """Beyond a typical request's TTFT, or beyond as many typical tokens; null: no typical request is explained."""
    culprits: list[Culprit]
    """For preempted requests, those that got the blocks; for the prompts of others, their requests. Where nothing tells
    what prompts took, the unexplained time has these, each with its range."""


class RequestCauses(Answer):
    """How far a request is explained, and its causes: their times add up to its E2E, to the nanosecond."""

    level: Level | None
    """Null: it is not explained yet."""
    causes: list[RequestCause]
    """The largest first."""
    typical_ttft_s: float | None
    """The TTFT of a typical request, and the time of as many tokens after it; null: no typical one is explained."""
    typical_rest_s: float | None


def causes_of(reader: Reader, row: Mapping[str, Any]) -> RequestCauses:
    """The causes of a row of `requests` that has ended."""
    like_it = [Fragment(f"{name} = {{like_{name}:String}}", {f"like_{name}": row[name]}) for name in _LIKE_IT]
    until_ns = row["ended_ns"] + _BEHIND_NS
    window = Window(max(0, until_ns - HOUR_NS), until_ns, all_of(reader.tenant_filter, *like_it))
    itself = explained.of_ids(row["trace_id_hex"], row["span_id_hex"])
    ended = Window(row["ended_ns"], row["ended_ns"] + 1, all_of(window.filter, itself))
    cells, every = Cells(reader.slos), explained.one_in_judged(reader, window)
    known = explained.read_explained(reader, window, ended, cells, every, 1)
    rows, pool = Rows.of(explained.read_chosen(reader, ended, [], 1), known, 1), known.one_in(every)
    if not rows.n:
        return RequestCauses(level=None, causes=[], typical_ttft_s=None, typical_rest_s=None)
    if cells.judged(rows.rows["cell"]).of_all_slos().bad.any():
        read = partial(explained.read_judged, reader, cells=cells)
        pool, _ = good_ones(read, window, pool, cells, lambda judged: judged.of_all_slos().good, rows.rows["model"])
    else:
        pool = pool.at(np.flatnonzero(pool.rows["ok"]))
    typical = typical_of(pool)
    level: Level = get_args(Level)[int(rows.rows["level"][0])]
    prompts = [PARTS.index(name) for name in (*OF_PROMPTS, *([] if level == "steps" else ["unexplained"]))]
    delayed = any(times[prompts].any() for times in (rows.times.ttft, rows.times.rest))
    of_prompts = of_victim(reader, row) if delayed and level != "none" else {}
    for of, times in (("ttft", rows.times.ttft), ("rest", rows.times.rest)):
        if not times[PARTS.index("others_prompts")].any():
            of_prompts["unexplained", of] = of_prompts.pop(("others_prompts", of), [])
    causes, usual, named = [], {}, load_causes()
    for of, whole_ns in _wholes(row).items():
        beyond = Beyond.of(rows.times, None if typical is None else typical.like(rows.rows["model"]), [of])
        usual[f"typical_{of}_s"] = None if typical is None else float(beyond.typical[:, 0].sum()) / 1e6
        times_ns = np.round(1000 * beyond.time[:, 0]).astype(np.int64)
        times_ns[times_ns.argmax() if times_ns.any() else -1] += whole_ns - int(times_ns.sum())
        causes += [
            RequestCause(
                cause=name,
                group=named[name].group,
                colour=named[name].colour,
                of=of,
                time_s=int(times_ns[i]) / SECOND_NS,
                excess_s=None if typical is None else float(beyond.excess[i, 0]) / 1e6,
                culprits=of_kv(reader, ended, rows, beyond, name) if name in _OF_KV else of_prompts.get((name, of), []),
            )
            for i, name in enumerate(PARTS)
            if times_ns[i]
        ]
    return RequestCauses(level=level, causes=sorted(causes, key=lambda one: -one.time_s), **usual)


def _wholes(row: Mapping[str, Any]) -> dict[Literal["ttft", "rest"], int]:
    """Nanoseconds before the first token, and after it. Without a token all is before; where it is unknown, after."""
    e2e_ns = int(row["e2e_ns"])
    first_ns = row["ttft_ns"]
    if first_ns is None:
        first_ns = e2e_ns if row["output_tokens"] == 0 else 0
    return {"ttft": int(first_ns), "rest": e2e_ns - int(first_ns)}
