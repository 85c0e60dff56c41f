"""One client for both stores: `chdb://` runs ClickHouse in this process, `http(s)://` talks to a ClickHouse server."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self, cast
from urllib.parse import parse_qsl, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.binding import format_query_value, format_str
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError
from clickhouse_connect.driver.httpclient import HttpClient
from clickhouse_connect.driver.query import QueryResult
from urllib3 import PoolManager, Timeout

from collector.base.store_errors import (
    MISSING,
    StoreError,
    StoreUnavailableError,
    is_unavailable,
    may_open_later,
    reason_of,
)
from collector.store.connections import OfClickHouse, leave_old_addresses, remember_connections
from collector.store.deduplication import forget_lost_parts
from collector.store.layout import Layout

logger = logging.getLogger(__name__)

_CHDB: Final = "chdb://"
"""All behind it is the path of a folder, as it is: `#` and `%` have no meaning there."""
_UNCOMPILED: Final = {"compile_expressions": 0, "compile_aggregate_expressions": 0, "compile_sort_description": 0}
"""ClickHouse compiles an expression when it is used again. That makes the first answers of a process up to twice as
dear, and no later one cheaper, not even over ten million requests."""
_SELDOM_AWAKE: Final = {"memory_worker_period_ms": 1000} | {
    f"background_{pool}processing_pool_thread_sleep_seconds_if_nothing_to_do": 10
    for pool in ("", "move_", "streaming_")
}
"""How often the embedded engine wakes up to look. For some minutes after each insert, three schedulers of each table
asked once a second for work, and its memory was added up twenty times a second. An insert wakes the first one, so
merges begin as soon as before.
"""
_EVERYWHERE: Final = {"use_query_condition_cache": 0}
"""ClickHouse remembers the granules in which a condition found nothing. When a query filters the rows of a subquery
again (count/queries/announced.sql), it blames the condition inside, and the next question with that one gets no rows:

    requests in flight at 10:00, of clients    none
    requests in flight at 10:00                none, but there are 29

It also keeps 0.18 kB for each of up to 1.6 million conditions. Ours have times and ids and do not come again, and no
answer gets cheaper by it.
"""
_ACCESS_TOKEN: Final = re.compile("(?<=[?&]access_token=)[^&]+")
_PLACE: Final = re.compile(r"\{(\w+):([^}]+)\}")
_MOST_BOUND: Final = 50
"""Elements of a list that is bound. A server takes no parameter of more than 128 KiB (`http_max_field_value_size`)."""
_LONGEST_SQL: Final = {"max_query_size": 256 * 1024 * 1024}
_ANSWER_S: Final = 5.0
"""A server that has ended a query at its `max_execution_time` says so within these seconds, or does not answer."""
_CANCEL_S: Final = 5.0


def settings_clause(settings: Mapping[str, Any]) -> str:
    """Write settings as SQL; empty without one.

    They stand in a statement because the client's `command` and `raw_query` would set and reset each in a statement of
    its own: 10 ms of CPU for four, with chDB.
    """
    written = ", ".join(f"{name} = {format_str(str(value))}" for name, value in settings.items())
    return f"SETTINGS {written}" if written else ""


def with_long_lists(sql: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Write long lists into a statement, which may have any size in the body of a request; return the other parameters.

    SELECT arrayJoin({ids:Array(String)})     →     SELECT arrayJoin(CAST(['a','b'], 'Array(String)'))
    """
    long = {name for name, value in parameters.items() if isinstance(value, list | tuple) and len(value) > _MOST_BOUND}

    def written(place: re.Match[str]) -> str:
        name, kind = place.groups()
        return f"CAST({format_query_value(parameters[name])}, {format_str(kind)})" if name in long else place[0]

    rest = {name: value for name, value in parameters.items() if name not in long}
    return _PLACE.sub(written, sql) if long else sql, rest


def _refuse_without_links(folder: Path) -> None:
    """Raise `StoreError` for a copy without the link to its database: chDB would take it for a new store."""
    has_tables = any(folder.glob("store/*/*/format_version.txt"))
    if has_tables and not (folder / "metadata" / "default").is_symlink():
        msg = (
            f"the store {folder} has lost its symbolic links, perhaps in a copy by `cp -rL` or `rsync -r`: copy it "
            "again by `cp -a` or `rsync -a` while its collector is stopped, or use `tokentrail backup`"
        )
        raise StoreError(msg)


def _load_chdb() -> None:
    """Load ClickHouse into this process; raises `StoreError`.

    It makes a folder for temporary files then, and the package takes each fault of the library for its absence.
    """
    if importlib.util.find_spec("chdb") is None:
        msg = "the embedded store needs chDB: pip install 'tokentrail[collector]', or name a server (--store)"
        raise StoreError(msg)
    try:
        importlib.import_module("chdb")
    except (ImportError, RuntimeError) as error:
        reason = str(error.__context__ or error).partition(", Stack trace")[0]
        msg = (
            f"chDB cannot be loaded: {reason}. It needs a folder for temporary files (TMPDIR, or /tmp) and a time zone"
            " that it knows (TZ, such as Europe/Berlin)"
        )
        raise StoreError(msg) from error


class Store:
    """A ClickHouse database; open it once per process and share it between threads.

    A client serialises its calls, so every thread has its own and a slow query does not hold up an insert.
    """

    def __init__(self, dsn: str, *, connect_timeout_s: float = 10.0, send_receive_timeout_s: float = 300.0) -> None:
        self._dsn = dsn
        self._address, self.layout = Layout.of(dsn)
        self._connect_timeout_s = connect_timeout_s
        self._send_receive_timeout_s = send_receive_timeout_s
        self._local = threading.local()
        self._lock = threading.Lock()
        self._clients: list[tuple[threading.Thread, Client]] = []
        self._unavailable = ""
        self.missed_a_table = False
        """A query has named a table that the server does not know. The opener looks why and sets this back."""

    @classmethod
    def open(cls, dsn: str, *, connect_timeout_s: float = 10.0, send_receive_timeout_s: float = 300.0) -> Self:
        """Connect to `chdb:///path` or `http(s)://user:password@host:port/database`; raises `StoreError`.

        `?cluster=NAME` behind a server's address says that the tables are on a cluster (`Layout`); other parameters are
        ClickHouse's settings, of every statement. One process may own a chDB path at a time. `StoreUnavailableError`
        says that a server does not answer.
        """
        store = cls(dsn, connect_timeout_s=connect_timeout_s, send_receive_timeout_s=send_receive_timeout_s)
        try:
            if store.folder:
                _refuse_without_links(store.folder)
                forget_lost_parts(store.folder)
            store.client()
        except (ClickHouseError, OSError) as error:
            msg = f"cannot open the store {store.safe_dsn}: {reason_of(error)}"
            away = may_open_later(error) and not store.embedded
            raise (StoreUnavailableError if away else StoreError)(msg) from error
        return store

    def refuse(self, reason: str) -> None:
        """Make every call of `client` and `query` raise `StoreUnavailableError` until `admit`."""
        self._unavailable = reason

    @property
    def is_open(self) -> bool:
        """False between `refuse` and `admit`."""
        return not self._unavailable

    def admit(self) -> None:
        """End `refuse`: the server answers and has this collector's schema."""
        self._unavailable = ""

    def with_timeout(self, send_receive_timeout_s: float) -> Store:
        """Return the same store for statements that may take this long; close it when they are done."""
        return Store(
            self._dsn, connect_timeout_s=self._connect_timeout_s, send_receive_timeout_s=send_receive_timeout_s
        )

    @property
    def embedded(self) -> bool:
        """True when ClickHouse runs in this process."""
        return self._dsn.startswith(_CHDB)

    @property
    def folder(self) -> Path | None:
        """The folder of an embedded store; None for a server."""
        return Path(self._dsn.removeprefix(_CHDB)) if self.embedded else None

    def table_folder(self, name: str) -> Path:
        """The folder of a table's parts, in an embedded store."""
        sql = "SELECT data_paths[1] FROM system.tables WHERE database = currentDatabase() AND name = {name:String}"
        return Path(self.query(sql, {"name": name}).result_rows[0][0])

    @property
    def safe_dsn(self) -> str:
        """The address without its password and its access token."""
        parts = urlsplit(self._dsn)
        dsn = self._dsn.replace(f":{parts.password}@", ":…@") if parts.password else self._dsn
        return _ACCESS_TOKEN.sub("…", dsn)

    def client(self) -> Client:
        """Return the calling thread's own client: one of a thread that has ended, or a new one.

        Connecting takes 0.1 s of CPU, and web servers end a thread that has been idle for some seconds.
        """
        if self._unavailable:
            raise StoreUnavailableError(self._unavailable)
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._left_behind() or self._connect()
            self._local.client = client
            with self._lock:
                self._clients.append((threading.current_thread(), client))
        return client

    def query(
        self, sql: str, parameters: dict[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> QueryResult:
        """Run one statement with bound `{name:Type}` parameters on the calling thread's client.

        Raises `StoreUnavailableError` when a server does not answer. It has the query's `max_execution_time` for that,
        and some seconds more.
        """
        sql, bound, needed = self._bound(sql, parameters or {})
        settings = {**(settings or {}), **needed}
        with self._reading(settings) as client:
            return client.query(sql, parameters=bound, settings=settings)

    def binary(self, sql: str, parameters: dict[str, Any], settings: Mapping[str, Any]) -> bytes:
        """Run one statement as `query` does, and return the rows in ClickHouse's RowBinary format."""
        sql, bound, needed = self._bound(sql, parameters)
        with self._reading(settings) as client:
            return client.raw_query(
                f"{sql}\n{settings_clause(settings)}", parameters=bound, settings=needed, fmt="RowBinary"
            )

    def command(self, sql: str, parameters: dict[str, Any]) -> None:
        """Run one statement without an answer, with bound parameters, on the calling thread's client."""
        sql, bound, needed = self._bound(sql, parameters)
        self.client().command(sql, parameters=bound, settings=needed)

    def _bound(self, sql: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any] | None, dict[str, Any]]:
        """Return a statement that a server takes, its parameters, and the settings that its length needs."""
        if self.embedded:
            return sql, parameters or None, {}
        whole, rest = with_long_lists(sql, parameters)
        return whole, rest or None, {} if whole is sql else dict(_LONGEST_SQL)

    @contextmanager
    def _answering_within(self, seconds: float | None) -> Iterator[Client]:
        """The calling thread's client. Its server must answer within this time; None: within the store's own time."""
        client = self.client()
        if seconds is None or not isinstance(client, HttpClient):
            yield client
            return
        kept, client.timeout = client.timeout, self._timeout(seconds)
        try:
            yield client
        finally:
            client.timeout = kept

    @contextmanager
    def _reading(self, settings: Mapping[str, Any]) -> Iterator[Client]:
        """The calling thread's client, for one query. A query that fails tells when the server is away.

        chDB keeps the rows that a query had found before it failed, and begins the answer to the next query of the same
        client with them. So the thread gets a new client.
        """
        most_s = settings.get("max_execution_time")
        try:
            with self._answering_within(most_s and most_s + _ANSWER_S) as client:
                yield client
        except (DatabaseError, OSError) as error:
            if self.embedded:
                self._replace_client()
            elif is_unavailable(error):
                msg = f"the store {self.safe_dsn} does not answer: {reason_of(error)}"
                raise StoreUnavailableError(msg) from error
            else:
                self.missed_a_table |= isinstance(error, DatabaseError) and error.code in MISSING
            raise

    def cancel(self, comment: str) -> None:
        """Stop the queries that run with this `log_comment`; the caller made it, so it is safe in SQL.

        On a cluster, a load balancer may lead to another node than the query, so every node is told.
        """
        sql = f"KILL QUERY{self.layout.on_cluster} WHERE Settings['log_comment'] = '{comment}' ASYNC"
        try:
            with self._answering_within(_CANCEL_S) as client:
                client.command(sql, settings={"distributed_ddl_task_timeout": 0} if self.layout.cluster else None)
        except (ClickHouseError, StoreError, OSError) as error:
            logger.warning("a query cannot be cancelled: %s", error)

    def leave_old_addresses(self, *, patience_s: float) -> int:
        """Break connections off that lead to an address which the server's name has left; return their number."""
        return leave_old_addresses(urlsplit(self._address).hostname or "", patience_s=patience_s)

    def close(self) -> None:
        """Close every thread's client; the store cannot be used afterwards."""
        with self._lock:
            clients, self._clients = self._clients, []
        for _, client in clients:
            client.close()

    def _replace_client(self) -> None:
        """Give the calling thread a new client, unless the store is closed.

        The old one is closed after it, because the last one ends the engine.
        """
        client = getattr(self._local, "client", None)
        with self._lock:
            if all(one is not client for _, one in self._clients):
                return
        self._local.client = new = self._connect()
        with self._lock:
            self._clients = [(thread, new if one is client else one) for thread, one in self._clients]
        if client:
            client.close()

    def _left_behind(self) -> Client | None:
        """Take over the client of a thread that has ended."""
        with self._lock:
            ended = (index for index, (thread, _) in enumerate(self._clients) if not thread.is_alive())
            index = next(ended, None)
            return None if index is None else self._clients.pop(index)[1]

    def _connect(self) -> Client:
        if self.folder:
            _load_chdb()
            if "?" in str(self.folder):
                msg = f"the embedded store cannot lie in {self.folder}: chDB takes what follows a ? for options"
                raise StoreError(msg)
            self.folder.mkdir(parents=True, exist_ok=True)
            return clickhouse_connect.get_client(
                interface="chdb", path=str(self.folder), chdb_options=_SELDOM_AWAKE, settings=_UNCOMPILED | _EVERYWHERE
            )
        address = urlsplit(self._address)
        client = clickhouse_connect.get_client(
            dsn=address._replace(query="").geturl(),
            interface=address.scheme,  # of the address it takes none: it would speak plain HTTP, except on port 8443
            autogenerate_session_id=False,
            settings=_EVERYWHERE | self.layout.settings,
            generic_args=dict(parse_qsl(address.query)),  # the client's own, as ca_cert, and ClickHouse's settings
            connect_timeout=self._connect_timeout_s,
            send_receive_timeout=self._connect_timeout_s,  # a client asks the server for its version
        )
        assert isinstance(client, HttpClient)
        remember_connections(client.http)
        client.http = cast("PoolManager", OfClickHouse(client.http))
        client.timeout = self._timeout(self._send_receive_timeout_s)
        return client

    def _timeout(self, send_receive_timeout_s: float) -> Timeout:
        return Timeout(connect=self._connect_timeout_s, read=send_receive_timeout_s)
