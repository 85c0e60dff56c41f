"""How late other threads wake beside the SDK with 10,000 open requests.

Requests arrive at 1,000 a second until 10,000 are open. The engine's loop emits a token to a batch of 64 requests every
20 ms and costs little, and each request gets 128 tokens before another one takes its place. A second thread, like an
event loop, sleeps 1 ms again and again, and notes how much later than that it wakes. Three cases do the same, in turns,
each in a process of its own: `without_sdk`, `with_sdk`, and `with_load`. The last has no SDK, but a thread that uses as
much CPU as the SDK's threads did, once a second and without the interpreter's lock: the excess of `with_sdk` over this
case is the SDK's fault, the rest is the price of a busy core. The CPU is that of all threads.

A busy machine makes wake-ups late too. `held_by_sdk_over_4_ms` counts those only during which the SDK's own threads ran
for more than 4 ms. `excess_over_…` is the share of late wake-ups with the SDK less that of another case; `…_error` is
half of its 95 % confidence interval, from the spread between seconds. `collections_over_4_ms` counts long runs of the
garbage collector, during which no other thread of Python runs.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from multiprocessing import get_context
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.report import JsonPath, Quick, publish
from tokentrail import Phase, RequestTrail, Settings, Trail, now_ns
from tokentrail._send.http import Endpoint
from tokentrail._send.transport import SendResult, SendStatus

OPEN: Final = 10_000
ARRIVALS_PER_S: Final = 1_000
BATCH: Final = 64
STEP_S: Final = 0.02
REQUEST_TOKENS: Final = 128
SLEEP_S: Final = 0.001
LATE_S: Final = 0.004


class Lateness(NamedTuple):
    """The wake-ups of one process: how late each was (s), how long the SDK's threads ran meanwhile (s), the CPU (s) of
    the process and of the SDK's threads, and how long each run of the garbage collector took (s).
    """

    late_s: npt.NDArray[np.float64]
    held_s: npt.NDArray[np.float64]
    cpu_s: float
    sdk_cpu_s: float
    collected_s: list[float]


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure both cases and compare them."""
    seconds, rounds = (12.0, 1) if quick else (30.0, 3)
    taken: dict[str, list[Lateness]] = {"without_sdk": [], "with_sdk": [], "with_load": []}
    for _ in range(rounds):
        taken["without_sdk"].append(_apart(_without, seconds))
        taken["with_sdk"].append(_apart(_with, seconds))
        load = taken["with_sdk"][-1].sdk_cpu_s / seconds
        taken["with_load"].append(_apart(_loaded, seconds, load))
    numbers: dict[str, float] = {}
    for name, results in taken.items():
        late = np.concatenate([result.late_s for result in results])
        held = np.concatenate([result.held_s for result in results])
        numbers |= {
            f"{name}_wakeups": len(late),
            f"{name}_share_over_4_ms": float(np.mean(late > LATE_S)),
            f"{name}_p99_ms": float(np.quantile(late, 0.99) * 1e3),
            f"{name}_p999_ms": float(np.quantile(late, 0.999) * 1e3),
            f"{name}_max_ms": float(late.max() * 1e3),
            f"{name}_held_by_sdk_over_4_ms": float(np.mean(held > LATE_S)),
            f"{name}_held_by_sdk_max_ms": float(held.max() * 1e3),
            f"{name}_cpu_share": sum(result.cpu_s for result in results) / (seconds * rounds),
            f"{name}_collections_over_4_ms": sum(took > LATE_S for result in results for took in result.collected_s),
            f"{name}_collection_max_ms": max(max(result.collected_s, default=0.0) for result in results) * 1e3,
        }
    with_sdk = _shares(taken["with_sdk"], seconds)
    for name in ("without_sdk", "with_load"):
        excess, error = difference(with_sdk, _shares(taken[name], seconds))
        numbers |= {f"excess_over_{name}": excess, f"excess_over_{name}_error": error}
    numbers |= {"open_requests": OPEN, "seconds": seconds, "rounds": rounds}
    publish("sdk_wakeups", numbers, packages=("tokentrail", "numpy"), quick=quick, path=json)


def _apart(case: Callable[..., Lateness], *arguments: float) -> Lateness:
    with get_context("spawn").Pool(1) as process:
        return process.apply(case, arguments)


def _shares(results: Sequence[Lateness], seconds: float) -> npt.NDArray[np.float64]:
    """The share of late wake-ups of each second."""
    return np.array([np.mean(part > LATE_S) for one in results for part in np.array_split(one.late_s, int(seconds))])


def difference(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The difference of two means, and half of its 95 % confidence interval."""
    error = 1.96 * np.sqrt(np.var(ours, ddof=1) / len(ours) + np.var(theirs, ddof=1) / len(theirs))
    return float(np.mean(ours) - np.mean(theirs)), float(error)


def _with(seconds: float) -> Lateness:
    settings = Settings(Endpoint("http://null.invalid", {}))
    trail = Trail(settings, service_name="benchmark", transport=lambda body: SendResult(SendStatus.DELIVERED))
    try:
        return _serve(trail, seconds)
    finally:
        if trail.stats.dropped or trail.stats.errors:
            raise RuntimeError(f"the SDK did not do its work: {trail.stats}")


def _without(seconds: float) -> Lateness:
    return _serve(None, seconds)


def _loaded(seconds: float, load: float) -> Lateness:
    """Without the SDK, beside a thread that uses `load` seconds of CPU a second without the interpreter's lock."""
    stopped = threading.Event()
    block = bytes(1 << 20)

    def burn() -> None:
        while not stopped.wait(1.0):
            done = time.thread_time() + load
            while time.thread_time() < done:
                sha256(block)

    burner = threading.Thread(target=burn)
    burner.start()
    try:
        return _serve(None, seconds)
    finally:
        stopped.set()
        burner.join()


class _Sequence:
    """A request as the engine's scheduler knows it."""

    def __init__(self, trail: Trail | None, number: int) -> None:
        self.tokens = 0
        self.request: RequestTrail | None = None
        if trail:
            self.request = trail.start_request(
                operation="chat", model="meta-llama/Llama-3.1-8B-Instruct", request_id=f"cmpl-{number:032x}",
                input_tokens=512, tenant="acme", slo_class="chat",
            )  # fmt: skip


def _serve(trail: Trail | None, seconds: float) -> Lateness:
    stopped = threading.Event()
    late: list[float] = []
    held: list[float] = []
    clocks = [
        time.pthread_getcpuclockid(thread.ident or 0)
        for thread in threading.enumerate()
        if thread.name.startswith("tokentrail")
    ]

    def watch() -> None:
        while not stopped.is_set():
            ran = sum(map(time.clock_gettime, clocks))
            before = time.perf_counter()
            time.sleep(SLEEP_S)
            late.append(time.perf_counter() - before - SLEEP_S)
            held.append(sum(map(time.clock_gettime, clocks)) - ran)

    collected: list[float] = []

    def collect(phase: str, _: object) -> None:
        collected.append(time.thread_time() if phase == "start" else time.thread_time() - collected.pop())

    watcher = threading.Thread(target=watch)
    cpu, sdk_cpu = time.process_time(), sum(map(time.clock_gettime, clocks))
    gc.callbacks.append(collect)
    watcher.start()
    _engine(trail, seconds)
    stopped.set()
    watcher.join()
    gc.callbacks.remove(collect)
    cpu, sdk_cpu = time.process_time() - cpu, sum(map(time.clock_gettime, clocks)) - sdk_cpu
    return Lateness(np.array(late), np.array(held), cpu, sdk_cpu, collected)


def _engine(trail: Trail | None, seconds: float) -> None:
    waiting: list[_Sequence] = []
    running: list[_Sequence] = []
    begun = time.perf_counter()
    for step in range(int(seconds / STEP_S)):
        arrived = len(waiting)
        fresh = min(int(ARRIVALS_PER_S * STEP_S), OPEN - arrived)
        waiting += [_Sequence(trail, arrived + number) for number in range(fresh)]
        while waiting and len(running) < BATCH:
            running.append(waiting.pop())
            if request := running[-1].request:
                request.phase(Phase.PREFILL)
        started = now_ns()
        time.sleep(max(begun + (step + 1) * STEP_S - time.perf_counter(), 0.0))
        ended = now_ns()
        if trail:
            emitted = [sequence.request for sequence in running if sequence.request]
            trail.step(step, started, ended, emitted, decode_tokens=len(running), running=len(running))
        for sequence in running:
            sequence.tokens += 1
        _leave(running, ended)


def _leave(running: list[_Sequence], ended: int) -> None:
    for sequence in [one for one in running if one.tokens == REQUEST_TOKENS]:
        running.remove(sequence)
        if sequence.request:
            sequence.request.end(ended, finish_reason="stop")


if __name__ == "__main__":
    typer.run(main)
