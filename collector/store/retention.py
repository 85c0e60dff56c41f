"""How long rows are kept: the setting `--retention`, for tables and for tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from collector.slo.durations import format_duration, parse_duration
from collector.store.schema import TIME_COLUMNS

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

    def requests_s(self) -> int | None:
        """The shortest time that requests of any tenant are kept; None: for ever."""
        of_tenants = (seconds for (_, table), seconds in self.tenants.items() if table == "requests")
        return min((*of_tenants, *filter(None, [self.tables.get("requests")])), default=None)


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
        if (not name and rest is not None) or table in tables and not slash or (tenant, table) in tenants:
            msg = f"{part!r} is the second time for the same rows"
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


def _seconds(part: str, duration: str) -> int:
    nanoseconds = parse_duration(duration)
    if nanoseconds < _LEAST_NS:
        msg = f"{part!r} is shorter than {format_duration(_LEAST_NS)}"
        raise ValueError(msg)
    return nanoseconds // _SECOND_NS
