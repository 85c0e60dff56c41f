"""Connections to a ClickHouse server: who answers them, and which of them lead to an address that its name has left."""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final
from weakref import WeakSet

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

_CLICKHOUSES: Final = re.compile("x-clickhouse-", re.IGNORECASE)
"""Headers of each answer of a ClickHouse server, such as `X-ClickHouse-Query-Id`."""


class _NoClickHouseError(HTTPError, OSError):
    """An answer did not come from ClickHouse."""


class OfClickHouse:
    """A client's connections. An answer 200 of something else than a ClickHouse server is an error.

    A page to log in, or another process that has got the server's address, answers 200 to an insert and keeps nothing,
    or 200 without a body to a question, which looks like no rows.
    """

    def __init__(self, pool: PoolManager) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def __hash__(self) -> int:
        """The driver keeps the ages of pools, by pool."""
        return hash(self._pool)

    def __eq__(self, other: object) -> bool:
        return self._pool is getattr(other, "_pool", other)

    def request(self, *args: Any, **kwargs: Any) -> BaseHTTPResponse:
        """Ask; raises an `HTTPError` when something else answers."""
        answer = self._pool.request(*args, **kwargs)
        if answer.status < HTTPStatus.BAD_REQUEST and not any(map(_CLICKHOUSES.match, answer.headers)):
            answer.close()
            msg = "the server that answers is not a ClickHouse server"
            raise _NoClickHouseError(msg)
        return answer


_lock: Final = threading.Lock()
_made: Final[WeakSet[_Connection]] = WeakSet()


class _Connection(HTTPConnection):
    """A connection that knows its address, and when something was asked last."""

    address: str
    asked_s = 0.0
    left = False

    def connect(self) -> None:
        super().connect()
        self.address = self.sock.getpeername()[0]
        with _lock:
            _made.add(self)

    def request(self, *args: Any, **kwargs: Any) -> None:
        self.asked_s = time.monotonic()
        super().request(*args, **kwargs)

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 has it
        try:
            return super().getresponse()
        except OSError:
            if not self.left:
                raise
        # At the mere end of a connection, the driver would ask again by itself.
        msg = f"the address {self.address} has answered nothing, and the server's name has another address now"
        raise TimeoutError(msg)

    def leave(self) -> None:
        """Break the connection off, whoever reads from it."""
        self.left = True
        with suppress(OSError):  # TLS's own `shutdown` would take the session from the thread that reads
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class _TlsConnection(_Connection, HTTPSConnection):
    """A connection with TLS that may be left while somebody reads from it."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_CLASSES: Final[dict[str, type[HTTPConnectionPool]]] = {"http": _Pool, "https": _TlsPool}


def remember_connections(pools: PoolManager) -> None:
    """Let `leave_old_addresses` know the connections that are made from now on. Clients may share a manager."""
    if pools.pool_classes_by_scheme is not _CLASSES:
        pools.pool_classes_by_scheme = _CLASSES
        pools.clear()


def leave_old_addresses(host: str, *, patience_s: float) -> int:
    """Break connections off that lead to an address which a name has left; return their number.

    A server there may still work, so a statement has `patience_s` seconds for its answer. Who waits for longer gets an
    OSError. A name that cannot be looked up changes nothing.
    """
    with _lock:
        made = [one for one in _made if one.host == host and one.sock and not one.left]
    if not made:
        return 0
    try:
        addresses = {found[4][0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return 0
    due_s = time.monotonic() - patience_s
    old = [one for one in made if one.address not in addresses and one.asked_s <= due_s]
    for one in old:
        one.leave()
    return len(old)
