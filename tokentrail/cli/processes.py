"""Child processes of `up` and `demo`: start, wait until ready, notice the end, stop."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from tokentrail.shared import private_files

HOST = "127.0.0.1"
PORTS = {"OTLP/HTTP": 4318, "OTLP/gRPC": 4317, "API": 8080, "engine": 8000, "dashboard": 8501, "Prometheus": 9090}
"""Port of each listener, unless the user names another one or another process has taken it."""

terminated = threading.Event()
"""Set by SIGTERM: nothing waits for the user any more."""


class ProcessFailed(RuntimeError):
    """A child process did not start, or died. The message holds the end of its log."""


class Child:
    """A process that writes its output to a log file.

    It has a session of its own, so Ctrl-C reaches the parent only, which then stops its children in order.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with private_files.create(log) as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id; still known after the process has ended."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise ProcessFailed when the process has ended."""
        code = self._process.poll()
        if code is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise ProcessFailed(f"{self.name} ended with exit code {code}; the end of {self.log}:\n{tail}")

    def wait_ready(self, url: str, *, timeout_s: float) -> None:
        """Wait until `url` answers 200. Raises ProcessFailed when the process ends or `timeout_s` has passed."""
        import httpx  # late: `tokentrail --help` needs no client

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            try:
                if httpx.get(url, timeout=2, trust_env=False).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise ProcessFailed(f"{self.name} did not answer at {url} within {timeout_s:.0f} s; its log: {self.log}")

    def stop(self, *, timeout_s: float = 60) -> bool:
        """SIGTERM, then SIGKILL after the timeout. True when SIGTERM was enough and the process reported no error."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        return self._process.returncode in (0, -signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: end it as a crash would."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM until the block ends, so that a second Ctrl-C leaves no child process behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port(preferred: int, given_out: Collection[int] = ()) -> int:
    """`preferred` when it is free, otherwise another port that is free now and is not in `given_out`.

    Raises ProcessFailed when there is none, or when this user may not listen on `preferred`.
    """
    for port in (preferred, *[0] * 9):
        if port in given_out:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except PermissionError as error:
                raise ProcessFailed(f"this user may not listen on port {port}: name one above 1023") from error
            except OSError:
                continue
            free = int(probe.getsockname()[1])
            if free not in given_out:  # the system may choose a port again that nobody listens on yet
                return free
    raise ProcessFailed("no free port on 127.0.0.1")
