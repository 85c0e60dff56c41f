"""The commands that look into a collector: dead letters and unclaimed spans."""

import gzip
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from typer.testing import CliRunner

from collector.wal.dead_letters import DeadLetters
from collector.wal.log import SegmentLog
from tests.support.collector import Collector
from tests.support.otlp import Request, token_body
from tests.support.stores import new_store
from tokentrail.cli import dead_letters
from tokentrail.cli.app import app

BODY = token_body(trace=5, count=3)
NOBODY = "http://127.0.0.1:9"
"""A proxy that no command uses."""


def run(*arguments):
    env = {"COLUMNS": "200", "HTTP_PROXY": NOBODY}
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def folder(tmp_path):
    data_dir = tmp_path / "data"
    (data_dir / "wal").mkdir(parents=True)
    dead = DeadLetters(data_dir / "dead_letters", "traces")
    dead.keep("0001-aa", BODY, "Cannot parse [FixedString]")
    dead.keep("0002-bb", b"\x0a\xff", "frame damaged", damaged=True)
    return data_dir


def dead(folder):
    return sorted(path.name for path in (folder / "dead_letters").iterdir())


def test_dead_letters_are_listed_with_reason_and_size(folder):
    text = run("dead-letters", "list", "--data-dir", folder).output
    assert [line.split()[-1] for line in text.splitlines()] == ["name", "0001-aa", "0002-bb"]
    assert "Cannot parse [FixedString]" in text
    listed = json.loads(run("dead-letters", "list", "--data-dir", folder, "--json").output)
    assert [(letter["name"], letter["bytes"], letter["damaged"]) for letter in listed] == [
        ("0001-aa", len(BODY), False),
        ("0002-bb", 2, True),
    ]
    assert listed[0]["at"].startswith("20")


def test_a_list_cuts_a_reason_at_80_characters(folder):
    letters = DeadLetters(folder / "dead_letters", "traces")
    letters.keep("0003-cc", BODY, 80 * "w")
    letters.keep("0004-dd", BODY, 81 * "l")
    words = run("dead-letters", "list", "--data-dir", folder).output.split()
    assert {80 * "w", 79 * "l" + "…"} <= {*words}


def test_the_data_folder_of_up_has_its_collectors_folder(folder):
    up = folder.parent / "up"
    up.mkdir()
    folder.rename(up / "collector")
    assert "0001-aa" in run("dead-letters", "list", "--data-dir", up).output


def test_a_folder_without_dead_letters_and_a_folder_that_is_none(tmp_path):
    SegmentLog(tmp_path / "wal", DeadLetters(tmp_path / "dead_letters", "traces"))
    assert run("dead-letters", "list", "--data-dir", tmp_path).output == "no dead letters\n"
    assert run("dead-letters", "replay", "--all", "--data-dir", tmp_path).output == "no dead letters\n"
    missing = run("dead-letters", "list", "--data-dir", tmp_path / "nothing")
    assert missing.exit_code == 1
    assert "is not the data folder of a collector" in missing.output


def test_a_dead_letter_is_shown_with_the_spans_in_it(folder):
    text = run("dead-letters", "show", "0001-aa", "--data-dir", folder).output
    assert "3 × tokentrail.token (chat)" in text
    assert "Cannot parse [FixedString]" in text
    shown = json.loads(run("dead-letters", "show", "0001-aa", "0002-bb", "--data-dir", folder, "--json").output)
    assert [letter["content"] for letter in shown] == ["3 × tokentrail.token (chat)", "no OTLP message"]
    unknown = run("dead-letters", "show", "0003", "--data-dir", folder)
    assert (unknown.exit_code, "no dead letter 0003" in unknown.output) == (1, True)
    assert "tokentrail dead-letters list has the names" in unknown.output


def test_a_dead_letter_without_its_description_is_listed_and_not_replayed(folder):
    (folder / "dead_letters" / "0001-aa.json").unlink()
    assert "not known" in run("dead-letters", "list", "--data-dir", folder).output
    assert run("dead-letters", "replay", "0001-aa", "--data-dir", folder, "--url", "http://127.0.0.1:9").exit_code == 1


class Receiver(ThreadingHTTPServer):
    """Answers every POST with one status and body, and remembers the requests and the connections."""

    def __init__(self, status, body=b""):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.connections.add(self.client_address)
                content = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers.items()), content))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.connections = [], set()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def test_a_replayed_dead_letter_is_removed_once_it_is_acknowledged(folder):
    with Receiver(200) as receiver:
        done = run(
            "dead-letters", "replay", "0001-aa", "--data-dir", folder, "--url", receiver.url,
            "--header", "Authorization=Bearer a=b",
        )  # fmt: skip
    assert (done.exit_code, done.output) == (0, "0001-aa: replayed\n")
    ((path, headers, content),) = receiver.requests
    assert (path, headers["Authorization"], headers["content-encoding"]) == ("/v1/traces", "Bearer a=b", "gzip")
    assert gzip.decompress(content) == BODY
    assert dead(folder) == ["0002-bb.bin", "0002-bb.json"]


def partial(rejected):
    return ExportTraceServiceResponse(partial_success={"rejected_spans": rejected, "error_message": "bad ids"})


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (503, b"later", "answered 503: later"),
        (503, b"[/b] " + 190 * b"x", "answered 503: [/b] " + 190 * "x"),
        (400, b"", "answered 400"),
        (401, Status(code=16, message="send a key").SerializeToString(), "answered 401: send a key"),
        (204, b"", "answered 204"),
        (200, partial(2).SerializeToString(), "rejected 2 of its spans: bad ids"),
        (200, b"<html>", "did not answer as an OTLP receiver"),
    ],
)
def test_a_dead_letter_that_is_not_taken_whole_is_kept(folder, status, body, reason):
    with Receiver(status, body) as receiver:
        kept = run("dead-letters", "replay", "0001-aa", "--data-dir", folder, "--url", receiver.url)
    assert kept.exit_code == 1
    assert reason in kept.output
    assert len(dead(folder)) == 4


def test_damaged_bytes_are_never_sent_and_the_others_are(folder):
    with Receiver(200) as receiver:
        ended = run("dead-letters", "replay", "--all", "--json", "--data-dir", folder, "--url", receiver.url)
    assert ended.exit_code == 1
    assert [(letter["name"], letter["replayed"]) for letter in json.loads(ended.output)] == [
        ("0001-aa", True),
        ("0002-bb", False),
    ]
    assert len(receiver.requests) == 1


def test_a_collector_that_does_not_answer_is_named(folder):
    kept = run("dead-letters", "replay", "0001-aa", "--data-dir", folder, "--url", "http://127.0.0.1:9")
    assert (kept.exit_code, "127.0.0.1:9 does not answer (Connection refused)" in kept.output) == (1, True)
    assert "with --url" in kept.output
    bare = run("dead-letters", "replay", "0001-aa", "--data-dir", folder, "--url", "127.0.0.1:9")
    assert "write http://" in bare.output


def test_a_silent_collector_is_waited_for_once(folder, monkeypatch):
    asked = []

    def silent(http, url, signal, body, headers):
        asked.append(body)
        if len(asked) == 2:
            raise httpx.ReadTimeout("timed out")
        return httpx.Response(429)

    for name, of in (("0003-cc", "0001-aa"), ("0004-dd", "0001-aa"), ("0005-ee", "0002-bb")):
        for suffix in (".bin", ".json"):
            shutil.copy(folder / "dead_letters" / f"{of}{suffix}", folder / "dead_letters" / f"{name}{suffix}")
    monkeypatch.setattr("tokentrail.cli.dead_letters.post_otlp", silent)
    ended = run("dead-letters", "replay", "--all", "--json", "--data-dir", folder, "--url", "http://127.0.0.1:9")
    reasons = {letter["name"]: letter["reason"] for letter in json.loads(ended.output)}
    assert len(asked) == 2
    assert "answered 429" in reasons["0001-aa"]
    assert "damaged" in reasons["0002-bb"]
    assert "does not answer (timed out)" in reasons["0003-cc"]
    assert reasons["0004-dd"] == reasons["0003-cc"]
    assert reasons["0005-ee"] == reasons["0002-bb"]


def test_many_dead_letters_are_sent_over_one_connection_and_told_one_by_one(folder):
    dead = DeadLetters(folder / "dead_letters", "traces")
    names = [f"1{n:03d}-aa" for n in range(20)]
    for name in names:
        dead.keep(name, BODY, "refused")
    lines = {}
    with Receiver(200) as receiver:
        letters = dead_letters.chosen(folder, names)
        for name, reason in dead_letters.replay(letters, receiver.url, {}):
            lines[name] = (reason, len(receiver.requests))
    assert lines == {name: ("", n) for n, name in enumerate(names, 1)}
    assert len(receiver.connections) == 1


def test_one_that_another_command_has_taken_holds_up_no_other(folder):
    dead = DeadLetters(folder / "dead_letters", "traces")
    for name in ("1000-aa", "1001-aa"):
        dead.keep(name, BODY, "refused")
    letters = dead_letters.chosen(folder, ["1000-aa", "1001-aa"])
    letters[0].file.unlink()
    with Receiver(200) as receiver:
        gone, sent = dead_letters.replay(letters, receiver.url, {})
    assert gone == ("1000-aa", "it is gone: another replay has sent it, or somebody has removed it")
    assert sent == ("1001-aa", "")


def test_one_that_goes_while_they_are_listed_is_left_out(folder, monkeypatch):
    (folder / "dead_letters" / "0003-cc.bin").symlink_to("gone")
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    assert [letter.name for letter in dead_letters.find(folder)] == ["0001-aa", "0002-bb"]


@pytest.mark.parametrize("header", ["Bearer x", "=x", "Authorization=Bearer …"])
def test_a_header_that_is_none_is_refused(folder, header):
    refused = run("dead-letters", "replay", "0001-aa", "--data-dir", folder, "--header", header)
    assert (refused.exit_code, "NAME=VALUE in ASCII" in refused.output) == (2, True)


@pytest.mark.parametrize("about", ["[]", '"x"', "null", '{"reason": null}', '{"reason": ""}'])
def test_a_damaged_description_hides_no_dead_letter(folder, about):
    (folder / "dead_letters" / "0001-aa.json").write_text(about)
    (folder / "dead_letters" / "folder.bin").mkdir()
    listed = json.loads(run("dead-letters", "list", "--data-dir", folder, "--json").output)
    reasons = {letter["name"]: letter["reason"] for letter in listed}
    assert reasons == {"0001-aa": "not known: the file beside it is missing or damaged", "0002-bb": "frame damaged"}


@pytest.mark.parametrize("arguments", [(), ("0001-aa", "--all")])
def test_names_or_all_must_be_given(folder, arguments):
    assert run("dead-letters", "replay", *arguments, "--data-dir", folder).exit_code == 2


@pytest.mark.slow
def test_a_real_collector_stores_a_replayed_payload_and_lists_unclaimed_spans(tmp_path):
    with Collector(tmp_path / "data", "--max-future-s", "1e9") as collector:
        unclaimed = Request()
        unclaimed.span("engine.loop", attributes={"batch": 8})
        assert collector.post(unclaimed.body()).status_code == 200
        letters = DeadLetters(tmp_path / "data" / "dead_letters", "traces")
        unnamed = Request()
        unnamed.span("")
        letters.keep("unnamed", unnamed.body(), "a wrong wire type")
        (letter,) = json.loads(run("dead-letters", "list", "--data-dir", tmp_path / "data", "--json").output)
        assert letter["reason"] == "a wrong wire type"
        assert "1 × no name (chat)" in run("dead-letters", "show", "unnamed", "--data-dir", tmp_path / "data").output
        letters.keep("old", BODY, "refused by an older version")
        url = collector.urls["otlp-http"]
        ended = run("dead-letters", "replay", "old", "--data-dir", tmp_path / "data", "--url", url)
        assert ended.output == "old: replayed\n"
        tokens = f"/api/v1/requests/{5:032x}"
        assert collector.get(tokens).status_code == 404, "tokens alone are no request"

        api = ("--api", collector.urls["api"], "--start", "2026-01-01T00:00:00Z")
        collector.wait_until(lambda: "engine.loop" in run("spans", *api).output)
        (name,) = json.loads(run("spans", *api, "--json").output)["names"]
        assert (name["name"], name["spans"], name["attribute_keys"]) == ("engine.loop", 1, ["batch"])
        text = run("spans", "engine.loop", *api).output
        assert "  batch = 8\n" in text
        assert "  resource service.name = chat\n" in text
        assert run("spans", "engine.loop", *api, "--service", "other").stdout == ""
        assert run("spans", *api, "--scope", "tokentrail", "--json").output.count("engine.loop") == 1
    away = run("spans", "--api", "http://127.0.0.1:9")
    assert (away.exit_code, "error:" in away.output) == (1, True)


def test_check_store_passes_the_folder_the_flag_and_the_status_on(tmp_path, capfd):
    new_store(tmp_path / "data" / "store")
    sound = {"--set-aside": "all parts are sound\n", "--json": '{"damaged_parts": []}\n'}
    for flag, told in sound.items():
        assert run("check-store", "--data-dir", tmp_path / "data", flag).exit_code == 0
        assert capfd.readouterr().out == told
    assert run("check-store", "--data-dir", tmp_path).exit_code == 2
    assert "has no embedded store: name the collector's --data-dir" in capfd.readouterr().err
