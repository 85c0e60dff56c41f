"""An embedded store that was killed while it stored an insert, which comes again."""

import errno
import fcntl
import os
import shutil
import struct
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.base.status import IngestStatus
from collector.otlp.signals import TRACES
from collector.otlp.tokens import TYPES, token_columns
from collector.store.deduplication import forget_lost_parts, write_through
from collector.store.insert import insert_block, insert_otlp, native_block
from collector.store.opener import StoreOpener
from collector.store.order import Order
from collector.store.store import Store
from tests.support.otlp import token_body
from tests.support.stores import new_store, open_new_store

FIRST, SECOND, THIRD = (f"1\tall_{n}_{n}_0\tall_{n * 111}_{n}\n" for n in (1, 2, 3))


class Table:
    """The files of one table, as ClickHouse lays them out."""

    def __init__(self, store):
        self.folder = store / "store" / "abc" / "abc-table"
        self.logs = self.folder / "deduplication_logs"
        self.logs.mkdir(parents=True)

    def part(self, *names):
        for name in names:
            (self.folder / name).mkdir()

    def log(self, text, number=1):
        (self.logs / f"deduplication_log_{number}.txt").write_text(text)

    def read(self, number=1):
        return (self.logs / f"deduplication_log_{number}.txt").read_text()


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def test_an_insert_that_a_kill_cut_off_is_stored_when_it_comes_again(tmp_path):
    store = open_new_store(tmp_path / "store")
    insert_otlp(store, TRACES, token_body(trace=1), "segment-1")
    folder = store.table_folder("tokens")
    before = set(folder.iterdir())
    insert_otlp(store, TRACES, token_body(trace=2), "segment-2")
    store.close()
    (cut_off,) = set(folder.iterdir()) - before
    shutil.rmtree(cut_off)  # as if it had not been renamed

    store = Store.open(f"chdb://{tmp_path / 'store'}")
    for n in (1, 2, 2):
        insert_otlp(store, TRACES, token_body(trace=n), f"segment-{n}")
    rows = store.query("SELECT trace_id, token_index, count() FROM tokens GROUP BY ALL").result_rows
    store.close()
    assert len(rows) == 6
    assert {count for *_, count in rows} == {1}


def test_the_newest_tokens_without_a_part_are_taken_back_once(tmp_path, table):
    table.part("all_1_1_0", "detached", "tmp_insert_all_3_3_0")
    table.log(FIRST + SECOND + THIRD)
    assert forget_lost_parts(tmp_path) == 2
    taken_back = "2\tall_3_3_0\tall_333_3\n2\tall_2_2_0\tall_222_2\n"
    assert table.read() == FIRST + SECOND + THIRD + taken_back
    assert forget_lost_parts(tmp_path) == 0
    assert table.read() == FIRST + SECOND + THIRD + taken_back


def test_an_older_token_stays_whose_part_is_gone_because_its_rows_are_past_their_retention(tmp_path, table):
    table.part("all_3_3_0")
    table.log(FIRST + SECOND + THIRD)
    assert forget_lost_parts(tmp_path) == 0


@pytest.mark.parametrize(
    ("part", "lost"),
    [
        ("all_1_3_1", 0),
        ("all_3_4_1", 0),
        ("all_3_3_0_9", 0),
        ("all_1_2_1", 1),
        ("all_4_5_1", 1),
        ("20261121_3_3_0", 1),
    ],
)
def test_a_part_may_have_been_merged_into_another_of_its_partition(tmp_path, table, part, lost):
    table.part("all_2_2_0", part)
    table.log(SECOND + THIRD)
    assert forget_lost_parts(tmp_path) == lost


def test_the_newest_file_may_be_empty_and_the_files_are_in_the_order_of_their_numbers(tmp_path, table):
    table.part("all_1_1_0")
    table.log(FIRST, 9)
    table.log(SECOND, 10)
    table.log("", 11)
    assert forget_lost_parts(tmp_path) == 1
    assert table.read(11) == "2\tall_2_2_0\tall_222_2\n"


def test_a_line_that_a_power_cut_left_unfinished_goes(tmp_path, table):
    table.part("all_1_1_0")
    table.log(FIRST + SECOND + THIRD[:-4] + 100 * "\0")
    assert forget_lost_parts(tmp_path) == 1
    assert table.read() == FIRST + SECOND + "2\tall_2_2_0\tall_222_2\n"


def test_a_name_of_another_form_is_not_judged(tmp_path, table):
    table.log("1\tpart-of-another-version\thash\n")
    assert forget_lost_parts(tmp_path) == 0


def test_a_token_that_was_dropped_and_came_again_counts_by_its_newest_line(tmp_path, table):
    table.part("all_1_1_0")
    table.log(FIRST + SECOND + "2\tall_2_2_0\tall_222_2\n")
    assert forget_lost_parts(tmp_path) == 0
    table.log(FIRST + SECOND + "2\tall_2_2_0\tall_222_2\n" + SECOND)
    assert forget_lost_parts(tmp_path) == 1


def test_a_store_that_is_open_and_a_folder_without_one_are_left_as_they_are(tmp_path):
    assert forget_lost_parts(tmp_path / "nothing") == 0
    assert not (tmp_path / "nothing").exists()
    store = open_new_store(tmp_path / "store")
    table = Table(store.folder)
    table.log(FIRST)
    assert forget_lost_parts(store.folder) == 0
    store.close()
    assert forget_lost_parts(tmp_path / "store") == 1


class Attributes:
    """The attributes of the files of a file system, as `lsattr` tells them: 8 is S, and 0x80000 is ext4's e."""

    def __init__(self, monkeypatch, *, known=True):
        self._known, self._flags, self.synced = known, {}, []
        monkeypatch.setattr(fcntl, "ioctl", self._ioctl)
        monkeypatch.setattr(os, "fsync", lambda descriptor: self.synced.append(self._path(descriptor).name))

    def of(self, *paths):
        return [self._flags.get(path, 0x80000) for path in paths]

    def _ioctl(self, descriptor, request, argument):
        if request == 0x80086601:
            return struct.pack("l", *self.of(self._path(descriptor)))
        if not self._known:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        assert request == 0x40086602
        self._flags[self._path(descriptor)] = struct.unpack("l", argument)[0]
        return argument

    @staticmethod
    def _path(descriptor):
        return Path(f"/proc/self/fd/{descriptor}").readlink()


def test_tokens_are_written_through_also_to_the_files_that_come_later(table, monkeypatch):
    attributes = Attributes(monkeypatch)
    table.log(FIRST, 9)
    assert write_through(table.logs)
    first, second = (table.logs / f"deduplication_log_{number}.txt" for number in (9, 10))
    assert attributes.of(table.logs, first) == [0x80008, 0x80008]
    assert sorted(attributes.synced) == [first.name, table.logs.name], "what was written before"
    table.log(SECOND, 10)
    assert write_through(table.logs)
    assert attributes.of(second) == [0x80008]
    assert len(attributes.synced) == 3


def test_where_no_file_can_be_written_through_the_tokens_until_now_are_synced(table, monkeypatch):
    attributes = Attributes(monkeypatch, known=False)
    table.log(FIRST)
    for _ in range(2):
        assert not write_through(table.logs)
    assert attributes.synced == 2 * [table.logs.name, "deduplication_log_1.txt"]


@pytest.mark.parametrize("known", [True, False])
def test_a_store_on_a_disk_that_cannot_write_through_is_opened_with_a_warning(tmp_path, monkeypatch, caplog, known):
    new_store(tmp_path / "store")
    Attributes(monkeypatch, known=known)
    StoreOpener(f"chdb://{tmp_path / 'store'}", IngestStatus()).store.close()
    assert ("may store its rows twice" in caplog.text) is not known


@pytest.fixture
def careless(module_store):
    """A store whose profile switches deduplication off."""
    defaults = {
        "deduplicate_insert": ("disable", "enable"),
        "deduplicate_insert_select": ("disable", "enable_when_possible"),
        "deduplicate_blocks_in_dependent_materialized_views": ("0", "1"),
    }
    client = module_store.client()
    for name, (off, _) in defaults.items():
        client.command(f"SET {name} = '{off}'")
    yield module_store
    for name, (_, on) in defaults.items():
        client.command(f"SET {name} = '{on}'")


def test_no_profile_of_the_server_makes_rows_of_an_insert_that_comes_again(careless):
    for _ in range(2):
        insert_otlp(careless, TRACES, token_body(count=3), "again")
        insert_block(careless, TRACES, native_block([token_columns(token_body(2, count=2))], TYPES), "again.columns")
    assert careless.query("SELECT count(), uniqExact(trace_id) FROM tokens").result_rows == [(5, 2)]


def test_nor_of_a_claim(careless):
    order, columns = Order(careless, "payload_claims"), ("claim", "digest", "segment")
    for _ in range(2):
        careless.client().insert(
            "payload_claims", [(1, b"d" * 16, "s")], column_names=columns, settings=order.settings("claim 1")
        )
    assert careless.query("SELECT count() FROM payload_claims WHERE segment = 's'").result_rows == [(1,)]


def test_a_view_that_fails_fails_the_insert_whatever_the_profile(module_store):
    client = module_store.client()
    client.command("CREATE TABLE broken (n UInt8) ENGINE = Memory")
    client.command("CREATE MATERIALIZED VIEW breaks TO broken AS SELECT throwIf(1, 'broken') AS n FROM tokens")
    client.command("SET materialized_views_ignore_errors = 1")
    try:
        with pytest.raises(DatabaseError, match="broken"):
            insert_otlp(module_store, TRACES, token_body(3), "views")
    finally:
        client.command("SET materialized_views_ignore_errors = 0")
        client.command("DROP VIEW breaks")
    insert_otlp(module_store, TRACES, token_body(3), "views")
    sql = "SELECT count() > 0, count() = uniqExact(token_index) FROM tokens WHERE trace_id = {0}"
    assert module_store.query(sql.format("(SELECT max(trace_id) FROM tokens)")).result_rows == [(True, True)]
