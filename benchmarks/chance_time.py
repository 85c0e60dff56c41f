"""How often verdicts err where time and who asks matter: wandering traffic, sessions, young canaries, other mixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import exp, log, sqrt
from typing import Any, Final

import numpy as np

from collector.compare.chance import Floats, Ratios
from collector.compare.evidence import Share, against_latency, against_objective
from collector.compare.sides import Rows, alike_samples, where
from collector.compare.wandering import BLOCKS

NOISE: Final = {"steady": 0, "30 s": 30, "2 min": 120, "10 min": 600}
"""For how long the noise of each side remembers, in seconds."""
_HOUR_S: Final = 3600
_CELL_S: Final = 10
_SIGMA: Final = 0.3
_PER_S: Final = 2.0
_BUDGET, _RELEVANT = 0.05, 0.2


def noise(random: np.random.Generator, tau_s: float, seconds: int) -> Floats:
    """Autoregressive noise with variance 1, a value for each cell of ten seconds."""
    n = seconds // _CELL_S
    if not tau_s:
        return np.zeros(n)
    r = exp(-_CELL_S / tau_s)
    shocks, level = random.normal(size=n) * sqrt(1 - r * r), random.normal()
    values = np.empty(n)
    for i, shock in enumerate(shocks):
        values[i] = level = r * level + shock
    return values


def side(
    random: np.random.Generator,
    n: int,
    tau_s: float,
    *,
    sigma: float = 0.5,
    slower: float = 1.0,
    seconds: int = _HOUR_S,
) -> Rows:
    """Requests of a time whose latencies wander."""
    ends = np.sort(random.random(n)) * seconds
    wander = noise(random, tau_s, seconds)[(ends // _CELL_S).astype(int)]
    return _rows(ends, slower * np.exp(random.normal(0, sigma, n) + _SIGMA * wander))


def sessions(random: np.random.Generator, n: int) -> Rows:
    """Sessions of eight turns, half a minute apart, each slow or quick as a whole."""
    first = random.random(n // 8) * (_HOUR_S - 240)
    ends = (first[:, None] + np.arange(8) * 30).ravel()
    values = np.exp(random.normal(0, 0.3, (n // 8, 8)) + random.normal(0, 0.5, (n // 8, 1))).ravel()
    return _rows(ends, values, together=np.repeat(np.arange(n // 8), 8))


def canary(random: np.random.Generator, slower: float = 1.0) -> tuple[Rows, Rows]:
    """Six hours in which latency rises from 1.0 to 1.8, and a canary of the last half hour: cut to the common time."""
    ends = [np.sort(random.random(n)) * 1800 + 19_800 for n in (1500, 1500)]
    both = [random.lognormal(0, 0.4, len(at)) * (1 + 0.8 * at / 21_600) for at in ends]
    return _rows(ends[0], both[0]), _rows(ends[1], both[1] * slower)


def tenants(random: np.random.Generator, shares: tuple[float, float], slower: float = 1.0) -> list[Rows]:
    """Two sides of 3,000 requests with other shares of a tenant whose requests take three times as long."""
    sides: list[Rows] = []
    for share, factor in zip(shares, (1.0, slower), strict=True):
        heavy = random.random(3000) < share
        values = random.lognormal(0, 0.4, 3000) * np.where(heavy, 3, 1) * factor
        rows = _rows(np.sort(random.random(3000)) * _HOUR_S, values)
        sides.append({**rows, "by tenant": heavy.astype(np.float64) + 1})
    return sides


def _rows(ends: Floats, values: Floats, **more: Any) -> Rows:
    unknown = np.full(len(ends), np.nan)
    return {
        "key": np.arange(len(ends)) * 1.0, "start": ends, "end": ends, "weight": np.ones(len(ends)), "ttft": values,
        "tpot": unknown, "e2e": values, "gap": unknown, "input": unknown, "cached": unknown, "output": unknown,
        **{name: np.asarray(column, float) for name, column in more.items()},
    }  # fmt: skip


def _ratios(a: Rows, b: Rows) -> Ratios:
    pair = alike_samples(a, b, "ttft")
    assert pair is not None
    return Ratios(*pair, [0.5, 0.9, 0.95, 0.99])


def coverage(random: np.random.Generator, runs: int) -> dict[str, float]:
    """How often the 95 % intervals of identical sides hold 1, or the answer says that it cannot know."""
    numbers = {}
    for name, tau_s in [*NOISE.items(), ("sessions of 8", -1)]:
        held: Counter[str] = Counter()
        widths: list[float] = []
        for _ in range(runs):
            a, b = (sessions(random, 3000) if tau_s < 0 else side(random, 3000, tau_s) for _ in "ab")
            found = _ratios(a, b)
            held["slow"] += found.slow
            for word, level in (("P50", 0.5), ("P99", 0.99)):
                one = found.interval(level)
                assert one is not None
                held[word] += one.low <= 1 <= one.high
                held[f"{word} or slow"] += found.slow or one.low <= 1 <= one.high
            median = found.interval(0.5)
            assert median is not None
            widths.append(log(median.high / median.low) if median.low > 0 and median.high < np.inf else np.inf)
        for word in ("P50", "P99", "P50 or slow", "P99 or slow", "slow"):
            numbers[f"{name}: {word}"] = held[word] / runs
        numbers[f"{name}: width of P50"] = float(np.median(widths))
    return numbers


def mixes(random: np.random.Generator, runs: int) -> dict[str, float]:
    """How often P99 of identical sides is called worse, and of a slower B with the easier mix."""
    kinds: dict[str, Callable[[], Sequence[Rows]]] = {
        "canary of the last 30 min, identical": lambda: canary(random),
        "canary of the last 30 min, 1.3 × slower": lambda: canary(random, 1.3),
        "60 % of a heavy tenant, not 20 %, identical": lambda: tenants(random, (0.2, 0.6)),
        "20 % of a heavy tenant, not 60 %, 1.3 × slower": lambda: tenants(random, (0.6, 0.2), 1.3),
    }
    numbers = {}
    for name, drawn in kinds.items():
        found = [_ratios(*drawn()).interval(0.95) for _ in range(runs)]
        numbers[f"{name}: P95 worse"] = sum(one is not None and one.low > 1 for one in found) / runs
        numbers[f"{name}: P95 better"] = sum(one is not None and one.high < 1 for one in found) / runs
    return numbers


def _bad(random: np.random.Generator, kind: str, share: float, seconds: int) -> tuple[Floats, Floats]:
    cells = seconds // _CELL_S
    judged = random.poisson(_PER_S * _CELL_S, cells)
    if kind == "bursts":
        into = (np.arange(cells) * _CELL_S - random.random() * 2400) % 2400
        shares = np.where(into < 120, min(1.0, 0.8 * share * 20), 0.2 * share)
    else:
        shares = np.minimum(share * np.exp(0.6 * noise(random, NOISE[kind], seconds) - 0.18 * (kind != "steady")), 1)
    return judged.astype(np.float64), random.binomial(judged, shares).astype(np.float64)


def gate(random: np.random.Generator, kind: str, share: float, least_s: float) -> tuple[str, float]:
    """The verdict of a gate on a bad share that is asked each minute for two hours, and when it came."""
    judged, bad = _bad(random, kind, share, 7200)
    for cells in range(6, len(judged) + 1, 6):
        block = np.arange(cells) * BLOCKS // cells
        n, hits = judged[:cells].sum(), bad[:cells].sum()
        moved = np.bincount(block, bad[:cells] - judged[:cells] * hits / max(n, 1), BLOCKS) / max(n, 1)
        seconds = cells * float(_CELL_S)
        told = against_objective(Share(hits, n, moved, seconds), _BUDGET, _RELEVANT, young=seconds < least_s)
        if told.verdict != "not decided":
            return told.verdict, seconds
    return "not decided", 7200.0


def gates(random: np.random.Generator, runs: int) -> dict[str, float]:
    """How often the gate errs: at exactly the budget of 5 %, and at 6.2 %, where 6 % is relevant."""
    numbers = {}
    for kind in (*NOISE, "bursts"):
        for share, wrong in ((0.05, "worse"), (0.062, "good")):
            found = [gate(random, kind, share, 2400.0) for _ in range(runs)]
            numbers[f"{kind}, {share * 100:g} % bad: {wrong}"] = sum(one == wrong for one, _ in found) / runs
        found = [gate(random, kind, 0.1, 2400.0) for _ in range(runs // 2)]
        times = [seconds for one, seconds in found if one == "worse"]
        numbers[f"{kind}, 10 % bad: worse"] = len(times) / len(found)
        numbers[f"{kind}, 10 % bad: seconds until worse, median"] = float(np.median(times)) if times else float("nan")
    return numbers


def latency_gate(
    random: np.random.Generator, tau_s: float, slower: float, *, rate: float = 1.0, sigma: float = 1.0
) -> tuple[str, float]:
    """The verdict of a gate on P99 (one number of five) of two sides, asked at most each minute for two hours, and how
    many requests of each side it had seen. `rate`: requests of each side per second; `sigma`: of their logarithm.
    """
    a, b = (side(random, int(rate * 7200), tau_s, sigma=sigma, slower=by, seconds=7200) for by in (1.0, slower))
    minute = 1
    while minute <= 120:
        until = [where(one, one["end"] < minute * 60) for one in (a, b)]
        pair = alike_samples(until[0], until[1], "ttft")
        found = pair and against_latency("P99 TTFT", pair, 0.99, 0.1, 5, young=minute < 40)
        if found and found.verdict != "not decided":
            return found.verdict, float(len(until[1]["end"]))
        minute = max(minute + 1, int(minute * 1.1))
    return "not decided", float("nan")


def latency_gates(random: np.random.Generator, runs: int) -> dict[str, float]:
    """How often a gate on P99 calls an identical side worse, and one that is 1.2 × slower good (10 % are relevant), at
    one request a second, and how many requests of each side half of the gates need for a slower one, at two a second.
    """
    numbers = {}
    for name, tau_s in NOISE.items():
        for slower, wrong in ((1.0, "worse"), (1.2, "good")):
            found = [latency_gate(random, tau_s, slower) for _ in range(runs)]
            numbers[f"{name}, P99 × {slower:g}: {wrong}"] = sum(one == wrong for one, _ in found) / runs
    for sigma in (0.8, 1.2):
        for slower in (1.5, 1.25):
            found = [latency_gate(random, 0, slower, rate=2.0, sigma=sigma) for _ in range(runs)]
            requests = [n if one == "worse" else np.inf for one, n in found]
            numbers[f"σ {sigma}, P99 × {slower:g}: requests of each side until worse, median"] = float(
                np.median(requests)
            )
    return numbers
