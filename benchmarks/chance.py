"""How often intervals, verdicts and gates err: two identical sets of requests, compared thousands of times.

The peer is the difference that people read off two P99s without an interval: every A/A pair has one.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.report import JsonPath, Quick, publish
from collector.measure.chance import Ratios
from collector.measure.check import against_latency
from collector.measure.sides import Rows, alike_samples

LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
SIZES = (150, 1000, 6000)
KINDS = ("plain", "ties", "sampled", "bursts", "longer prompts")


def main(
    quick: Quick = False,
    json: JsonPath = None,
    runs: Annotated[int, typer.Option(help="Pairs of each kind and size, and gates.", min=10)] = 1000,
) -> None:
    """Compare and print. 1,000 runs take about 20 minutes of one core; --quick is 100."""
    runs = 100 if quick else runs
    random = np.random.default_rng(1)
    numbers: dict[str, Any] = {"runs": runs}
    for kind in KINDS:
        for n in SIZES:
            numbers |= _intervals(random, runs, kind, n)
    for sigma in (0.8, 1.2):
        numbers |= {f"gate: called worse, σ {sigma}, identical": _gates(random, runs, sigma, 1.0)[0]}
        worse, requests = _gates(random, runs // 5, sigma, 1.1)
        numbers |= {f"gate: called worse, σ {sigma}, + 10 % P99": worse}
        numbers |= {f"gate: requests of each side, σ {sigma}, + 10 % P99, median": requests}
    publish("chance", numbers, packages=("numpy",), quick=quick, path=json)


def requests(
    random: np.random.Generator, n: int, kind: str = "plain", *, prompts: float = 1.0, slower: float = 1.0
) -> Rows:
    """Requests whose TTFT depends on the prompt, as sql/queries/compare_rows.sql gives them."""
    prompt, ends = np.exp(random.normal(6, 1, n)) * prompts, np.sort(random.random(n)) * 3600
    ttft = (20 + 0.2 * prompt) * random.lognormal(0, 0.5, n) * slower
    weight = np.ones(n)
    if kind == "ties":
        ttft = np.ceil(ttft / 20) * 20
    if kind == "bursts":
        ttft *= np.where(np.isin(ends // 90, random.choice(40, 5, replace=False)), 3, 1)
    if kind == "sampled":
        kept = (ttft > 400) | (random.random(n) < 0.25)
        weight, prompt, ends, ttft = np.where(ttft > 400, 1.0, 4.0)[kept], prompt[kept], ends[kept], ttft[kept]
    return {
        "start": ends - 1, "end": ends, "weight": weight, "ttft": ttft, "tpot": np.full(len(ttft), np.nan),
        "e2e": ttft, "input": prompt, "cached": np.zeros(len(ttft)), "output": np.full(len(ttft), 100.0),
    }  # fmt: skip


def _intervals(random: np.random.Generator, runs: int, kind: str, n: int) -> dict[str, float | str]:
    held: Counter[str] = Counter()
    bounded: Counter[str] = Counter()
    bare: Counter[str] = Counter()
    for _ in range(runs):
        longer = 2.0 if kind == "longer prompts" else 1.0
        pair = alike_samples(requests(random, n, kind), requests(random, n, kind, prompts=longer), "ttft")
        assert pair is not None
        ratios = Ratios(*pair, [*LEVELS.values()])
        for name, level in LEVELS.items():
            interval = ratios.interval(level)
            assert interval is not None
            held[name] += interval.low <= 1 <= interval.high
            bounded[name] += interval.low > 0 and interval.high < np.inf
            bare[name] += not 0.9 < interval.estimate < 1.1
    return {
        **{f"{kind}, {n}, {name}: intervals that hold 1": held[name] / runs for name in LEVELS},
        **{f"{kind}, {n}, {name}: bounded": bounded[name] / runs for name in LEVELS if bounded[name] < runs},
        f"{kind}, {n}, p99: estimates that are off by over 10 %": bare["p99"] / runs,
    }


def _gates(random: np.random.Generator, runs: int, sigma: float, slower: float) -> tuple[float, float]:
    """The share of gates that ever say worse, asked each minute for an hour, and the requests of those that did.

    30 requests a minute on each side. A gate for a slower side goes on at 3,000 a minute until it decides.
    """
    per_minute = 30 if slower == 1 else 3000
    worse, needed = 0, []
    for _ in range(runs):
        rows = [_lognormal(random, per_minute * 60, sigma, factor) for factor in (1.0, slower)]
        for minute in range(1, 61):
            n = minute * per_minute
            until = [{name: column[:n] for name, column in side.items()} for side in rows]
            pair = alike_samples(until[0], until[1], "ttft")
            assert pair is not None
            if against_latency("P99 TTFT", pair, 0.99, 0.1, 4).verdict == "worse":
                worse += 1
                needed.append(n)
                break
    return worse / runs, float(np.median(needed)) if needed else float("nan")


def _lognormal(random: np.random.Generator, n: int, sigma: float, slower: float) -> Rows:
    ends, unknown = np.arange(n) * 3600 / n, np.full(n, np.nan)
    ttft = random.lognormal(0, sigma, n) * slower
    return {
        "start": ends, "end": ends, "weight": np.ones(n), "ttft": ttft, "tpot": unknown, "e2e": ttft,
        "input": unknown, "cached": unknown, "output": unknown,
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
