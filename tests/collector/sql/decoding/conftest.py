"""A store for OTLP, and the rows of single spans."""

import itertools

import pytest

from collector.store.schema import TIME_COLUMNS
from tests.collector.sql.decoding.stored import insert
from tests.support.otlp import MS, Request
from tokentrail import semconv


@pytest.fixture
def store(module_store):
    for table in TIME_COLUMNS:
        module_store.client().command(f"TRUNCATE TABLE {table}")
    return module_store


@pytest.fixture
def span_rows(store):
    """Insert a request span of 600 ms for each of `said` in each scope, all in one segment, which costs 0.1 s of CPU.

    span_rows(["tokentrail"], [{"gen_ai.usage.output_tokens": 5}, {}], "output_tokens") → [(5,), (None,)]
    """

    def insert_spans(scopes, said, columns, kind=2):
        bodies = []
        for trace, (scope, attributes) in enumerate(itertools.product(scopes, said), start=1):
            request = Request(scope=scope)
            name = "llm_request" if scope.startswith("vllm.") else "chat m"
            known = {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: "m"} | attributes
            request.span(name, trace=trace, ns=600 * MS, kind=kind, attributes=known)
            bodies.append(request.body())
        insert(store, b"".join(bodies))
        return store.query(f"SELECT {columns} FROM requests ORDER BY trace_id").result_rows

    return insert_spans
