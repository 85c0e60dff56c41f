"""The engine processes that served requests, the laws of their steps, and advice about causes for their engines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from shlex import quote
from typing import Final

from collector.ask.times import rfc3339
from collector.ask.window import Window
from collector.base.process import Process
from collector.causes.answer.answer import Culprit, ModelOut
from collector.causes.answer.request_times import of_causes
from collector.causes.split.names import load_causes
from collector.count.reader import Reader
from collector.sql.fragment import Fragment

_MOST_PROCESSES: Final = 1000
_MOST_OF_IT: Final = 0.5
"""A variant is compared with another one if it has more than this share of a cause."""


@dataclass(frozen=True)
class Served:
    """A process, the engine that it runs, and its variant."""

    process: Process
    engine: str
    variant: str


def read_processes(reader: Reader, population: Window, every: int = 1) -> Mapping[int, Served]:
    """The processes with most requests, by their number in the rows of causes, of which one in `every` was read."""
    fragments = {"filter": of_causes(population)}
    rows = reader.queries.rows("explain_processes", fragments, **population.bounds, every=every, limit=_MOST_PROCESSES)
    return {
        row["process"]: Served(
            Process(row["of_service"], row["of_instance"], row["of_tenant"]), row["of_engine"], row["of_variant"]
        )
        for row in rows
    }


def read_models(reader: Reader, ends_ns: tuple[int, int], processes: Sequence[Process]) -> list[ModelOut]:
    """The newest law of step times of each process that judged its requests between the first end and the last."""
    if not processes:
        return []
    names = f"({', '.join(Process._fields)}) IN {{model_processes:Array(Tuple(String, String, String))}}"
    chosen = Fragment(names, {"model_processes": sorted(set(processes))})
    first_ns, last_ns = ends_ns
    rows = reader.queries.rows("explain_models", {"filter": chosen}, first_ns=first_ns, last_ns=last_ns)
    return [
        ModelOut(
            service=row["service"],
            instance=row["instance"],
            process_tenant=row["process_tenant"],
            start=rfc3339(start_ns),
            end=rfc3339(end_ns),
            steps=_known(steps),
            r2=_known(r2),
            sigma=_known(sigma),
        )
        for row in rows
        for start_ns, end_ns, steps, r2, sigma in [row["newest"]]
    ]


def _known(value: float) -> float | None:
    return value if isfinite(value) else None


def advice(cause: str, engines: Sequence[str]) -> str:
    """What makes a cause less with these engines: in general, and each one's own switch."""
    known = load_causes()[cause].advice
    switches = [f"{engine}: {known[engine]}" for engine in engines if engine in known and engine != "any"]
    return " ".join(filter(None, (known.get("any", ""), *switches)))


def compared(culprits: Iterable[Culprit], served: Collection[Served]) -> str:
    """How to see whether the variant that has most of a cause is slower than another one of its service; else empty."""
    worst = next((one.name for one in culprits if one.by == "variant" and (one.share or 0) > _MOST_OF_IT), None)
    services = {one.process.service for one in served if one.variant == worst}
    others = {one.variant for one in served if one.process.service in services} - {worst, ""}
    if worst is None or not others:
        return ""
    sides = " ".join(f"--{side} {quote(f'variant={name}')}" for side, name in (("a", min(others)), ("b", worst)))
    return f"Variant {worst} has most of it; a slower version shows in: tokentrail compare {sides}. "
