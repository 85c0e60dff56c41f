"""One request as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

The format: Trace Event Format, Google, 2016. `X` is a slice, `C` a counter, `M` a name; times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_REQUEST: Final = 1
_ENGINE: Final = 2
"""The two processes of the picture: the request, and the engine process meanwhile."""
_THREADS: Final = {(_REQUEST, 1): "phases", (_REQUEST, 2): "tokens", (_REQUEST, 3): "events", (_ENGINE, 1): "steps"}
_COUNTERS: Final = {"running": "requests", "waiting": "requests", "kv_blocks_used": "KV blocks"}


def trace(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The trace, in microseconds from the request's start. A token's slice is the wait for it."""
    row = detail["request"]
    return {
        "displayTimeUnit": "ms",
        "metadata": {key: row[key] for key in ("trace_id", "span_id", "request_id", "model", "status", "start")},
        "traceEvents": [*_names(row), *_of_request(detail), *_of_engine(detail["steps"] or [])],
    }


def _names(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    processes = {_REQUEST: f"request {row['trace_id']}", _ENGINE: f"{row['service']} {row['instance']}"}
    for pid, name in processes.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    for (pid, tid), name in _THREADS.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _of_request(detail: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for phase in detail["phases"]:
        yield _slice(_REQUEST, 1, phase["name"], phase["offset_s"], phase["duration_s"], {})
    for token in (token for token in detail["tokens"] if token["offset_s"] is not None):
        begin = token["offset_s"] - token["duration_s"]
        known = {key: token[key] for key in ("index", "step") if token[key] is not None}
        yield _slice(_REQUEST, 2, f"token {token['index']}", begin, token["duration_s"], known)
    for event in detail["events"]:
        known = {key: event[key] for key in ("reason", "blocks", "own") if event[key] not in (None, "")}
        yield _slice(_REQUEST, 3, event["kind"], event["offset_s"], event["duration_s"], known)


def _of_engine(steps: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        known = {key: value for key, value in step.items() if not key.endswith("_s") and value is not None}
        yield _slice(_ENGINE, 1, f"step {step['step']}", step["offset_s"], step["duration_s"], known)
        for counter, unit in _COUNTERS.items():
            if step[counter] is not None:
                at = {"ph": "C", "pid": _ENGINE, "ts": _us(step["offset_s"])}
                yield {**at, "name": counter, "args": {unit: step[counter]}}


def _slice(
    pid: int, tid: int, name: str, offset_s: float, duration_s: float, args: Mapping[str, Any]
) -> dict[str, Any]:
    where = {"ph": "X", "pid": pid, "tid": tid, "name": name}
    return {**where, "ts": _us(offset_s), "dur": _us(duration_s), "args": dict(args)}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
