"""How late another thread of the server wakes, with 10,000 open requests, with the SDK and without it.

A server with one engine thread: 1,000 requests arrive each second until 10,000 are open; 64 of them are in the batch, a
step takes 20 ms and costs little, and each request gets 128 tokens before another one takes its place. A second thread,
like an event loop, sleeps 1 ms again and again, and notes how much later than that it wakes. Both cases do the same,
except that one has no SDK. They take turns, each in a process of its own. The CPU is that of all threads.

A busy machine makes wake-ups late too. `held_by_sdk_over_4_ms` counts those only during which the SDK's own threads ran
for more than 4 ms.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.report import JsonPath, Quick, publish
from tokentrail import Phase, RequestTrail, Settings, Trail, now_ns
from tokentrail.http import Endpoint
from tokentrail.transport import SendResult, SendStatus

OPEN: Final = 10_000
ARRIVALS_PER_S: Final = 1_000
BATCH: Final = 64
STEP_S: Final = 0.02
REQUEST_TOKENS: Final = 128
SLEEP_S: Final = 0.001
LATE_S: Final = 0.004


class Lateness(NamedTuple):
    """The wake-ups of one process: how late each was (s), how long the SDK's threads ran meanwhile (s), and the CPU (s)
    of the process.
    """

    late_s: npt.NDArray[np.float64]
    held_s: npt.NDArray[np.float64]
    cpu_s: float


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure both cases and compare them."""
    seconds, rounds = (12.0, 1) if quick else (30.0, 3)
    cases: dict[str, Callable[[float], Lateness]] = {"without_sdk": _without, "with_sdk": _with}
    taken: dict[str, list[Lateness]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            with get_context("spawn").Pool(1) as process:
                taken[name].append(process.apply(case, (seconds,)))
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
        }
    numbers |= {"open_requests": OPEN, "seconds": seconds, "rounds": rounds}
    publish("sdk_wakeups", numbers, packages=("tokentrail", "numpy"), quick=quick, path=json)


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

    watcher = threading.Thread(target=watch)
    cpu = time.process_time()
    watcher.start()
    _engine(trail, seconds)
    stopped.set()
    watcher.join()
    return Lateness(np.array(late), np.array(held), time.process_time() - cpu)


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
