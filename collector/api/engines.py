"""`/kv`, `/cold_starts` and `/engines`: what belongs to an engine process and not to one request."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from collector.api.parameters import WindowQuery
from collector.api.questions import Context, of_engines
from collector.api.records import ColdStartOut, ColdStarts, EngineOut, Engines, Kv, KvEngine, PhaseOut
from collector.api.times import SECOND_NS, rfc3339

MOST_COLD_STARTS = 1000
_NONE = {"evicted_blocks": 0, "evictions": 0, "preemptions": 0}


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["engines"])

    @routes.get("/kv")
    def get_kv(query: Annotated[WindowQuery, Query()]) -> Kv:
        """KV-cache use and evictions per engine process."""
        window = query.window(ctx.clock())
        sums = {
            (row.pop("service"), row.pop("instance")): row
            for row in ctx.queries.ask("kv_sums", of_engines(window), **window.bounds)
        }
        rows = ctx.queries.ask("kv", of_engines(window), **window.bounds)
        return Kv(engines=[_kv_engine(row, sums.get((row["service"], row["instance"]), _NONE)) for row in rows])

    @routes.get("/cold_starts")
    def get_cold_starts(query: Annotated[WindowQuery, Query()]) -> ColdStarts:
        """Cold starts that overlap the window, newest first, at most 1,000, with their sub-phases."""
        window = query.window(ctx.clock())
        rows = ctx.queries.ask("cold_starts", of_engines(window), **window.bounds, limit=MOST_COLD_STARTS)
        phases = defaultdict(list)
        for phase in ctx.queries.ask("cold_start_phases", trace_ids=[row["trace_id_hex"] for row in rows]):
            phases[phase["trace_id_hex"]].append(phase)
        return ColdStarts(cold_starts=[_cold_start(row, phases[row["trace_id_hex"]]) for row in rows])

    @routes.get("/engines")
    def get_engines(query: Annotated[WindowQuery, Query()]) -> Engines:
        """The engine processes that gave a sign of life in the window, the latest first."""
        window = query.window(ctx.clock())
        conditions = {"filter": window.filter, **of_engines(window)}
        rows = ctx.queries.ask("engines", conditions, **window.bounds)
        return Engines(
            engines=[
                EngineOut.model_validate(
                    row | {"first_seen": rfc3339(row["first_seen_ns"]), "last_seen": rfc3339(row["last_seen_ns"])}
                )
                for row in rows
            ]
        )

    return routes


def _kv_engine(row: dict[str, Any], sums: dict[str, int]) -> KvEngine:
    total = row["blocks_total"]
    return KvEngine(
        service=row["service"],
        instance=row["instance"],
        variant=row["variant_now"],
        seen=rfc3339(row["seen_ns"]),
        blocks_used=row["blocks_used"],
        blocks_total=total,
        usage=row["blocks_used"] / total if total else None,
        running=row["running_now"],
        waiting=row["waiting_now"],
        **sums,
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
