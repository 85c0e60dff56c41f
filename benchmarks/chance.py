"""How often intervals, verdicts and gates err: two identical sets of requests, compared thousands of times.

The peer is the difference that people read off two P99s without an interval: every A/A pair has one.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.chance_time import coverage, gates, latency_gates, mixes
from benchmarks.report import JsonPath, Quick, publish
from collector.compare.chance import Floats, Ratios, Sample
from collector.compare.evidence import against_latency
from collector.compare.sides import Rows, alike_samples, alike_tokens

LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
SIZES = (150, 1000, 6000)
KINDS = ("plain", "ties", "sampled", "bursts", "longer prompts")
OF_TOKENS = ("tokens", "tokens in ties", "tokens, longer answers")
LESS = (150, 1000)
"""Sizes of sets whose tokens are compared."""


def main(
    quick: Quick = False,
    json: JsonPath = None,
    runs: Annotated[int, typer.Option(help="Pairs of each kind and size, and gates.", min=10)] = 1000,
    tokens: Annotated[bool, typer.Option("--tokens", help="Waits for tokens alone: a result of its own.")] = False,
    time: Annotated[bool, typer.Option("--time", help="Traffic that wanders, and mixes: a result of its own.")] = False,
) -> None:
    """Compare and print. 1,000 runs take about 20 minutes of one core, of tokens alone 4; --quick is 100."""
    runs = 100 if quick else runs
    random = np.random.default_rng(1)
    numbers: dict[str, Any] = {"runs": runs}
    if time:
        few = 10 if quick else min(runs, 200)
        numbers = {"runs": few, **coverage(random, few), **mixes(random, few)}
        numbers |= {**gates(random, few // 2), **latency_gates(random, few // 2)}
        publish("chance_time", numbers, packages=("numpy",), quick=quick, path=json)
        return
    if tokens:
        for kind in OF_TOKENS:
            for n in LESS:
                numbers |= _intervals(random, runs, kind, n)
        publish("chance_tokens", numbers, packages=("numpy",), quick=quick, path=json)
        return
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
    """Requests whose TTFT depends on the prompt, as compare/queries/compare_rows.sql gives them."""
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


def waits(random: np.random.Generator, n: int, kind: str, *, longer: float = 1.0) -> tuple[Rows, Floats]:
    """Requests and the waits for their tokens, as compare/queries/compare_tokens.sql gives them.

    The wait depends on the length of the answer, and those of one request go together. In ties, two tokens of three
    come with the one before.
    """
    rows: dict[str, Floats] = {**requests(random, n)}
    answers = np.ceil(random.lognormal(2.5, 0.7, n) * longer)
    of = np.repeat(np.arange(n), answers.astype(np.int64))
    ns = ((20 + answers / 5) * random.lognormal(0, 0.3, n))[of] * random.lognormal(0, 0.3, len(of))
    if kind == "tokens in ties":
        ns = np.where(random.random(len(of)) < 1 / 3, np.ceil(ns / 5) * 5, 0.0)
    rows |= {"key": np.arange(n, dtype=np.float64), "output": answers + 1}
    return rows, np.stack([of * 1.0, ns], axis=1)


def _pair(random: np.random.Generator, kind: str, n: int) -> tuple[Sample, Sample] | None:
    if kind in OF_TOKENS:
        longer = 1.5 if kind == "tokens, longer answers" else 1.0
        sides = waits(random, n, kind), waits(random, n, kind, longer=longer)
        return alike_tokens([rows for rows, _ in sides], [tokens for _, tokens in sides])
    longer = 2.0 if kind == "longer prompts" else 1.0
    return alike_samples(requests(random, n, kind), requests(random, n, kind, prompts=longer), "ttft")


def _intervals(random: np.random.Generator, runs: int, kind: str, n: int) -> dict[str, float | str]:
    held: Counter[str] = Counter()
    bounded: Counter[str] = Counter()
    bare: Counter[str] = Counter()
    for _ in range(runs):
        pair = _pair(random, kind, n)
        assert pair is not None
        ratios = Ratios(*pair, [*LEVELS.values()])
        for name, level in LEVELS.items():
            interval = ratios.interval(level)
            if interval is None:  # the percentile is 0
                continue
            held[name] += interval.low <= 1 <= interval.high
            bounded[name] += interval.low > 0 and interval.high < np.inf
            bare[name] += not 0.9 < interval.estimate < 1.1
    return {
        **{f"{kind}, {n}, {name}: intervals that hold 1": held[name] / runs for name in LEVELS if name in held},
        **{f"{kind}, {n}, {name}: bounded": bounded[name] / runs for name in held if bounded[name] < runs},
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
