"""The response model of one incident, and of the requests behind it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from collector.measure.times import rfc3339
from collector.measure.window import Window
from collector.slo.conditions import Cause, load_conditions
from collector.slo.severity import Severity


class RequestList(BaseModel):
    """A list of `/requests`: its parameters, beside the filters of the question, and the number of its rows."""

    parameters: dict[str, str]
    total: int


class Incident(BaseModel):
    """A condition that holds or held; `end` is null while it lasts.

    `tenant` is the one to whom an SLO is broken that is a promise to each. `process_tenant` is the one to which the
    process of `instance` belongs, empty for all. `requests` lists the requests that
    `requests_affected` counts; it is empty where no filter finds them.
    """

    cause: Cause
    severity: Severity
    title: str
    detail: str
    start: str
    end: str | None
    firing: bool
    slo: str | None
    tenant: str | None
    instance: str | None
    process_tenant: str | None
    requests_affected: int
    requests: list[RequestList]
    runbook_url: str


def incident(cause: Cause, *, start_ns: int, end_ns: int | None, **fields: Any) -> Incident:
    """The incident of a condition. It fires while it has no end, unless `firing` says otherwise."""
    condition = load_conditions()[cause]
    defaults: dict[str, Any] = {
        "slo": None,
        "tenant": None,
        "instance": None,
        "process_tenant": None,
        "severity": condition.severity,
        "requests": [],
    }
    end = None if end_ns is None else rfc3339(end_ns)
    own = {"cause": cause, "start": rfc3339(start_ns), "end": end, "runbook_url": condition.runbook_url}
    return Incident(**{"firing": end_ns is None, **defaults, **fields, **own})


def request_list(window: Window, total: int, **parameters: str) -> list[RequestList]:
    """The list of the requests of a window that these parameters select; none where it is empty."""
    times = {"start": rfc3339(window.start_ns), "end": rfc3339(window.end_ns)}
    return [RequestList(parameters=times | parameters, total=total)] if total else []
