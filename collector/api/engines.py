"""`/kv`, `/cold_starts` and `/engines`: the state and the events of engine processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from collector.api import samples
from collector.api.answers import PhaseOut
from collector.api.context import Context
from collector.api.evaluation import process_filter
from collector.api.parameters import Window, WindowQuery
from collector.api.session import ALL_TENANTS
from collector.api.times import SECOND_NS, rfc3339

MOST_COLD_STARTS = 1000
_NO_EVENTS = {"evicted_blocks": 0, "evictions": 0, "preemptions": 0}


class KvEngine(BaseModel):
    """One engine process: its newest step or sample in the window, and sums over the window. Null: it does not tell."""

    source: Literal["spans", "samples"]
    service: str
    instance: str
    variant: str
    seen: str
    blocks_used: int | None
    blocks_total: int | None
    usage: float | None
    running: int | None
    waiting: int | None
    evicted_blocks: int | None
    evictions: int | None
    preemptions: int | None
    up: bool | None = None


class Kv(BaseModel):
    """`/kv`."""

    engines: list[KvEngine]


class ColdStartOut(BaseModel):
    """One start of an engine process, with its sub-phases."""

    trace_id: str
    start: str
    duration_s: float
    engine: str
    service: str
    instance: str
    variant: str
    model: str
    status: Literal["ok", "error"]
    error_type: str
    phases: list[PhaseOut]


class ColdStarts(BaseModel):
    """`/cold_starts`."""

    cold_starts: list[ColdStartOut]


class EngineOut(BaseModel):
    """One engine process."""

    service: str
    instance: str
    engine: str
    variant: str
    models: list[str]
    first_seen: str
    last_seen: str
    requests: int


class Engines(BaseModel):
    """`/engines`."""

    engines: list[EngineOut]


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["engines"])

    @routes.get("/kv", dependencies=[ALL_TENANTS])
    def get_kv(query: Annotated[WindowQuery, Query()]) -> Kv:
        """KV-cache use and evictions per engine process."""
        window = query.window(ctx.clock())
        fragments = {"process_filter": process_filter(window)}
        sums = {
            (row.pop("service"), row.pop("instance")): row
            for row in ctx.queries.rows("kv_event_sums", fragments, **window.bounds)
        }
        rows = ctx.queries.rows("newest_steps", fragments, **window.bounds)
        of_spans = [_kv_engine(row, sums.get((row["service"], row["instance"]), _NO_EVENTS)) for row in rows]
        return Kv(engines=[*of_spans, *_sampled_caches(ctx, window)])

    @routes.get("/cold_starts", dependencies=[ALL_TENANTS])
    def get_cold_starts(query: Annotated[WindowQuery, Query()]) -> ColdStarts:
        """Cold starts that overlap the window, newest first, at most 1,000, with their sub-phases."""
        window = query.window(ctx.clock())
        rows = ctx.queries.rows(
            "cold_starts", {"process_filter": process_filter(window)}, **window.bounds, limit=MOST_COLD_STARTS
        )
        phases = defaultdict(list)
        for phase in ctx.queries.rows("cold_start_phases", trace_ids=[row["trace_id_hex"] for row in rows]):
            phases[phase["trace_id_hex"]].append(phase)
        return ColdStarts(cold_starts=[_cold_start(row, phases[row["trace_id_hex"]]) for row in rows])

    @routes.get("/engines", dependencies=[ALL_TENANTS])
    def get_engines(query: Annotated[WindowQuery, Query()]) -> Engines:
        """The engine processes that gave a sign of life in the window, the latest first."""
        window = query.window(ctx.clock())
        fragments = {"filter": window.filter, "process_filter": process_filter(window)}
        rows = ctx.queries.rows("processes", fragments, **window.bounds)
        return Engines(
            engines=[
                EngineOut.model_validate(
                    row | {"first_seen": rfc3339(row["first_seen_ns"]), "last_seen": rfc3339(row["last_seen_ns"])}
                )
                for row in [*rows, *_sampled_processes(ctx, window, {row["service"] for row in rows})]
            ]
        )

    return routes


def _kv_engine(row: dict[str, Any], sums: dict[str, Any]) -> KvEngine:
    used, total = row["blocks_used"], row["blocks_total"]
    return KvEngine(
        source="spans",
        service=row["service"],
        instance=row["instance"],
        variant=row["variant_now"],
        seen=rfc3339(row["seen_ns"]),
        blocks_used=used,
        blocks_total=total,
        usage=used / total if total and used is not None else None,
        running=row["running_now"],
        waiting=row["waiting_now"],
        **sums,
    )


def _sampled_caches(ctx: Context, window: Window) -> Iterator[KvEngine]:
    """Yield the processes of engines. The samples of GPUs and failed first scrapes tell nothing of requests."""
    preemptions = samples.preemptions(ctx, window)
    for process in samples.sampled(ctx, window):
        values = process.values
        if process.up is not False and not {"running", "waiting", "kv_usage"} & values.keys():
            continue
        yield KvEngine(
            source="samples",
            service=process.service,
            instance=process.instance,
            variant="",
            seen=rfc3339(process.seen_ns),
            blocks_used=None,
            blocks_total=None,
            usage=values.get("kv_usage"),
            running=process.count("running"),
            waiting=process.count("waiting"),
            evicted_blocks=None,
            evictions=None,
            preemptions=preemptions.get((process.service, process.instance)),
            up=process.up,
        )


def _sampled_processes(ctx: Context, window: Window, known: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the processes of services of which no span came."""
    for process in samples.sampled(ctx, window, ["up", "running"]):
        if process.service not in known:
            yield {
                "service": process.service,
                "instance": process.instance,
                "engine": process.engine,
                "variant": "",
                "models": sorted(process.models),
                "first_seen_ns": process.first_ns,
                "last_seen_ns": process.seen_ns,
                "requests": 0,
            }


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
