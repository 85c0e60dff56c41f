"""Memory, threads and open files of a collector and an engine that work for minutes, under a load that never repeats.

Five users chat with the engine: prompts and answers have random lengths, and some users leave before the end. The
engine's spans go to the collector. It also gets spans of GenAI clients with new tenants, models and names, and junk,
and answers questions about changing windows. A process that keeps what it has seen grows without end.

`growth_mib_per_hour` is the slope of the memory over the last half of the time. `start` is the memory after a tenth of
the time, when all has been in use once. An answer with another status than the one that is wanted fails the run, which
then names the statuses and their reasons.
"""

from __future__ import annotations

import gzip
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import httpx
import psutil
import typer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.ingest_shapes import genai_clients
from benchmarks.report import JsonPath, Quick, publish
from benchmarks.tradeoffs import WORDS, served
from tests.support.collector import Collector

FLAGS = ["--quantization", "int4", "--speculative-tokens", "3", "--kv-blocks", "60", "--swap-space", "0.05"]
"""Few blocks, so that requests are preempted."""
USERS = 5
SPANS = 60
"""Spans that arrive each second from clients; a tenth of them have names that nothing reads."""
QUESTIONS = (
    "summary", "goodput?ttft=1s", "requests", "slos", "incidents", "engines", "spans/names", "storage",
    "cold_starts", "timeseries?metric=ttft&step=60s",
)  # fmt: skip
WITHOUT_WINDOW = ("storage",)
WITHOUT_TENANT = (*WITHOUT_WINDOW, "spans/names")
Work = Callable[[httpx.Client, random.Random, Counter[str]], None]


def main(
    quick: Quick = False,
    json: JsonPath = None,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="How long both work.")] = 20,
) -> None:
    """Put both under load, and print their memory, threads and files."""
    seconds = 30.0 if quick else minutes * 60
    with (
        tempfile.TemporaryDirectory() as folder,
        Collector(Path(folder) / "data", "--segment-age-s", "1", command=True) as collector,  # type: ignore[no-untyped-call]
        served(collector, Path(folder), "soak", FLAGS) as (url, engine),
    ):
        processes = {"collector": psutil.Process(collector.process.pid), "engine": psutil.Process(engine.pid)}
        works = {
            **{f"engine user {user}": chats(url.removesuffix("/completions")) for user in range(USERS)},
            "collector spans": spans(f"{collector.urls['otlp-http']}/v1/traces"),
            "collector questions": questions(f"{collector.urls['api']}/api/v1"),
        }
        samples, answers = under_load(processes, works, seconds)
    if wrong := [f"{count} times {key}" for key, count in answers.items() if "_wrong_" in key]:
        sys.exit("\n".join(wrong))
    numbers: dict[str, Any] = {"seconds": seconds}
    for name, found in samples.items():
        numbers |= {f"{name}_{key}": value for key, value in summarised(found).items()}
    numbers |= dict(sorted(answers.items()))
    publish("soak", numbers, packages=("torch", "chdb-core"), quick=quick, path=json)


def under_load(
    processes: dict[str, psutil.Process], works: dict[str, Work], seconds: float
) -> tuple[dict[str, list[tuple[float, float, int, int]]], Counter[str]]:
    """Samples of each process (seconds, MiB, threads, open files), and the counts of answers by who asked."""
    stop, answers = threading.Event(), Counter[str]()

    def repeat(name: str, work: Work) -> None:
        chance = random.Random(name)  # a load, no secret
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not stop.is_set():
                answered: Counter[str] = Counter()
                try:
                    work(client, chance, answered)
                except httpx.TimeoutException:
                    answered["given up"] += 1
                answers.update({f"{name.split()[0]}_answers_{key}": count for key, count in answered.items()})

    threads = [threading.Thread(target=repeat, args=work, daemon=True) for work in works.items()]
    samples: dict[str, list[tuple[float, float, int, int]]] = {name: [] for name in processes}
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    while (elapsed := time.monotonic() - begun) < seconds:
        for name, process in processes.items():
            mib = process.memory_info().rss / 2**20
            samples[name].append((elapsed, mib, process.num_threads(), process.num_fds()))
        time.sleep(seconds / 120)
    stop.set()
    for thread in threads:
        thread.join(90)
    return samples, answers


def summarised(samples: list[tuple[float, float, int, int]]) -> dict[str, float]:
    """The numbers of a process: at a tenth of the time and at the end."""
    times, memory, threads, files = zip(*samples, strict=True)
    half = len(times) // 2
    return {
        "memory_mib_start": memory[len(memory) // 10],
        "memory_mib_end": memory[-1],
        "memory_mib_peak": max(memory),
        "growth_mib_per_hour": statistics.linear_regression(times[half:], memory[half:]).slope * 3600,
        "threads_start": threads[len(threads) // 10],
        "threads_end": threads[-1],
        "files_start": files[len(files) // 10],
        "files_end": files[-1],
    }


def chats(url: str) -> Work:
    """One chat; of those that are streamed, a third of the users leave after a few events."""

    def chat(client: httpx.Client, chance: random.Random, found: Counter[str]) -> None:
        body: dict[str, Any] = {
            "model": "smollm2-135m-instruct",
            "messages": [{"role": "user", "content": " ".join(chance.choices(WORDS, k=chance.choice([5, 40, 150])))}],
            "max_tokens": chance.randint(1, 40),
            "temperature": chance.choice([0, 1]),
            "stream": chance.random() < 0.6,
            "user": f"user-{chance.randrange(10**6)}",
        }
        left = chance.random() < 1 / 3
        with client.stream("POST", f"{url}/chat/completions", json=body) as answer:
            found[kind_of(answer)] += 1
            for count, _ in enumerate(answer.iter_lines()):
                if body["stream"] and left and count > 5:
                    break

    return chat


def spans(url: str) -> Work:
    """A second's spans of clients that were not seen before, and a body that is none."""
    bodies = genai_clients(SPANS)

    def send(client: httpx.Client, chance: random.Random, found: Counter[str]) -> None:
        for body in bodies:
            request = ExportTraceServiceRequest.FromString(body)
            now_ns = time.time_ns()
            for resource in request.resource_spans:
                instance = resource.resource.attributes.add(key="service.instance.id")
                instance.value.string_value = f"instance-{chance.randrange(10**9)}"
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    span.trace_id, span.span_id = chance.randbytes(16), chance.randbytes(8)
                    duration = span.end_time_unix_nano - span.start_time_unix_nano
                    span.start_time_unix_nano, span.end_time_unix_nano = now_ns - duration, now_ns
                    span.attributes.add(key="tokentrail.tenant").value.string_value = f"t-{chance.randrange(10**6)}"
                    for attribute in span.attributes:
                        if attribute.key == "gen_ai.request.model":
                            attribute.value.string_value = f"model-{chance.randrange(10**5)}"
                    if chance.random() < 0.1:
                        span.name = f"unknown {chance.randrange(10**6)}"
                        del span.attributes[:]
            headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
            body = gzip.compress(request.SerializeToString())
            found[kind_of(client.post(url, content=body, headers=headers))] += 1
        junk = client.post(url, content=chance.randbytes(300), headers={"content-type": "application/x-protobuf"})
        found[f"{kind_of(junk, wanted=400)}_to_junk"] += 1
        time.sleep(1)

    return send


def questions(url: str) -> Work:
    """One question about a window that was not asked for before."""

    def ask(client: httpx.Client, chance: random.Random, found: Counter[str]) -> None:
        found[kind_of(client.get(f"{url}/{question(chance)}"))] += 1
        time.sleep(0.4)

    return ask


def question(chance: random.Random) -> str:
    """A path of the API with a window and, in three of ten that take one, a tenant that has never sent anything."""
    path, _, query = chance.choice(QUESTIONS).partition("?")
    parameters = query.split("&") if query else []
    if path not in WITHOUT_WINDOW:
        parameters.append(f"start=-{chance.randrange(60, 10**5)}s")
    if path not in WITHOUT_TENANT and chance.random() < 0.3:
        parameters.append(f"tenant=t-{chance.randrange(10**6)}")
    return f"{path}?{'&'.join(parameters)}"


def kind_of(answer: httpx.Response, *, wanted: int = 200) -> str:
    """The status that was wanted; any other one with the path and the reason."""
    if answer.status_code == wanted:
        return str(wanted)
    return f"wrong_{answer.status_code} to {answer.url.path}: {answer.read().decode(errors='replace')[:300]}"


if __name__ == "__main__":
    typer.run(main)
