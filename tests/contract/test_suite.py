"""The suite's own parts: its order, its table of times, where its files are, and the stores that tests copy."""

import os
import tempfile

import pytest

from collector.store.definitions import read_schema
from tests.collector.rows import NOW, SECOND, Rows
from tests.conftest import ROOT, SLOW, memory
from tests.support.collector import Collector
from tests.support.stores import open_new_store
from tests.times import ROWS, table


def test_every_slow_file_exists():
    assert [name for name in SLOW if not (ROOT / name).exists()] == []


def test_files_are_in_memory_where_it_has_room(tmp_path):
    assert memory(tmp_path, least=1) == tmp_path
    assert memory(tmp_path, least=2**62) is None
    assert memory(tmp_path / "absent") is None
    if (folder := memory(least=3 * 2**30)) and os.environ["TMPDIR"] == str(folder):
        assert tmp_path.is_relative_to(folder)
        assert tempfile.gettempdir() == str(folder)


def test_the_table_has_the_longest_files_and_the_sums_of_folders():
    files = [("tests/a/test_x.py", [1.0, 2.0]), ("tests/b/test_y.py", [4.0, 5.0]), ("tests/b/c/test_z.py", [2.0, 8.0])]
    assert list(table(files)) == [
        "    4.0 s CPU     5.0 s  tests/b/test_y.py",
        "    2.0 s CPU     8.0 s  tests/b/c/test_z.py",
        "    1.0 s CPU     2.0 s  tests/a/test_x.py",
        "    1.0 s CPU     2.0 s  tests/a",
        "    6.0 s CPU    13.0 s  tests/b",
        "    7.0 s CPU    15.0 s  all",
    ]
    many = [(f"tests/a/test_{number}.py", [1.0, 1.0]) for number in range(ROWS + 9)]
    assert len(list(table(many))) == ROWS + 2


def test_a_failed_wait_shows_whether_the_collector_is_ready_and_the_end_of_its_log(tmp_path):
    with Collector(tmp_path / "data") as collector:
        collector.log.write(b"".join(b"line %d\n" % number for number in range(99)))
        collector.log.flush()
        with pytest.raises(AssertionError) as running:
            collector.wait_until(lambda: False, timeout_s=0.0)
        collector.kill()
        with pytest.raises(AssertionError) as killed:
            collector.wait_until(lambda: False, timeout_s=0.0)
    assert "did not come true in 0.0 s\n/readyz: 200 {" in str(running.value)
    assert "line 98" in str(running.value)
    assert "line 9\n" not in str(running.value), "a log may be long"
    assert "/readyz: ConnectError" in str(killed.value)
    assert "exit status -9" in str(killed.value)


def test_a_copied_store_has_this_versions_tables_and_views_and_takes_rows_together(tmp_path):
    store = open_new_store(tmp_path / "store")
    schema = read_schema()
    found = store.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
    assert {*schema.tables, *schema.views} <= {name for (name,) in found}
    assert store.query("SELECT count() FROM requests").result_rows == [(0,)]

    rows = Rows(store)  # they wait until the store is asked, and are one insert that keeps rows of one key apart
    first = rows.open(start=NOW, seen=NOW)
    rows.open(**first | {"seen": NOW + SECOND})
    sql = "SELECT (SELECT count() FROM open_requests), (SELECT count() FROM open_requests FINAL), count()"
    counts = store.query(f"{sql} FROM system.parts WHERE table = 'open_requests' AND active").result_rows
    assert counts == [(2, 1, 1)]
    store.close()
