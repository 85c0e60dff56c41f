"""CPU of the process for one POST of a payload over a kept connection, beside OpenTelemetry's exporter and the floor.

A server process on this machine reads each body and answers 200. In turns a payload is sent by the SDK's transport, by
OpenTelemetry's HTTP exporter (the part of it that sends bytes), by a plain `requests` session, and by `http.client`,
which is the floor: it builds the request's lines and nothing else. `small`: a body of 2 kB, as of a quiet server.
`large`: a body of 1 MB, as of a full one. A number is the median of the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Final

import requests
import typer
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from benchmarks.report import JsonPath, Quick, publish
from tokentrail._send.http import Endpoint, OtlpHttp
from tokentrail._send.transport import SendStatus

BODIES: Final = {"small": 2_000, "large": 1_000_000}
HEADERS: Final = {"content-type": "application/x-protobuf"}
START_S: Final = 60.0


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure all senders in turns, with both bodies."""
    posts, rounds = (50, 3) if quick else (400, 7)
    numbers: dict[str, float] = {}
    with _server() as port:
        senders = _senders(port)
        for name, size in BODIES.items():
            body = b"x" * size
            taken: dict[str, list[float]] = {sender: [] for sender in senders}
            for _ in range(rounds):
                for sender, send in senders.items():
                    taken[sender].append(_cpu_us(send, body, posts))
            numbers |= {f"{name}_{sender}_cpu_us": statistics.median(times) for sender, times in taken.items()}
            ours = numbers[f"{name}_tokentrail_cpu_us"]
            for peer in ("opentelemetry", "http_client"):
                numbers[f"{name}_ratio_to_{peer}"] = ours / numbers[f"{name}_{peer}_cpu_us"]
    numbers |= {"posts": posts, "rounds": rounds}
    packages = ("tokentrail", "requests", "opentelemetry-exporter-otlp-proto-http")
    publish("sdk_post", numbers, packages=packages, quick=quick, path=json)


def _cpu_us(send: Callable[[bytes], bool], body: bytes, posts: int) -> float:
    """The CPU of this process for one POST (µs). Raises RuntimeError for one that does not arrive."""
    if not send(body):  # connects
        raise RuntimeError("the server did not take a body")
    before = time.process_time_ns()
    arrived = sum(send(body) for _ in range(posts))
    took = time.process_time_ns() - before
    if arrived != posts:
        raise RuntimeError(f"{posts - arrived} of {posts} bodies were not delivered")
    return took / posts / 1e3


def _senders(port: int) -> dict[str, Callable[[bytes], bool]]:
    url = f"http://127.0.0.1:{port}/v1/traces"
    transport = OtlpHttp(Endpoint.to(url))
    exporter = OTLPSpanExporter(endpoint=url)
    session = requests.Session()
    plain = HTTPConnection("127.0.0.1", port)

    def http_client(body: bytes) -> bool:
        plain.request("POST", "/v1/traces", body, HEADERS)
        answer = plain.getresponse()
        answer.read()
        return answer.status == 200

    return {
        "tokentrail": lambda body: transport(body).status is SendStatus.DELIVERED,
        "opentelemetry": lambda body: exporter._client.export(body).success,
        "requests": lambda body: session.post(url, body, headers=HEADERS).ok,
        "http_client": http_client,
    }


class _Takes(BaseHTTPRequestHandler):
    """Reads a body and answers 200, on a connection that is kept."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """No line for each request."""


def _serve(tell: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Takes)
    tell.send(server.server_port)
    server.serve_forever()


@contextmanager
def _server() -> Iterator[int]:
    """A server in a process of its own; its port."""
    context = get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(tell,), daemon=True)
    process.start()
    try:
        if not told.poll(START_S):
            raise TimeoutError(f"the server did not start in {START_S:.0f} s")
        yield told.recv()
    finally:
        process.terminate()
        process.join()


if __name__ == "__main__":
    typer.run(main)
