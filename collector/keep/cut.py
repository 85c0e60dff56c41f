"""Makes a backup of the embedded store while the collector runs."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from clickhouse_connect.driver.exceptions import ClickHouseError

from collector.keep.archive import FORMAT, BackupError, Manifest, Table, is_ours, pack
from collector.pipeline.chain import Chain
from collector.store.definitions import read_schema, stored_tables
from collector.store.store import Store

logger = logging.getLogger(__name__)

_SHADOW: Final = "tokentrail"
_LONGEST_WAIT_S: Final = 30.0
_TABLES: Final = """
    SELECT name, create_table_query, data_paths[1] FROM system.tables
    WHERE database = currentDatabase() AND name IN {names:Array(String)} ORDER BY name
"""


class Pausable(Protocol):
    """A stage that writes to the store."""

    def paused(self, timeout_s: float) -> AbstractContextManager[None]:
        """Hold the next insert until the context ends; raises TimeoutError."""


class Backups:
    """Makes one backup at a time.

    The writers, the joiner and the explainer pause for some ms while ClickHouse makes hard links to all parts (FREEZE),
    so the backup lies between two inserts. Reading the links takes as long as it takes; meanwhile the collector works
    as always.
    """

    def __init__(
        self,
        store: Store,
        chains: Sequence[Chain],
        settings: Sequence[Path],
        others: Sequence[Pausable] = (),
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`settings` are files that are put into the backup beside the tables; `others` write to the store too.

        The links of a process that died are removed: they would keep merged and expired parts on the disk.
        """
        self._store = store
        self._chains = chains
        self._settings = settings
        self._others = others
        self._clock = clock
        self._busy = threading.Lock()
        if store.folder is not None:
            self._clean(store.folder)

    def make(self) -> Stream:
        """Cut, and return the bytes of the archive. Close it if it is not read to its end.

        Raises `BackupError` when a backup is under way, and for a store that is not embedded.
        """
        root = self._store.folder
        if root is None:
            msg = "the store is a ClickHouse server: use its BACKUP statement (docs/storage.md)"
            raise BackupError(msg)
        for path in self._settings:
            if not path.is_file():
                msg = f"the backup needs {path}, with which the collector started, and it is not there any more"
                raise BackupError(msg)
            if not is_ours(f"settings/{path.name}"):
                msg = f"a backup cannot have the name {path.name!r}, which cannot be printed: rename the SLO file"
                raise BackupError(msg)
        if not self._busy.acquire(blocking=False):
            msg = "another backup is under way"
            raise BackupError(msg)
        try:
            manifest, sources = self._cut(root)
        except BaseException as error:
            self._clean(root)
            self._busy.release()
            if isinstance(error, OSError | ClickHouseError):
                msg = f"the backup could not be made: {error}"
                raise BackupError(msg) from error
            raise
        return self._stream(root, manifest, sources)

    def _cut(self, root: Path) -> tuple[Manifest, list[tuple[str, Path]]]:
        self._clean(root)  # FREEZE makes no link that is there already
        client = self._store.client()
        tables = client.query(_TABLES, {"names": list(stored_tables(read_schema()))}).result_rows
        began = time.monotonic()
        with ExitStack() as stack:
            for writes in (*(chain.writer for chain in self._chains), *self._others):
                stack.enter_context(writes.paused(_LONGEST_WAIT_S))
            now_ns = self._clock()
            until_ns = min([now_ns, *(ns for chain in self._chains if (ns := chain.log.waiting_since_ns) is not None)])
            for name, _, _ in tables:
                client.command(f"ALTER TABLE `{name}` FREEZE WITH NAME '{_SHADOW}'")
        logger.info("backup: the writers waited for %.0f ms", (time.monotonic() - began) * 1e3)
        manifest = Manifest(
            format=FORMAT,
            made=_rfc3339(now_ns),
            until=_rfc3339(until_ns),
            clickhouse=str(client.query("SELECT version()").result_rows[0][0]),
            tables={},
            files={},
        )
        sources = [(f"settings/{path.name}", path) for path in self._settings]
        for name, create, data_path in tables:
            frozen = root / "shadow" / _SHADOW / Path(data_path).relative_to(root.resolve())
            parts = sorted(frozen.iterdir()) if frozen.exists() else []
            rows = {part.name: int((part / "count.txt").read_text()) for part in parts}
            manifest.tables[name] = Table(create=create, parts=rows)
            sources += [
                (f"tables/{name}/{file.relative_to(frozen)}", file)
                for part in parts
                for file in sorted(part.rglob("*"))
                if file.is_file()
            ]
        return manifest, sources

    def _stream(self, root: Path, manifest: Manifest, sources: Sequence[tuple[str, Path]]) -> Stream:
        def end() -> None:
            self._clean(root)
            self._busy.release()

        return Stream(pack(sources, manifest), end)

    def _clean(self, root: Path) -> None:
        shutil.rmtree(root / "shadow" / _SHADOW, ignore_errors=True)


class Stream:
    """The bytes of an archive. `end` is called once: at their end, at an error, or by `close`."""

    def __init__(self, chunks: Iterator[bytes], end: Callable[[], None]) -> None:
        self._chunks = chunks
        self._end: Callable[[], None] | None = end

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the hard links, and let the next backup begin."""
        if self._end:
            self._end()
            self._end = None


def _rfc3339(ns: int) -> str:
    """UTC in whole microseconds, rounded down."""
    seconds, rest = divmod(ns, 10**9)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000).isoformat().replace("+00:00", "Z")
