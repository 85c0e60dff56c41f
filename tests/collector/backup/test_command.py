"""`tokentrail backup` and the endpoint that it asks."""

import asyncio
import os
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from collector.backup.archive import BackupError
from collector.backup.cut import Backups
from tests.collector.backup.archives import tokentrail
from tokentrail.cli.backup import backup
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
    assert tokentrail("backup", target).exit_code == 0
    assert synced == [tmp_path / "again.tar.partial", tmp_path]


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
