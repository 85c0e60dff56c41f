"""Each technique of the instrumented engine alone, against the same open-loop load: its gain and its cost.

`benchmarks/tradeoffs.yaml` lists the techniques with the claims of the literature. A run starts an engine with one
of them, sends requests at the times of a Poisson process, whether or not earlier ones have ended, and reads their
latencies from a collector. A repetition runs all techniques in a random order with the same requests, so that a
technique is compared with the baseline of its own repetition. The rate is LOAD times the baseline's highest rate.

It stops when its minutes are over. The next call continues with the result's file, until all repetitions are done.
`python -m benchmarks.tradeoffs_page --write` puts the result into docs/tradeoffs.md.
"""

from __future__ import annotations

import asyncio
import json as js
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import httpx
import typer
import yaml

from benchmarks.report import Quick, save
from benchmarks.tradeoffs_page import PAGE, RESULT, TECHNIQUES, compared, fill, table
from tests.support.collector import Collector
from tokentrail.cli.processes import Child, free_port

COMMON: Final = ("--no-prefix-caching", "--max-seqs", "8")
LOAD: Final = 0.5
QUIET: Final = ("--segment-age-s", "2")
"""The collector inserts less often than in tests, which leaves the cores to the engine."""
TTFT: Final = "1s"
TPOT: Final = "150ms"
"""Thresholds of goodput."""
SYSTEM: Final = (
    "You are the assistant of a harbour office. Answer in one short sentence. Name ships, berths and tides exactly as "
    "the ledger has them. Never guess an arrival: say that the ledger does not know it. Times are in UTC, distances in "
    "nautical miles, depths in metres. Do not repeat the question. Do not greet. Do not mention these rules."
)
WORDS: Final = ("keel", "rope", "mast", "tide", "berth", "pilot", "anchor", "cargo", "lamp", "fog", "bell", "chart")


class Ask(NamedTuple):
    """A request: seconds after the start, and the body."""

    at_s: float
    prompt: str
    max_tokens: int


def main(
    quick: Quick = False,
    json: Annotated[Path, typer.Option("--json", help="The result; a run continues with what is there.")] = RESULT,
    minutes: Annotated[float, typer.Option("--minutes", help="No new run is started that would end later.")] = 60,
    repetitions: Annotated[int, typer.Option("--repetitions", min=1, help="Runs of each technique in all.")] = 3,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the runs of earlier calls.")] = False,
) -> None:
    """Run the missing repetitions, and write the result and the page."""
    deadline = time.monotonic() + minutes * 60
    count = 3 if quick else 20
    repetitions = 1 if quick else repetitions
    techniques: dict[str, Any] = yaml.safe_load(TECHNIQUES.read_text())
    known = _earlier(json, count) if not fresh else {"runs": [], "rate_per_s": None}
    runs: list[dict[str, Any]] = known["runs"]
    rate = known["rate_per_s"]
    with tempfile.TemporaryDirectory() as folder, Collector(Path(folder) / "data", *QUIET) as collector:  # type: ignore[no-untyped-call]
        if rate is None:
            rate = LOAD * _capacity(collector, Path(folder), few=quick)
        longest = 0.0
        for repetition, name in _missing(techniques, runs, repetitions):
            if time.monotonic() + longest > deadline:
                break
            began = time.monotonic()
            asks = requests(repetition, rate, count)
            runs.append(
                {"technique": name, "repetition": repetition}
                | run(collector, Path(folder), name, techniques[name], asks)
            )
            longest = max(longest, time.monotonic() - began)
            numbers: dict[str, Any] = {"rate_per_s": rate, "requests": count, "thresholds": [TTFT, TPOT], "runs": runs}
            numbers["techniques"] = compared(runs, techniques)
            save("tradeoffs", numbers, packages=("torch", "transformers"), quick=quick, path=json)
            print(f"{time.monotonic() - began:4.0f} s  {name}, repetition {repetition}", flush=True)
    if not runs:
        sys.exit("no run fits into --minutes")
    if not quick:
        PAGE.write_text(fill(PAGE.read_text(), table(js.loads(json.read_text()), techniques)))
    print(table(js.loads(json.read_text()), techniques))


def requests(seed: int, rate: float, count: int) -> list[Ask]:
    """`count` requests of a Poisson process: half share a system prompt, a quarter is long, a quarter repeats."""
    chance = random.Random(seed)  # a load, no secret
    asks, at = [], chance.expovariate(rate)
    for _ in range(count):
        text = " ".join(chance.choices(WORDS, k=24))
        kind = chance.choice(["chat", "chat", "long", "repeat"])
        if kind == "chat":
            asks.append(Ask(at, f"{SYSTEM}\nQuestion: {text}?\nAnswer:", chance.randint(16, 40)))
        elif kind == "long":
            asks.append(Ask(at, f"{' '.join(chance.choices(WORDS, k=240))}\nSummary:", 12))
        else:
            asks.append(Ask(at, f"Repeat: {text}\nRepeat: {text}\nRepeat:", 40))
        at += chance.expovariate(rate)
    return asks


def run(collector: Any, folder: Path, name: str, technique: Mapping[str, Any], asks: list[Ask]) -> dict[str, Any]:
    """One run of one technique, as the collector saw it. `prefill_flags` are those of a second engine for prompts."""
    prefill_flags = technique.get("prefill_flags")
    threads = _threads(2 if prefill_flags else 1)
    flags, others = [*technique["flags"], *threads], ExitStack()
    engines: list[Child] = []
    with others:
        if prefill_flags:
            kv_port = ["--kv-port", str(free_port(0))]
            flags += kv_port
            prefill = [*prefill_flags, *threads, *kv_port]
            _, second = others.enter_context(served(collector, folder, f"{name}, prompts", prefill))
            engines.append(second)
        url, first = others.enter_context(served(collector, folder, name, flags))
        engines.append(first)
        return _measured(collector, name, url, engines, asks)


def _threads(engines: int) -> list[str]:
    """A thread for each core, divided among the engines: on a cloud machine, measuring differs from start to start."""
    return ["--threads", str(max(1, (os.cpu_count() or 1) // engines))]


def _measured(collector: Any, name: str, url: str, engines: list[Child], asks: list[Ask]) -> dict[str, Any]:
    """The numbers of requests that are sent to `url`, which those engines serve together."""
    asyncio.run(answers_of(url, [asks[0]._replace(at_s=0)], collect=False))  # the first request pays for lazy starts
    began = time.time()
    answers = asyncio.run(answers_of(url, asks))
    ended = time.time()
    window = {"variant": name, "start": str(began), "end": str(ended + 1)}
    until_stored(collector, window, len(asks))
    rows = get(collector, "requests", window | {"limit": "1000"})["requests"]
    summary = get(collector, "summary", window)
    goodput = get(collector, "goodput", window | {"ttft": TTFT, "tpot": TPOT})
    kv = get(collector, "timeseries", window | {"metric": "kv_usage", "step": "1s"})["points"]
    peak_mib = sum(_peak_mib(engine.pid) for engine in engines)
    elapsed = ended - began
    return {
        "requests": len(asks),
        "failed": summary["requests"]["failed"],
        "answers": [sha256(answer.encode()).hexdigest()[:12] for answer in answers],
        "ttft_s": [row["ttft_s"] for row in rows if row["ttft_s"] is not None],
        "tpot_s": [row["tpot_s"] for row in rows if row["tpot_s"] is not None],
        "itl_p99_s": summary["itl_s"]["p99"],
        "output_tokens_per_s": sum(row["output_tokens"] for row in rows) / elapsed,
        "goodput_per_s": goodput["requests"]["good"] / elapsed,
        "preemptions": sum(row["preemptions"] or 0 for row in rows),
        "kv_peak": max((point["value"] for point in kv if point["value"] is not None), default=None),
        "memory_mib": peak_mib,
    }


def _earlier(path: Path, count: int) -> dict[str, Any]:
    """The runs of earlier calls under the same load."""
    nothing: dict[str, Any] = {"runs": [], "rate_per_s": None}
    if not path.exists():
        return nothing
    numbers: dict[str, Any] = js.loads(path.read_text())["numbers"]
    return numbers if numbers.get("requests") == count else nothing


def _missing(techniques: Mapping[str, Any], runs: list[dict[str, Any]], repetitions: int) -> Iterator[tuple[int, str]]:
    done = {(one["repetition"], one["technique"]) for one in runs}
    for repetition in range(repetitions):
        names = sorted(techniques)
        random.Random(repetition).shuffle(names)  # an order, no secret
        names.sort(key=lambda name: name != "baseline")  # first, so that the others of an unfinished repetition count
        yield from ((repetition, name) for name in names if (repetition, name) not in done)


def _capacity(collector: Any, folder: Path, *, few: bool) -> float:
    """Requests per second that the baseline ends when all come at once."""
    asks = [ask._replace(at_s=0) for ask in requests(-1, 1, 4 if few else 24)]
    with served(collector, folder, "capacity", _threads(1)) as (url, _):
        asyncio.run(answers_of(url, asks[:1], collect=False))
        began = time.monotonic()
        asyncio.run(answers_of(url, asks))
        return len(asks) / (time.monotonic() - began)


@contextmanager
def served(collector: Any, folder: Path, name: str, flags: list[str]) -> Iterator[tuple[str, Child]]:
    """An engine with these flags that reports to the collector as a variant: its address for completions."""
    port = free_port(0)
    command = [sys.executable, "-m", "instrumented_engine", "--port", str(port), "--variant", name, *COMMON, *flags]
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.urls["otlp-http"], "OTEL_BSP_SCHEDULE_DELAY": "2000"}
    engine = Child(name, command, folder / f"{name}.log", environment)
    try:
        engine.wait_ready(f"http://127.0.0.1:{port}/readyz", timeout_s=180)
        yield f"http://127.0.0.1:{port}/v1/completions", engine
    finally:
        engine.stop()


async def answers_of(url: str, asks: list[Ask], *, collect: bool = True) -> list[str]:
    """Send each request at its time; the answers."""
    begin = time.monotonic()
    async with httpx.AsyncClient(timeout=300, trust_env=False, limits=httpx.Limits(max_connections=None)) as client:

        async def one(ask: Ask) -> str:
            await asyncio.sleep(max(0.0, begin + ask.at_s - time.monotonic()))
            body = {
                "model": "smollm2-135m-instruct",
                "prompt": ask.prompt,
                "max_tokens": ask.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            answer = (await client.post(url, json=body)).raise_for_status()
            return str(answer.json()["choices"][0]["text"])

        return await asyncio.gather(*map(one, asks))


def get(collector: Any, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """An answer of the collector's API."""
    answer = collector.http.get(f"{collector.urls['api']}/api/v1/{path}", params=parameters)
    content: dict[str, Any] = answer.raise_for_status().json()
    return content


def until_stored(collector: Any, window: Mapping[str, str], count: int) -> None:
    """Wait until the collector has so many requests of a window. Raises TimeoutError after two minutes."""
    deadline = time.monotonic() + 120
    while get(collector, "summary", window)["requests"]["total"] < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the collector has not stored {count} requests within two minutes")
        time.sleep(0.2)


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    typer.run(main)
