"""Inserts: raw OTLP, which ClickHouse decodes and materialised views sort into tables, or columns of one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, TypeAlias

from clickhouse_connect.driver.common import write_leb128
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.base.store_errors import EXHAUSTED, PASSING
from collector.otlp.signals import Signal
from collector.otlp.tokens import NULLS, Columns
from collector.store.parts import row_count
from collector.store.store import Store, settings_clause

Bytes: TypeAlias = "bytes | memoryview"

FORMAT: Final = "ProtobufSingle"
INSERT_SETTINGS: Final = {
    "input_format_protobuf_oneof_presence": 1,
    "async_insert": 0,
    # Queries have a larger number: they pause while an insert runs (`behind_inserts`).
    "priority": 1,
    # With these, a segment that comes again adds nothing. A profile of the server may have switched them off.
    "deduplicate_insert": "enable",
    "deduplicate_insert_select": "force_enable",
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "materialized_views_ignore_errors": 0,
    # The views' plans are as they should be. To look for better ones takes a sixth of a small insert.
    "query_plan_enable_optimizations": 0,
    # Nor do their conditions contradict each other. To look for that takes a twentieth.
    "optimize_and_compare_chain": 0,
    # One block per table: an insert that fails has committed nothing, so its parts may be inserted one by one.
    "max_block_size": 100_000_000,
    "min_insert_block_size_rows": 0,
    "min_insert_block_size_bytes": 0,
    # The check of a payload bounds its days.
    "max_partitions_per_insert_block": 0,
}

_PAUSE_MS: Final = 50
"""So long a query pauses at each block. With ClickHouse's 1,000 ms it waits for the end of every insert, and timed out
beside inserts of old spans of a hundred days, which take half a minute. With 20, inserts took longer.
"""


def behind_inserts(priority: int) -> dict[str, int]:
    """Settings of a query that pauses at each block while an insert runs; of queries, a smaller number goes first."""
    return {"priority": priority, "low_priority_query_wait_time_ms": _PAUSE_MS}


DATA_ERROR_CODES: Final = frozenset(
    {
        6,  # CANNOT_PARSE_TEXT
        27,  # CANNOT_PARSE_INPUT_ASSERTION_FAILED
        32,  # ATTEMPT_TO_READ_AFTER_EOF
        33,  # CANNOT_READ_ALL_DATA
        69,  # ARGUMENT_OUT_OF_BOUND
        70,  # CANNOT_CONVERT_TYPE
        117,  # INCORRECT_DATA
        131,  # TOO_LARGE_STRING_SIZE
        190,  # SIZES_OF_ARRAYS_DONT_MATCH
        321,  # VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE
        407,  # DECIMAL_OVERFLOW
        436,  # PROTOBUF_BAD_CAST
        444,  # UNKNOWN_PROTOBUF_FORMAT
        636,  # CANNOT_DETECT_FORMAT
    }
)
"""ClickHouse errors that say the bytes are wrong. Nearly all errors of its reader of Protobuf say so too. Every other
failure is the store's and is tried again."""

_OF_BYTES_CUT_SHORT: Final = frozenset(
    {
        32,  # ATTEMPT_TO_READ_AFTER_EOF
        33,  # CANNOT_READ_ALL_DATA
        117,  # INCORRECT_DATA
    }
)
"""A server says these of wrong bytes, and also of right ones when a connection breaks in the middle of a body."""
_OF_ANOTHER_NODE: Final = "while receiving packet from"
"""ClickHouse adds these words to any error of its connection to another node, which may have stored its rows."""

_WRITTEN_AT_ONCE: Final = 1024 * 1024
"""Bytes. The parts of a block are a few kilobytes each."""
_TOO_MANY_PARTS: Final = 252
MEMORY_LIMIT_EXCEEDED: Final = 241
_READER: Final = "While executing ProtobufRowInputFormat"
_NOT_OF_THE_READER: Final = frozenset(
    {
        74,  # CANNOT_READ_FROM_FILE_DESCRIPTOR
        394,  # QUERY_WAS_CANCELLED
        735,  # QUERY_WAS_CANCELLED_BY_CLIENT
        1001,  # STD_EXCEPTION
    }
)
"""Errors that may come while ClickHouse reads bytes, and say nothing of them, as those of `PASSING` and `EXHAUSTED`."""


class RefusedError(ValueError):
    """The store says that these bytes are wrong; trying again cannot help."""


class DoubtfulError(RefusedError):
    """The store says that these bytes are wrong, as it does of bytes that were cut short; trying again may help."""


class TooMuchError(RuntimeError):
    """The store has too little memory for this insert; trying again may help, and dividing it does."""


def insert_otlp(store: Store, signal: Signal, source: bytes | Path, token: str) -> None:
    """Insert encoded requests of a signal, or a file of them; a token that was inserted before adds nothing.

    Raises `RefusedError` when the data is at fault, `DoubtfulError` when it may be, and `TooMuchError` when it is too
    large; any other error is worth another try.
    """
    settings = {**INSERT_SETTINGS, **_schema(signal, embedded=store.embedded), "insert_deduplication_token": token}
    _insert(store, signal.landing_table, source if isinstance(source, Path) else [source], FORMAT, settings)


def insert_block(store: Store, signal: Signal, block: Sequence[Bytes], token: str) -> None:
    """Insert a block of `native_block` into the table of a signal's plain rows; errors are those of `insert_otlp`."""
    assert signal.plain
    settings = {**INSERT_SETTINGS, "insert_deduplication_token": token}
    _insert(store, signal.plain.table, block, "Native", settings)


def _insert(store: Store, table: str, source: Sequence[Bytes] | Path, fmt: str, settings: dict[str, Any]) -> None:
    """Insert a file, or bytes in several parts. An embedded store reads both from an open file."""
    with errors_told_apart():
        if not store.embedded:
            body = source.read_bytes() if isinstance(source, Path) else b"".join(source)
            store.client().raw_insert(table, insert_block=body, fmt=fmt, settings=settings)
            return
        with _open(source, store.folder) as file:
            # ClickHouse would take a `*` or a `{}` in the file's own path for several files.
            path = f"/dev/fd/{file.fileno()}"
            store.client().command(f"INSERT INTO {table} FROM INFILE '{path}' {settings_clause(settings)} FORMAT {fmt}")


@contextmanager
def _open(source: Sequence[Bytes] | Path, folder: Path | None) -> Iterator[IO[bytes]]:
    """Open a file, or give bytes a file without a name, of which a crash leaves nothing.

    It is on the disk of the store, which has room or else takes no rows.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            yield file
        return
    with TemporaryFile(buffering=_WRITTEN_AT_ONCE, dir=folder) as file:
        file.writelines(source)
        file.seek(0)
        yield file


def native_block(columns: Sequence[Columns], types: Mapping[str, str]) -> list[Bytes]:
    """Return the parts of a block in ClickHouse's Native format, which has the rows of all columns under each other.

    It begins with the number of columns and of rows. Name, type and bytes of each column follow. The bytes of a
    `Nullable` column begin with its nulls. Nothing is copied: the rows of a segment are many megabytes.
    """
    parts: list[Bytes] = [_leb128(len(types)), _leb128(row_count(columns))]
    for name, kind in types.items():
        parts += [_leb128(len(name)), name.encode(), _leb128(len(kind)), kind.encode()]
        for key in (NULLS[name], name) if name in NULLS else (name,):
            parts += [some[key].data.cast("B") for some in columns]
    return parts


def _leb128(number: int) -> Bytes:
    written: list[int] = []
    write_leb128(number, written)
    return bytes(written)


@contextmanager
def errors_told_apart() -> Iterator[None]:
    """Raise `RefusedError` when the data of the insert is at fault, and `TooMuchError` when it is too large."""
    try:
        yield
    except DatabaseError as error:
        # The same code says that a table waits for merges, which pass.
        too_many_days = error.code == _TOO_MANY_PARTS and "partitions for single INSERT" in str(error)
        # Some codes, such as BAD_ARGUMENTS, are of wrong statements too. The reader of Protobuf has no statement.
        unreadable = _READER in str(error) and error.code not in PASSING | EXHAUSTED | _NOT_OF_THE_READER
        if _OF_ANOTHER_NODE in str(error):
            raise
        if error.code in _OF_BYTES_CUT_SHORT:
            raise DoubtfulError(str(error)) from error
        if error.code in DATA_ERROR_CODES or too_many_days or unreadable:
            raise RefusedError(str(error)) from error
        if error.code == MEMORY_LIMIT_EXCEEDED:
            raise TooMuchError(str(error)) from error
        raise


@cache
def _schema(signal: Signal, *, embedded: bool) -> dict[str, str]:
    """Settings that name the Protobuf schema. chDB would write an inline one into the working directory."""
    if embedded:
        return {"format_schema": f"{signal.schema_file}:{signal.schema_message}"}
    return {
        "format_schema_source": "string",
        "format_schema": signal.schema_file.read_text(),
        "format_schema_message_name": signal.schema_message,
    }
