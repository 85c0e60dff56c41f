"""A replay without a fault, against the engine's own rerun without it: `python -m benchmarks.gpu_whatif FOLDER`.

FOLDER is that of `make gpu`: `trace` has the load with a prompt of 6,000 tokens and a stop of 400 ms, `rerun` has the
load without them. A pair of thresholds says which requests are good; the replay leaves the long prompt out.
"""

from __future__ import annotations

import gzip
import json as json_format
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.report import JsonPath, publish
from collector.causes.split.replay import replay
from collector.causes.split.simulate import Scheduling
from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.recorded_columns import Tables, processes
from tests.support.recordings import join
from tests.support.stores import open_new_store

PROMISES = ((50, 8), (100, 10), (500, 15), (1000, 20))
"""TTFT and TPOT, ms."""
MS = 1e6
MAX_SEQS, MAX_BATCHED_TOKENS = 64, 2048
"""The limits of gpu_trace's engine."""


def main(
    folder: Annotated[Path, typer.Argument(help="The results of make gpu.")] = Path(".gpu/results"),
    json: JsonPath = None,
) -> None:
    """Print and write attainment as recorded, rerun and replayed."""
    trace, rerun = (recorded(folder / name / "traces.bin.gz") for name in ("trace", "rerun"))
    load = json_format.loads((folder / "trace" / "truth.json").read_text())["load"]
    left_out = trace.requests["input_tokens"] >= load["long_prompt"]
    scheduling = Scheduling(MAX_SEQS, MAX_BATCHED_TOKENS, load["kv_blocks"])
    runs = {
        "as_recorded": replay(trace.requests, trace.phases, trace.steps, scheduling=scheduling),
        "without": replay(trace.requests, trace.phases, trace.steps, scheduling=scheduling, left_out=left_out),
    }
    numbers: dict[str, Any] = {"requests": len(left_out)}
    for ttft_ms, tpot_ms in PROMISES:
        name = f"ttft_{ttft_ms}_tpot_{tpot_ms}"
        promise = {"ttft": ttft_ms * MS, "tpot": tpot_ms * MS}
        numbers[f"{name}_recorded"] = float(good(trace, **promise).mean())
        numbers[f"{name}_rerun"] = float(good(rerun, **promise).mean())
        for kind, run in runs.items():
            told = run.attainment(good(trace, **promise), **promise) if run else None
            if told:
                numbers[f"{name}_{kind}"] = told.attainment
                numbers[f"{name}_{kind}_low"], numbers[f"{name}_{kind}_high"] = told.low, told.high
    publish("gpu_whatif", numbers, packages=("numpy", "chdb"), quick=False, path=json)


def recorded(path: Path) -> Tables:
    """The columns of the only process of a recording."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_new_store(Path(folder) / "db")  # type: ignore[no-untyped-call]
        insert_otlp(store, TRACES, gzip.decompress(path.read_bytes()), "recording")
        join(store)  # type: ignore[no-untyped-call]
        tables: Tables
        [tables] = processes(store).values()  # type: ignore[no-untyped-call]
        store.close()
    return tables


def good(tables: Tables, ttft: float, tpot: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which requests were within both thresholds (ns)."""
    rows = tables.requests
    first = rows["ttft_ns"].astype(float)
    each = (rows["e2e_us"] * 1e3 - first) / np.maximum(rows["output_tokens"].astype(float) - 1, 1)
    within: np.ndarray[Any, np.dtype[np.bool_]] = (first <= ttft) & (each <= tpot)
    return within


if __name__ == "__main__":
    typer.run(main)
