"""Inserts OTLP, and reads the rows that it became."""

import itertools

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS

SECOND = 1000 * MS


SEGMENTS = itertools.count()


def insert(store, request, token=None):
    body = request if isinstance(request, bytes) else request.body()
    insert_otlp(store, TRACES, body, token or f"segment-{next(SEGMENTS)}")


def rows(store, table, columns="*"):
    return store.query(f"SELECT {columns} FROM {table} ORDER BY ALL").result_rows


def one(store, table):
    (row,) = store.query(f"SELECT * FROM {table}").named_results()
    return row


def by_trace(store, table, column):
    return [value for (value,) in store.query(f"SELECT {column} FROM {table} ORDER BY trace_id").result_rows]


def times(store, table, *columns):
    listed = ", ".join(f"toUnixTimestamp64Nano({column})" for column in columns)
    return store.query(f"SELECT {listed} FROM {table}").result_rows[0]
