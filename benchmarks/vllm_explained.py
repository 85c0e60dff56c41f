"""Explains the requests of a vLLM that was recorded from inside, and compares what is said with what is known."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.vllm_clients import LONG_PROMPT
from collector.causes.split.culprits import culprits_of
from collector.causes.split.names import PARTS
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
    with tempfile.TemporaryDirectory() as folder:
        store = open_new_store(Path(folder) / "db")  # type: ignore[no-untyped-call]
        insert_otlp(store, TRACES, traces, "recording")
        join(store)  # type: ignore[no-untyped-call]
        tables: Tables
        [tables] = processes(store).values()  # type: ignore[no-untyped-call]
        store.close()
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
