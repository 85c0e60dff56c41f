"""One request to the API: its caller, and the limits that every query made for it has."""

from __future__ import annotations

import time
import uuid
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from fastapi import Depends

from collector.access.caller import Caller
from collector.api.problems import Problem
from collector.store.insert import behind_inserts

_OF_PROCESS: Final = "process_tenant IN ('', '{tenant}')"
TENANT_FILTERS: Final = {
    "requests": "tenant = '{tenant}'",
    "open_requests": "tenant = '{tenant}'",
    "causes": "tenant = '{tenant}'",
    "spans": "resource['tokentrail.tenant'] = '{tenant}'",
    "held_requests": "tenant = '{tenant}'",
    "held_spans": "tenant = '{tenant}'",
    **dict.fromkeys(("steps", "kv_events", "cold_starts", "step_models", "samples"), _OF_PROCESS),
}
"""Conditions by which the store itself hides the rows of other tenants, in every query, so that no limit counts them.
A process of all tenants may have served this one. The tables of tokens and phases have no tenant: they are read by the
ids of requests."""


@dataclass(frozen=True)
class QueryLimits:
    """Limits of the API's work for its callers."""

    concurrency: int = 4
    """Requests that are answered at a time; the others wait."""
    waiting: int = 64
    """Requests that may wait; more are told to come back."""
    timeout_s: float = 30.0
    """Longest time for one answer, without the wait before."""
    memory_bytes: int = 2 * 1024**3
    """Most memory of one query in the store."""


class ClientLeftError(RuntimeError):
    """The client has closed its connection, so nobody waits for the answer."""


class TooLongError(RuntimeError):
    """The answer has taken all the time that it may."""


@dataclass
class Session:
    """One request to the API."""

    caller: Caller
    limits: QueryLimits
    left: bool = False
    """The client has gone."""
    comment: str = field(default_factory=lambda: f"tokentrail query {uuid.uuid4()}")
    """The store lists the session's queries under this comment."""
    started_s: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Begin to count the time: the request has waited until now."""
        self.started_s = time.monotonic()

    def query_settings(self) -> dict[str, Any]:
        """Settings of the session's next query. Raises `ClientLeftError` or `TooLongError` when there may be none."""
        if self.left:
            raise ClientLeftError
        left_s = self.started_s + self.limits.timeout_s - time.monotonic()
        if left_s <= 0:
            raise TooLongError
        settings: dict[str, Any] = {
            "log_comment": self.comment,
            "max_execution_time": left_s,
            "max_memory_usage": self.limits.memory_bytes,
            **behind_inserts(10),
        }
        if self.caller.tenant:
            settings["additional_table_filters"] = _table_filters(self.caller.tenant)
        return settings


def _table_filters(tenant: str) -> str:
    conditions = {table: sql.format(tenant=tenant).replace("'", "\\'") for table, sql in TENANT_FILTERS.items()}
    return "{" + ", ".join(f"'{table}': '{condition}'" for table, condition in conditions.items()) + "}"


CURRENT: Final[ContextVar[Session]] = ContextVar("session")
"""The request that this thread or task works for. Without one there is no query."""


def query_settings() -> dict[str, Any]:
    """Settings of the next query of the current session; raises LookupError outside of one."""
    return CURRENT.get().query_settings()


def sees_all_tenants() -> bool:
    """Tell whether the caller may see rows of no tenant, or of all."""
    return not CURRENT.get().caller.tenant


def need_all_tenants() -> None:
    """Raise Problem (403) for a caller of one tenant."""
    if not sees_all_tenants():
        msg = "engine processes serve all tenants together: this needs a key that is not for one tenant only"
        raise Problem(HTTPStatus.FORBIDDEN, msg)


ALL_TENANTS: Final = Depends(need_all_tenants)
"""Dependency of a route that callers of one tenant may not use."""
