"""Removes rows that are older than the retention: whole partitions of a table, and single days of a tenant."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from clickhouse_connect.driver.exceptions import ClickHouseError

from collector.ask.queries import Queries
from collector.ask.template import part
from collector.base.stage import ThreadStage
from collector.base.status import IngestStatus
from collector.base.store_errors import StoreError
from collector.sql.fragment import Fragment
from collector.store.retention import Retention
from collector.store.schema import HELD_TABLES, TIME_COLUMNS
from collector.store.store import Store

logger = logging.getLogger(__name__)

MOST_DAYS: Final = 7
"""A round removes at most so many days of one tenant and table, the oldest first."""
_ROUND_S: Final = 3600.0
_AFTER_A_FAILURE_S: Final = 60.0
_UNTIL_OPEN_S: Final = 1.0
_LONGEST_STATEMENT_S: Final = 3600.0
_DAY_S: Final = 86400
_DROP: Final = {"max_partition_size_to_drop": 0}
_DELETE: Final = {"lightweight_deletes_sync": 2}
"""All replicas have deleted a request's tokens before the request, by which they are found, is deleted."""
_OF_TENANT: Final = "tenant = {tenant:String}"
_TENANT_OF: Final = {"tokens": ("tenant_hash", part("tenant_hash", {}).sql), "phases": ("process_tenant",) * 2}
"""What a table says about the tenant of a request's process, and the same of a request."""


class Expiry(ThreadStage):
    """A stage that removes rows at its start and then every hour.

    Partitions of a table are dropped, which rewrites nothing. A day is dropped when its last moment is too old, so rows
    stay up to a day longer than the setting. `cold_starts` has a partition for each month, so its rows stay up to a
    month longer. A tenant's rows are masked by lightweight deletes, day by day; merges remove them from the disk.
    """

    def __init__(
        self,
        store: Store,
        retention: Retention,
        status: IngestStatus,
        *,
        clock: Callable[[], int] = time.time_ns,
        round_s: float = _ROUND_S,
    ) -> None:
        super().__init__("retention")
        self._store = store
        self._retention = retention
        self._status = status
        self._clock = clock
        self._round_s = round_s
        self._without_tokens: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        """Begin, unless everything is kept for ever."""
        if self._retention.tables or self._retention.tenants:
            self._thread.start()

    def run_once(self) -> None:
        """Remove all that is too old, and at most `MOST_DAYS` of each tenant and table; raises the store's errors."""
        patient = self._store.with_timeout(_LONGEST_STATEMENT_S)
        try:
            now_s = self._now_s(patient)
            work = _Round(patient, self._status, self._stopping.is_set)
            for table, keep_s in self._retention.tables.items():
                work.drop_partitions(table, now_s - keep_s)
            for (tenant, table), keep_s in self._retention.tenants.items():
                before_s = (now_s - keep_s) // _DAY_S * _DAY_S
                if table == "requests":
                    work.delete_requests(tenant, before_s)
                else:
                    work.delete_tokens(tenant, before_s, self._without_tokens)
        finally:
            patient.close()

    def _now_s(self, store: Store) -> int:
        """The earlier one of this collector's time and its server's: a clock that is days ahead takes no rows."""
        now_s = self._clock() // 10**9
        if store.embedded:
            return now_s
        return min(now_s, int(store.query("SELECT toUnixTimestamp(now())").result_rows[0][0]))

    def _run(self) -> None:
        delay_s = 0.0
        while not self._stopping.wait(delay_s):
            if not self._store.is_open:
                delay_s = _UNTIL_OPEN_S
                continue
            try:
                self.run_once()
            except (StoreError, ClickHouseError, OSError) as error:
                self._status.retention_failed()
                logger.warning("old rows cannot be removed from %s: %s", self._store.safe_dsn, error)
                delay_s = _AFTER_A_FAILURE_S
            else:
                self._status.retention_done(self._clock() / 1e9)
                delay_s = self._round_s


class _Round:
    """One pass over the partitions that the store has at its begin."""

    def __init__(self, store: Store, status: IngestStatus, stopping: Callable[[], bool]) -> None:
        self._client = store.client()
        self._layout = store.layout
        self._status = status
        self._stopping = stopping
        self._queries = Queries(store)
        rows = self._queries.rows(
            "partitions",
            {"stored_parts": Fragment(f"SELECT * FROM {self._layout.system('parts')}")},
            tables=[self._layout.stored(table) for table in (*TIME_COLUMNS, *HELD_TABLES)],
        )
        self._partitions = {
            table: {row["partition"]: row["total_rows"] for row in rows if row["name"] == self._layout.stored(table)}
            for table in (*TIME_COLUMNS, *HELD_TABLES)
        }

    def drop_partitions(self, table: str, before_s: int) -> None:
        """Drop the partitions that end before a time."""
        for partition, rows in self._partitions[table].items():
            if self._stopping() or partition_end_s(partition) > before_s:
                continue
            self._client.command(
                f"ALTER TABLE {self._layout.stored(table)}{self._layout.on_cluster} DROP PARTITION ID '{partition}'",
                settings=_DROP,
            )
            self._status.expired(table, rows)
            logger.info("retention: %d rows of %s of %s are gone", rows, table, partition)

    def delete_requests(self, tenant: str, before_s: int) -> None:
        """Delete a tenant's requests of earlier days, each after its tokens and phases, and then its other rows."""
        for day in self._days(tenant, before_s)[:MOST_DAYS]:
            for table in ("tokens", "phases"):
                self._delete_children(table, tenant, day)
            self._delete("requests", str(day["day"]), _OF_TENANT, tenant=tenant)
        for table in ("open_requests", "causes", *HELD_TABLES):
            for partition in self._partitions[table]:
                if partition_end_s(partition) <= before_s:
                    self._delete(table, partition, _OF_TENANT, tenant=tenant)

    def delete_tokens(self, tenant: str, before_s: int, done: dict[tuple[str, int], int]) -> None:
        """Delete the tokens of such requests. `done` remembers the days without any, and their count of requests."""
        days = [day for day in self._days(tenant, before_s) if done.get((tenant, day["day"])) != day["requests"]]
        for day in days[:MOST_DAYS]:
            if self._stopping():
                return
            self._delete_children("tokens", tenant, day)
            done[tenant, day["day"]] = day["requests"]

    def _days(self, tenant: str, before_s: int) -> list[dict[str, Any]]:
        return self._queries.rows("tenant_days", tenant=tenant, before_s=before_s)

    def _delete_children(self, table: str, tenant: str, day: dict[str, Any]) -> None:
        of, of_request = _TENANT_OF[table]
        where, where_stored = (
            f"(trace_id, request_span_id, {of}) IN (SELECT trace_id, span_id, {of_request} FROM {requests}"
            " WHERE tenant = {tenant:String} AND toYYYYMMDD(end) = {day:UInt32})"
            for requests in ("requests", self._layout.stored("requests"))
        )
        for partition in self._partitions[table]:
            if day["first_day"] <= int(partition) <= day["day"]:
                self._delete(table, partition, where, where_stored, tenant=tenant, day=day["day"])

    def _delete(self, table: str, partition: str, where: str, where_stored: str = "", **parameters: Any) -> None:
        """Delete rows of a partition, if there are any. `where_stored` is the condition on a node's own tables."""
        if self._stopping():
            return
        count = f"SELECT count() FROM {table} WHERE _partition_id = '{partition}' AND {where}"
        rows = self._client.query(count, parameters=parameters).result_rows[0][0]
        if rows:
            self._client.command(
                f"DELETE FROM {self._layout.stored(table)}{self._layout.on_cluster} IN PARTITION ID '{partition}'"
                f" WHERE {where_stored or where}",
                parameters=parameters,
                settings=_DELETE,
            )
            self._status.expired(table, rows)


def partition_end_s(partition: str) -> int:
    """Unix seconds at which a day (`20261121`) or a month (`202611`) ends."""
    if len(partition) == len("20261121"):
        return round((datetime.strptime(partition, "%Y%m%d").replace(tzinfo=UTC) + timedelta(days=1)).timestamp())
    first = datetime.strptime(partition, "%Y%m").replace(tzinfo=UTC)
    return round((first + timedelta(days=32)).replace(day=1).timestamp())
