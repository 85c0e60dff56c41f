"""The errors of a store: which of them pass by themselves, and their words."""

from __future__ import annotations

from typing import Final

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from tokentrail.shared.folders import words_of

PASSING: Final = frozenset(
    {
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        209,  # SOCKET_TIMEOUT
        210,  # NETWORK_ERROR
        225,  # NO_ZOOKEEPER
        242,  # TABLE_IS_READ_ONLY
        279,  # ALL_CONNECTION_TRIES_FAILED
        745,  # SERVER_OVERLOADED
        999,  # KEEPER_EXCEPTION
    }
)
"""ClickHouse errors by which a server says that it, or another node that it needs, is away or has too much to do."""
EXHAUSTED: Final = frozenset(
    {
        75,  # CANNOT_WRITE_TO_FILE_DESCRIPTOR
        76,  # CANNOT_OPEN_FILE
        159,  # TIMEOUT_EXCEEDED
        173,  # CANNOT_ALLOCATE_MEMORY
        241,  # MEMORY_LIMIT_EXCEEDED
        243,  # NOT_ENOUGH_SPACE
        252,  # TOO_MANY_PARTS
        439,  # CANNOT_SCHEDULE_TASK
    }
)
"""ClickHouse errors by which a server says that it has no memory, disk, files or threads left. A query may be at fault
itself, but the small statements that open a store are not."""
MISSING: Final = frozenset(
    {
        60,  # UNKNOWN_TABLE
        81,  # UNKNOWN_DATABASE
    }
)


class StoreError(RuntimeError):
    """The store cannot be used as it is; the message names the way out."""


class StoreUnavailableError(StoreError):
    """The store's server does not answer; it may answer the next time."""


def is_unavailable(error: BaseException) -> bool:
    """Tell whether the store's server did not answer, or said that it cannot answer now.

    An error of ClickHouse has its code. One without comes from the network, or from a proxy in front of the server.
    """
    if isinstance(error, OperationalError) or type(error) is DatabaseError:
        return not error.code or error.code in PASSING
    return isinstance(error, OSError | StoreUnavailableError)


def may_open_later(error: BaseException) -> bool:
    """Tell whether a server that this error came from, when a store was opened, may open it the next time."""
    return is_unavailable(error) or (isinstance(error, DatabaseError) and error.code in EXHAUSTED)


def reason_of(error: BaseException) -> str:
    """Say why a call of the store failed. A network error has the operating system's words, without the libraries'.

    Error HTTPConnectionPool(…): Max retries exceeded (Caused by NewConnectionError(…: [Errno 111] Connection refused))
    Connection refused
    """
    cause = error
    while deeper := cause.__cause__ or cause.__context__:
        cause = deeper
    if is_unavailable(error) and isinstance(cause, OSError):
        return words_of(cause)
    return str(error)
