"""Inserts that are repeated or refused, and a schema that is applied again."""

import pytest

from collector.base.store_errors import StoreError
from collector.store.insert import RefusedError
from collector.store.schema import apply_schema
from collector.store.store import Store
from tests.collector.sql.decoding.stored import insert, rows
from tests.support.otlp import Request, token_body
from tokentrail import semconv


def test_an_insert_that_is_repeated_adds_nothing_anywhere(store):
    request = Request()
    request.tokens(count=5)
    request.span("chat m", span=9, kind=2, attributes={semconv.OPERATION_NAME: "chat"})
    request.span(semconv.PHASE_SPAN, span=10, parent=9, attributes={semconv.PHASE_NAME: "decode"})
    request.span("unclaimed", span=11)
    for _ in range(3):
        insert(store, request, "the same segment")
    counts = {table: len(rows(store, table)) for table in ("tokens", "requests", "phases", "spans")}
    assert counts == {"tokens": 5, "requests": 1, "phases": 1, "spans": 1}


def test_the_same_bytes_in_another_segment_are_the_same_rows(store):
    insert(store, token_body(count=2), "one")
    insert(store, token_body(count=2), "two")
    assert len(rows(store, "tokens")) == 2


def test_data_that_the_store_cannot_read_is_refused_and_leaves_no_rows(store):
    for body in (b"\xff\xff\xff", token_body()[:-2], token_body().replace((1).to_bytes(16, "big"), b"")):
        with pytest.raises(RefusedError):
            insert(store, token_body(trace=5) + body)
    assert rows(store, "tokens") == []


def test_applying_the_schema_again_changes_nothing_and_replaces_views_that_differ(store):
    def views():
        sql = "SELECT name, comment, as_select FROM system.tables WHERE engine = 'MaterializedView' ORDER BY name"
        return store.query(sql).result_rows

    before = views()
    apply_schema(store)
    assert views() == before
    store.client().command(
        "CREATE OR REPLACE MATERIALIZED VIEW tokentrail_tokens TO tokens AS SELECT now() AS minute FROM otlp_traces"
        " COMMENT 'of an older collector'"
    )
    apply_schema(store)
    assert views() == before
    insert(store, token_body(count=2))
    assert len(rows(store, "tokens")) == 2


def test_a_server_that_is_not_there_is_named_without_its_password():
    with pytest.raises(StoreError, match=r"127.0.0.1:1") as refused:
        Store.open("http://user:secret@127.0.0.1:1/default", connect_timeout_s=1.0)
    assert "secret" not in str(refused.value)
