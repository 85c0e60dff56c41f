"""`tokentrail backup` and the endpoint that it asks."""

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from collector.keep.__main__ import main as restore_main
from collector.keep.archive import BackupError
from collector.keep.cut import Backups
from tests.collector.keep.archives import run_restore, tokentrail
from tokentrail.cli import parts
from tokentrail.cli.backup import backup, check_store, restore
from tokentrail.cli.processes import ProcessFailed


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
    told = tokentrail("backup", target, "--json")
    assert told.exit_code == 0
    made = json.loads(told.output)
    assert (made["file"], made["bytes"], made["rows"]["tokens"]) == (str(target), len(data), 3)
    assert made["until"] == "2026-11-21T09:59:55Z"
    assert synced == [tmp_path / "again.tar.partial", tmp_path]


def test_a_backup_is_for_its_user_alone_and_takes_the_place_of_what_waits_there(archive, tmp_path, monkeypatch):
    data = archive.read_bytes()
    monkeypatch.setattr(httpx.Client, "stream", lambda *_: nullcontext(httpx.Response(200, content=iter([data]))))
    (tmp_path / "again.tar.partial").symlink_to(tmp_path / "victim")
    (tmp_path / "victim").touch(0o644)
    assert tokentrail("backup", tmp_path / "again.tar").exit_code == 0
    assert stat.S_IMODE((tmp_path / "again.tar").stat().st_mode) == 0o600
    assert (tmp_path / "victim").read_bytes() == b""


def test_a_restored_folder_is_for_its_user_alone(archive, tmp_path):
    restored = run_restore(archive, tmp_path / "new")
    assert restored.returncode == 0
    paths = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(paths) > 100
    assert [path for path in paths if not path.is_symlink() and path.stat().st_mode & 0o077] == []


def test_a_second_backup_to_the_same_file_leaves_the_first_alone(archive, tmp_path, monkeypatch):
    data, again = archive.read_bytes(), []

    def content():
        yield data[:1000]
        again.append(tokentrail("backup", tmp_path / "nightly.tar"))
        yield data[1000:]

    busy = httpx.Response(409, json={"detail": "another backup is under way"})
    answers = iter([httpx.Response(200, content=content()), busy])
    monkeypatch.setattr(httpx.Client, "stream", lambda *_: nullcontext(next(answers)))
    assert tokentrail("backup", tmp_path / "nightly.tar").exit_code == 0
    assert [(second.exit_code, "another backup is under way" in second.output) for second in again] == [(1, True)]
    assert (tmp_path / "nightly.tar").read_bytes() == data
    assert not [*tmp_path.glob("*.partial")]


def test_the_command_refuses_a_file_that_is_there_and_a_collector_that_is_not(tmp_path):
    (tmp_path / "b.tar").write_text("mine")
    again = tokentrail("backup", tmp_path / "b.tar")
    assert again.exit_code == 1
    assert "is there already: name another file" in " ".join(again.output.split())
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


@pytest.fixture
def signals():
    """Handlers as a command has them, and those of the tests again afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("index", [0, 1], ids=["SIGINT", "SIGTERM"])
def test_a_restore_that_is_stopped_leaves_nothing_also_when_it_is_told_twice(
    index, signals, archive, tmp_path, monkeypatch
):
    def attach(*_):
        signal.raise_signal(signals[index])

    remove = shutil.rmtree

    def removed(folder, **options):
        if Path(folder).is_dir():
            for number in signals:
                signal.raise_signal(number)
        remove(folder, **options)

    monkeypatch.setattr("collector.keep.restore.attach", attach)
    monkeypatch.setattr("collector.keep.restore.shutil.rmtree", removed)
    assert restore_main([str(archive), str(tmp_path / "new")]) == 130
    assert not (tmp_path / "new").exists()


def test_a_signal_that_is_ignored_stays_ignored(signals, tmp_path):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert restore_main([str(tmp_path / "absent"), str(tmp_path / "new")]) == 1
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


INTERRUPTS = """
import os, signal, sys, time
def tidy(*_):
    open(sys.argv[1], "w").close()
    os._exit(130)
signal.signal(signal.SIGTERM, tidy)
os.kill(os.getppid(), signal.SIGINT)
while True:
    time.sleep(0.01)
"""
"""A child whose command is interrupted as soon as it runs. It tidies up when it is told to end."""


@pytest.mark.parametrize(
    "command",
    [
        lambda folder: restore(archive=folder / "b.tar", target=str(folder / "new")),
        lambda folder: check_store(folder, set_aside=False),
    ],
    ids=["restore", "check-store"],
)
def test_a_command_that_is_stopped_waits_until_its_child_has_tidied_up(command, signals, tmp_path, monkeypatch):
    tidy = tmp_path / "tidy"
    monkeypatch.setattr(parts, "command", lambda *_: [sys.executable, "-c", INTERRUPTS, str(tidy)])
    with pytest.raises(KeyboardInterrupt):
        command(tmp_path)
    assert tidy.exists()
