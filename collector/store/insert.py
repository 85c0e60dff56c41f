"""Inserts: raw OTLP, which ClickHouse decodes and materialised views sort into tables, or columns of one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from clickhouse_connect.driver.binding import format_str
from clickhouse_connect.driver.common import write_leb128
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.receive.tokens import NULLS, Columns
from collector.signals import Signal
from collector.store.store import Store, settings_clause

FORMAT: Final = "ProtobufSingle"
INSERT_SETTINGS: Final = {
    "input_format_protobuf_oneof_presence": 1,
    "async_insert": 0,
    # The API's queries have a larger number: they pause while an insert runs.
    "priority": 1,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "materialized_views_ignore_errors": 0,
    # The views' plans are as they should be. To look for better ones takes a sixth of a small insert.
    "query_plan_enable_optimizations": 0,
    # Nor do their conditions contradict each other. To look for that takes a twentieth.
    "optimize_and_compare_chain": 0,
    # One block per table: an insert that fails has committed nothing, so its parts may be inserted one by one.
    "max_insert_block_size": 100_000_000,
    "max_block_size": 100_000_000,
    "min_insert_block_size_rows": 0,
    "min_insert_block_size_bytes": 0,
    # The check of a payload bounds its days.
    "max_partitions_per_insert_block": 0,
}

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
        444,  # UNKNOWN_PROTOBUF_FORMAT
        636,  # CANNOT_DETECT_FORMAT
    }
)
"""ClickHouse errors that say the bytes are wrong. Every other failure is the store's and is tried again."""


_TOO_MANY_PARTS: Final = 252
MEMORY_LIMIT_EXCEEDED: Final = 241


class RefusedError(ValueError):
    """The store says that these bytes are wrong; trying again cannot help."""


class TooMuchError(RuntimeError):
    """The store has too little memory for this insert; trying again may help, and dividing it does."""


def insert_otlp(store: Store, signal: Signal, source: bytes | Path, token: str) -> None:
    """Insert encoded requests of a signal, or a file of them; a token that was inserted before adds nothing.

    Raises `RefusedError` when the data is at fault and `TooMuchError` when it is too large; any other error is worth
    another try.
    """
    table = signal.landing_table
    settings = {**INSERT_SETTINGS, **_schema(signal, embedded=store.embedded), "insert_deduplication_token": token}
    with errors_told_apart():
        if store.embedded and isinstance(source, Path):
            file = format_str(str(source.resolve()))
            store.client().command(
                f"INSERT INTO {table} FROM INFILE {file} {settings_clause(settings)} FORMAT {FORMAT}"
            )
        else:
            body = source.read_bytes() if isinstance(source, Path) else source
            store.client().raw_insert(table, insert_block=body, fmt=FORMAT, settings=settings)


def insert_block(store: Store, signal: Signal, block: bytes, token: str) -> None:
    """Insert a block of `native_block` into the table of a signal's plain rows; errors are those of `insert_otlp`."""
    assert signal.plain
    settings = {**INSERT_SETTINGS, "insert_deduplication_token": token}
    with errors_told_apart():
        store.client().raw_insert(signal.plain.table, insert_block=block, fmt="Native", settings=settings)


def native_block(columns: Columns, types: Mapping[str, str]) -> bytes:
    """Write columns in ClickHouse's Native format: their number, the rows' number, and name, type and bytes of each.

    The bytes of a `Nullable` column begin with its nulls.
    """
    parts = [_leb128(len(types)), _leb128(len(next(iter(columns.values()))))]
    for name, kind in types.items():
        parts += [_leb128(len(name)), name.encode(), _leb128(len(kind)), kind.encode()]
        if name in NULLS:
            parts.append(columns[NULLS[name]].data)
        parts.append(columns[name].data)
    return b"".join(parts)


def _leb128(number: int) -> bytes | memoryview:
    written: list[int] = []
    write_leb128(number, written)
    return bytes(written)


@contextmanager
def errors_told_apart() -> Iterator[None]:
    """Raise `RefusedError` for an insert whose data is at fault, and `TooMuchError` for one that is too large."""
    try:
        yield
    except DatabaseError as error:
        # The same code says that a table waits for merges, which pass.
        too_many_days = error.code == _TOO_MANY_PARTS and "partitions for single INSERT" in str(error)
        if error.code in DATA_ERROR_CODES or too_many_days:
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
