"""Processes of `benchmarks.collector_ingest`: a collector, rotel with a ClickHouse that forgets, and busy cores."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import psutil
import rotel

LONGEST_WAIT_S: Final = 120.0
"""For anything that does not come: a shape's rows, an answer, the end of a process."""
_BUSY: Final = [sys.executable, "-c", "while True: pass"]


@contextmanager
def collecting(data: Path, store: str = "chdb://") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a collector; yield its process and the URL that takes traces."""
    address = "127.0.0.1:0"
    command = [sys.executable, "-m", "collector", "--data-dir", str(data), "--store", store, "--otlp-http", address]
    with _running([*command, "--otlp-grpc", address, "--api", address], subprocess.PIPE) as process:
        assert process.stdout
        lines = dict(process.stdout.readline().decode().split(" listening on ") for _ in range(3))
        yield process, lines["otlp-http"].strip() + "/v1/traces"


def wait_until_stored(data: Path) -> None:
    """Wait until the log of a collector is empty."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    while list((data / "wal").glob("*.wal")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the collector has not stored its log after {LONGEST_WAIT_S:.0f} s")
        time.sleep(0.05)


class _Forget(BaseHTTPRequestHandler):
    """Reads the inserts that a ClickHouse exporter posts, and answers as ClickHouse does."""

    protocol_version = "HTTP/1.1"
    received = 0

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                _Forget.received += len(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            _Forget.received += len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def running_rotel() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run rotel with its ClickHouse exporter; yield its process and the URL that takes traces."""
    _Forget.received = 0
    sink = ThreadingHTTPServer(("127.0.0.1", 0), _Forget)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    ports = [_free_port(), _free_port()]
    command = [
        str(Path(rotel.__file__).parent / "rotel-agent"), "start",
        "--otlp-http-endpoint", f"127.0.0.1:{ports[0]}", "--otlp-grpc-endpoint", f"127.0.0.1:{ports[1]}",
        "--exporter", "clickhouse", "--clickhouse-exporter-endpoint", f"http://127.0.0.1:{sink.server_port}",
    ]  # fmt: skip
    with _running(command, subprocess.DEVNULL) as process:
        _wait_for(ports[0])
        yield process, f"http://127.0.0.1:{ports[0]}/v1/traces"
    sink.shutdown()


def wait_until_exported(least_bytes: int) -> int:
    """Wait until rotel has posted so many bytes and posts no more; return how many it has posted."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    seen = -1
    while seen < least_bytes or _Forget.received != seen:
        if time.monotonic() > deadline:
            raise RuntimeError(f"rotel exported {seen} bytes, not {least_bytes}, in {LONGEST_WAIT_S:.0f} s")
        seen = _Forget.received
        time.sleep(1.0)
    return seen


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with another process."""
    others = [subprocess.Popen(_BUSY) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextmanager
def _running(command: list[str], stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(LONGEST_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


def peak_mb(pid: int) -> float:
    """Most resident memory of a process so far, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))
