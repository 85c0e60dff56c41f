"""The audit log: its lines, its size, and a flood of denials."""

import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

from collector.access.audit import AuditLog


class Clock:
    now = 1_795_000_000.25

    def __call__(self):
        return self.now


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_the_time_and_the_fields_that_are_known(tmp_path):
    path = tmp_path / "new" / "audit.jsonl"
    AuditLog(path, unix_s=Clock()).write("denied", key="", address="10.0.0.7", route="GET /x", reason='a "b"\nc')
    path = path.with_name("audit.denied.jsonl")
    assert lines(path) == [
        {"time": "2026-11-18T11:06:40.250+00:00", "event": "denied", "address": "10.0.0.7", "route": "GET /x",
         "reason": 'a "b"\nc'}
    ]  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_its_size_is_bounded(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=1_000)
    for n in range(200):
        log.write("created", key=f"{n:08x}")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    assert all(file.stat().st_size <= 1_000 for file in files)
    assert lines(path)[-1]["key"] == f"{199:08x}"
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_many_threads_lose_no_line_while_files_rotate(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("collector.access.audit._MAX_FILES", 100)
    log, begin = AuditLog(tmp_path / "audit.jsonl", max_bytes=1_000), threading.Barrier(16)

    def write(number):
        begin.wait()
        for n in range(40):
            log.write("changed", key=f"{number}-{n}")

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(write, range(16)))
    written = [line["key"] for file in tmp_path.iterdir() for line in lines(file)]
    assert sorted(written) == sorted(f"{number}-{n}" for number in range(16) for n in range(40))
    assert caplog.text == ""


def test_a_flood_of_denials_is_counted_and_other_events_are_kept(tmp_path):
    path, clock = tmp_path / "audit.jsonl", Clock()
    log = AuditLog(path, unix_s=clock)
    for _ in range(25):
        log.write("denied", reason="r")
    log.write("created", key="k")
    clock.now += 1
    log.write("denied", reason="r")
    log.write("denied", reason="r")
    assert [(line["event"], "left_out" in line) for line in lines(path)] == [("created", False)]
    denied = lines(path.with_name("audit.denied.jsonl"))
    assert [line["event"] for line in denied] == ["denied"] * 12
    assert [line.get("left_out") for line in denied[-2:]] == [15, None]


def test_denials_that_go_on_for_hours_leave_the_lines_about_keys(tmp_path):
    path, clock = tmp_path / "audit.jsonl", Clock()
    log = AuditLog(path, max_bytes=1_000, unix_s=clock)
    log.write("created", key="k")
    for _ in range(200):
        clock.now += 1
        log.write("denied", reason="r")
    assert [line["event"] for line in lines(path)] == ["created"]
    assert len(list(tmp_path.iterdir())) == 7


def test_a_disk_that_fails_stops_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    AuditLog(tmp_path / "file" / "audit.jsonl").write("created", key="k")
    (record,) = caplog.records
    assert record.getMessage().startswith("a line is missing in the audit log ([Errno ")
    assert '"key": "k"' in record.getMessage()
    assert record.exc_info is None


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AuditLog(None).write("created", key="k")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_moved_or_removed_is_made_again(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write("created", key="1")
    log.write("created", key="2")
    path.rename(tmp_path / "moved")
    log.write("created", key="3")
    path.unlink()
    log.write("created", key="4")
    written = {file.name: [line["key"] for line in lines(file)] for file in tmp_path.iterdir()}
    assert written == {"audit.jsonl": ["4"], "moved": ["1", "2"]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_processes_that_write_one_file_both_follow_a_rotation(tmp_path):
    path = tmp_path / "audit.jsonl"
    first, second = (AuditLog(path, max_bytes=500) for _ in range(2))
    first.write("created", key="a" * 300)
    second.write("created", key="b" * 300)  # it rotates
    first.write("created", key="c")
    assert [line["key"][0] for line in lines(path)] == ["b", "c"]
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["audit.jsonl", "audit.jsonl.1"]
