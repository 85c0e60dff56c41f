"""A lock in the store: only one collector at a time changes its schema."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from typing import Any, Final, Self

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from collector.base.store_errors import StoreError
from collector.store.store import Store

logger = logging.getLogger(__name__)

STATEMENT_SETTINGS: Final[dict[str, Any]] = {"log_comment": "tokentrail migration", "mutations_sync": 1}
"""Settings of a migration's statements. The server lists them under this comment until they have ended."""

_TABLE_ALREADY_EXISTS: Final = 57
_POLL_S: Final = 0.2

_LATEST: Final = """
    SELECT
        max(toUInt32OrZero(splitByChar('_', name)[3])) AS number,
        toUnixTimestamp(now()) AS now_s,
        now_s - max(toUInt32OrZero(splitByChar(' ', comment)[1])) AS age_s,
        (SELECT count() FROM {processes}
         WHERE current_database = currentDatabase() AND Settings['log_comment'] = {{statements:String}}) AS running
    FROM system.tables
    WHERE database = currentDatabase() AND match(name, '^schema_lock_[0-9]+$')
"""


class SchemaLock:
    """A context manager that waits until this collector has the lock.

    ClickHouse creates a table only once, so creating one takes the lock. Its comment has the time of the last renewal:

        A creates schema_lock_1       A has the lock
        B cannot create it            B waits, as long as A renews the comment or a statement of a migration runs
        A dies
        B creates schema_lock_2       B has the lock; if A was only asleep, its next `renew` raises StoreError

    On a cluster every node runs these statements in the order of Keeper's queue, so one collector creates a table first
    on all nodes.
    """

    def __init__(self, store: Store, *, stale_after_s: float = 60.0) -> None:
        self._client = store.client()
        self._on_cluster = store.layout.on_cluster
        self._latest_sql = _LATEST.format(processes=store.layout.every_node("processes"))
        # One process owns an embedded store, so a lock in it is of a process that died.
        self._stale_after_s = 0.0 if store.embedded else stale_after_s
        self._number = 0

    def __enter__(self) -> Self:
        waits = False
        while not self._acquire():
            if not waits:
                logger.info("another collector changes the store's schema; this one waits for it")
                waits = True
            time.sleep(_POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(1, self._number + 1):
            with suppress(ClickHouseError, OSError):
                self._client.command(f"DROP TABLE IF EXISTS schema_lock_{number}{self._on_cluster}")

    def renew(self) -> None:
        """Call before each step; raises `StoreError` when another collector has taken the lock."""
        latest = self._latest()
        if latest["number"] != self._number:
            msg = "another collector took over the change of the store's schema; start this one again"
            raise StoreError(msg)
        if latest["age_s"]:  # else the comment has this second
            table = f"schema_lock_{self._number}{self._on_cluster}"
            self._client.command(f"ALTER TABLE {table} MODIFY COMMENT '{_comment(latest['now_s'])}'")

    def _acquire(self) -> bool:
        latest = self._latest()
        held = latest["number"] > 0 and latest["age_s"] < self._stale_after_s
        if held or latest["running"]:
            return False
        number = latest["number"] + 1
        comment = _comment(latest["now_s"])
        try:
            table = f"schema_lock_{number}{self._on_cluster}"
            self._client.command(f"CREATE TABLE {table} (nothing UInt8) ENGINE = Null COMMENT '{comment}'")
        except DatabaseError as error:
            if error.code != _TABLE_ALREADY_EXISTS:
                raise
            return False
        self._number = number
        return True

    def _latest(self) -> dict[str, Any]:
        answer = self._client.query(self._latest_sql, parameters={"statements": STATEMENT_SETTINGS["log_comment"]})
        return dict(next(iter(answer.named_results())))


def _comment(now_s: int) -> str:
    """The server's time and the holder, for somebody who looks at the table."""
    return f"{now_s} host {socket.gethostname()} process {os.getpid()}"
