"""The processes of the proxy's benchmark: an upstream that plays a chat model, and the proxies before it.

nginx comes from the system (`apt-get install nginx-light`), LiteLLM from an environment of its own. A proxy that is not
there is None, and one that does not start raises `OSError`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import psutil
import uvloop
from aiohttp import web

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
LITELLM_START_S: Final = 90.0
LITELLM: Final = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # it listens on 127.0.0.1, for a minute
}


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


def play(port: int, in_step: bool) -> None:
    """An upstream on this port. It takes spans too, and forgets them."""

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
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):
            pass  # the client has gone; uvloop's word for that is RuntimeError
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    uvloop.run(run())


@contextmanager
def engine(in_step: bool) -> Iterator[int]:
    """An upstream, and its port."""
    port = _free_port()
    with _spawned(play, port, in_step):
        _wait(f"http://127.0.0.1:{port}/v1/models")
        yield port


@contextmanager
def tokentrail(upstream: int) -> Iterator[Target | None]:
    """`tokentrail proxy` with its usual settings. The upstream takes its spans."""
    port, admin = _free_port(), _free_port()
    command = [sys.executable, "-m", "tokentrail.cli", "proxy", "--upstream", f"http://127.0.0.1:{upstream}"]
    command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--drain-timeout", "1"]
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{upstream}"}
    with _running(command, environment) as process:
        _wait(f"http://127.0.0.1:{admin}/readyz")
        yield Target(port, process)


def pass_on(port: int, upstream: int) -> None:
    """The floor: aiohttp on both sides in uvloop, as the proxy has it, that only hands bytes on."""
    logging.disable()  # at the end of a round its clients leave

    async def run() -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            url, body = f"http://127.0.0.1:{upstream}{request.path_qs}", await request.read()
            async with session.request(request.method, url, data=body, headers=request.headers) as answer:
                response = web.StreamResponse(status=answer.status, headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                while chunk := await answer.content.readany():
                    await response.write(chunk)
                await response.write_eof()
                return response

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
            await asyncio.Event().wait()

    uvloop.run(run())


@contextmanager
def aiohttp_alone(upstream: int) -> Iterator[Target | None]:
    """A bare pass-through on the proxy's HTTP stack, without a recording."""
    port = _free_port()
    with _spawned(pass_on, port, upstream) as process:
        _wait(f"http://127.0.0.1:{port}/v1/models")
        yield Target(port, psutil.Process(process))


@contextmanager
def nginx(upstream: int) -> Iterator[Target | None]:
    """Nginx with one worker, without buffers."""
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
def litellm(command: str, upstream: int) -> Iterator[Target | None]:
    """LiteLLM's proxy with one worker."""
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
            _wait(f"http://127.0.0.1:{port}/health/liveliness", timeout_s=LITELLM_START_S)
            yield Target(port, process)


@contextmanager
def _spawned(work: Callable[..., None], *args: int) -> Iterator[int]:
    process = get_context("spawn").Process(target=work, args=args, daemon=True)
    process.start()
    try:
        yield process.pid or 0
    finally:
        process.kill()
        process.join()


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


def nginx_version() -> str:
    """The version of the installed nginx, or `absent`."""
    if shutil.which("nginx") is None:
        return "absent"
    return (
        subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False).stderr.strip().rpartition("/")[2]
    )


def litellm_version(command: str) -> str:
    """The version of LiteLLM in the command's environment, or `absent`."""
    program = shutil.which(command)
    if program is None:
        return "absent"
    asked = "import importlib.metadata as m; print(m.version('litellm'))"
    python = Path(program).parent / "python"
    return (
        subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    )
