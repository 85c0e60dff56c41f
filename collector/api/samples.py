"""`/samples`: what the metrics of engines say."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query

from collector.api.context import Context
from collector.api.parameters import WindowQuery
from collector.api.session import ALL_TENANTS
from collector.ask.times import rfc3339
from collector.base.answer import Answer
from collector.base.status import IngestStatus
from collector.count.answers import WindowOut
from collector.count.sampled import SampledProcess
from collector.count.samples import newest
from collector.otlp.metric_names import SCRAPE_DURATION, UP

_MOST_PROBLEMS: Final = 100


class SampledProcessOut(Answer):
    """The newest samples of one process, by common name."""

    service: str
    instance: str
    process_tenant: str
    engine: str
    models: list[str]
    up: bool | None
    """Whether the last scrape was answered; null when nobody scrapes it."""
    reason: str
    """Why the last scrape gave no values."""
    seen: str
    values: dict[str, float]
    """By common name, over all series of the process; of a histogram the number of its observations."""


class DiscoveryProblem(Answer):
    """A file of targets, or a name, that tells no targets now. Those that it told before are still scraped."""

    source: str
    problem: str


class Samples(Answer):
    """`/samples`."""

    window: WindowOut
    processes: list[SampledProcessOut]
    discovery_problems: list[DiscoveryProblem]
    """At most 100."""


def router(ctx: Context, status: IngestStatus) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["engines"])

    @routes.get("/samples", dependencies=[ALL_TENANTS])
    def get_samples(query: Annotated[WindowQuery, Query()]) -> Samples:
        """The newest metrics of each process that is scraped or sends them, and why some targets are not known."""
        reader = ctx.reader()
        window = query.as_reported(reader)
        problems = sorted(status.snapshot().discovery_problems.items())[:_MOST_PROBLEMS]
        return Samples(
            window=WindowOut.of(window, reader.complete_ns),
            processes=[_out(process) for process in newest(reader, window)],
            discovery_problems=[DiscoveryProblem(source=source, problem=problem) for source, problem in problems],
        )

    return routes


def _out(process: SampledProcess) -> SampledProcessOut:
    values = {name: value for name, value in process.values.items() if name not in (UP, SCRAPE_DURATION)}
    return SampledProcessOut(
        **process.process._asdict(),
        engine=process.engine,
        models=sorted(process.models),
        up=process.up,
        reason=process.reason,
        seen=rfc3339(process.seen_ns),
        values=values,
    )
