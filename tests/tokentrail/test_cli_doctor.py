"""`tokentrail doctor` makes a call on each port of OTLP, and names what is there instead, on real receivers; and its
findings about what the API answers. test_cli_ask.py has it on a whole collector."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import grpc
import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse
from typer.testing import CliRunner

from collector.access.access import OPEN
from collector.access.tls import Tls, TlsFiles
from collector.app.http_server import HttpServer
from collector.receive.grpc import GrpcReceiver
from collector.receive.http import BodyLimits, create_otlp_app
from collector.receive.ingest import Ingest
from collector.wal.commit import LogUnavailableError
from tests.collector.receive.test_otlp_http import WAIT_S, Receiver
from tests.support.certificates import make_certificate
from tests.support.keys import access_to, add_key
from tokentrail.cli import doctor, listeners
from tokentrail.cli.api import Api
from tokentrail.cli.app import app
from tokentrail.cli.dead_letters import DeadLetter, replay
from tokentrail.version import __version__, told

LIMITS = BodyLimits(4_000, 8_000)
NOBODY = "http://127.0.0.1:9"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(listeners, "TIMEOUT_S", WAIT_S)


@pytest.fixture
def started():
    """Starts servers, and stops them at the end."""
    running = []

    def start(server):
        server.start()
        running.append(server)
        return server.url

    yield start
    for server in running:
        server.stop(1.0)


@pytest.fixture
def serve(started, tmp_path):
    """The addresses of OTLP/HTTP and OTLP/gRPC of a collector."""
    receiver = Receiver(tmp_path)

    def serve(tls=None, access=OPEN):
        otlp = create_otlp_app([receiver.ingest], LIMITS, access)
        http = HttpServer(otlp, "http", "127.0.0.1", 0, tls=tls and tls.context())
        rpc = GrpcReceiver([receiver.ingest], LIMITS, "127.0.0.1", 0, tls=tls, access=access)
        return started(http), started(rpc)

    yield serve
    receiver.commit.stop(WAIT_S)


async def api(scope, receive, send):
    await JSONResponse({"status": "ok", "version": "0.1.0"})(scope, receive, send)


async def website(scope, receive, send):
    await PlainTextResponse("welcome")(scope, receive, send)


def examined(otlp_http=NOBODY, otlp_grpc=NOBODY):
    """What doctor says of the two ports: state, detail and fix of each."""
    arguments = ["doctor", "--api", NOBODY, "--otlp-http", otlp_http, "--otlp-grpc", otlp_grpc, "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, "nobody is the API"
    return [(found["state"], found["detail"], found["fix"]) for found in json.loads(result.stdout)[:2]]


def test_each_port_takes_an_empty_export(serve):
    http, rpc = serve()
    bare = rpc.removeprefix("http://")
    assert examined(http, rpc) == [("ok", http, ""), ("ok", rpc, "")]
    assert examined(http, bare)[1] == ("ok", bare, "")


def test_ports_in_each_others_place_are_named(serve):
    http, rpc = serve()
    for address in (http, http.removeprefix("http://")):
        of_http, of_grpc = examined(rpc, address)
        assert of_http[:2] == (
            "fail",
            f"{rpc} is the address of a collector's OTLP/gRPC; its OTLP/HTTP is on port 4318 unless the collector was "
            "told otherwise",
        )
        assert of_grpc[1].startswith(
            f"{address} is the address of a collector's OTLP/HTTP; its OTLP/gRPC is on port 43"
        )
        assert ("--otlp-http" in of_http[2], "--otlp-grpc" in of_grpc[2]) == (True, True)


def test_the_api_in_place_of_a_port_is_named(started):
    url = started(HttpServer(api, "api", "127.0.0.1", 0))
    for state, detail, _ in examined(url, url):
        assert (state, f"{url} is the address of a collector's API" in detail) == ("fail", True)


def test_a_server_of_somebody_else_is_named(started):
    url = started(HttpServer(website, "website", "127.0.0.1", 0))
    of_http, of_grpc = examined(url, url)
    assert (of_http[0], "200, but not as a receiver of OTLP" in of_http[1]) == ("fail", True)
    assert "another server is there" in of_http[2]
    assert (of_grpc[0], "another server is there" in of_grpc[2]) == ("fail", True)
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    of_grpc = examined(otlp_grpc=f"127.0.0.1:{port}")[1]
    other.stop(0)
    assert (of_grpc[0], "UNIMPLEMENTED" in of_grpc[1], "another server" in of_grpc[2]) == ("fail", True, True)


def test_a_collector_that_asks_for_a_key(serve, tmp_path):
    add_key(tmp_path / "keys.json", "ingest")
    for state, detail, fix in examined(*serve(access=access_to(tmp_path / "keys.json"))):
        assert (state, "asks senders for a key" in detail, fix) == ("ok", True, "")


def test_a_collector_that_refuses_says_why(serve, monkeypatch):
    http, rpc = serve()

    def refuse(*_):
        raise LogUnavailableError("the log is full")

    monkeypatch.setattr(Ingest, "accept", refuse)
    of_http, of_grpc = examined(http, rpc)
    assert of_http[:2] == ("fail", f"{http} answers 503: the log is full")
    assert (of_grpc[0], "the log is full" in of_grpc[1]) == ("fail", True)
    assert of_http[2] == of_grpc[2] == "see the collector's log"


@needs_openssl
def test_tls_that_does_not_match_is_named(serve, tmp_path, monkeypatch):
    certificate, key = make_certificate(tmp_path)
    http, rpc = serve(Tls(TlsFiles(certificate, key)))
    for _, _, fix in examined(http, rpc):
        assert "set TOKENTRAIL_API_TLS_CA" in fix
    for _, _, fix in examined(http.replace("https", "http"), rpc.removeprefix("https://")):
        assert "if the collector speaks TLS, write https://" in fix
    monkeypatch.setenv("TOKENTRAIL_API_TLS_CA", str(certificate))
    assert examined(http, rpc) == [("ok", http, ""), ("ok", rpc, "")]
    swapped = examined(rpc, http)
    assert ["OTLP/gRPC; its" in swapped[0][1], "OTLP/HTTP; its" in swapped[1][1]] == [True, True]
    for url in serve():
        secure = url.replace("http", "https")
        assert {fix for _, _, fix in examined(secure, secure)} == {"the collector speaks plain HTTP: write http://"}


@needs_openssl
def test_a_collector_that_asks_for_a_certificate(serve, tmp_path, monkeypatch):
    server, ours = make_certificate(tmp_path), make_certificate(tmp_path, "ours")
    both = tmp_path / "both.pem"
    both.write_bytes(ours[0].read_bytes() + ours[1].read_bytes())
    addresses = serve(Tls(TlsFiles(*server, ours[0])))
    monkeypatch.setenv("TOKENTRAIL_API_TLS_CA", str(server[0]))
    for _, _, fix in examined(*addresses):
        assert "set TOKENTRAIL_API_TLS_CERT and TOKENTRAIL_API_TLS_KEY" in fix
    for cert, key in (ours, (both, "")):
        monkeypatch.setenv("TOKENTRAIL_API_TLS_CERT", str(cert))
        monkeypatch.setenv("TOKENTRAIL_API_TLS_KEY", str(key))
        assert [state for state, _, _ in examined(*addresses)] == ["ok", "ok"]


@pytest.mark.parametrize("address", ["127.0.0.1:nine", "", ":4317", "127.0.0.1:9", "[::1", "a..b:1", "a" * 300])
def test_an_address_where_nobody_listens(address):
    of_http, of_grpc = examined(f"http://{address}", address)
    assert (of_http[0], of_grpc[0]) == ("fail", "fail")
    assert "name its address with --otlp-grpc" in of_grpc[2]
    assert "last error" not in of_grpc[1]


def test_without_grpcio_the_port_is_not_asked(serve, monkeypatch):
    http, rpc = serve()
    monkeypatch.delitem(sys.modules, "tokentrail._send.grpc")
    monkeypatch.setitem(sys.modules, "grpc", None)
    of_http, of_grpc = examined(http, rpc)
    assert (of_http[0], of_grpc[0], of_grpc[2]) == ("ok", "warn", "pip install 'tokentrail[grpc]'")
    assert "the address of a collector's" not in examined(rpc)[0][1]


def test_a_dead_letter_for_another_port_is_kept(serve, started, tmp_path):
    file = tmp_path / "x.bin"
    file.write_bytes(b"")
    letter = DeadLetter(name="x", signal="traces", at="", bytes=0, reason="", damaged=False, file=file)
    http, rpc = serve()
    url = started(HttpServer(api, "api", "127.0.0.1", 0))
    for address, name in ((rpc, "OTLP/gRPC"), (url, "API")):
        assert (
            f"{address} is the address of a collector's {name}; its OTLP/HTTP is on"
            in dict(replay([letter], address, {}))[letter.name]
        )
    assert "write the address without a path" in dict(replay([letter], f"{http}/v1/traces", {}))[letter.name]
    add_key(tmp_path / "keys.json", "ingest")
    locked, _ = serve(access=access_to(tmp_path / "keys.json"))
    assert "give a key with --header 'Authorization=Bearer KEY'" in dict(replay([letter], locked, {}))[letter.name]
    assert file.exists()
    assert dict(replay([letter], http, {}))[letter.name] == ""


@pytest.mark.parametrize(("status", "wanted"), [(401, "set TOKENTRAIL_API_KEY to a key"), (403, "use a key with")])
@pytest.mark.parametrize("words", [("requests",), ("tail",), ("spans",), ("request", "abc"), ("backup", "b.tar")])
def test_a_refusal_for_the_key_names_the_variable(started, words, status, wanted, tmp_path, monkeypatch):
    async def refuse(scope, receive, send):
        await JSONResponse({"detail": "not you"}, status)(scope, receive, send)

    monkeypatch.chdir(tmp_path)
    url = started(HttpServer(refuse, "api", "127.0.0.1", 0))
    refused = CliRunner().invoke(app, [*words, "--api", url])
    told = "not you: " + ("set TOKENTRAIL_API_KEY to a key with the role admin" if words[0] == "backup" else wanted)
    assert (refused.exit_code, told in " ".join(refused.stderr.split())) == (1, True)


SECRET = "http://user:secret@127.0.0.1"


def test_no_command_prints_the_password_of_an_address(serve, started, tmp_path):
    """Output of doctor is pasted into issues."""
    http, rpc = (url.rpartition(":")[2] for url in serve())
    (_, of_http, _), (_, of_grpc, _) = examined(f"{SECRET}:{http}", f"{SECRET}:{rpc}")
    assert (of_http, of_grpc) == (f"http://…@127.0.0.1:{http}", f"http://…@127.0.0.1:{rpc}")
    other = started(HttpServer(website, "website", "127.0.0.1", 0)).rpartition(":")[2]
    no_url = "http://user:secret#x@127.0.0.1:9"
    for to in (f"{SECRET}:9", f"{SECRET}:{http}", f"{SECRET}:{rpc}", f"{SECRET}:{other}", no_url):
        for command in (
            ["doctor", "--api", to, "--otlp-http", to, "--otlp-grpc", to],
            ["requests", "--api", to],
            ["backup", str(tmp_path / "file"), "--api", to],
        ):
            result = CliRunner().invoke(app, command)
            assert result.exit_code == (2 if (command[0], to) == ("requests", no_url) else 1)
            assert "127.0.0.1" in result.output
            assert "secret" not in result.output
        file = tmp_path / "letter"
        file.write_bytes(b"\x0a\xff")  # no OTLP message
        letter = DeadLetter(name="x", signal="traces", at="", bytes=2, reason="", damaged=False, file=file)
        ((_, kept),) = replay([letter], to, {})
        assert "127.0.0.1" in kept
        assert "secret" not in kept


@pytest.mark.parametrize(
    ("status", "date", "expected"),
    [
        ("ready", "Sun, 22 Nov 2020 10:00:00 GMT", [("API", "ok"), ("clocks", "warn")]),
        ("degraded", "Sun, 22 Nov 2020 10:00:00 GMT", [("API", "warn"), ("clocks", "warn")]),
        ("not ready", "", [("API", "fail")]),
    ],
)
def test_doctor_compares_clocks_and_readiness(status, date, expected):
    class Fake:
        def ready(self):
            told = {"status": status} | ({} if status == "ready" else {"reason": "3.0 MB wait for the store"})
            return httpx.Response(
                503 if status == "not ready" else 200, json=told, headers={"date": date} if date else {}
            )

    findings = list(doctor._api(Fake(), "url"))
    assert [(found.name, found.state) for found in findings] == expected
    assert ("3.0 MB wait for the store" in findings[0].detail) == (status != "ready")


@pytest.mark.parametrize(
    ("version", "state", "told"),
    [
        (__version__, "ok", f"are {told()}"),
        ("9.9.9", "warn", "the collector 9.9.9"),
        (None, "warn", "does not tell"),
    ],
)
def test_doctor_compares_versions(version, state, told):
    class Fake:
        def version(self):
            return version

    (found,) = doctor._version(Fake())
    assert (found.state, told in found.detail, bool(found.fix)) == (state, True, state == "warn")


@pytest.mark.parametrize(
    ("ahead_s", "behind_s", "told"),
    [
        (None, None, []),
        (2.0, None, []),
        (90.0, None, ["vllm chat: its requests end 1 min 30 s in the collector's future"]),
        (None, 600.0, ["vllm chat: its requests arrive 10 min after their end, or later"]),
    ],
)
def test_doctor_warns_of_a_clock_that_differs(ahead_s, behind_s, told):
    seen = {"last_seen": "2026-11-21T10:00:00Z", "requests": 3, "tells": []}
    engine = {"engine": "vllm", "service": "chat", "clock_ahead_s": ahead_s, "clock_behind_s": behind_s} | seen

    class Fake:
        def get(self, path, **_):
            return {"engines": [engine]} if path == "engines" else {"processes": [], "discovery_problems": []}

    found = [one for one in doctor._engines(Fake()) if one.name == "clock"]
    assert [(one.state, one.detail, "NTP" in one.fix) for one in found] == [("warn", detail, True) for detail in told]


def test_doctor_warns_of_each_scrape_that_fails_or_tells_nothing():
    class Fake:
        def get(self, _path, **_):
            of = [("chat", True, ""), ("sent", None, ""), ("lost", False, "connect"), ("told", False, "")]
            of.append(("site", True, "no_metrics"))
            keys = ("service", "up", "reason")
            processes = [{"instance": "i", **dict(zip(keys, one, strict=True))} for one in of]
            problems = [{"source": "/etc/targets.yml", "problem": "entry.0.labels.zone: must be one value"}]
            return {"processes": processes, "discovery_problems": problems}

    found = [(finding.state, finding.detail) for finding in doctor._scrapes(Fake())]
    assert found == [
        ("warn", "/etc/targets.yml: entry.0.labels.zone: must be one value"),
        ("warn", "lost i: the last one failed (connect)"),
        ("warn", "told i: the last one failed (down)"),
        ("warn", "site i answers, and tells no metric that tokentrail knows"),
    ]


@pytest.mark.parametrize(("failures", "told"), [(0, []), (1200, ["failed 1\u202f200 times since the collector"])])
def test_doctor_tells_that_requests_cannot_be_explained(failures, told):
    found = [*doctor._explaining(Mock(**{"get.return_value": {"explain_failures": failures}}))]
    assert [(one.state, text in one.detail, "log" in one.fix) for one, text in zip(found, told, strict=True)] == [
        ("warn", True, True) for _ in told
    ]


@pytest.mark.parametrize("slos", [[], [{"name": "chat", "window_s": 60, "requests": {"total": 3, "undetermined": 0}}]])
@pytest.mark.parametrize("problem", [None, "slos.yaml: slos[0].windw: unknown field\x1b[2J"])
def test_doctor_tells_a_typo_in_a_running_slo_file(slos, problem):
    answers = {"slos": {"slos": slos, "file_problem": problem}, "goodput": {"requests": {"total": 3}}}
    found = [*doctor._slos(Mock(get=lambda path, **_: answers[path]))]
    told = [(one.name, one.state, one.detail) for one in found if one.name == "SLO file"]
    detail = r"the newest one is not in use: slos.yaml: slos[0].windw: unknown field\x1b[2J"
    assert told == ([("SLO file", "warn", detail)] if problem else [])
    assert found[-1].name == ("SLO" if slos else "SLOs"), "what it looks at besides"


@pytest.mark.parametrize(("status", "fix"), [(401, "TOKENTRAIL_API_KEY"), (403, "all tenants"), (500, "log")])
def test_doctor_says_which_key_is_missing(status, fix):
    def refused(_api):
        yield from ()
        answer = httpx.Response(status, json={"detail": "not you"}, request=httpx.Request("GET", "http://c"))
        raise httpx.HTTPStatusError("", request=answer.request, response=answer)

    (found,) = doctor._asked(refused, Api("http://c"))
    assert (found.state, found.detail, fix in found.fix) == ("warn", "not you", True)


def storage(**changed):
    disk = {"host": "", "path": "/ch", "free_bytes": 5e9, "total_bytes": 1e10}
    answer = {"disks": [disk], "dead_letters": {"files": 0}, "log": {"bytes": 0}} | changed
    answer = {"data_dir_free_bytes": 1e9, "data_dir_total_bytes": 2e9} | answer
    return [(f.name, f.state, f.detail) for f in doctor._storage(Mock(**{"get.return_value": answer}))]


def test_disks_of_the_store_and_of_the_log_are_told_and_what_cannot_be_read_is_a_finding():
    log = ("log", "ok", "0.0 MB wait to be stored")
    store = ("disk", "ok", "5.0 of 10.0 GB are free at /ch")
    assert storage() == [store, ("disk", "ok", "1.0 of 2.0 GB are free at the collector's log"), log]
    full = ("disk", "warn", "0.1 of 2.0 GB are free at the collector's log")
    assert full in storage(data_dir_free_bytes=1e8)
    assert storage(data_dir_total_bytes=None) == [store, log]
    unread = ("dead letters", "warn", "the collector cannot read their folder")
    assert unread in storage(dead_letters=None)
    node = {"host": "ch-2", "path": "/ch", "free_bytes": 5e8, "total_bytes": 1e10}
    assert ("disk", "warn", "0.5 of 10.0 GB are free at ch-2 /ch") in storage(disks=[node])


def test_spans_of_no_known_engine_are_counted_and_the_three_most_frequent_named():
    names = [("chat", "step", 4), ("", "loop", 3), ("chat", "send", 2), ("chat", "rare", 1)]
    answer = {"names": [dict(zip(("service", "name", "spans"), one, strict=True)) for one in names]}
    (found,) = doctor._unclaimed(Mock(**{"get.return_value": answer}))
    assert found.detail == (
        "10 spans of the last day are of no known engine (most: chat step, loop, chat send): see tokentrail spans"
    )
