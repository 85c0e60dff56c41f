"""The suite's own parts: its order, its table of times, where its files are, and the stores that tests copy."""

import ast
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from collector.store.definitions import read_schema
from tests import changed, mutants
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


def test_mutations_are_python_from_each_room_in_turn_and_the_same_for_a_seed():
    rooms = [ROOT.parent / "collector" / room for room in ("slo", "wal")]
    files = [path.relative_to(ROOT.parent) for room in rooms for path in sorted(room.glob("*.py"))]
    drawn = mutants.draw(files, 7, 40, [])
    assert drawn == mutants.draw(files, 7, 40, [])
    assert [mutation.file.split("/")[1] for mutation in drawn[:2]] in (["wal", "slo"], ["slo", "wal"])
    for mutation in drawn:
        source = (ROOT.parent / mutation.file).read_bytes()
        assert source[mutation.begin : mutation.end].decode() == mutation.before
        changed = source[: mutation.begin] + mutation.after.encode() + source[mutation.end :]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert {mutation.file.split("/")[1] for mutation in mutants.draw(files, 7, 9, ["collector/slo"])} == {"slo"}
    with pytest.raises(SystemExit, match="no product code in collector/lsm"):
        mutants.draw(files, 7, 9, ["collector/lsm"])


def test_a_mutation_survives_the_tests_that_pass_with_it_and_the_work_tree_stays(tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    product, tests = checkout / "alerts/limit.py", checkout / "tests/alerts/test_limit.py"
    for folder in (product.parent, tests.parent):
        folder.mkdir(parents=True)
    for folder in (product.parent, checkout / "tests"):
        (folder / "__init__.py").touch()
    product.write_text("MOST = 3\n\ndef over(n):\n    return n > 3\n\ndef room():\n    return MOST\n")
    tests.write_text(
        "from alerts.limit import over, room\n\ndef deeper():\n    deeper()\n\n"
        "def test_python_ends_the_trace():\n    try:\n        deeper()\n    except RecursionError:\n        pass\n\n"
        "def test_nine():\n    assert over(9)\n\n"
        "def test_room():\n    assert room()\n\ndef test_broken():\n    assert 0\n"
    )
    (checkout / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for name in ("reached.py", "times.py"):
        shutil.copy(ROOT / name, checkout / "tests")
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    monkeypatch.setattr(mutants, "ROOT", checkout)
    monkeypatch.setattr(mutants, "REACHED", tmp_path / "cache" / "reached.json")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they are slow to load
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    texts = {file.relative_to(checkout): file.read_text() for file in (product, tests)}
    copy = mutants.Copy(tmp_path / "copy")
    drawn = sorted(mutants.draw(texts, 1, 100, []), key=lambda one: (one.line, one.after))
    by_name, by_use = mutants.Suite(texts, {}), mutants.Suite(texts, copy.reached())
    its, every = "tests/alerts/test_limit.py::test_{}".format, ("python_ends_the_trace", "nine", "room", "broken")
    for quick, left_out in map(by_name.tests_of, drawn):
        assert (quick.tests, left_out.tests) == ([], [its(test) for test in every])
    used = [[run.tests for run in by_use.tests_of(one)] for one in drawn]
    left_out = [its("broken")]  # it failed then
    assert used == [[[its("room")], left_out], *[[[its("nine")], left_out]] * 3], "also that of a constant"
    judged = {(one.line, one.after): copy.judge(one, *by_use.tests_of(one)) for one in drawn}
    assert judged == {(1, "4"): "survived", (4, "4"): "survived", (4, "n <= 3"): "caught", (4, "n >= 3"): "survived"}
    missing, noticing, none = (mutants.Run(some, 99, 9) for some in ([its("room")], [its("nine")], []))
    assert copy.judge(drawn[0], none, none) == "no tests"
    assert copy.judge(drawn[0], missing._replace(most_s=0), none) == "unknown", "it did not end"
    assert copy.judge(drawn[2], missing, noticing) == "caught", "also by a test that starts processes"
    renamed = mutants.Run([its("ten"), its("room")], 99, 9)
    assert copy.judge(drawn[0], renamed, none) == "survived", "a test that is not there any more notices nothing"
    assert product.read_text() == texts[Path("alerts/limit.py")]


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


def test_what_differs_chooses_the_tests_that_reach_it():
    product, sql, test = Path("collector/a/b.py"), Path("collector/a/queries/q.sql"), Path("tests/collector/test_b.py")
    now = "MOST = 3\n\ndef f(n):\n    return n > MOST\n\ndef g():\n    return ask('q')\n\ndef h():\n    return 1\n"
    tests = (
        "def test_f():\n    assert 1\n\ndef test_g():\n    assert 1\n\ndef test_both():\n    assert 1\n# rules.yaml\n"
    )
    texts = {product: now, test: tests}
    its, f, g = f"{test}::test_{{}}".format, f"{product}:f", f"{product}:g"
    entered = {its("f"): (1.0, [f]), its("g"): (1.0, [g]), its("both"): (9.0, [f, g]), its("gone"): (1.0, [f])}

    def chosen(file, before="", most_s=60.0):
        found, unreached = changed.selected([file], {file: before}, texts, {sql: "SELECT 1"}, entered, most_s)
        return {name.rpartition("test_")[2] for name in found}, unreached

    assert chosen(product, now.replace("n > MOST", "n >= MOST")) == ({"f", "both"}, [])
    assert chosen(product, now.replace("3", "4")) == ({"f", "both"}, []), "a constant"
    assert chosen(product, now.replace("3", "4"), most_s=5.0) == ({"f"}, [])
    assert chosen(product, "# moved\n" + now) == (set(), [])
    assert chosen(product, now.replace("return 1", "return 2")) == (set(), [f"{product}:h"])
    assert chosen(sql) == ({"g", "both"}, [])
    assert chosen(test, tests.replace("def test_g():\n    assert 1", "def test_g():\n    assert 2")) == ({"g"}, [])
    assert chosen(Path("alerts/rules.yaml")) == ({"b.py"}, [])
    assert changed.own(test, changed.differing(tests, tests + "\nLIMIT = 1\n")) == {str(test)}
