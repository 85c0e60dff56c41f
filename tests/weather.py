"""`python -m tests.weather NAME …`: weather that no test has, at a real collector; each once for a minute or two.

Each function of `KINDS` raises AssertionError where something is lost, wrong or away, and what it showed is printed as
JSON. SECURITY.md's table has that of some.
"""

import argparse
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from collector.store.store import Store
from tests.clocks import CLOCK
from tests.collector.app.test_process import stored_tokens
from tests.collector.test_power_cut import counted
from tests.hostile_traffic import SECOND, GoodTenant, together
from tests.support.collector import ROOT, Collector
from tests.support.otlp import MS, Request
from tests.weather_of_others import backlog, names, slow
from tokentrail import semconv

HOUR_S = 3600


def clock(folder):
    """The clock of the collector leaps forward and back by an hour: nothing is lost, counted twice or stuck."""
    library, offset = folder / "clock.so", folder / "offset"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, CLOCK, "-ldl"], check=True)
    offset.write_bytes(struct.pack("q", 0))
    os.environ |= {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
    try:
        collector = Collector(folder / "data", command=True).start()
    finally:
        del os.environ["LD_PRELOAD"], os.environ["CLOCK_OFFSET"]
    acknowledged = []
    for ahead_s in (0, HOUR_S, 0, -HOUR_S, 0):
        with offset.open("r+b") as file:
            file.write(struct.pack("q", ahead_s))
        for _ in range(20):
            trace = len(acknowledged) + 1
            request = Request().tokens(trace=trace, count=3, start=time.time_ns() - SECOND, ns=MS)
            asked = {"gen_ai.operation.name": "chat", semconv.REQUEST_MODEL: "m", semconv.OUTPUT_TOKENS: 3}
            request.span("chat m", trace=trace, start=time.time_ns() - SECOND, kind=2, ns=3 * MS, attributes=asked)
            assert collector.post(request.body()).status_code == 200
            acknowledged.append(trace)
        collector.wait_until_stored()
        collector.wait_until(lambda: counted(collector) == len(acknowledged))
        assert collector.get("/readyz").status_code == 200, collector.get("/readyz").text
        found = collector.get("/api/v1/requests?start=-3h&limit=1000").json()["total"]
        # A collector whose clock is behind answers about the time up to its own present.
        assert ahead_s < 0 or found == len(acknowledged), (ahead_s, found)
    assert collector.stop() == 0
    stored = stored_tokens(collector.data_dir)
    assert stored == {(trace, index): 1 for trace in acknowledged for index in range(3)}
    return {"requests": len(acknowledged)}


def labels(folder):
    """20,000 requests, each with 16 labels of names and values of its own: pages and lists stay bounded and quick."""
    collector = Collector(folder / "data").start()
    sent, n = 0, 20_000
    for first in range(0, n, 500):
        request = Request()
        for trace in range(first + 1, first + 501):
            own = {f"{semconv.LABEL_PREFIX}l{trace}.{i}": f"{'v' * 60}{trace}" for i in range(16)}
            asked = {"gen_ai.operation.name": "chat", semconv.REQUEST_MODEL: f"m{trace}", semconv.OUTPUT_TOKENS: 3}
            request.span("chat m", trace=trace, start=time.time_ns() - SECOND, kind=2, ns=MS, attributes=asked | own)
        assert collector.post(request.body()).status_code == 200
        sent += 500
    collector.wait_until_stored()
    took = {}
    for path in ("labels", "differences?select.status=ok", "summary", "requests?limit=100", "verdict", "heatmap"):
        began = time.monotonic()
        answer = collector.get(f"/api/v1/{path}")
        assert answer.status_code == 200, (path, answer.text)
        took[path] = (round(time.monotonic() - began, 1), len(answer.content))
    page = len(collector.get("/metrics").content)
    collector.wait_until(lambda: (collector.get("/api/v1/requests?limit=1").json()["total"]) == n)
    assert page < 5 * 2**20, page
    assert max(size for _, size in took.values()) < 4 * 2**20, took
    collector.stop()
    store = Store.open(f"chdb://{collector.data_dir / 'store'}")
    stored = store.query("SELECT count(), sum(length(labels)) FROM requests").result_rows[0]
    store.close()
    assert stored == (n, 16 * n), stored
    return {"requests": sent, "bytes of /metrics": page, "seconds and bytes": took}


def upkeep(folder):
    """Retention removes and backups are made while requests come and are explained: each backup can be restored."""
    collector = Collector(folder / "data", "--retention", "1d").start()
    good, old, enough = GoodTenant(), GoodTenant(), threading.Event()
    sent = {"new": 0, "old": 0}

    def send():
        while not enough.wait(0.2):
            for name, traffic, ago_s in (("new", good, 1), ("old", old, 3 * 86400)):
                traffic.first_trace = 1 if name == "new" else 10**12
                engine = traffic.engine("told", name)
                traffic.second(engine, time.time_ns() - ago_s * SECOND)
                signal_, bytes_ = together(engine)
                url = collector.urls["otlp-http"] + signal_.http_path
                answer = collector.http.post(
                    url, content=bytes_, headers={"content-type": "application/x-protobuf"}, timeout=300
                )
                assert answer.status_code == 200
                sent[name] += 2

    sender = threading.Thread(target=send)
    sender.start()
    restored = []
    try:
        for n in range(3):
            time.sleep(15)
            archive = folder / f"backup{n}.tar"
            command = [sys.executable, "-m", "tokentrail.cli"]
            url = ["--api", collector.urls["api"]]
            for arguments in (["backup", str(archive), *url], ["restore", str(archive), str(folder / f"restored{n}")]):
                done = subprocess.run(
                    [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
                )
                assert done.returncode == 0, (arguments, done.stdout + done.stderr)
            store = Store.open(f"chdb://{folder / f'restored{n}' / 'store'}")
            rows = store.query("SELECT count(), uniqExact(trace_id) FROM requests WHERE service = 'new'").result_rows[0]
            restored.append(rows[0])
            assert rows[0] == rows[1], rows
            store.close()
    finally:
        enough.set()
        sender.join()
    collector.wait_until_stored()
    explained = 'tokentrail_collector_requests_explained_total{level="steps"}'
    collector.wait_until(lambda: explained in collector.get("/metrics").text)
    lines = collector.get("/metrics").text.splitlines()
    failures = [line for line in lines if re.match(r"tokentrail_collector_explain_failures_total ", line)]
    assert collector.stop() == 0
    assert restored == sorted(restored)
    assert [float(line.split()[1]) for line in failures] == [0.0], failures
    store = Store.open(f"chdb://{collector.data_dir / 'store'}")
    kept = store.query("SELECT count() FROM requests WHERE service = 'new'").result_rows[0][0]
    store.close()
    assert kept == sent["new"]
    return {"sent": sent, "in backups": restored}


def ports(folder):
    """`tokentrail demo --day` while all of its usual ports are in use: it takes others, and says which."""
    with ExitStack() as stack:
        for port in (4317, 4318, 8080, 8501, 8000, 9090):
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("127.0.0.1", port))
                taken.listen()
            except OSError:
                continue  # somebody else has it, which is the same
        command = [sys.executable, "-m", "tokentrail.cli", "demo", "--day", "--home", str(folder / "home")]
        named = subprocess.run(
            [*command, "--port-api", "8080"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        assert named.returncode != 0
        assert "port 8080 (API) is in use" in named.stdout + named.stderr, named.stdout + named.stderr
        done = subprocess.run(
            [*command, "--seconds", "40"], cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "http://127.0.0.1:" in said
        assert not any(f"127.0.0.1:{port}/" in said for port in (8080, 8501)), said
    return {"exit status with a named port": named.returncode}


KINDS = {one.__name__: one for one in (clock, labels, upkeep, ports, slow, backlog, names)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=[*KINDS], help=", ".join(KINDS))
    parser.add_argument("--backlog-mb", type=float, default=3000)
    given, failed = parser.parse_args(), False
    of_backlog = {"backlog": partial(backlog, megabytes=given.backlog_mb)}
    for name in given.kinds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(name, json.dumps((KINDS | of_backlog)[name](Path(folder))), flush=True)
            except AssertionError as error:
                failed = True
                print(name, "FAILED:", str(error)[-3000:], flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
