"""Collector processes that need not import anything.

    this process → fork server: has imported the collector (1 s of CPU, once), and has no store and no threads
                 → fork: `collector.__main__.main` with a pid, signals and output of its own, after 0.05 s of CPU

A forked process becomes a child of this one, which waits for it and so counts its CPU seconds.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = (
    "collector.__main__", "collector.app.service", "clickhouse_connect.driver._backendclient", "grpc._server", "httpx",
    "uvicorn.lifespan.off", "uvicorn.loops.uvloop", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto",
)  # fmt: skip
"""What a collector imports at its start, but for chDB, which starts threads."""
MOST_BYTES = 2**20
PR_SET_CHILD_SUBREAPER = 36


class Forked:
    """What the tests use of `subprocess.Popen`: `main(arguments)` of a module in a process of its own."""

    def __init__(self, module, arguments, *, environment, cwd, stderr):
        reader, writer = os.pipe()
        request = {"module": module, "arguments": arguments, "environment": environment, "cwd": str(cwd)}
        server = _server()
        socket.send_fds(server, [json.dumps(request).encode()], [writer, stderr.fileno()])
        os.close(writer)
        self.stdout = os.fdopen(reader)
        self.returncode = None
        self.pid = int(server.recv(MOST_BYTES))

    def poll(self):
        """The exit status, or None while the process runs. It is negative when a signal ended it."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout_s=None):
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            ended = _may_be_read(descriptor, timeout_s)
            os.close(descriptor)
            if not ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _may_be_read(descriptor, timeout_s):
    """Wait for it. `select.select` takes no number above 1,023, and a worker has more files open in a long run."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll(None if timeout_s is None else 1000 * timeout_s)


def run(module, *arguments, timeout_s=300):
    """Call `main(arguments)` of a module in a process of its own. The result is that of `subprocess.run`."""
    with tempfile.TemporaryFile("w+") as stderr:
        process = Forked(module, [str(each) for each in arguments], environment={**os.environ}, cwd=ROOT, stderr=stderr)
        with process.stdout:
            stdout = process.stdout.read()
        status = process.wait(timeout_s)
        stderr.seek(0)
        return subprocess.CompletedProcess([module, *arguments], status, stdout, stderr.read())


@cache
def _server():
    """The socket to this process's fork server, which ends when this process does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(theirs.fileno())]
    subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
    theirs.close()
    return ours


def serve(control):
    """Fork a process for each request. The process between it and the server ends, so the tests' process adopts it."""
    from tests.support.api import openapi

    for module in PRELOADED:
        importlib.import_module(module)
    openapi()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 2)
        if not message:
            return
        reader, writer = os.pipe()
        between = os.fork()
        if not between:
            if child := os.fork():
                os.write(writer, str(child).encode())
                os._exit(0)
            control.close()
            os.close(reader)
            os.close(writer)
            _run(json.loads(message), *descriptors)
        for descriptor in (*descriptors, writer):
            os.close(descriptor)
        os.waitpid(between, 0)
        control.send(os.read(reader, 32))
        os.close(reader)


def _run(request, stdout, stderr):
    """The forked process's life."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _refresh_when_scraped()
    sys.exit(importlib.import_module(request["module"]).main(request["arguments"]))


def _refresh_when_scraped():
    """After a scrape, a collector refreshes its /metrics at once. A test need not wait for a pause of 1 to 15 s."""
    from collector.metrics.live import Live

    scraped, start, seen = Live.scraped, Live.start, threading.Event()

    def seen_by(live, counted):
        scraped(live, counted)
        seen.set()

    def start_without_pauses(live):
        stopped = live._stopping.wait

        def pause(timeout_s):
            end = time.monotonic() + timeout_s
            while time.monotonic() < end and not seen.is_set() and not stopped(0.02):
                pass
            seen.clear()

        live._stopping.wait = pause
        start(live)

    Live.scraped, Live.start = seen_by, start_without_pauses


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
