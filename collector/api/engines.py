"""`/kv`, `/cold_starts` and `/engines`: the state and the events of engine processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from collector.api import samples
from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.api.session import ALL_TENANTS
from collector.measure import abilities
from collector.measure.abilities import Told
from collector.measure.answers import PhaseOut, WindowOut
from collector.measure.evaluation import process_filter
from collector.measure.reader import Reader
from collector.measure.signs import processes_of, signs_of_life
from collector.measure.times import SECOND_NS, rfc3339
from collector.measure.window import Window
from collector.process import Process
from collector.samples.present import SampledProcess

if TYPE_CHECKING:
    from collector.exposition.clocks import Clocks

MOST_COLD_STARTS = 1000
MOST_PROCESSES = 100
OLD_STEP_NS = 60 * SECOND_NS
"""A step that began this long before the window's end no longer says how many requests run."""
_ABILITIES_OF_SAMPLES = {"kv": "kv_usage", "preemption": "preemptions", "running": "running"}
_TELLING = ("up", *_ABILITIES_OF_SAMPLES.values())
_NO_EVENTS = {"evicted_blocks": 0, "evictions": 0, "preemptions": 0}
_NO_STEP = dict.fromkeys(("blocks_used", "blocks_total", "running_now", "waiting_now"))


class KvEngine(BaseModel):
    """One engine process: its newest step or sample in the window, and sums over the window.

    Null: it does not tell, or its newest step is old.
    """

    source: Literal["spans", "samples"]
    service: str
    instance: str
    process_tenant: str
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

    window: WindowOut
    engines: list[KvEngine]


class ColdStartOut(BaseModel):
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


class ColdStarts(BaseModel):
    """`/cold_starts`."""

    window: WindowOut
    cold_starts: list[ColdStartOut]


class ProcessOut(BaseModel):
    """One process of an engine."""

    service: str
    instance: str
    variant: str
    first_seen: str
    last_seen: str
    requests: int


class EngineOut(BaseModel):
    """One connected engine: the processes and restarts of one service.

    `process_tenant` is the tenant to which its processes belong; empty: to all.
    """

    service: str
    process_tenant: str
    engine: str
    variants: list[str]
    models: list[str]
    first_seen: str
    last_seen: str
    requests: int
    clock_ahead_s: float | None
    clock_behind_s: float | None
    """Null below a second and below 30 s. They are of the last 15 minutes, as `/metrics` has them."""
    processes: list[ProcessOut]
    """The latest first, at most 100."""
    processes_total: int
    tells: list[Told]
    """Each thing that an engine can tell: whether its rows in the window do, and else the way to get it."""


class Engines(BaseModel):
    """`/engines`."""

    window: WindowOut
    engines: list[EngineOut]


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["engines"])

    @routes.get("/kv", dependencies=[ALL_TENANTS])
    def get_kv(query: Annotated[WindowQuery, Query()]) -> Kv:
        """KV-cache use and evictions per engine process."""
        return answer_kv(ctx.reader(), query)

    @routes.get("/cold_starts", dependencies=[ALL_TENANTS])
    def get_cold_starts(query: Annotated[WindowQuery, Query()]) -> ColdStarts:
        """Cold starts that overlap the window, newest first, at most 1,000, with their sub-phases."""
        return answer_cold_starts(ctx.reader(), query)

    @routes.get("/engines", dependencies=[ALL_TENANTS])
    def get_engines(query: Annotated[WindowQuery, Query()]) -> Engines:
        """The engines that gave a sign of life in the window, the latest first, with their processes."""
        return answer_engines(ctx.reader(), query, ctx.clocks)

    return routes


def answer_kv(reader: Reader, query: WindowQuery) -> Kv:
    """The answer of `/kv`."""
    window = query.window(reader)
    told = WindowOut.of(window, reader.complete_ns)
    fragments = {"process_filter": process_filter(window)}
    events = {Process.of(row): row for row in reader.queries.rows("kv_event_sums", fragments, **window.bounds)}
    steps = reader.queries.rows("newest_steps", fragments, **window.bounds)
    known_from_ns = window.end_ns - OLD_STEP_NS
    of_steps = [_kv_engine(row, events.pop(Process.of(row), _NO_EVENTS), known_from_ns) for row in steps]
    of_samples = list(_sampled_caches(reader, window, events))
    of_events = [_kv_engine(_NO_STEP | row, row, known_from_ns) for row in events.values()]
    of_spans = sorted(
        [*of_steps, *of_events], key=lambda engine: (engine.service, engine.instance, engine.process_tenant)
    )
    return Kv(window=told, engines=[*of_spans, *of_samples])


def answer_cold_starts(reader: Reader, query: WindowQuery) -> ColdStarts:
    """The answer of `/cold_starts`."""
    window = query.window(reader)
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
        phases[phase["trace_id_hex"]].append(phase)
    return ColdStarts(window=told, cold_starts=[_cold_start(row, phases[row["trace_id_hex"]]) for row in rows])


def answer_engines(reader: Reader, query: WindowQuery, clocks: Clocks) -> Engines:
    """The answer of `/engines`."""
    window = query.window(reader)
    told = WindowOut.of(window, reader.complete_ns)
    signs = signs_of_life(reader, window)
    processes = processes_of(signs)
    of_samples = samples.sampled(reader, window, _TELLING)
    known = {(process["service"], process["process_tenant"]) for process in processes}
    processes += [
        _sampled_process(p)
        for p in of_samples
        if p.last_answer_ns and (p.process.service, p.process.process_tenant) not in known
    ]
    counts = abilities.counts(reader, signs)
    now = reader.now_ns
    apart_s = clocks.ahead_s(now), clocks.behind_s(now)
    return Engines(
        window=told, engines=list(_engines(processes, counts, [_told_by_samples(p) for p in of_samples], apart_s))
    )


def _engines(
    processes: list[dict[str, Any]],
    counts: list[dict[str, Any]],
    of_samples: list[dict[str, Any]],
    clocks: tuple[Mapping[tuple[str, ...], float], Mapping[tuple[str, ...], float]],
) -> Iterator[EngineOut]:
    """Group processes into engines. Processes without a service name are told apart by their product alone."""
    counts_of = {Process.of(row): row for row in counts}
    groups: dict[tuple[str, tuple[str, str]], list[dict[str, Any]]] = defaultdict(list)
    products: dict[tuple[str, str], set[str]] = defaultdict(set)
    for process in processes:
        products[_service(process)].add(process["engine"])
    for process in processes:
        service = _service(process)
        engine = process["engine"] or min(products[service] - {""}, default="")
        groups[engine, service].append(process)
    for (engine, service), members in groups.items():
        vantage = next((member["vantage"] for member in members if member["vantage"]), "server")
        ahead_s, behind_s = (
            max(
                (found[name] for member in members if (name := (member["service"], member["process_tenant"])) in found),
                default=None,
            )
            for found in clocks
        )
        yield EngineOut(
            service=service[0],
            process_tenant=service[1],
            engine=engine,
            variants=sorted({variant for member in members for variant in member["variants"]}),
            models=sorted({model for member in members for model in member["models"]}),
            first_seen=rfc3339(min(member["first_seen_ns"] for member in members)),
            last_seen=rfc3339(max(member["last_seen_ns"] for member in members)),
            requests=sum(member["requests"] for member in members),
            clock_ahead_s=ahead_s,
            clock_behind_s=behind_s,
            processes=[_process(member) for member in members[:MOST_PROCESSES]],
            processes_total=len(members),
            tells=abilities.told(
                engine,
                vantage,
                [counts_of[key] for m in members if (key := Process.of(m)) in counts_of]
                + [row for row in of_samples if _service(row) == service],
            ),
        )


def _service(process: dict[str, Any]) -> tuple[str, str]:
    """The service of a process and the tenant to which it belongs.

    Each executable without a name of its own gets another from OpenTelemetry: `unknown_service:python3`.
    """
    name: str = process["service"]
    return "unknown_service" if name.startswith("unknown_service") else name, process["process_tenant"]


def _process(row: dict[str, Any]) -> ProcessOut:
    return ProcessOut(
        service=row["service"],
        instance=row["instance"],
        variant=row["variant"],
        first_seen=rfc3339(row["first_seen_ns"]),
        last_seen=rfc3339(row["last_seen_ns"]),
        requests=row["requests"],
    )


def _kv_engine(row: dict[str, Any], sums: dict[str, Any], known_from_ns: int) -> KvEngine:
    """A step before `known_from_ns` says nothing of now: an idle engine makes none, and its last had a request."""
    is_old = row["seen_ns"] < known_from_ns
    used, running, waiting = (None if is_old else row[name] for name in ("blocks_used", "running_now", "waiting_now"))
    total = row["blocks_total"]
    return KvEngine(
        source="spans",
        **Process.of(row)._asdict(),
        variant=row["variant_now"],
        seen=rfc3339(row["seen_ns"]),
        blocks_used=used,
        blocks_total=total,
        usage=used / total if total and used is not None else None,
        running=running,
        waiting=waiting,
        **{name: sums[name] for name in _NO_EVENTS},
    )


def _sampled_caches(reader: Reader, window: Window, events: dict[Process, dict[str, Any]]) -> Iterator[KvEngine]:
    """Yield the processes of engines, and take their `events`.

    The samples of GPUs and failed first scrapes tell nothing of requests.
    """
    preemptions = samples.preemptions(reader, window)
    for process in samples.sampled(reader, window):
        values = process.values
        if process.up is not False and not {"running", "waiting", "kv_usage"} & values.keys():
            continue
        sums = events.pop(process.process, {})
        yield KvEngine(
            source="samples",
            **process.process._asdict(),
            variant="",
            seen=rfc3339(process.seen_ns),
            blocks_used=None,
            blocks_total=None,
            usage=values.get("kv_usage"),
            running=process.count("running"),
            waiting=process.count("waiting"),
            evicted_blocks=sums.get("evicted_blocks"),
            evictions=sums.get("evictions"),
            preemptions=preemptions.get(process.process, sums.get("preemptions")),
            up=process.up,
        )


def _sampled_process(process: SampledProcess) -> dict[str, Any]:
    """A process of a service of which no span came, as `processes_of` has others."""
    return {
        **process.process._asdict(),
        "engine": process.engine,
        "vantage": "server",
        "variant": "",
        "variants": [],
        "models": sorted(process.models),
        "first_seen_ns": process.first_answer_ns,
        "last_seen_ns": process.last_answer_ns,
        "requests": 0,
    }


def _told_by_samples(process: SampledProcess) -> dict[str, Any]:
    """The abilities that the samples of a process show, in the form of `abilities.counts`."""
    told = dict.fromkeys(
        ("requests", "could_tell", "tokens", "phases", "queue", "in_flight", "cold_start", "examples", "itl"), 0
    )
    known = {what: int(name in process.values) for what, name in _ABILITIES_OF_SAMPLES.items()}
    return process.process._asdict() | told | known


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
