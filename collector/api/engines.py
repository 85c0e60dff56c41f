"""`/kv`, `/cold_starts` and `/engines`: the state and the events of engine processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from collector.api import abilities
from collector.api.abilities import Told
from collector.api.answers import PhaseOut
from collector.api.context import Context
from collector.api.evaluation import process_filter
from collector.api.parameters import WindowQuery
from collector.api.session import ALL_TENANTS
from collector.api.times import SECOND_NS, rfc3339

MOST_COLD_STARTS = 1000
MOST_PROCESSES = 100
_NO_EVENTS = {"evicted_blocks": 0, "evictions": 0, "preemptions": 0}


class KvEngine(BaseModel):
    """One engine process: its newest step in the window, and sums over the window."""

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
    evictions: int
    preemptions: int


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


class Process(BaseModel):
    """One process of an engine."""

    service: str
    instance: str
    variant: str
    first_seen: str
    last_seen: str
    requests: int


class EngineOut(BaseModel):
    """One connected engine: the processes and restarts of one service."""

    service: str
    engine: str
    variants: list[str]
    models: list[str]
    first_seen: str
    last_seen: str
    requests: int
    processes: list[Process]
    """The latest first, at most 100."""
    processes_total: int
    tells: list[Told]
    """What its rows in the window tell, and the way to what they do not."""


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
        return Kv(engines=[_kv_engine(row, sums.get((row["service"], row["instance"]), _NO_EVENTS)) for row in rows])

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
        """The engines that gave a sign of life in the window, the latest first, with their processes."""
        window = query.window(ctx.clock())
        fragments = {"filter": window.filter, "process_filter": process_filter(window)}
        processes = ctx.queries.rows("processes", fragments, **window.bounds)
        return Engines(engines=list(_engines(processes, abilities.counts(ctx, window))))

    return routes


def _engines(processes: list[dict[str, Any]], counts: list[dict[str, Any]]) -> Iterator[EngineOut]:
    """Group processes into engines. Processes without a service name are told apart by their product alone."""
    counts_of = {(row["service"], row["instance"]): row for row in counts}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    products: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        products[_service(process)].add(process["engine"])
    for process in processes:
        service = _service(process)
        engine = process["engine"] or min(products[service] - {""}, default="")
        groups[engine, service].append(process)
    for (engine, service), members in groups.items():
        vantage = next((member["vantage"] for member in members if member["vantage"]), "server")
        yield EngineOut(
            service=service,
            engine=engine,
            variants=sorted({member["variant"] for member in members} - {""}),
            models=sorted({model for member in members for model in member["models"]}),
            first_seen=rfc3339(min(member["first_seen_ns"] for member in members)),
            last_seen=rfc3339(max(member["last_seen_ns"] for member in members)),
            requests=sum(member["requests"] for member in members),
            processes=[_process(member) for member in members[:MOST_PROCESSES]],
            processes_total=len(members),
            tells=abilities.told(
                engine,
                vantage,
                [counts_of[key] for m in members if (key := (m["service"], m["instance"])) in counts_of],
            ),
        )


def _service(process: dict[str, Any]) -> str:
    """Each executable without a name of its own gets another from OpenTelemetry: `unknown_service:python3`."""
    name: str = process["service"]
    return "unknown_service" if name.startswith("unknown_service") else name


def _process(row: dict[str, Any]) -> Process:
    return Process(
        service=row["service"],
        instance=row["instance"],
        variant=row["variant"],
        first_seen=rfc3339(row["first_seen_ns"]),
        last_seen=rfc3339(row["last_seen_ns"]),
        requests=row["requests"],
    )


def _kv_engine(row: dict[str, Any], sums: dict[str, Any]) -> KvEngine:
    used, total = row["blocks_used"], row["blocks_total"]
    return KvEngine(
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
