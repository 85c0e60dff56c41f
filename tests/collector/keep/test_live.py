"""Backups of a collector that runs: under load, and while it stops."""

import base64
import itertools
import os
import socket
import threading
import time
from contextlib import suppress
from datetime import datetime
from urllib.parse import urlencode, urlsplit

import httpx

from tests.collector.keep.archives import run_restore, tokentrail
from tests.support.api import NEEDED, windowed
from tests.support.collector import Collector
from tests.support.otlp import MS, Request
from tokentrail import semconv
from tokentrail.cli.backup import verify


def request_body(trace, end_ns):
    """A request of three tokens in 3 ms with a phase, ended at a time. Requests do not overlap."""
    attributes = {semconv.OPERATION_NAME: "chat", "gen_ai.request.model": "m", "gen_ai.usage.output_tokens": 3}
    attributes[f"{semconv.LABEL_PREFIX}region"] = "eu"
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


LEFT_OUT = {"explain", "processes/timeline", "verdict", "differences", "compare", "check", "incidents"}
"""Requests are explained later, a timeline is of an hour at most, and the rest tells of rows that others tell of."""


def answers(collector, end_ns):
    """The answers of endpoints about the requests that ended by a time, and the trail of one of them."""
    window = f"start=2026-01-01T00:00:00Z&end={end_ns // 10**9}.{end_ns % 10**9 + 1:09}"
    found = {}
    for path in windowed(collector.get("/openapi.json").json()):
        if path in LEFT_OUT:
            continue
        params = NEEDED.get(path, {}) | ({"step": "1d"} if path == "timeseries" else {})
        answer = collector.get(f"/api/v1/{path}?{window}&{urlencode(params)}")
        assert answer.status_code == 200, answer.text
        found[path] = answer.json()
    trail = collector.get(f"/api/v1/requests/{1:032x}")
    assert trail.status_code == 200
    return found | {"trail": trail.json() | {"explained": None}}


def is_complete(collector, end_ns):
    """Whether answers have all that ended by a time: else their rates are over a shorter one."""
    window = f"start=2026-01-01T00:00:00Z&end={end_ns // 10**9}.{end_ns % 10**9 + 1:09}"
    told = collector.get(f"/api/v1/summary?{window}").json()["window"]
    return told["complete_until"] == told["end"]


def stored_requests(collector):
    window = f"start=2026-01-01T00:00:00Z&end={time.time_ns() // 10**9 + 1}"
    return collector.get(f"/api/v1/summary?{window}").json()["requests"]["total"]


def test_a_backup_under_load_restored_gives_the_same_answers(tmp_path):
    (tmp_path / "slos.yaml").write_text("slos: [{name: all, objective: '0.9', window: 30d, thresholds: {e2e: 60s}}]")
    # An insert costs as much for one request as for ten.
    collector = Collector(tmp_path / "data", "--segment-age-s", "0.3", "--slos", str(tmp_path / "slos.yaml")).start()
    load = Load(collector)
    load.start()
    collector.wait_until(lambda: stored_requests(collector) > 10)
    made = tokentrail("backup", tmp_path / "b.tar", "--api", collector.urls["api"])
    during = len(load.acknowledged_ns)
    collector.wait_until(lambda: len(load.acknowledged_ns) > during + 5)
    load.enough.set()
    load.join(120)
    assert made.exit_code == 0, made.output
    assert not (tmp_path / "data" / "store" / "shadow" / "tokentrail").exists()
    manifest = verify(tmp_path / "b.tar")
    until = manifest["until"]
    assert until in made.output
    collector.wait_until_stored()
    before = load.before(until)
    assert 10 < len(before) < len(load.acknowledged_ns)
    end_ns = load.ended_ns[before[-1]]
    collector.wait_until(lambda: is_complete(collector, end_ns))
    expected = answers(collector, end_ns)
    assert collector.stop() == 0

    restored = run_restore(tmp_path / "b.tar", tmp_path / "again")
    assert restored.returncode == 0, restored.stderr
    assert f"requests: {sum(manifest['tables']['requests']['parts'].values())} rows" in restored.stdout
    assert (tmp_path / "again" / "settings" / "slos.yaml").read_text() == (tmp_path / "slos.yaml").read_text()
    second = Collector(tmp_path / "again", "--slos", str(tmp_path / "again" / "settings" / "slos.yaml")).start()
    assert answers(second, end_ns) == expected
    assert expected["summary"]["requests"]["total"] == len(before)
    assert expected["labels"]["labels"]["label.region"] == [{"value": "eu", "requests": len(before)}]
    assert len(expected) >= 8
    assert second.post(request_body(10**6, time.time_ns())).status_code == 200
    second.wait_until(lambda: second.get(f"/api/v1/requests/{10**6:032x}").status_code == 200)
    assert second.stop() == 0


def test_a_collector_that_stops_cuts_a_backup_that_its_client_reads_slowly(tmp_path):
    arguments = ["--drain-timeout-s", "60", "--body-timeout-s", "600"]  # a client that reads nothing is not given up
    collector = Collector(tmp_path / "data", *arguments).start()
    request = Request()
    for n in range(55):
        request.span("GET /", trace=n + 1, attributes={"large": base64.b85encode(os.urandom(200_000)).decode()})
    assert collector.post(request.body()).status_code == 200
    collector.wait_until_stored()
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
