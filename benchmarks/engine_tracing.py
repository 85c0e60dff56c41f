"""Compares the engine's decode steps with and without tracing.

One engine decodes with int4 weights, whose steps are the shortest. Its steps are recorded in turns: one is, the next is
not. After a second's recorded steps, as by default, their spans are built and handed to a transport that discards them,
on the engine's own thread, and that time counts as theirs. `share_percent` is what tracing adds to the time of so many
steps: the median of all rounds, with its 95 % interval. A value below 0 is noise. `sdk_percent` has little noise, and
leaves out effects on caches: the CPU time inside the SDK's calls, as a share of the time of the other steps.

The option for a GPU measures the engine of `benchmarks.engine_gpu`: the shape of Llama 3.1 8B, and CUDA graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.engine_decode import engine_steps, interval, load_kind, timed
from benchmarks.report import JsonPath, Quick, publish
from instrumented_engine.startup import set_waiting
from tokentrail import Trail, semconv
from tokentrail._send.http import Endpoint
from tokentrail._send.transport import SendResult, SendStatus
from tokentrail.config import Settings

STEPS = {1: 100, 8: 45}
GPU_STEPS = {1: 140, 64: 60}
"""Recorded steps between two builds, by batch: about as many as the engine makes in a second."""
ROUNDS = 20


class SwitchedTrail(Trail):
    """A trail that records steps only while it is `on`. It builds and sends in `flush` alone."""

    def __init__(self) -> None:
        super().__init__(
            Settings(Endpoint("http://null.invalid", {}), strict=True),
            TracerProvider(resource=Resource({semconv.SERVICE_NAME: "benchmark"}), shutdown_on_exit=False),
            transport=lambda _: SendResult(SendStatus.DELIVERED),
            background=False,
        )
        self.on = True
        self.spent_s = 0.0

    def step(self, *arguments: Any, **numbers: Any) -> None:
        """Record the step, or leave it out."""
        if self.on:
            begun = time.thread_time()
            super().step(*arguments, **numbers)
            self.spent_s += time.thread_time() - begun

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Build and send all spans."""
        begun = time.thread_time()
        done = super().flush(timeout_s)
        self.spent_s += time.thread_time() - begun
        return done


def main(
    quick: Quick = False,
    gpu: Annotated[bool, typer.Option(help="Measure on CUDA; results go to engine_tracing_gpu.json.")] = False,
    json: JsonPath = None,
) -> None:
    """Measure, print and write."""
    set_waiting()
    trail = SwitchedTrail()
    if gpu:
        from benchmarks.engine_gpu import engine_on_gpu

        engine, facts = engine_on_gpu(trail)
    else:
        loaded = load_kind("int4", trail)
        engine, facts = loaded.engine, loaded.facts
    numbers: dict[str, Any] = dict(facts)
    for batch, steps in (GPU_STEPS if gpu else STEPS).items():
        rounds = []
        for _ in range(3 if quick else ROUNDS + 1):
            step = engine_steps(engine, batch, 32, trail)
            rounds.append(one_round(trail, step, steps))
        rounds = rounds[1:]
        numbers |= interval(f"batch_{batch}_traced_ms", [traced / steps * 1e3 for traced, _, _ in rounds])
        numbers |= interval(f"batch_{batch}_untraced_ms", [untraced / steps * 1e3 for _, untraced, _ in rounds])
        numbers |= interval(f"batch_{batch}_share_percent", [100 * (one / other - 1) for one, other, _ in rounds])
        numbers |= interval(f"batch_{batch}_sdk_percent", [100 * sdk / untraced for _, untraced, sdk in rounds])
    stats = trail.stats
    if stats.dropped or not stats.exported:
        raise RuntimeError(f"not all spans were exported: {stats}")
    numbers["spans"] = stats.exported
    publish("engine_tracing_gpu" if gpu else "engine_tracing", numbers, packages=("torch",), quick=quick, path=json)


def one_round(trail: SwitchedTrail, step: Callable[[], object], steps: int) -> tuple[float, float, float]:
    """Seconds of some recorded steps and their spans, of as many others, and CPU seconds inside the SDK's calls.

    Of two pairs of steps, one begins with a recorded step and the other ends with it. The prefill is not counted.
    """
    trail.on = False
    step()
    trail.flush()
    before, seconds = trail.spent_s, {True: 0.0, False: 0.0}
    for pair in range(steps):
        for on in (pair % 2 == 0, pair % 2 == 1):
            trail.on = on
            seconds[on] += timed(step)
    traced = seconds[True] + timed(trail.flush)
    return traced, seconds[False], trail.spent_s - before


if __name__ == "__main__":
    typer.run(main)
