"""The time that `tokentrail proxy` adds to TTFT and to a chunk, beside LiteLLM's proxy and plain nginx.

An upstream process plays a chat model: it sends the first chunk at once and 30 a second from then on, with the time of
sending (unix ns) in each chunk's text. A client process starts streams at random moments (an open load) so that 100
run at a time, straight to the upstream and through each proxy in turn; all share the cores of this machine. A chunk's
time is the client's clock at its arrival minus the time in its text. Added is a quantile of a proxy minus the same
quantile without one, in the same round; the median of the rounds is published. CPU is that of the proxy's processes.

`in_step`: all streams get their chunks at the same moment, as from one engine's batch. `light`: ten streams, since
LiteLLM may not keep up with a hundred on few cores; `chunks_share` says how many of the chunks came in time.

nginx comes from the system (`apt-get install nginx-light`), LiteLLM from an environment of its own
(`python -m venv litellm && litellm/bin/pip install 'litellm[proxy]'`, then
`python -m benchmarks.proxy --litellm litellm/bin/litellm`).
A peer that is not there is skipped.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, cast

import numpy as np
import psutil
import typer
import uvloop

from benchmarks.report import JsonPath, Quick, publish

CHUNKS_PER_S: Final = 30.0
CHUNKS: Final = 60
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT: Final = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"t=%d "},"logprobs":null,"finish_reason":%b}]}\n\n'
)
BODY: Final = (
    b'{"model":"m","stream":true,"max_tokens":90,"messages":[{"role":"user","content":"' + b"word " * 200 + b'"}]}'
)
NGINX: Final = """
worker_processes 1; daemon off; pid %(folder)s/pid; error_log stderr crit;
events { worker_connections 4096; }
http {
    access_log off;
    upstream engine { server 127.0.0.1:%(upstream)d; keepalive 256; }
    server {
        listen 127.0.0.1:%(port)d;
        location / {
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }
    }
}
"""
LITELLM: Final = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # it listens on 127.0.0.1, for a minute
}
STAMP: Final = re.compile(rb"t=(\d{19})")
QUANTILES: Final = (50, 90, 99)


class Load(NamedTuple):
    """So many streams at a time, for so long (s), so many times. `in_step`: their chunks come at the same moments."""

    name: str
    streams: int
    seconds: float
    rounds: int
    in_step: bool = False


class Target(NamedTuple):
    """A port to send requests to, and the proxy behind it; None is the upstream itself."""

    port: int
    process: psutil.Process | None = None

    def cpu_s(self) -> float:
        """CPU seconds of the proxy and its children."""
        if self.process is None:
            return 0.0
        times = [one.cpu_times() for one in (self.process, *self.process.children(recursive=True))]
        return float(sum(one.user + one.system for one in times))


class Measured(NamedTuple):
    """Times in µs, one for each stream and each chunk that arrived, and the number of chunks that were due."""

    ttft: Any
    chunk: Any
    due: int


def main(
    quick: Quick = False,
    json: JsonPath = None,
    litellm: Annotated[str, typer.Option(help="LiteLLM's command.")] = "litellm",
) -> None:
    """Measure all proxies under the same loads."""
    loads = [Load("", 100, 6.0, 3), Load("light_", 10, 4.0, 1), Load("in_step_", 100, 4.0, 1, in_step=True)]
    if quick:
        loads = [Load("", 100, 3.0, 1)]
    with ExitStack() as stack:
        upstream, in_step = stack.enter_context(_upstream(False)), stack.enter_context(_upstream(True))
        targets: dict[str, list[Target]] = {"direct": [Target(upstream), Target(in_step)]}
        peers: dict[str, Callable[[int], AbstractContextManager[Target | None]]]
        peers = {"tokentrail": _tokentrail, "nginx": _nginx, "litellm": partial(_litellm, litellm)}
        for name, start in peers.items():
            started = [stack.enter_context(start(port)) for port in (upstream, in_step)[: 1 + (name != "litellm")]]
            if started[0] is None:
                print(f"{name} is not there and is skipped; the docstring of this command says how to get it")
            else:
                targets[name] = [target for target in started if target]
        numbers = _measure(targets, loads)
    numbers |= {"streams": 100, "chunks_per_s": CHUNKS_PER_S, "nginx": _nginx_version()}
    numbers["litellm"] = _litellm_version(litellm)
    packages = ("tokentrail", "aiohttp", "uvloop", "opentelemetry-sdk")
    publish("proxy", numbers, packages=packages, quick=quick, path=json)


def _measure(targets: dict[str, list[Target]], loads: list[Load]) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    for load in [one for one in loads for _ in range(one.rounds)]:
        plain: dict[str, float] = {}
        for name, ports in targets.items():
            if load.in_step and len(ports) < 2:
                continue
            target = ports[load.in_step]
            cpu = target.cpu_s()
            with get_context("spawn").Pool(1) as pool:
                got = pool.apply(_client, (target.port, load))
            cpu = target.cpu_s() - cpu
            values = {f"chunk_p{q}_us": float(np.percentile(got.chunk, q)) for q in QUANTILES}
            values |= {f"ttft_p{q}_us": float(np.percentile(got.ttft, q)) for q in QUANTILES}
            if target.process is None:
                plain = values
            else:
                values = {f"added_{key}": value - plain[key] for key, value in values.items()}
                values["cpu_us_per_chunk"] = cpu * 1e6 / len(got.chunk)
            values["chunks_share"] = len(got.chunk) / got.due
            for key, value in values.items():
                taken.setdefault(f"{load.name}{name}_{key}", []).append(value)
    numbers: dict[str, Any] = {key: statistics.median(values) for key, values in taken.items()}
    for peer in ("nginx", "litellm"):
        for key in ("cpu_us_per_chunk", "added_chunk_p50_us", "added_ttft_p50_us"):
            if f"{peer}_{key}" in numbers:
                numbers[f"ratio_to_{peer}_{key}"] = numbers[f"tokentrail_{key}"] / numbers[f"{peer}_{key}"]
    return numbers


def _client(port: int, load: Load) -> Measured:
    """Starts a stream every so often, at random, and reads all of them."""
    ttft: list[float] = []
    chunk: list[float] = []
    started = 0

    class Stream(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)
            self.sent_ns, self.waits = time.time_ns(), True
            self.transport.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Authorization: Bearer sk-x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
            )

        def data_received(self, data: bytes) -> None:
            now = time.time_ns()
            for stamp in STAMP.findall(data):
                if self.waits:
                    ttft.append((now - self.sent_ns) / 1e3)
                    self.waits = False
                chunk.append((now - int(stamp)) / 1e3)
            if data.endswith(b"0\r\n\r\n"):
                self.transport.close()

    async def run() -> None:
        nonlocal started
        loop = asyncio.get_running_loop()
        length_s = CHUNKS / CHUNKS_PER_S
        rate = load.streams / length_s
        at, end = loop.time(), loop.time() + load.seconds + length_s
        while (at := at + random.expovariate(rate)) < end:
            await asyncio.sleep(at - loop.time())
            await loop.create_connection(Stream, "127.0.0.1", port)
            started += 1
        await asyncio.sleep(length_s + 0.5)

    uvloop.run(run())
    return Measured(np.array(ttft), np.array(chunk), started * CHUNKS)


def _play(port: int, in_step: bool) -> None:
    """The upstream. It takes spans too, and forgets them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                if b"/chat/completions" not in head.split(b"\r\n")[0]:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    continue
                writer.write(HEAD)
                at = loop.time()
                for number in range(CHUNKS):
                    event = EVENT % (time.time_ns(), b'"stop"' if number == CHUNKS - 1 else b"null")
                    writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                    at = (int(at * CHUNKS_PER_S) + 1) / CHUNKS_PER_S if in_step else at + 1 / CHUNKS_PER_S
                    await asyncio.sleep(at - loop.time() if at > loop.time() else 0)
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    uvloop.run(run())


@contextmanager
def _upstream(in_step: bool) -> Iterator[int]:
    port = _free_port()
    process = get_context("spawn").Process(target=_play, args=(port, in_step), daemon=True)
    process.start()
    try:
        _wait(f"http://127.0.0.1:{port}/v1/models")
        yield port
    finally:
        process.terminate()
        process.join()


@contextmanager
def _tokentrail(upstream: int) -> Iterator[Target | None]:
    port, admin = _free_port(), _free_port()
    command = [sys.executable, "-m", "tokentrail.cli", "proxy", "--upstream", f"http://127.0.0.1:{upstream}"]
    command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--drain-timeout", "1"]
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{upstream}"}
    with _running(command, environment) as process:
        _wait(f"http://127.0.0.1:{admin}/readyz")
        yield Target(port, process)


@contextmanager
def _nginx(upstream: int) -> Iterator[Target | None]:
    if shutil.which("nginx") is None:
        yield None
        return
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(NGINX % {"folder": folder, "upstream": upstream, "port": port})
        with _running(["nginx", "-c", str(config)], {}) as process:
            _wait(f"http://127.0.0.1:{port}/v1/models")
            yield Target(port, process)


@contextmanager
def _litellm(command: str, upstream: int) -> Iterator[Target | None]:
    if shutil.which(command) is None:
        yield None
        return
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(
            "model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n      api_key: x\n"
            f"      api_base: http://127.0.0.1:{upstream}/v1\n"
        )
        arguments = [command, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        with _running(arguments, LITELLM) as process:
            _wait(f"http://127.0.0.1:{port}/health/liveliness", timeout_s=90)
            yield Target(port, process)


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[psutil.Process]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, **environment}) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(url: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _nginx_version() -> str:
    if shutil.which("nginx") is None:
        return "absent"
    return (
        subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False).stderr.strip().rpartition("/")[2]
    )


def _litellm_version(command: str) -> str:
    found = shutil.which(command)
    if found is None:
        return "absent"
    asked = "import importlib.metadata as m; print(m.version('litellm'))"
    python = Path(found).parent / "python"
    return (
        subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    )


if __name__ == "__main__":
    typer.run(main)
