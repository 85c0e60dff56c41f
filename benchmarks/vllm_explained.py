"""Explains the requests of a vLLM that was recorded from inside, and compares what is said with what is known."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.vllm_clients import BUSY_PROMPT, LONG_PROMPT, STOP, STOP_S, Call
from collector.causes.split.culprits import culprits_of
from collector.causes.split.names import PARTS
from collector.causes.split.reasons import REASONS
from collector.causes.split.requests import explain_process
from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.recorded_columns import Tables, processes
from tests.support.recordings import join
from tests.support.stores import open_new_store


def explained(traces: bytes) -> dict[str, Any]:
    """How the requests of the only process in these OTLP bodies are explained. `…_wrong` counts disagreements.

    Those who decoded when a prompt of `LONG_PROMPT` tokens was computed are its victims. They name it where a law of
    step times holds, since without one nothing is blamed.
    """
    tables = _read(traces)
    requests, phases, steps = tables.requests, tables.phases, tables.steps
    explanation = explain_process(requests, phases, steps, kv_events=tables.kv_events)
    parts = explanation.ttft_us.astype(np.int64) + explanation.rest_us
    lost_place = np.isin(requests["key"], phases["key"][phases["name"] == "preempted"])
    [long] = np.flatnonzero(requests["input_tokens"] >= LONG_PROMPT)
    prefill = (phases["key"] == requests["key"][long]) & (phases["name"] == "prefill")
    begin = phases["start"][prefill].min()
    end = (phases["start"] + phases["duration_ns"])[prefill].max()
    first = requests["start"] + requests["ttft_ns"]
    beside = np.flatnonzero((first < begin) & (requests["end"] > end))
    named = sum(bool(_worst(int(one), tables) == long) for one in beside)
    holds = explanation.model is not None
    return {
        "levels": dict(Counter(explanation.level.tolist())),
        "law_steps": explanation.model.n if explanation.model else None,
        "law_r2": explanation.model.r2 if explanation.model else None,
        "law_sigma": explanation.model.sigma if explanation.model else None,
        "unexplained_share": float(parts[:, PARTS.index("unexplained")].sum() / parts.sum()),
        "largest": {PARTS[i]: float(parts[:, i].sum() / 1e6) for i in np.argsort(-parts.sum(0))[:5].tolist()},
        "preempted_requests": int(lost_place.sum()),
        "victims": len(beside),
        "victims_naming_the_prompt": named,
        "parts_wrong": int((parts.sum(1) != requests["e2e_us"]).sum()),
        "preempted_wrong": int((lost_place != (parts[:, PARTS.index("preempted")] > 0)).sum()),
        "victims_wrong": int(not len(beside)) + (len(beside) - named if holds else named),
    }


def _worst(victim: int, tables: Tables) -> int | None:
    """The request whose prompt delayed a decoding one the longest."""
    culprits = culprits_of(victim, tables.requests, tables.phases, tables.steps).get(("others_prompts", "rest"))
    return culprits[0].row if culprits else None


def busy(traces: bytes, calls: list[Call]) -> dict[str, Any]:
    """What is said of the long prompts and of the stops of `busy_requests`.

    Beside a prompt are those who were there for half of its computation, and at a stop those who were there for all.
    """
    tables = _read(traces)
    requests, phases = tables.requests, tables.phases
    explanation = explain_process(requests, phases, tables.steps, kv_events=tables.kv_events)
    parts = (explanation.ttft_us.astype(np.int64) + explanation.rest_us) / 1e6
    start, end = requests["start"], requests["end"]
    long = requests["input_tokens"] >= BUSY_PROMPT
    victims = named = 0
    beside_any, at_any = np.zeros(len(start), bool), np.zeros(len(start), bool)
    for one in np.flatnonzero(long).tolist():
        prefill = (phases["key"] == requests["key"][one]) & (phases["name"] == "prefill")
        begin, until = phases["start"][prefill].min(), (phases["start"] + phases["duration_ns"])[prefill].max()
        there = np.minimum(end, until) - np.maximum(start, begin)
        beside_any |= there > 0
        for victim in np.flatnonzero((there > (until - begin) / 2) & ~long).tolist():
            victims += 1
            named += _worst_of_all(victim, tables) == one
    stops = [(call.sent_ns, call.ended_ns) for call in calls if call.kind == STOP]
    stopped = found = 0
    # Where it stops between two steps, nothing is computed between them.
    stall, stood = parts[:, PARTS.index("stall")], parts[:, [PARTS.index("stall"), PARTS.index("gap")]].max(1)
    for begin, until in stops:
        at_any |= (start < until) & (end > begin)
        there = (start < begin) & (end > until)
        stopped += int(there.sum())
        found += int((stood[there] >= 0.8 * STOP_S).sum())
    spared = np.flatnonzero(~beside_any & ~long).tolist()
    model = explanation.model
    return {
        "levels": dict(Counter(explanation.level.tolist())),
        "law_r2": model.r2 if model else None,
        "law_sigma": model.sigma if model else None,
        "reasons": dict(Counter(REASONS[int(one)] for one in explanation.reason)),
        "victims": victims,
        "victims_naming_the_prompt": named,
        "stopped": stopped,
        "stops_found": found,
        "spared": len(spared),
        "spared_naming_a_long_prompt": sum(
            bool(long[worst]) for one in spared if (worst := _worst_of_all(one, tables)) is not None
        ),
        "stall_without_stop_share": float(stall[~at_any].sum() / parts[~at_any].sum()) if (~at_any).any() else None,
        "largest": {PARTS[i]: float(parts[:, i].sum()) for i in np.argsort(-parts.sum(0))[:6].tolist()},
        "parts_wrong": int((np.round(1e6 * parts.sum(1)) != requests["e2e_us"]).sum()),
    }


def _worst_of_all(victim: int, tables: Tables) -> int | None:
    """The request whose prompt delayed one the longest, before its first token and after it."""
    times: Counter[int] = Counter()
    for culprits in culprits_of(victim, tables.requests, tables.phases, tables.steps).values():
        for one in culprits:
            times[one.row] += round(one.time_ns)
    return max(times, key=times.__getitem__, default=None)


def _read(traces: bytes) -> Tables:
    """The rows of the only process in these OTLP bodies."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_new_store(Path(folder) / "db")  # type: ignore[no-untyped-call]
        insert_otlp(store, TRACES, traces, "recording")
        join(store)  # type: ignore[no-untyped-call]
        tables: Tables
        [tables] = processes(store).values()  # type: ignore[no-untyped-call]
        store.close()
    return tables
