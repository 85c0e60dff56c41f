"""The audit log: one JSON line for each key that is made, revoked or refused, and for each change through the API."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any, Final

from collector.access.ownership import placed

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 10 * 1024 * 1024
_MAX_FILES: Final = 5
_DENIED_PER_S: Final = 10
"""More denials in one second are counted and not written."""


class AuditLog:
    """Appends lines to files that only their owner may read. At 10 MiB one becomes FILE.1; five old ones are kept.

    Denials have a file of their own (`audit.denied.jsonl`): anybody can cause them, so they must not rotate the lines
    about keys and changes away.

    A line has `time`, `event` (`created`, `revoked`, `denied`, `changed`) and the fields that are known of `key`,
    `role`, `tenant`, `address`, `route`, `reason`, `user`. An error of the disk is logged and stops nothing.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        max_bytes: int = _MAX_BYTES,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """Nothing is written without a path."""
        self._unix_s = unix_s
        self._lock = threading.Lock()
        self._second = 0
        self._denied = 0
        self._left_out = 0
        self._files: dict[bool, _PrivateFile] = {}
        """By whether they are for denials."""
        if path:
            for is_denied, name in ((False, path), (True, path.with_suffix(f".denied{path.suffix}"))):
                self._files[is_denied] = _PrivateFile(name, maxBytes=max_bytes, backupCount=_MAX_FILES, delay=True)

    def write(self, event: str, **fields: str) -> None:
        """Write one line; empty fields are left out."""
        if not self._files:
            return
        now_s = self._unix_s()
        with self._lock:
            if event == "denied" and self._is_flood(int(now_s)):
                return
            more: dict[str, Any] = {"left_out": self._left_out} if self._left_out and event == "denied" else {}
            if event == "denied":
                self._left_out = 0
        when = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "event": event} | {name: value for name, value in fields.items() if value} | more
        # `handle` has a lock, which `emit` needs: two threads that rotate at once lose lines and a file.
        self._files[event == "denied"].handle(logging.makeLogRecord({"msg": json.dumps(line)}))

    def _is_flood(self, second: int) -> bool:
        if second != self._second:
            self._second, self._denied = second, 0
        self._denied += 1
        if self._denied <= _DENIED_PER_S:
            return False
        self._left_out += 1
        return True


class _PrivateFile(RotatingFileHandler):
    """Rotates a file that only its owner may read, and follows its name: another process may rotate it as well."""

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802  # logging's name
        if self.stream and not _has_name(self.stream, Path(self.baseFilename)):
            self.close()  # it is opened again below
        return bool(super().shouldRollover(record))

    def _open(self) -> Any:
        with placed(Path(self.baseFilename)) as place:
            descriptor = place.open(os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return os.fdopen(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        logger.error("a line is missing in the audit log (%s): %s", sys.exc_info()[1], record.msg)


def _has_name(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
