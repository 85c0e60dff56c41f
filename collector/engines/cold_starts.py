"""Cold starts of engine processes, with their sub-phases."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final, Literal

from collector.ask.times import SECOND_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import PhaseOut, WindowOut
from collector.count.evaluation import process_filter
from collector.count.reader import Reader

MOST_COLD_STARTS: Final = 1000


class ColdStartOut(Answer):
    """One start of an engine process, with its sub-phases."""

    trace_id: str
    start: str
    duration_s: float
    engine: str
    service: str
    instance: str
    process_tenant: str
    variant: str
    model: str
    status: Literal["ok", "error"]
    error_type: str
    phases: list[PhaseOut]


class ColdStarts(Answer):
    """`/cold_starts`."""

    window: WindowOut
    cold_starts: list[ColdStartOut]


def cold_starts(reader: Reader, window: Window) -> ColdStarts:
    """Cold starts that overlap the window, newest first."""
    told = WindowOut.of(window, reader.complete_ns)
    rows = reader.queries.rows(
        "cold_starts",
        {"process_filter": process_filter(window), "filter": window.filter},
        **window.bounds,
        limit=MOST_COLD_STARTS,
    )
    phases = defaultdict(list)
    ids = [row["trace_id_hex"] for row in rows]
    for phase in reader.queries.rows("cold_start_phases", trace_ids=ids) if ids else ():
        phases[phase["trace_id_hex"], phase["process_tenant"]].append(phase)
    return ColdStarts(
        window=told, cold_starts=[_cold_start(row, phases[row["trace_id_hex"], row["process_tenant"]]) for row in rows]
    )


def _cold_start(row: dict[str, Any], phases: list[dict[str, Any]]) -> ColdStartOut:
    return ColdStartOut.model_validate(
        row
        | {
            "trace_id": row["trace_id_hex"],
            "start": rfc3339(row["began_ns"]),
            "duration_s": row["duration_ns"] / SECOND_NS,
            "phases": [
                PhaseOut(
                    name=phase["name"],
                    offset_s=(phase["began_ns"] - row["began_ns"]) / SECOND_NS,
                    duration_s=phase["duration_ns"] / SECOND_NS,
                )
                for phase in phases
            ],
        }
    )
