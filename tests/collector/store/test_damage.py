"""A store whose disk has damaged a part of a table."""

import errno
import json
import re
import shutil
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.store import damage
from collector.store.damage import damage_of
from collector.store.store import Store
from tests.support.collector import Collector
from tests.support.otlp import Request

DAY = "start=2026-11-18T00:00:00Z&end=2026-11-19T00:00:00Z"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """The data folder of a collector that has stopped: three requests in three parts."""
    folder = tmp_path_factory.mktemp("filled") / "data"
    with Collector(folder) as collector:
        for trace in (1, 2, 3):
            post_request(collector, trace)
            collector.wait_until_stored()
    return folder


@pytest.fixture
def collector(filled, tmp_path):
    """It has three requests in three parts, and is stopped."""
    shutil.copytree(filled, tmp_path / "data", symlinks=True)
    collector = Collector(tmp_path / "data")
    yield collector
    if collector.process and collector.process.poll() is None:
        collector.kill()


CODES = (32, 33, 74, 107, 117, 131, 226, 246, 261, 271, 432)
"""Of what ClickHouse finds in a file that ends early, is not there, or has other bytes: a power cut, a bad disk."""


def post_request(collector, trace):
    request = Request()
    request.span("chat m", trace=trace, attributes={"gen_ai.operation.name": "chat"})
    assert collector.post(request.body()).status_code == 200


def damaged_part(collector):
    """The folder of the first part of `requests`."""
    store = Store.open(f"chdb://{collector.data_dir / 'store'}")
    table = store.table_folder("requests")
    store.close()
    return min(path for path in table.iterdir() if re.fullmatch(r"20261118_\d+_\d+_0", path.name))


def check(collector, capsys, *arguments):
    status = damage.main([str(collector.data_dir), *arguments])
    return status, capsys.readouterr()


def metrics(collector):
    return collector.get("/metrics").text


def broken_parts(collector):
    def read():
        return re.findall(
            r'^tokentrail_store_broken_parts\{table="requests"\} (\S+)$', metrics(collector), re.MULTILINE
        )

    collector.wait_until(read)
    (value,) = read()
    by_table = {row["name"]: row["broken_parts"] for row in collector.get("/api/v1/storage").json()["tables"]}
    assert sum(by_table.values()) == by_table["requests"] == float(value)
    return by_table["requests"]


def counted(collector):
    return collector.get(f"/api/v1/summary?{DAY}").json()


def test_bytes_that_changed_make_answers_name_the_part_until_it_is_set_aside(collector, capsys):
    part = damaged_part(collector)
    data = part / "data.bin"
    data.write_bytes(bytes(data.stat().st_size))
    assert check(collector, capsys)[0] == 1
    with collector:
        answer = collector.get(f"/api/v1/summary?{DAY}")
        assert answer.status_code == 500
        assert f"the part {part.name} of the table requests is damaged" in answer.json()["detail"]
        assert "tokentrail check-store" in answer.json()["detail"]
        post_request(collector, 4)
        collector.wait_until(lambda: "tokentrail_collector_store_up 0.0" in metrics(collector))
        status, told = check(collector, capsys)
        assert status == 2
        assert "used by another collector" in told.err
    log = Path(collector.log.name).read_text()
    assert "stay as they were: the part" in log
    assert "Traceback" not in log
    moved = collector.data_dir / "damaged_parts" / "requests" / part.name
    status, told = check(collector, capsys, "--json")
    (damaged,) = json.loads(told.out)["damaged_parts"]
    assert (status, damaged["table"], damaged["part"], damaged["set_aside"]) == (1, "requests", part.name, None)
    status, told = check(collector, capsys, "--set-aside")
    assert (status, moved.is_dir(), part.exists()) == (0, True, False)
    assert not moved.parent.stat().st_mode & 0o077, "for its user alone"
    assert told.out.startswith(f"requests {part.name}: ")
    assert str(moved) in told.out
    assert check(collector, capsys) == (0, ("all parts are sound\n", ""))
    with collector:
        assert counted(collector)["requests"]["total"] == 3
        collector.wait_until(lambda: re.search(r'(?m)_requests_total\{.*status="ok".* 4.0$', metrics(collector)))
        assert broken_parts(collector) == 0


def test_a_part_that_clickhouse_sets_aside_when_it_starts_is_a_metric_until_it_is_moved(collector, capsys):
    part = damaged_part(collector)
    store = Store.open(f"chdb://{collector.data_dir / 'store'}")
    store.client().command(f"ALTER TABLE requests DETACH PART '{part.name}'")
    store.close()
    part = damaged_part(collector)  # the one that was detached is somebody's decision
    (part / "data.bin").write_bytes(b"cut")
    with collector:
        assert broken_parts(collector) == 1
        assert counted(collector)["requests"]["total"] == 1
    status, told = check(collector, capsys)
    assert status == 1
    assert told.out.startswith(f"requests broken-on-start_{part.name}: broken-on-start\n1 damaged part")
    assert check(collector, capsys, "--set-aside")[0] == 0
    assert (collector.data_dir / "damaged_parts" / "requests" / f"broken-on-start_{part.name}").is_dir()
    assert check(collector, capsys) == (0, ("all parts are sound\n", ""))


def test_a_part_whose_move_was_cut_off_is_moved_by_the_next_check(collector, capsys, monkeypatch):
    part = damaged_part(collector)
    data = part / "data.bin"
    data.write_bytes(bytes(data.stat().st_size))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        check(collector, capsys, "--set-aside")
    monkeypatch.undo()
    status, told = check(collector, capsys)
    assert status == 1
    assert told.out.startswith(f"requests {part.name}: it was not set aside to the end\n1 damaged part")
    assert check(collector, capsys, "--set-aside")[0] == 0
    folder = collector.data_dir / "damaged_parts" / "requests"
    assert [path.name for path in folder.iterdir()] == [part.name]
    assert check(collector, capsys) == (0, ("all parts are sound\n", ""))


@pytest.mark.parametrize("cut_off", ["copytree", "rmtree"])
def test_a_move_to_another_file_system_that_was_cut_off_is_ended_by_the_next_check(
    collector, capsys, monkeypatch, cut_off
):
    """The half of a part was taken for a folder into which the next check moved it."""
    part = damaged_part(collector)
    data = part / "data.bin"
    data.write_bytes(bytes(data.stat().st_size))
    files = sorted(path.name for path in part.iterdir())
    rename, original = Path.rename, getattr(shutil, cut_off)

    def rename_within_a_file_system(source, target):
        if source.parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(source, target)

    def killed(source, *arguments, **options):
        if "detached" not in str(source):
            return original(source, *arguments, **options)
        if cut_off == "copytree":
            (target := arguments[0]).mkdir()
            shutil.copy(source / "data.bin", target)
        else:
            (source / "data.bin").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", rename_within_a_file_system)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, cut_off, killed)
        with pytest.raises(KeyboardInterrupt):
            check(collector, capsys, "--set-aside")
    assert check(collector, capsys)[0] == 1
    assert check(collector, capsys, "--set-aside")[0] == 0
    folder = collector.data_dir / "damaged_parts" / "requests"
    assert [path.name for path in folder.iterdir()] == [part.name]
    assert sorted(path.name for path in (folder / part.name).iterdir()) == files
    assert check(collector, capsys) == (0, ("all parts are sound\n", ""))


def test_a_folder_without_a_store_is_named(tmp_path, capsys):
    assert damage.main([str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (40, "(while reading from part /data/store/a/b/20261118_1_1_0/ in table default.requests (b) located", True),
        (40, "(while reading from part 20261118_1_1_0 in table requests located", True),
        (241, "Memory limit: (while reading from part /data/20261118_1_1_0/ in table default.requests (b)", False),
        (40, "Checksum doesn't match", False),
        *((code, "(while reading from part 20261118_1_1_0 in table requests located", True) for code in CODES),
    ],
)
def test_only_errors_of_a_part_that_cannot_be_read_name_it(code, text, expected):
    error = DatabaseError(text)
    error.code = code
    assert (damage_of(error) is not None) == expected
    assert damage_of(ValueError(text)) is None
    if expected:
        assert damage_of(error).startswith("the part 20261118_1_1_0 of the table requests is damaged")


def test_the_folder_of_tokentrail_up_is_that_of_its_collector(tmp_path, capsys):
    (tmp_path / "collector" / "wal").mkdir(parents=True)
    assert damage.main([str(tmp_path)]) == 2
    assert f"{tmp_path / 'collector'} has no embedded store" in capsys.readouterr().err
