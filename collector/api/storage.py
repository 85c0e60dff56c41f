"""`/storage`: rows and bytes of the tables, how long they are kept, and bytes that wait on the collector's own disk."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from collector.api.parameters import NoQuery
from collector.api.session import ALL_TENANTS
from collector.ask.times import rfc3339
from collector.base.answer import Answer
from collector.base.status import IngestStatus
from collector.keep.usage import Usage
from collector.store.retention import Retention


class TableOut(Answer):
    """One table. Deleted rows count until a merge has removed them."""

    name: str
    rows: int
    parts: int
    broken_parts: int
    """Damaged on the disk: docs/storage.md#damaged-parts."""
    disk_bytes: int
    oldest: str | None
    """Null for an empty table."""
    retention_s: int | None
    """Null for rows that are kept for ever."""


class TenantRetention(Answer):
    """A tenant with a retention of its own: its rows are kept for a shorter time."""

    tenant: str
    table: str
    retention_s: int


class LogOut(Answer):
    """The payloads of this collector that the store does not have yet."""

    segments: int
    bytes: int


class DeadLettersOut(Answer):
    """Payloads of this collector that the store refused. Each is two files."""

    files: int
    bytes: int


class DiskOut(Answer):
    """One disk of the store."""

    host: str
    """The node of a cluster; else empty."""
    name: str
    path: str
    free_bytes: int
    total_bytes: int


class Storage(Answer):
    """`/storage`."""

    tables: list[TableOut]
    tenants: list[TenantRetention]
    log: LogOut
    dead_letters: DeadLettersOut | None
    disks: list[DiskOut]
    data_dir_free_bytes: int | None
    """Of this collector's data folder; null where the disk does not tell."""
    data_dir_total_bytes: int | None


def router(usage: Usage, retention: Retention, status: IngestStatus) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["storage"])

    @routes.get("/storage", dependencies=[ALL_TENANTS])
    def get_storage(_: Annotated[NoQuery, Query()]) -> Storage:
        """Disk use and retention."""
        oldest = usage.oldest_ns()
        dead_letters, data_disk = usage.dead_letters(), usage.data_disk()
        now = status.snapshot()
        return Storage(
            tables=[
                TableOut(
                    name=table,
                    rows=row["total_rows"],
                    oldest=None if (ns := oldest[table]) is None else rfc3339(ns),
                    retention_s=retention.tables.get(table),
                    **{name: row[name] for name in ("parts", "broken_parts", "disk_bytes")},
                )
                for table, row in usage.tables().items()
            ],
            tenants=[
                TenantRetention(tenant=tenant, table=table, retention_s=seconds)
                for (tenant, table), seconds in retention.tenants.items()
            ],
            log=LogOut(segments=now.wal_segments_pending, bytes=now.wal_bytes_pending),
            dead_letters=DeadLettersOut(files=dead_letters.files, bytes=dead_letters.size) if dead_letters else None,
            disks=[DiskOut.model_validate(disk) for disk in usage.disks()],
            data_dir_free_bytes=data_disk.free if data_disk else None,
            data_dir_total_bytes=data_disk.total if data_disk else None,
        )

    return routes
