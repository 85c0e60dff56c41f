"""Engines: the processes of each service, and what they tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from collector.ask.times import rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.base.process import Process
from collector.count import samples
from collector.count.answers import WindowOut
from collector.count.reader import Reader
from collector.count.sampled import SampledProcess
from collector.engines import abilities
from collector.engines.abilities import Told
from collector.engines.signs import processes_of, signs_of_life

ClocksApart = tuple[Mapping[tuple[str, ...], float], Mapping[tuple[str, ...], float]]
"""By service and tenant, the seconds by which a clock is ahead, and by which one is behind."""

MOST_PROCESSES: Final = 100
_ABILITIES_OF_SAMPLES: Final = {"kv": "kv_usage", "preemption": "preemptions", "running": "running"}
_TELLING: Final = ("up", *_ABILITIES_OF_SAMPLES.values())


class ProcessOut(Answer):
    """One process of an engine."""

    service: str
    instance: str
    variant: str
    first_seen: str
    last_seen: str
    requests: int


class EngineOut(Answer):
    """One connected engine: the processes and restarts of one service."""

    service: str
    process_tenant: str
    """To whom its processes belong; empty: to all."""
    engine: str
    variants: list[str]
    """At most 100, as the models."""
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


class Engines(Answer):
    """`/engines`."""

    window: WindowOut
    engines: list[EngineOut]


def engines(reader: Reader, window: Window, clocks: ClocksApart) -> Engines:
    """The engines that gave a sign of life in the window, the latest first, with their processes."""
    told = WindowOut.of(window, reader.complete_ns)
    signs = signs_of_life(reader, window)
    processes = processes_of(signs)
    of_samples = samples.sampled(reader, window, _TELLING)
    processes += only_sampled(processes, of_samples)
    counts = abilities.counts(reader, signs)
    return Engines(
        window=told, engines=list(_engines(processes, counts, [_told_by_samples(p) for p in of_samples], clocks))
    )


def only_sampled(processes: Sequence[Mapping[str, Any]], of_samples: Sequence[SampledProcess]) -> list[dict[str, Any]]:
    """The processes of services of which no span came, as `processes_of` has others."""
    known = {(process["service"], process["process_tenant"]) for process in processes}
    return [
        _sampled_process(p)
        for p in of_samples
        if p.last_answer_ns and (p.process.service, p.process.process_tenant) not in known
    ]


def _engines(
    processes: list[dict[str, Any]],
    counts: list[dict[str, Any]],
    of_samples: list[dict[str, Any]],
    clocks: ClocksApart,
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
