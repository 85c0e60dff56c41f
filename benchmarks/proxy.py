"""The time that `tokentrail proxy` adds to TTFT and to a chunk, beside LiteLLM's proxy and plain nginx.

An upstream process plays a chat model: it sends the first chunk at once and 30 a second from then on, with the time of
sending (unix ns) in each chunk's text. A client process starts streams at random moments (an open load) so that 100
run at a time, straight to the upstream and through each proxy in turn; all share the cores of this machine. A chunk's
time is the client's clock at its arrival minus the time in its text. Added is a quantile of a proxy minus the same
quantile without one, in the same round. The proxies take turns, in the reverse order in every second round. The median
of the rounds is published, and beside a p99 its lowest and highest round. CPU is that of the proxy's processes.

`in_step`: all streams get their chunks at the same moment, as from one engine's batch. `light`: ten streams, since
LiteLLM does not keep up with a hundred on few cores; `chunks_share` says how many of the chunks came in time.
`aiohttp` is the floor of the proxy: the same HTTP stack, which hands bytes on and records nothing.

LiteLLM comes from an environment of its own (`python -m venv litellm && litellm/bin/pip install 'litellm[proxy]'`, then
`python -m benchmarks.proxy --litellm litellm/bin/litellm`). A peer that is not there is left out. A run takes six
minutes, and one of them is LiteLLM's.
"""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from multiprocessing import TimeoutError as ClientTimeout
from multiprocessing import get_context
from typing import Annotated, Any, Final, NamedTuple, cast

import numpy as np
import typer
import uvloop

from benchmarks import proxy_peers as peers
from benchmarks.proxy_peers import BODY, CHUNKS, CHUNKS_PER_S, Target
from benchmarks.report import JsonPath, Quick, publish

STAMP: Final = re.compile(rb"t=(\d{19})")
QUANTILES: Final = (50, 90, 99)
CLIENT_MORE_S: Final = 60.0
"""A client process takes so much longer than its load lasts at most (s)."""
LITELLM_STREAMS: Final = 10
"""With more of them it falls behind, and then its figures say how long the benchmark lasted."""


class Load(NamedTuple):
    """The streams at a time, their seconds, and the rounds. `in_step`: their chunks come at the same moments."""

    name: str
    streams: int
    seconds: float
    rounds: int
    in_step: bool = False


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
    loads = [Load("", 100, 2.0, 7), Load("light_", 10, 3.0, 1), Load("in_step_", 100, 3.0, 1, in_step=True)]
    if quick:
        loads = [Load("", 100, 3.0, 1)]
    starts: dict[str, Callable[[int], AbstractContextManager[Target | None]]] = {
        "tokentrail": peers.tokentrail,
        "aiohttp": peers.aiohttp_alone,
        "nginx": peers.nginx,
        "litellm": partial(peers.litellm, litellm),
    }
    with ExitStack() as stack:
        ports = [stack.enter_context(peers.engine(in_step)) for in_step in (False, True)]
        targets = {"direct": [Target(port) for port in ports]}
        for name, start in starts.items():
            try:
                started = [stack.enter_context(start(port)) for port in (ports[:1] if name == "litellm" else ports)]
            except OSError as error:  # it did not listen in time
                print(f"{name} did not start and is left out: {error}")
                continue
            targets[name] = [target for target in started if target]
            if not targets[name]:
                print(f"{name} is not there and is left out; the docstring of this command says how to get it")
        numbers = _measure({name: found for name, found in targets.items() if found}, loads)
    numbers |= {"streams": 100, "chunks_per_s": CHUNKS_PER_S, "nginx": peers.nginx_version()}
    numbers["litellm"] = peers.litellm_version(litellm)
    packages = ("tokentrail", "aiohttp", "uvloop", "opentelemetry-sdk")
    publish("proxy", numbers, packages=packages, quick=quick, path=json)


def _measure(targets: dict[str, list[Target]], loads: list[Load]) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    direct, *proxies = targets
    for number, load in enumerate(one for one in loads for _ in range(one.rounds)):
        plain: dict[str, float] = {}
        for name in (direct, *proxies[:: -1 if number % 2 else 1]):
            ports = targets[name]
            if (name == "litellm" and load.streams > LITELLM_STREAMS) or (load.in_step and len(ports) < 2):
                continue
            target = ports[load.in_step]
            cpu = target.cpu_s()
            with get_context("spawn").Pool(1) as pool:
                try:
                    got = pool.apply_async(_client, (target.port, load)).get(load.seconds + CLIENT_MORE_S)
                except ClientTimeout:
                    print(f"the client of {name} did not end and is left out")
                    continue
            cpu = target.cpu_s() - cpu
            taken.setdefault(f"{load.name}{name}_chunks_share", []).append(len(got.chunk) / got.due)
            if not len(got.chunk):
                continue  # so slow that nothing came in time
            values = {f"chunk_p{q}_us": float(np.percentile(got.chunk, q)) for q in QUANTILES}
            values |= {f"ttft_p{q}_us": float(np.percentile(got.ttft, q)) for q in QUANTILES}
            if target.process is None:
                plain = values
            else:
                values = {f"added_{key}": value - plain[key] for key, value in values.items()}
                values["cpu_us_per_chunk"] = cpu * 1e6 / len(got.chunk)
            for key, value in values.items():
                taken.setdefault(f"{load.name}{name}_{key}", []).append(value)
    numbers: dict[str, Any] = {}
    for key, drawn in taken.items():
        numbers[key] = statistics.median(drawn)
        if "_added_" in key and "_p99_" in key and len(drawn) > 1:
            numbers |= {f"{key}_lowest": min(drawn), f"{key}_highest": max(drawn)}
    for peer, load_name in (("aiohttp", ""), ("nginx", ""), ("litellm", "light_")):
        for key in ("cpu_us_per_chunk", *(f"added_{what}_p{q}_us" for what in ("chunk", "ttft") for q in (50, 99))):
            ours, theirs = (numbers.get(f"{load_name}{name}_{key}") for name in ("tokentrail", peer))
            if ours is not None and theirs:
                numbers[f"ratio_to_{peer}_{key}"] = ours / theirs
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


if __name__ == "__main__":
    typer.run(main)
