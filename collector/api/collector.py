"""`/collector`: where the collector listens, and what has come in since it started."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from collector.api.parameters import NoQuery
from collector.api.session import ALL_TENANTS
from collector.base.answer import Answer
from collector.base.status import IngestStatus
from tokentrail.version import __version__


class CollectorOut(Answer):
    """`/collector`. Counts are of this process since it started, and not of requests but of what was sent."""

    version: str
    listeners: dict[str, str]
    """`otlp-http`, `otlp-grpc` and `api`: the addresses on which they listen, with the real ports."""
    payloads_received: int
    payloads_refused: dict[str, int]
    """By reason. Senders may send these again."""
    spans_received: int
    spans_left_out: dict[str, int]
    """By reason."""
    explain_failures: int
    """How often explaining requests failed, and was or will be tried again."""


def router(status: IngestStatus) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["process"])

    @routes.get("/collector", dependencies=[ALL_TENANTS])
    def get_collector(_: Annotated[NoQuery, Query()]) -> CollectorOut:
        """The version, the addresses of all listeners, and what has come in."""
        now = status.snapshot()
        return CollectorOut(
            version=__version__,
            listeners=dict(status.listeners),
            payloads_received=now.payloads_received,
            payloads_refused=now.payloads_rejected,
            spans_received=now.spans_received,
            spans_left_out=dict(now.spans_rejected),
            explain_failures=now.explain_failures,
        )

    return routes
