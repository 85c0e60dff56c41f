"""Records the engine under load with faults at known times: `python -m benchmarks.gpu_trace FOLDER [--quick]`.

FOLDER gets `traces.bin.gz`, `metrics.bin.gz` and `logs.bin.gz` (the bodies of the export requests, one behind the
other, which together are one request), `client.jsonl.gz` (one line a request: unix ns when it was sent, when each piece
came and when it ended) and `truth.json` (each fault with its begin and end).

The faults: a prompt of 6,000 tokens among chats, the process stopped for 400 ms, and 60 long answers at once, which
need more KV blocks than there are. `--without` leaves a fault out of the same load: the truth of a what-if.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.gpu_model import WORDS, write
from benchmarks.report import Quick
from benchmarks.sink import Sink

START_TIMEOUT_S = 120
STOP_NS = 400_000_000


class Load(NamedTuple):
    """A model's shape, chats a second, seconds of chats, tokens of the long prompt, long answers, KV blocks."""

    shape: str
    rate: float
    seconds: float
    long_prompt: int
    burst: int
    kv_blocks: int


FULL, QUICK = Load("1b", 12.0, 40.0, 6000, 60, 600), Load("tiny", 4.0, 6.0, 600, 20, 120)


def main(
    folder: Path,
    quick: Quick = False,
    device: Annotated[str, typer.Option(help="The engine's --device.")] = "auto",
    without: Annotated[list[str] | None, typer.Option(help="A fault to leave out: long_prompt, stop or burst.")] = None,
) -> None:
    """Serve a random model, play the load, and keep the exports of the engine."""
    load = QUICK if quick else FULL
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as model, Sink() as sink:
        write(Path(model), load.shape)
        with engine(Path(model), sink.url, load, device, folder) as (process, port):
            calls, faults = play(process, port, load, without or ())
        sink.keep(folder)
    (folder / "truth.json").write_text(json.dumps({"load": load._asdict(), "faults": faults}, indent=1) + "\n")
    lines = "".join(json.dumps(call) + "\n" for call in calls)
    (folder / "client.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    failed = [call for call in calls if call["error"]]
    print(f"{len(calls)} requests, {sum(len(call['chunks']) for call in calls)} pieces, {len(failed)} failed")
    print(*(f"failed: {call['error']}" for call in failed[:5]), sep="\n")


def play(
    process: subprocess.Popen[bytes], port: int, load: Load, without: Collection[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The requests as their clients saw them, and the faults with unix ns."""
    rng = random.Random(7)
    calls: list[dict[str, Any]] = []
    faults: list[dict[str, Any]] = []
    threads: list[threading.Thread] = []

    def send(kind: str, prompt: int, output: int) -> None:
        text = " ".join(f"w{rng.randrange(2, WORDS)}" for _ in range(prompt))
        if kind in without:  # the load's numbers are drawn all the same
            return
        call = {"kind": kind, "input": prompt, "output": output, "chunks": [], "error": ""}
        calls.append(call)
        threads.append(threading.Thread(target=ask, args=(port, text, call)))
        threads[-1].start()

    def chats(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.expovariate(load.rate))
            send("chat", rng.randint(30, 300), rng.randint(30, 150))

    def fault(name: str, **numbers: object) -> None:
        if name not in without:
            faults.append({"name": name, "at_unix_ns": time.time_ns(), **numbers})

    chats(load.seconds / 2)
    fault("long_prompt", tokens=load.long_prompt)
    send("long_prompt", load.long_prompt, 20)
    chats(load.seconds / 4)
    fault("stop", ns=STOP_NS)
    if "stop" not in without:
        process.send_signal(signal.SIGSTOP)
    time.sleep(STOP_NS / 1e9)
    process.send_signal(signal.SIGCONT)
    chats(load.seconds / 4)
    fault("burst", requests=load.burst)
    for _ in range(load.burst):
        send("burst", rng.randint(100, 300), rng.randint(200, 400))
    for thread in threads:
        thread.join(timeout=120)
    return calls, faults


def ask(port: int, text: str, call: dict[str, Any]) -> None:
    """Stream one answer. `chunks` gets ns after `send_unix_ns`."""
    body = {"model": "random", "prompt": text, "max_tokens": call["output"], "ignore_eos": True, "stream": True}
    call["send_unix_ns"] = begun = time.time_ns()
    try:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"{answer.status} {answer.read(200)!r}")
        for line in answer:
            if line.startswith(b"data: {"):
                call["response_id"] = call.get("response_id") or json.loads(line[6:])["id"]
                call["chunks"].append(time.time_ns() - begun)
    except OSError as error:
        call["error"] = repr(error)
    call["end_ns"] = time.time_ns() - begun


@contextmanager
def engine(
    model: Path, sink: str, load: Load, device: str, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The engine, ready, and its port. Its log goes to engine.log."""
    command = [sys.executable, "-m", "instrumented_engine", "--model", str(model), "--served-model-name", "random"]
    command += ["--port", "0", "--device", device, "--kv-blocks", str(load.kv_blocks), "--max-seqs", "64"]
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": sink, "TOKENTRAIL_STRICT": "true"}
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        if not line.startswith("listening on"):
            sys.exit(f"the engine did not start:\n{(folder / 'engine.log').read_text()[-2000:]}")
        port = int(line.rsplit(":", 1)[1])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the engine was not ready:\n{(folder / 'engine.log').read_text()[-2000:]}")
            time.sleep(0.5)
        (folder / "version.json").write_bytes(get(port, "/version")[1])
        yield process, port
        (folder / "metrics.prom").write_bytes(get(port, "/metrics")[1])
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()


def ready(port: int) -> bool:
    """Whether the model is loaded."""
    try:
        return get(port, "/health")[0] == 200
    except OSError:
        return False


def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


if __name__ == "__main__":
    typer.run(main)
