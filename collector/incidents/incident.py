"""The response model of one incident, and of the requests behind it."""

from __future__ import annotations

from typing import Any

from collector.ask.times import rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.slo.conditions import Cause, load_conditions
from collector.slo.severity import Severity


class RequestList(Answer):
    """A list of `/requests`: its parameters, beside the filters of the question, and the number of its rows."""

    parameters: dict[str, str]
    """Ask `/api/v1/requests` with these, and add your own filters whose names are not among them."""
    total: int
    """The number of its rows."""


class TopCause(Answer):
    """The cause (docs/explain.md) that took most time from the bad requests of a burn, or of its last six hours,
    beyond typical ones."""

    cause: str
    group: str
    """What people call it; some causes share one."""
    share: float
    """Of all that they took beyond typical requests."""
    sentence: str
    than: str | None = None
    """Of `slower`, by how much and against what: `× 2.6 (2.5 to 2.7) against build-771`; null for another cause."""


class Incident(Answer):
    """A condition (docs/alerts.md) that holds or held."""

    cause: Cause
    severity: Severity
    title: str
    detail: str
    start: str
    end: str | None
    """Null while it lasts."""
    firing: bool
    slo: str | None
    tenant: str | None
    """To whom an SLO with `group_by: [tenant]` is broken."""
    service: str | None
    """The service of the process, of a condition of one."""
    instance: str | None
    process_tenant: str | None
    """To whom the process of `instance` belongs; empty: to all."""
    rule: str | None
    """The most urgent burn-rate rule that fires or fired, of an SLO."""
    peak_burn: float | None
    """The highest burn rate of that rule's short window while it fired."""
    requests_affected: int
    requests: list[RequestList]
    """The lists of the requests that `requests_affected` counts; empty where no filter finds them."""
    top_cause: TopCause | None
    """Of the bad requests of an SLO; null where none is explained, where more have not ended than are explained, and of
    burns that are over but the six that ended last: ask for a window that ends with the burn."""
    runbook_url: str


def incident(cause: Cause, *, start_ns: int, end_ns: int | None, **fields: Any) -> Incident:
    """The incident of a condition. It fires while it has no end, unless `firing` says otherwise."""
    condition = load_conditions()[cause]
    defaults: dict[str, Any] = {
        "slo": None,
        "tenant": None,
        "service": None,
        "instance": None,
        "process_tenant": None,
        "severity": condition.severity,
        "rule": None,
        "peak_burn": None,
        "requests": [],
        "top_cause": None,
    }
    end = None if end_ns is None else rfc3339(end_ns)
    always = {"cause": cause, "start": rfc3339(start_ns), "end": end, "runbook_url": condition.runbook_url}
    return Incident(**{"firing": end_ns is None, **defaults, **fields, **always})


def request_list(window: Window, total: int, **parameters: str) -> list[RequestList]:
    """The list of the requests of a window that these parameters select; none where it is empty."""
    times = {"start": rfc3339(window.start_ns), "end": rfc3339(window.end_ns)}
    return [RequestList(parameters=times | parameters, total=total)] if total else []
