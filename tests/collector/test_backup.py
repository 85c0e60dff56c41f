"""A backup under load, restored, gives the same answers; half, damaged and foreign files are refused."""

import asyncio
import base64
import gzip
import hashlib
import io
import itertools
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from rich.console import Console
from typer.testing import CliRunner

from collector.backup import cut
from collector.backup.__main__ import main as restore_command
from collector.backup.archive import BackupError, File, Manifest, Table, pack, unpack
from collector.backup.cut import Backups
from collector.backup.restore import restore
from collector.store.store import Store
from tests.collector.rows import NOW, SECOND
from tests.support import forked
from tests.support.collector import ROOT, Collector
from tests.support.otlp import MS, Request
from tokentrail import semconv
from tokentrail.cli.app import app
from tokentrail.cli.backup import backup, verify
from tokentrail.cli.processes import ProcessFailed


def request_body(trace, end_ns):
    """A request of three tokens in 3 ms with a phase, ended at a time. Requests do not overlap."""
    attributes = {semconv.OPERATION_NAME: "chat", "gen_ai.request.model": "m", "gen_ai.usage.output_tokens": 3}
    request = Request()
    start = end_ns - 3 * MS
    request.span("chat m", trace=trace, span=1, start=start, ns=3 * MS, kind=2, attributes=attributes)
    request.tokens(trace=trace, start=start, ns=MS)
    request.span(
        semconv.PHASE_SPAN, trace=trace, span=9, parent=1, start=start, ns=3 * MS,
        attributes={semconv.PHASE_NAME: "decode"},
    )  # fmt: skip
    return request.body()


class Load(threading.Thread):
    """Sends requests until it is told to stop."""

    def __init__(self, collector):
        super().__init__()
        self.collector = collector
        self.enough = threading.Event()
        self.acknowledged_ns = {}
        self.ended_ns = {}

    def before(self, until):
        """The traces that were acknowledged before a time. The next one was sent after the last of them."""
        until_ns = round(datetime.fromisoformat(until).timestamp() * 1e6) * 1000
        return [trace for trace, at in self.acknowledged_ns.items() if at < until_ns]

    def run(self):
        http = httpx.Client(timeout=120)
        for trace in itertools.count(1):
            if self.enough.wait(0.03):
                return
            ended_ns = time.time_ns()
            body = request_body(trace, ended_ns)
            answer = http.post(
                self.collector.urls["otlp-http"] + "/v1/traces",
                content=body,
                headers={"content-type": "application/x-protobuf"},
            )
            assert answer.status_code == 200
            self.acknowledged_ns[trace] = time.time_ns()
            self.ended_ns[trace] = ended_ns


def tokentrail(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answers(collector, end_ns):
    """The answers of all endpoints about the requests that ended by a time, and the trail of one of them."""
    window = f"start=2026-01-01T00:00:00Z&end={end_ns // 10**9}.{end_ns % 10**9 + 1:09}"
    paths = json.loads(collector.get("/openapi.json").text)["paths"]
    found = {}
    for path, operations in paths.items():
        windowed = {"start", "end"} <= {
            parameter["name"] for parameter in operations.get("get", {}).get("parameters", ())
        }
        if not windowed or "{" in path:
            continue
        more = {"/api/v1/timeseries": "&metric=ttft&step=1d", "/api/v1/goodput": "&ttft=500ms&surface=1"}.get(path, "")
        answer = collector.get(f"{path}?{window}{more}")
        assert answer.status_code == 200, answer.text
        found[path] = answer.json()
    trail = collector.get(f"/api/v1/requests/{1:032x}")
    assert trail.status_code == 200
    return found | {"trail": trail.json()}


def stored_requests(collector):
    window = f"start=2026-01-01T00:00:00Z&end={time.time_ns() // 10**9 + 1}"
    return collector.get(f"/api/v1/summary?{window}").json()["requests"]["total"]


def test_a_backup_under_load_restored_gives_the_same_answers(tmp_path):
    (tmp_path / "slos.yaml").write_text((ROOT / "alerts" / "slos.yaml").read_text())
    # An insert costs as much for one request as for ten.
    collector = Collector(tmp_path / "data", "--segment-age-s", "0.3", "--slos", str(tmp_path / "slos.yaml")).start()
    load = Load(collector)
    load.start()
    collector.wait_until(lambda: stored_requests(collector) > 25)
    made = tokentrail("backup", tmp_path / "b.tar", "--api", collector.urls["api"])
    during = len(load.acknowledged_ns)
    collector.wait_until(lambda: len(load.acknowledged_ns) > during + 20)
    load.enough.set()
    load.join(120)
    assert made.exit_code == 0, made.output
    assert not (tmp_path / "data" / "store" / "shadow" / "tokentrail").exists()
    manifest = verify(tmp_path / "b.tar")
    until = manifest["until"]
    assert until in made.output
    collector.wait_until(lambda: not list((tmp_path / "data" / "wal").glob("*.wal")))
    before = load.before(until)
    assert 20 < len(before) < len(load.acknowledged_ns)
    end_ns = load.ended_ns[before[-1]]
    expected = answers(collector, end_ns)
    assert collector.stop() == 0

    restored = subprocess.run(
        [sys.executable, "-m", "tokentrail.cli", "restore", str(tmp_path / "b.tar"), str(tmp_path / "again")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"requests: {sum(manifest['tables']['requests']['parts'].values())} rows" in restored.stdout
    assert (tmp_path / "again" / "settings" / "slos.yaml").read_text() == (tmp_path / "slos.yaml").read_text()
    second = Collector(tmp_path / "again", "--slos", str(tmp_path / "again" / "settings" / "slos.yaml")).start()
    assert answers(second, end_ns) == expected
    assert expected["/api/v1/summary"]["requests"]["total"] == len(before)
    assert len(expected) >= 8
    assert second.post(request_body(10**6, time.time_ns())).status_code == 200
    second.wait_until(lambda: second.get(f"/api/v1/requests/{10**6:032x}").status_code == 200)
    assert second.stop() == 0


@pytest.fixture
def store(rows):
    rows.store.client().command(
        "INSERT INTO tokens (minute, trace_id, request_span_id, token_index, duration_us, step)"
        " SELECT toDateTime('2026-11-20 10:00:00', 'UTC') + number * 86400, unhex(repeat('ab', 16)),"
        " 'abcdefgh', number, 7, number FROM numbers(3)"
    )
    return rows.store


class Chain:
    """A chain whose writer notes when it pauses."""

    def __init__(self, waiting_since_ns=None):
        self.log = self.writer = self
        self.waiting_since_ns = waiting_since_ns
        self.pauses = []

    @contextmanager
    def paused(self, timeout_s):
        self.pauses.append(timeout_s)
        yield


@pytest.fixture
def backups(store, clock, tmp_path):
    (tmp_path / "slos.yaml").write_text("slos: []")
    return Backups(store, [Chain(), Chain(NOW - 5 * SECOND)], [tmp_path / "slos.yaml"], Chain(), clock=clock)


@pytest.fixture
def archive(backups, tmp_path):
    path = tmp_path / "b.tar"
    path.write_bytes(b"".join(backups.make()))
    return path


def test_what_waited_in_a_log_is_said_not_to_be_in_the_backup(archive):
    manifest = verify(archive)
    assert (manifest["made"], manifest["until"]) == ("2026-11-21T10:00:00Z", "2026-11-21T09:59:55Z")


def test_every_chain_and_the_joiner_pause_for_the_cut(backups):
    backups.make().close()
    assert [len(chain.pauses) for chain in (*backups._chains, backups._joiner)] == [1, 1, 1]


def test_times_of_a_backup_are_rounded_down_to_a_microsecond():
    assert cut._rfc3339(NOW + 123_456_789) == "2026-11-21T10:00:00.123456Z"


def test_a_backup_is_a_tar_that_others_read(archive):
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        assert names[-1] == "manifest.json"
        assert tar.extractfile("settings/slos.yaml").read() == b"slos: []"
    assert archive.read_bytes()[-2 * tarfile.BLOCKSIZE :] == bytes(2 * tarfile.BLOCKSIZE), "its end, by the standard"
    parts = {name.split("/")[2] for name in names if name.startswith("tables/tokens/")}
    manifest = verify(archive)
    assert manifest["tables"]["tokens"]["parts"] == dict.fromkeys(parts, 1)
    assert len(parts) == 3
    assert manifest["tables"]["requests"]["parts"] == {}
    assert "flat_spans" not in manifest["tables"]
    assert set(manifest["files"]) == set(names) - {"manifest.json"}


def run_restore(archive, data_dir):
    """In a process of its own: this one has another store open."""
    return forked.run("collector.backup.__main__", archive, data_dir)


def test_a_collector_that_stops_cuts_a_backup_that_its_client_reads_slowly(tmp_path):
    arguments = ["--drain-timeout-s", "60", "--body-timeout-s", "600"]  # a client that reads nothing is not given up
    collector = Collector(tmp_path / "data", *arguments).start()
    request = Request()
    for n in range(55):
        request.span("GET /", trace=n + 1, attributes={"large": base64.b85encode(os.urandom(200_000)).decode()})
    assert collector.post(request.body()).status_code == 200
    collector.wait_until(lambda: not list((tmp_path / "data" / "wal").glob("*.wal")))
    address = urlsplit(collector.urls["api"])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(120)
        client.connect((address.hostname, address.port))
        client.sendall(b"POST /api/v1/backup HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        received = client.recv(4096)
        assert received.startswith(b"HTTP/1.1 200")
        assert collector.stop() == 0
        with suppress(ConnectionResetError):
            while chunk := client.recv(2**20):
                received += chunk
    assert not received.endswith(b"0\r\n\r\n")
    assert not (tmp_path / "data" / "store" / "shadow" / "tokentrail").exists()
    log = (tmp_path / "data.log").read_text()
    assert "work left" not in log
    assert "Traceback" not in log


def test_a_restored_store_has_the_rows_and_is_one_that_a_collector_opens(archive, store, tmp_path):
    volume = tmp_path / "volume"  # which cannot be replaced by another folder
    (volume / "lost+found").mkdir(parents=True)
    (volume / ".restoring" / "store").mkdir(parents=True)  # of an attempt that was killed
    (tmp_path / "new").symlink_to(volume)
    restored = run_restore(archive, tmp_path / "new")
    assert (restored.returncode, restored.stderr) == (0, "")
    assert "tokens: 3 rows\n" in restored.stdout
    assert "before 2026-11-21T09:59:55Z is in" in restored.stdout
    assert sorted(path.name for path in volume.iterdir()) == ["lost+found", "settings", "store"]
    of_versions = "SELECT count() FROM schema_version"
    of_tokens = "SELECT sum(token_index), count(), toString(max(minute)) FROM tokens"
    asked = forked.run("tests.support.ask", tmp_path / "new" / "store", of_tokens, of_versions)
    versions = store.query(of_versions).result_rows
    assert asked.stdout.splitlines() == ["[(3, 3, '2026-11-22 10:00:00')]", str(versions)], asked.stderr


def test_one_backup_at_a_time_and_an_end_makes_room(backups, store):
    first = backups.make()
    with pytest.raises(BackupError, match="another backup is under way"):
        backups.make()
    next(first)
    first.close()
    first.close()
    assert not (store.folder / "shadow" / "tokentrail").exists()
    assert b"".join(backups.make())
    backups.make().close()


def test_links_of_a_process_that_died_are_removed(backups, store):
    left = store.folder / "shadow" / "tokentrail" / "left"
    left.mkdir(parents=True)
    stream = backups.make()
    assert not left.exists()
    stream.close()
    left.mkdir(parents=True)
    Backups(store, [], [])  # at the next start, without another backup
    assert not left.exists()


def test_a_failed_cut_makes_room_too(backups, monkeypatch):
    def late(_):
        raise TimeoutError("the traces writer has been at one segment for 30 s")

    monkeypatch.setattr(backups._chains[1], "paused", late)
    with pytest.raises(BackupError, match="cannot be cut: the traces writer"):
        backups.make()
    monkeypatch.undo()
    backups.make().close()


def test_a_cut_that_fails_behind_its_links_leaves_none(backups, store, monkeypatch):
    links = store.folder / "shadow" / "tokentrail"

    def full(_):
        assert links.exists()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cut, "_rfc3339", full)
    with pytest.raises(BackupError, match=r"cannot be cut: .*No space left"):
        backups.make()
    assert not links.exists()


def test_a_server_is_backed_up_by_its_own_statement():
    with pytest.raises(BackupError, match="use its BACKUP statement"):
        Backups(Store("http://127.0.0.1:1/default"), [], []).make()


def test_a_folder_with_files_is_not_restored_over(archive, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("mine")
    with pytest.raises(BackupError, match="is not empty"):
        restore(archive, tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["x"]


def test_a_folder_that_was_there_stays_when_a_restore_fails(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "b.tar").write_bytes(b"no tar")
    for folder in ("data", "new"):
        with pytest.raises(BackupError, match="it is no tar"):
            restore(tmp_path / "b.tar", tmp_path / folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "data"]
    assert list((tmp_path / "data").iterdir()) == []


def test_a_restored_store_is_on_the_disk_before_it_is_in_its_place_where_it_comes_last(tmp_path, monkeypatch):
    slos = tmp_path / "slos.yaml"
    slos.write_text("slos: []")
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    archive = tmp_path / "b.tar"
    archive.write_bytes(b"".join(pack([("settings/slos.yaml", slos)], empty)))
    done, replace = [], Path.replace

    def attach(_, work):
        (work / "store").mkdir()
        done.append("attached")

    def moved(path, to):
        done.append(path.name)
        return replace(path, to)

    monkeypatch.setattr("collector.backup.restore._attach", attach)
    monkeypatch.setattr("collector.backup.restore.sync_folder", lambda folder: done.append(f"synced {folder.name}"))
    monkeypatch.setattr(os, "sync", lambda: done.append("synced"))
    monkeypatch.setattr(Path, "replace", moved)
    restore(archive, tmp_path / "new")
    assert done == ["attached", "synced", "settings", "store", "synced new"]


def test_a_row_too_few_is_noticed(archive, tmp_path):
    def more(manifest):
        part = next(iter(manifest["tables"]["tokens"]["parts"]))
        manifest["tables"]["tokens"]["parts"][part] += 1

    rewrite(archive, more)
    restored = run_restore(archive, tmp_path / "new")
    assert restored.returncode == 1
    assert "the table tokens had 4 rows and has 3" in restored.stderr
    assert not (tmp_path / "new").exists()


def test_a_part_that_was_damaged_before_the_backup_is_noticed(archive, tmp_path):
    name = next(name for name in verify(archive)["files"] if "tables/tokens/" in name and name.endswith("data.bin"))
    found = {}

    def flipped(data):
        found["data"] = data[:-1] + bytes([data[-1] ^ 1])
        return found["data"]

    rewrite(archive, flipped, member=name)
    digest = hashlib.sha256(found["data"]).hexdigest()
    rewrite(archive, lambda manifest: manifest["files"][name].update(sha256=digest))
    restored = run_restore(archive, tmp_path / "new")
    assert restored.returncode == 1
    assert "the table tokens had 3 rows and has 3, some of them damaged" in restored.stderr
    assert not (tmp_path / "new").exists()


def rewrite(archive, change, *, member="manifest.json"):
    """Change the manifest, or the bytes of another member, and keep the rest."""
    with tarfile.open(archive) as tar:
        members = [(info, tar.extractfile(info).read()) for info in tar]
    with tarfile.open(archive, "w") as tar:
        for info, data in members:
            if info.name == member == "manifest.json":
                manifest = json.loads(data)
                change(manifest)
                data = json.dumps(manifest).encode()
            elif info.name == member:
                data = change(data)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_a_flipped_bit_is_found_by_both_sides(archive, tmp_path):
    name = next(name for name in verify(archive)["files"] if name.endswith("data.bin"))
    rewrite(archive, lambda data: bytes([data[0] ^ 1]) + data[1:], member=name)
    with pytest.raises(BackupError, match=f"damaged: {name}"):
        restore(archive, tmp_path / "new")
    with pytest.raises(ValueError, match="a file is not as the collector read it"):
        verify(archive)
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_missing_is_found(archive, tmp_path):
    rewrite(archive, lambda manifest: manifest["files"].update({"settings/x": {"size": 1, "sha256": "0"}}))
    with pytest.raises(BackupError, match="damaged: settings/x"):
        restore(archive, tmp_path / "new")


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_half_of_a_backup_is_refused(archive, tmp_path, keep):
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * keep) // 512 * 512])
    with pytest.raises(BackupError, match=r"is damaged after \d+ of its files|has no manifest: its end is missing"):
        restore(archive, tmp_path / "new")
    with pytest.raises((ValueError, tarfile.TarError)):
        verify(archive)


def tar_of(path, name, content):
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is no tar"),
        (b"hello", "it is no tar"),
        (b"x" * 5000, "it is no tar"),
        ("thesis.tex", "it has 'thesis.tex'"),
        ("manifest.json", "its manifest.json is that of something else"),
    ],
)
def test_a_file_that_is_no_backup_is_named_with_the_way_to_make_one(tmp_path, content, reason):
    file = tmp_path / "file"
    file.write_bytes(tar_of(file, content, b"{}") if isinstance(content, str) else content)
    with pytest.raises(BackupError) as told:
        restore(file, tmp_path / "new")
    assert str(told.value).startswith(f"{file} is not a backup of tokentrail, because {reason}: `tokentrail backup")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_ctrl_c_in_a_restore_is_no_error_of_ours(tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("collector.backup.__main__.restore", interrupted)
    assert restore_command([str(tmp_path / "b.tar"), str(tmp_path / "new")]) == 130
    assert capsys.readouterr().err == ""


def test_nothing_comes_behind_the_manifest(tmp_path):
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    once = b"".join(pack([], empty)).removesuffix(bytes(2 * tarfile.BLOCKSIZE))
    archive = tmp_path / "b.tar"
    archive.write_bytes(once + b"".join(pack([], empty)))
    with pytest.raises(BackupError, match=r"because it has 'manifest\.json'"):
        restore(archive, tmp_path / "new")


def test_a_file_that_is_there_twice_is_refused(tmp_path):
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    source = tmp_path / "x"
    source.write_text("x")
    archive = tmp_path / "b.tar"
    archive.write_bytes(b"".join(pack([("settings/x", source)] * 2, empty)))
    with pytest.raises(BackupError, match="File exists"):
        restore(archive, tmp_path / "new")


def test_a_manifest_beyond_a_limit_is_not_read_to_its_end(tmp_path, monkeypatch):
    archive = tmp_path / "b.tar"
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    tar_of(archive, "manifest.json", empty.model_dump_json().encode())
    (tmp_path / "in").mkdir()
    unpack(archive, tmp_path / "in")
    monkeypatch.setattr("collector.backup.archive._MOST_MANIFEST", 50)
    with pytest.raises(BackupError, match=r"its manifest\.json is that of something else"):
        unpack(archive, tmp_path / "in")


def test_a_backup_that_was_compressed_is_to_be_unpacked_first(tmp_path, archive):
    archive.write_bytes(gzip.compress(archive.read_bytes()))
    with pytest.raises(BackupError, match="unpack it first"):
        restore(archive, tmp_path / "new")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "new"):
        with pytest.raises(BackupError, match=rf"{folder} cannot be made \(Not a directory\): restore into a new"):
            restore(tmp_path / "b.tar", folder)
    with pytest.raises(BackupError, match=r"cannot be restored: .*No such file"):
        restore(tmp_path / "b.tar", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "name", ["../x", "tables/a/../../x", "/etc/x", "store/x", "tables/x", "settings", "settings/.", "settings/a/b"]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    source = tmp_path / "source"
    source.write_text("x")
    archive = tmp_path / "evil.tar"
    archive.write_bytes(b"".join(pack([(name, source)], empty)))
    (tmp_path / "in").mkdir()
    with pytest.raises(BackupError, match="not a backup of tokentrail"):
        unpack(archive, tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []


SOUND = "CREATE TABLE default.evil (`a` String) ENGINE = MergeTree ORDER BY a"


@pytest.mark.parametrize(
    ("create", "part"),
    [
        (SOUND, "../../../victim"),
        (SOUND, "."),
        ("INSERT INTO FUNCTION file('{folder}/victim/x', 'CSV', 'a String') VALUES ('x')", None),
        (SOUND + " AS SELECT * FROM file('{folder}/victim/secret', 'LineAsString')", None),
        (SOUND + " as select * from file('{folder}/victim/secret', 'LineAsString')", None),
        (SOUND + "; INSERT INTO FUNCTION file('{folder}/victim/x', 'CSV', 'a String') VALUES ('x')", None),
        (SOUND.replace("evil", "another"), None),
        (SOUND.replace("MergeTree ORDER BY a", "File(CSV)"), None),
    ],
)
def test_a_table_that_reaches_out_of_the_new_folder_is_refused(tmp_path, create, part):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("secret")
    source = tmp_path / "data.bin"
    source.touch()
    manifest = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    manifest.tables["evil"] = Table(create=create.format(folder=tmp_path), parts={} if part is None else {part: 0})
    archive = tmp_path / "evil.tar"
    archive.write_bytes(b"".join(pack([("tables/evil/all_1_1_0/data.bin", source)], manifest)))
    with pytest.raises(BackupError, match=r"its manifest\.json is that of something else"):
        restore(archive, tmp_path / "new")
    assert [path.name for path in victim.iterdir()] == ["secret"]
    assert not (tmp_path / "new").exists()


def test_a_table_of_its_own_kind_is_restored(tmp_path):
    """So the test above sees the statements that are refused."""
    manifest = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    manifest.tables["evil"] = Table(create=SOUND, parts={})
    archive = tmp_path / "sound.tar"
    archive.write_bytes(b"".join(pack([], manifest)))
    assert "evil: 0 rows" in run_restore(archive, tmp_path / "new").stdout


def test_an_slo_file_may_have_any_name(tmp_path):
    slos = tmp_path / "SLOs of the team (über).yaml"
    slos.write_text("slos: []")
    archive = tmp_path / "b.tar"
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    archive.write_bytes(b"".join(pack([(f"settings/{slos.name}", slos)], empty)))
    verify(archive)
    unpack(archive, tmp_path / "new")
    assert (tmp_path / "new" / "settings" / slos.name).read_text() == "slos: []"


def test_an_slo_file_that_has_gone_is_named_and_nothing_is_cut(store, tmp_path):
    gone = Backups(store, [], [tmp_path / "slos.yaml"])
    for _ in range(2):
        with pytest.raises(BackupError, match=r"slos\.yaml, with which the collector started, is not there any more"):
            gone.make()


def test_a_link_is_refused(tmp_path):
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as tar:
        link = tarfile.TarInfo("settings/x")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(BackupError, match="not a backup of tokentrail"):
        unpack(archive, tmp_path)


@pytest.mark.parametrize("other", [0, 2])
def test_another_format_is_refused(archive, tmp_path, other):
    rewrite(archive, lambda manifest: manifest.update(format=other))
    with pytest.raises(BackupError, match=f"format {other}, and this version reads format 1"):
        restore(archive, tmp_path / "new")


@pytest.mark.parametrize("later", [b"123", b"12345"])
def test_a_file_that_changes_its_size_while_it_is_read_is_an_error(tmp_path, later):
    source = tmp_path / "x"
    source.write_bytes(b"1234")
    chunks = pack([("settings/x", source)], Manifest(format=1, made="", until="", clickhouse="", tables={}, files={}))
    next(chunks)
    source.write_bytes(later)
    with pytest.raises(BackupError, match="changed while it was read"):
        list(chunks)


def test_large_files_are_read_in_chunks(tmp_path):
    source = tmp_path / "x"
    source.write_bytes(b"a" * (3 * 1024 * 1024 + 1))
    tables = {"evil": Table(create=SOUND, parts={})}
    manifest = Manifest(format=1, made="", until="", clickhouse="", tables=tables, files={})
    sizes = [len(chunk) for chunk in pack([("settings/x", source)], manifest)]
    assert max(sizes) == 1024 * 1024
    assert manifest.files["settings/x"] == File(size=3145729, sha256=hashlib.sha256(source.read_bytes()).hexdigest())


def test_the_endpoint_streams_and_says_why_not(app, rows, monkeypatch):
    client = TestClient(app)
    answer = client.post("/api/v1/backup")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-tar")
    assert b"manifest.json" in answer.content
    monkeypatch.setattr(Backups, "make", lambda _: (_ for _ in ()).throw(BackupError("another backup is under way")))
    answer = client.post("/api/v1/backup")
    assert (answer.status_code, answer.json()["detail"]) == (409, "another backup is under way")


def test_a_client_that_leaves_ends_its_backup(app, rows):
    async def leave():
        inbox = asyncio.Queue()
        inbox.put_nowait({"type": "http.request", "body": b"", "more_body": False})

        async def send(message):
            if message.get("more_body"):
                inbox.put_nowait({"type": "http.disconnect"})
                await asyncio.Event().wait()  # the client takes nothing more

        scope = {"type": "http", "method": "POST", "path": "/api/v1/backup", "query_string": b"", "headers": []}
        await asyncio.wait_for(app(scope, inbox.get, send), 120)

    asyncio.run(leave())
    assert TestClient(app).post("/api/v1/backup").status_code == 200


def test_the_command_sends_its_key(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setenv("TOKENTRAIL_API_KEY", "secret")

    def stream(client, *_):
        sent.append(client.headers["authorization"])
        return nullcontext(httpx.Response(401))

    monkeypatch.setattr(httpx.Client, "stream", stream)
    refused = tokentrail("backup", tmp_path / "b.tar")
    assert (refused.exit_code, sent) == (1, ["Bearer secret"])
    assert not (tmp_path / "b.tar").exists()


def test_a_backup_is_on_the_disk_before_the_command_says_so(archive, tmp_path, monkeypatch):
    data, synced = archive.read_bytes(), []
    monkeypatch.setattr(httpx.Client, "stream", lambda *_: nullcontext(httpx.Response(200, content=iter([data]))))
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    target = tmp_path / "again.tar"
    assert tokentrail("backup", target).exit_code == 0
    assert synced == [tmp_path / "again.tar.partial", tmp_path]


def test_the_command_refuses_a_file_that_is_there_and_a_collector_that_is_not(tmp_path):
    (tmp_path / "b.tar").write_text("mine")
    again = tokentrail("backup", tmp_path / "b.tar")
    assert again.exit_code == 1
    assert "is there already" in " ".join(again.output.split())
    away = tokentrail("backup", tmp_path, "--api", "http://127.0.0.1:1")
    assert away.exit_code == 1
    assert "no backup of the collector at http://127.0.0.1:1" in " ".join(away.output.split())
    assert "name its address with --api" in " ".join(away.output.split())
    assert "write http://" in " ".join(tokentrail("backup", tmp_path, "--api", "127.0.0.1:1").output.split())
    assert "make it" in " ".join(tokentrail("backup", tmp_path / "absent" / "b.tar").output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


class BreaksOff(BaseHTTPRequestHandler):
    """Announces more bytes of a backup than it sends."""

    def do_POST(self):
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"half of it")

    def log_message(self, *_):
        pass


def test_a_transfer_that_breaks_off_has_no_way_out_of_a_wrong_address(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), BreaksOff) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ProcessFailed, match=r"\(received 10 bytes, expected 1000\)$"):
            backup(Console(), target=tmp_path, url=url)
        server.shutdown()
    assert [*tmp_path.iterdir()] == []
