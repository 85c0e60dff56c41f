"""How long rows are kept: the setting `--retention`, for tables and for tenants."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from collector.slo.model import Slo
from collector.store.schema import TIME_COLUMNS
from tokentrail.shared.durations import format_duration, parse_duration

logger = logging.getLogger(__name__)

TENANT_TABLES: Final = ("requests", "tokens")
"""Tables that may be kept for a shorter time for one tenant. `requests` stands for all rows of its requests."""
_SECOND_NS: Final = 1_000_000_000
_LEAST_NS: Final = 3600 * _SECOND_NS


@dataclass(frozen=True)
class Retention:
    """Seconds that rows are kept. A table or a tenant that is not named keeps its rows for ever."""

    tables: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By tenant and table."""


FOR_EVER: Final = Retention()


def parse_retention(text: str) -> Retention:
    """Read `90d,tokens=7d,acme/requests=30d`: every table, one table, one table of a tenant.

    Raises ValueError that names the part at fault. A tenant's rows cannot be kept longer than their table's.
    """
    rest: int | None = None
    tables: dict[str, int] = {}
    tenants: dict[tuple[str, str], int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, duration = part.rpartition("=")
        tenant, slash, table = name.rpartition("/")
        known = TENANT_TABLES if slash else TIME_COLUMNS
        seconds = _seconds(part, duration)
        if name and table not in known:
            msg = f"{part!r} names no table; write one of {', '.join(known)}"
            raise ValueError(msg)
        if (not name and rest is not None) or (table in tables and not slash) or (tenant, table) in tenants:
            msg = f"{part!r} sets the retention of these rows a second time"
            raise ValueError(msg)
        if not name:
            rest = seconds
        elif slash:
            tenants[tenant, table] = seconds
        else:
            tables[table] = seconds
    if rest is not None:
        tables = dict.fromkeys(TIME_COLUMNS, rest) | tables
    for (tenant, table), seconds in tenants.items():
        if seconds > tables.get(table, seconds):
            msg = f"{tenant}/{table} is kept longer than the table: make the table's time the longest"
            raise ValueError(msg)
    return Retention(tables, tenants)


def check_windows(slos: Sequence[Slo], retention: Retention) -> None:
    """Compare the SLOs' windows with the time for which requests are kept.

    Raises ValueError for a window that is longer: the SLO would be judged on the days that are left. Logs a warning
    where only a tenant's requests are kept for a shorter time.
    """
    longest = max(slos, key=lambda slo: slo.window, default=None)
    if longest is None:
        return
    kept_s = retention.tables.get("requests")
    if kept_s is not None and longest.window > kept_s * _SECOND_NS:
        msg = (
            f"the SLO {longest.name} has a window of {format_duration(longest.window)}, and requests are kept for"
            f" {format_duration(kept_s * _SECOND_NS)}: keep them at least as long as the window (--retention)"
        )
        raise ValueError(msg)
    for (tenant, table), seconds in retention.tenants.items():
        if table == "requests" and longest.window > seconds * _SECOND_NS:
            logger.warning(
                "the retention removes requests of the tenant %s before the window of the SLO %s ends",
                tenant,
                longest.name,
            )


def _seconds(part: str, duration: str) -> int:
    nanoseconds = parse_duration(duration)
    if nanoseconds < _LEAST_NS:
        msg = f"{part!r} is shorter than {format_duration(_LEAST_NS)}"
        raise ValueError(msg)
    return nanoseconds // _SECOND_NS
