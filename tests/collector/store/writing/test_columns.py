"""Tokens are inserted as columns beside everything else of their segment."""

import tempfile

import pytest

from collector.otlp.signals import TRACES
from collector.store import insert, part_folders
from collector.store.insert import insert_otlp
from tests.collector.store.writing.written import MANY, alone, joined, misread
from tests.support.otlp import Request, token_body


@pytest.mark.parametrize("payloads", [alone, joined])
def test_many_tokens_are_inserted_as_columns_beside_everything_else(setup, payloads):
    calls = []

    def otlp(store, signal, source, token):
        calls.append((token, source))
        insert_otlp(store, signal, source, token)

    def block(store, signal, source, token):
        calls.append((token, None))
        insert.insert_block(store, signal, source, token)

    s = setup(insert=otlp, insert_block=block)
    other = misread(3)
    segment = s.segment(*payloads(token_body(trace=1, count=MANY), other, token_body(trace=2)))
    s.writer.write(segment)
    name = segment.id
    assert calls == [(f"{name}.columns", None), (name, other), (f"{name}.r", calls[-1][1])]
    assert s.tokens() == {1: MANY, 2: 3, 3: 2}
    assert s.segments == [f"{name}.r"]
    assert s.status.snapshot().segments_inserted == 1


def test_the_parts_are_durable_before_the_log_gives_the_segment_up(setup, monkeypatch):
    s = setup()
    table = s.store.table_folder("tokens")
    waiting_and_parts = []

    def sync(folder):
        if folder == table:
            waiting_and_parts.append((s.log.pending[0], len([*folder.glob("*_*_*_0")])))

    monkeypatch.setattr(part_folders, "sync_folder", sync)
    parts = len([*table.glob("*_*_*_0")])
    s.writer.write(s.segment(token_body(trace=1)))
    assert waiting_and_parts == [(1, parts + 1)]


def test_inserts_need_no_temporary_folder_of_the_system_which_may_be_full(setup, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    s = setup()
    not_plain = Request().tokens(trace=2)
    not_plain.span("chat", trace=2)
    s.writer.write(s.segment(token_body(trace=1, count=MANY), not_plain.body()))
    assert s.tokens() == {1: MANY, 2: 3}


def test_a_data_folder_may_have_any_name(setup, tmp_path):
    """ClickHouse would take this name for those of other files."""
    path = tmp_path / "it's {1,2}*.wal"
    path.write_bytes(token_body(trace=1))
    (tmp_path / "it's 1.wal").write_bytes(token_body(trace=2))
    s = setup()
    insert_otlp(s.store, TRACES, path, "a folder's name")
    assert s.tokens() == {1: 3}


def test_a_segment_of_tokens_alone_is_announced_once(setup):
    s = setup()
    segment = s.segment(token_body(trace=1, count=MANY))
    s.writer.write(segment)
    assert s.tokens() == {1: MANY}
    assert s.segments == [f"{segment.id}.columns"]
    assert s.log.pending == (0, 0)


@pytest.mark.parametrize("dies_in", ["columns", "otlp"])
@pytest.mark.parametrize(("stored", "payloads"), [(False, alone), (True, alone), (False, joined), (True, joined)])
def test_a_crash_around_either_insert_adds_nothing_twice_and_loses_nothing(setup, dies_in, stored, payloads):
    def dying(name, real):
        def insert_it(*args):
            if name != dies_in or stored:
                real(*args)
            if name == dies_in:
                raise KeyboardInterrupt

        return insert_it

    s = setup()
    segment = s.segment(*payloads(token_body(trace=1, count=MANY), misread(3)))
    crashing = s.another_writer(insert=dying("otlp", insert_otlp), insert_block=dying("columns", insert.insert_block))
    with pytest.raises(KeyboardInterrupt):
        crashing.write(segment)
    for _ in range(2):
        after = setup()
        waiting = after.log.next_sealed(0)
        if waiting:
            after.writer.write(waiting)
    assert s.tokens() == {1: MANY, 3: 2}
