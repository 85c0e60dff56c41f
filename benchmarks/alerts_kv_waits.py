"""False tickets of TokentrailKvCacheWaits, simulated: an engine with enough KV blocks, of which chance takes some away.

Chats arrive at random at an engine of which only the number of KV blocks differs. The time that a request waits for
blocks is what its first token comes later than with blocks without end. The rule is that of
collector/slo/conditions.yaml, evaluated every 30 s. While waits are a small part of all time, each ticket is false.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.report import JsonPath, Quick, publish
from collector.causes.split.model import FEATURES
from collector.causes.split.simulate import Device, Scheduling, simulate
from collector.slo.conditions import load_conditions

STEP_NS = 30 * 10**9
DAY_S = 86_400
ENGINES = ((10.0, 400), (10.0, 425), (10.0, 450), (10.0, 500), (1.0, 90), (1.0, 110), (1.0, 140))
"""Requests a second, and KV blocks of 16 tokens: 88 hold the longest request."""
LAW = {"step": 8e6, "some_prompt": 1e6, "prompt_tokens": 5e4, "sequences": 2.5e5, "context": 400.0}
"""Of step times, in ns."""
Numbers = NDArray[np.float64]


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Simulate and print. A day of each engine takes 2 minutes of one core; --quick is two hours."""
    days = 1 / 12 if quick else 1.0
    random = np.random.default_rng(1)
    engines = [tickets(random, per_s, blocks, days) for per_s, blocks in ENGINES]
    publish("alerts_kv_waits", {"days": days, "engines": engines}, packages=("numpy",), quick=quick, path=json)


def tickets(random: np.random.Generator, per_s: float, blocks: int, days: float) -> dict[str, Any]:
    """The share of waits in the time until first tokens, and how often the rule begins to fire in 30 days."""
    count = int(random.poisson(per_s * DAY_S * days))
    arrival = np.sort(random.uniform(0, DAY_S * days, count)) * 1e9
    prompt, answer = (
        np.clip(random.lognormal(np.log(middle), spread, count), 1, most).astype(np.int64).astype(float)
        for middle, spread, most in ((120, 0.8, 1000), (60, 0.7, 400))
    )
    device = Device([LAW.get(name, 0.0) for name in FEATURES])
    with_blocks, without = (
        simulate(Scheduling(64, 256, kv_blocks), device, arrival, prompt, answer) for kv_blocks in (blocks, None)
    )
    ttft = with_blocks.first - arrival
    waited = np.maximum(with_blocks.first - without.first, 0)
    condition = load_conditions()["kv_wait"]
    wide = condition.over // STEP_NS
    bucket = (with_blocks.end // STEP_NS).astype(np.int64)
    of_time, of_waits, of_victims = (
        np.convolve(np.bincount(bucket, values), np.ones(wide)) for values in (ttft, waited, (2 * waited >= ttft) * 1.0)
    )
    on = (of_waits > float(condition.ratio or 0) * of_time) & (of_victims >= condition.least)
    begins = int(on[0]) + int(np.count_nonzero(on[1:] & ~on[:-1]))
    return {
        "requests_per_s": per_s,
        "blocks": blocks,
        "share": float(waited.sum() / ttft.sum()),
        "tickets_per_30_days": begins * 30 / days,
    }


if __name__ == "__main__":
    typer.run(main)
