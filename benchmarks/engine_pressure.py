"""Counts the tokens that preemption makes the engine compute again, when the KV cache is too small for its load.

No model runs: the scheduler works on lengths alone, so the counts are the same on every machine. Each scenario is run
without a watermark and with several: so many free blocks per running sequence must be left when another is admitted.
"""

from __future__ import annotations

import random
from typing import Any

import typer

from benchmarks.report import JsonPath, Quick, publish
from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.plan import Plan
from instrumented_engine.core.request import Request, SamplingParams
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.core.text import TextStream
from tokentrail.trail import DisabledTrail

BLOCKS, BLOCK_SIZE = 160, 16
WATERMARKS = (0, 1, 2, 4, 8)
SCENARIOS = {
    "chat": ((20, 200), (50, 300)),
    "long_answers": ((10, 60), (200, 600)),
    "long_prompts": ((200, 900), (20, 200)),
}
"""Shortest and longest prompt, shortest and longest answer."""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure and print; shares are of the tokens that an engine without preemption computes."""
    requests = 60 if quick else 400
    numbers: dict[str, Any] = {"requests": requests, "kv_tokens": BLOCKS * BLOCK_SIZE}
    for name, (prompt, answer) in SCENARIOS.items():
        lengths = random.Random(name)  # a load, not a secret
        load = [(lengths.randint(*prompt), lengths.randint(*answer)) for _ in range(requests)]
        for watermark in WATERMARKS:
            label = f"{name}_watermark_{watermark}"
            share, preemptions, steps = recomputed(load, watermark=watermark)
            numbers |= {
                f"{label}_recomputed_share": share,
                f"{label}_preemptions": preemptions,
                f"{label}_steps": steps,
            }
    publish("engine_pressure", numbers, packages=(), quick=quick, path=json)


def recomputed(load: list[tuple[int, int]], *, watermark: int) -> tuple[float, int, int]:
    """The share of tokens computed again, the preemptions and the steps of a load of (prompt, answer) lengths."""
    scheduler = Scheduler(
        BlockManager(BLOCKS, BLOCK_SIZE), max_seqs=32, max_batched_tokens=512, watermark_blocks=watermark
    )
    trail = DisabledTrail()
    for prompt, answer in load:
        scheduler.add(
            Request.of(
                [range(prompt)],
                SamplingParams(max_tokens=answer),
                trail=trail.start_request(operation="text_completion", model="m"),
                sink=lambda _: None,
                text=lambda _: TextStream(lambda _: ""),
            )
        )
    computed = preemptions = steps = 0
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        computed += plan.num_tokens
        preemptions += len(plan.preempted)
        steps += 1
        _play(scheduler, plan)
    needed = sum(prompt + answer - 1 for prompt, answer in load)
    return computed / needed - 1, preemptions, steps


def _play(scheduler: Scheduler, plan: Plan) -> None:
    """Compute a plan as a model would, and let answers of full length end."""
    for item in plan.batch:
        sequence, samples = item.sequence, item.samples
        sequence.num_computed_tokens += item.num_scheduled_tokens
        if samples:
            sequence.decoding = True
            sequence.token_ids.append(0)
            if sequence.num_output_tokens == sequence.params.max_tokens:
                scheduler.finish(sequence)


if __name__ == "__main__":
    typer.run(main)
