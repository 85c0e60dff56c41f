"""Opens the store of a collector: at once, when its server comes back, and anew when the server has lost its tables.

It also asks whether an open server answers.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from collector.base.once_a_minute import OnceAMinute
from collector.base.stage import ThreadStage
from collector.base.status import IngestStatus
from collector.base.store_errors import MISSING, StoreError, StoreUnavailableError, may_open_later, reason_of
from collector.store.definitions import PLAIN, Decoding
from collector.store.part_folders import PartFolders
from collector.store.schema import apply_schema
from collector.store.store import Store

logger = logging.getLogger(__name__)

_FAILURES: Final = (StoreError, ClickHouseError, OSError)
_ASKED_EVERY_S: Final = 10.0
_ANSWERED_WITHIN: Final = {"max_execution_time": 25}
"""Seconds; `Store.query` waits for five more. An insert may take minutes, but this question reads nothing."""


_PATIENCE_S: Final = 30.0
"""A statement has this long at an address that the server's name has left, where an insert would wait for minutes."""


class StoreOpener(ThreadStage):
    """A stage that opens the store. It tries again and again while the server is away, and when it comes back empty.

    Until then `store` refuses every call, so writers keep their segments and the API answers with the reason. A server
    that is open is asked every ten seconds for nothing. While it does not answer, the collector is not ready.
    """

    def __init__(self, dsn: str, status: IngestStatus, decoding: Decoding = PLAIN, *, retry_s: float = 2.0) -> None:
        """Try once; raises `StoreError` for a store that this collector cannot use."""
        super().__init__("store opener")
        self._dsn = dsn
        self._status = status
        self._decoding = decoding
        self._retry_s = retry_s
        self._ask_at_s = 0.0
        self._line_due = OnceAMinute()
        try:
            self.store = self._open()
        except _FAILURES as error:
            self.store = Store(dsn)
            if self.store.embedded or not may_open_later(error):
                if not isinstance(error, ClickHouseError):
                    raise
                msg = f"cannot use the store {self.store.safe_dsn}: {reason_of(error)}"
                raise StoreError(msg) from error
            self._not_yet(error)

    def start(self) -> None:
        """Begin to watch a server. An embedded store is open."""
        if not self.store.embedded:
            self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._retry_s):
            try:
                if self.store.is_open and not self._has_lost_its_tables():
                    self._ask()
                    continue
                self._open().close()
            except _FAILURES as error:
                self._not_yet(error)
                continue
            self.store.admit()
            self._status.set_ready("store")
            logger.info("the store %s is open", self.store.safe_dsn)

    def _ask(self) -> None:
        """Ask the server for nothing, now and then: an insert may wait for minutes until it knows that it is away."""
        if time.monotonic() < self._ask_at_s:
            return
        try:
            if left := self.store.leave_old_addresses(patience_s=_PATIENCE_S):
                logger.warning("%s has a new address; %d connections to the old one end", self.store.safe_dsn, left)
            self.store.query("SELECT 1", settings=_ANSWERED_WITHIN)
        except _FAILURES as error:
            self._not_ready(str(error))
        else:
            self._ask_at_s = time.monotonic() + _ASKED_EVERY_S
            self._status.set_ready("store")

    def _has_lost_its_tables(self) -> bool:
        """Tell whether a server that knew a table no more has no schema at all, as after a start on an empty disk.

        One that changes its schema has it, and so has one of a newer version: their tables are not this stage's work.
        """
        if not self.store.missed_a_table:
            return False
        try:
            exists = self.store.query("EXISTS TABLE schema_version").result_rows[0][0]
        except StoreUnavailableError:
            return False
        except DatabaseError as error:
            return error.code in MISSING
        self.store.missed_a_table = False
        return not exists

    def _open(self) -> Store:
        store = Store.open(self._dsn)
        apply_schema(store, decoding=self._decoding)
        folders = PartFolders(store.folder)
        folders.sync()
        if not folders.writes_through:
            logger.warning(
                "the file system of %s cannot write single files through (chattr +S): a power cut in the moment of an"
                " insert may store its rows twice",
                store.folder,
            )
        return store

    def _not_yet(self, error: Exception) -> None:
        reason = f"the store {self.store.safe_dsn} is not open yet: {reason_of(error)}"
        self.store.refuse(reason)
        self._not_ready(reason)

    def _not_ready(self, reason: str) -> None:
        self._status.set_not_ready("store", reason)
        if self._line_due.allows("store"):
            logger.warning("%s (payloads wait in the log; it is tried again every %.0f s)", reason, self._retry_s)
