"""How far the answers of `/timeouts` can be trusted: traffic whose curves are known, 1,000 draws of each kind.

A draw is 4,000 requests of an hour. Four of ten clients are impatient, and three of ten requests are given up. Of each
draw the share of requests longer than T is estimated, for the T that 5, 1 and 0.2 % exceed: how often does its interval
have the truth?
Beside it stands what people compute: the quantile of requests that finished. Hedging is compared with a simulation that
sends the second request: each server has its own good and bad times, which both requests of a moment share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import numpy as np
import typer

from benchmarks.report import JsonPath, Quick, publish
from collector.timeouts import hedge
from collector.timeouts.groups import groups_of
from collector.timeouts.read import MOST_ROWS, Read
from collector.timeouts.survival import BLOCKS, Floats, Survival, bin_of, bins_of, upper_us
from collector.timeouts.waits import ANSWERED, GIVEN_UP, OK, Requests, Waits, blocks_of

REQUESTS: Final = 4000
SECONDS: Final = 3600.0
CUT: Final = 0.3
IMPATIENT: Final = 0.4
SHARES: Final = (0.05, 0.01, 0.002)
Draw = Callable[[np.random.Generator, int], tuple[Floats, Floats]]
"""When requests begin and how long they wait, both in seconds."""


def _times(random: np.random.Generator, n: int) -> Floats:
    return np.sort(random.uniform(0, SECONDS, n))


def lognormal(random: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """One kind of requests."""
    return _times(random, n), random.lognormal(0, 1, n)


def heavy_tail(random: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """A Pareto tail of 1.5, whose variance is infinite."""
    return _times(random, n), 0.5 * (random.pareto(1.5, n) + 1)


def reasoning(random: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """One of seven requests thinks for half a minute before it answers."""
    thinks = random.random(n) < 0.15
    return _times(random, n), np.where(thinks, random.lognormal(3, 0.7, n), random.lognormal(0, 0.8, n))


def bursts(random: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Some 25 stretches of 40 s in which all requests take six times as long."""
    times = _times(random, n)
    return times, random.lognormal(0, 0.8, n) * np.where(_within(times, random), 6, 1)


def _within(times: Floats, random: np.random.Generator) -> Any:
    starts = random.uniform(0, SECONDS, random.poisson(25))
    return ((times[:, None] >= starts) & (times[:, None] < starts + 40)).any(1)


DRAWS: Final[Mapping[str, Draw]] = {
    "lognormal": lognormal,
    "heavy_tail": heavy_tail,
    "reasoning": reasoning,
    "bursts": bursts,
}


def covered(draw: Draw, draws: int) -> dict[str, Any]:
    """How often the interval of each share has the truth, and the share that the naive quantile would really cut."""
    truth = np.concatenate([draw(np.random.default_rng(10**6 + i), 50_000)[1] for i in range(200)])
    scale = _scale(truth)
    bins = {share: bin_of(float(np.quantile(truth, 1 - share))) for share in SHARES}
    true = {share: float((truth * 1e6 >= upper_us(place)).mean()) for share, place in bins.items()}
    truth.sort()
    hit = dict.fromkeys(SHARES, 0)
    naive: dict[float, list[float]] = {share: [] for share in SHARES}
    own: dict[float, list[float]] = {share: [] for share in SHARES}
    for seed in range(draws):
        random = np.random.default_rng(seed)
        began, waits = draw(random, REQUESTS)
        until = _patience(random, REQUESTS, scale)
        ended = waits <= until
        block = blocks_of((began * 1000).astype(np.uint32), BLOCKS)
        curve = Survival.of(bins_of(np.minimum(waits, until) * 1e6), ended, block, np.ones(REQUESTS))
        for share, place in bins.items():
            found = curve.at(place)
            hit[share] += found.low <= true[share] <= found.high
            naive[share].append(_really(truth, float(np.quantile(waits[ended], 1 - share))))
            least = curve.least(share)
            if least is not None:
                own[share].append(_really(truth, float(upper_us(least)) / 1e6))
    return {
        f"{share:.1%}": {
            "covered": hit[share] / draws,
            "naive_cuts": float(np.median(naive[share])),
            "ours_cuts": float(np.median(own[share])) if own[share] else None,
            "not_told": 1 - len(own[share]) / draws,
        }
        for share in SHARES
    }


def _patience(random: np.random.Generator, n: int, scale: float) -> Floats:
    """How long each client waits: some give up after a time that has nothing to do with their request."""
    return np.where(random.random(n) < IMPATIENT, random.exponential(scale, n), np.inf)


def _scale(truth: Floats) -> float:
    """The mean time after which impatient clients give up, so that three of ten of all do."""
    some = truth[:: len(truth) // 20_000]
    until = _patience(np.random.default_rng(0), len(some), 1.0)
    low, high = 1e-3, 1e5
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if (some > until * middle).mean() > CUT else (low, middle)
    return low


def _really(truth: Floats, timeout: float) -> float:
    return float(1 - np.searchsorted(truth, timeout, "right") / len(truth))


def servers(random: np.random.Generator, n: int, own: float) -> tuple[Floats, Any, Floats]:
    """Requests at four servers with slow stretches of their own: when, where, and each one's slowness there.

    `own`: the share of requests that are slow alone, wherever they are.
    """
    times, place = _times(random, n), random.integers(0, 4, n)
    slow = np.zeros((4, n), bool)
    for server in range(4):
        starts = random.uniform(0, SECONDS, random.poisson(12))
        slow[server] = ((times[:, None] >= starts) & (times[:, None] < starts + 30)).any(1)
    return times, place, np.where(slow, 8.0, 1.0)


def _drawn(random: np.random.Generator, n: int, own: float) -> Floats:
    return random.lognormal(-0.7, 0.5, n) * np.where(random.random(n) < own, 10, 1)


def hedging(seed: int, *, own: float, n: int = 12_000) -> dict[str, Any]:
    """P99 with a second request: as told from the first ones, and by really sending it."""
    random = np.random.default_rng(seed)
    times, place, slowness = servers(random, n, own)
    every = np.arange(n)
    first = _drawn(random, n, own) * slowness[place, every]
    waits = Waits(first * 1e6, np.full(n, ANSWERED, np.uint8))
    requests = _requests(times, first, np.full(n, OK, np.uint8))
    sent = hedge.Sent.of(requests, waits, np.zeros(n, np.int64), place.astype(np.int64))
    found: dict[str, Any] = {"p99_s": float(np.quantile(first, 0.99))}
    for to, same in (("same", True), ("another", False)):
        told = hedge.best(sent, sent, same=same)
        if told is None:
            continue
        after = told.after_us / 1e6
        other = place if same else (place + random.integers(1, 4, n)) % 4
        then = np.minimum(np.searchsorted(times, times + after), n - 1)
        second = after + _drawn(random, n, own) * slowness[other, then]
        real = float(np.quantile(np.where(first > after, np.minimum(first, second), first), 0.99))
        found[to] = {
            "after_s": after, "told_s": told.p99[1] / 1e6, "low_s": told.p99_low / 1e6, "high_s": told.p99_high / 1e6,
            "real_s": real, "shared": told.shared, "of_all_day_s": _of_all_day(random, first, after),
        }  # fmt: skip
    return found


def _of_all_day(random: np.random.Generator, first: Floats, after: float) -> float:
    """The naive answer: the second request waits as long as any of the day."""
    second = after + random.permutation(first)
    return float(np.quantile(np.where(first > after, np.minimum(first, second), first), 0.99))


def _requests(times: Floats, waits: Floats, ended: Any) -> Requests:
    n = len(times)
    us = waits * 1e6
    return Requests(
        began_ms=(times * 1000).astype(np.uint32), kind=np.zeros(n, np.uint16), ended=ended, ttft_us=us,
        first_visible_us=us, gap_us=us / 50, e2e_us=us * 3, input_tokens=np.full(n, np.nan),
        reasons=np.full(n, 2, np.uint8), weight=np.ones(n),
    )  # fmt: skip


def cpu_of_a_million() -> float:
    """CPU ms of the answer about a million requests of four models, when those rows have been read that are."""
    random = np.random.default_rng(1)
    n = 1_000_000
    times, waits = bursts(random, n)
    requests = _requests(times, waits, np.where(random.random(n) < 0.05, GIVEN_UP, OK).astype(np.uint8))
    kind = random.integers(0, 4, n).astype(np.uint16)
    kinds = {name: np.array([f"{name} {i}" for i in range(4)], object) for name in ("model", "process")}
    kinds |= {name: np.array([""] * 4, object) for name in ("slo_class", "vantage", "operation")}
    requests = Requests(**{**vars(requests), "kind": kind}).some(MOST_ROWS)
    found = Read(requests, kinds, -(-n // MOST_ROWS), 0)
    best = []
    for _ in range(3):
        begun = time.process_time()
        groups_of(found, 0.001, [])
        best.append(time.process_time() - begun)
    return min(best) * 1000


def main(
    quick: Quick = False,
    json: JsonPath = None,
    draws: Annotated[int, typer.Option(help="Draws of each kind of traffic.", min=20)] = 1000,
) -> None:
    """Draw and compare. 1,000 draws take some minutes of one core."""
    draws = 50 if quick else draws
    numbers: dict[str, Any] = {"draws": draws, "requests": REQUESTS, "cut": CUT, "impatient": IMPATIENT}
    numbers |= {name: covered(draw, draws) for name, draw in DRAWS.items()}
    runs = 5 if quick else 40
    for name, own in (("slow_together", 0.0), ("slow_alone", 0.04), ("both", 0.02)):
        numbers[name] = _summed([hedging(seed, own=own) for seed in range(runs)])
    numbers["cpu_ms_1m"] = cpu_of_a_million()
    publish("timeouts", numbers, packages=("numpy",), quick=quick, path=json)


def _summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over runs, and the share of those within 10 % of the truth."""
    found: dict[str, Any] = {"p99_s": float(np.median([run["p99_s"] for run in runs]))}
    for to in ("same", "another"):
        told = [run[to] for run in runs if to in run]
        if told:
            off = np.array([one["told_s"] / one["real_s"] - 1 for one in told])
            naive = np.array([one["of_all_day_s"] / one["real_s"] - 1 for one in told])
            found[to] = {
                "real_s": float(np.median([one["real_s"] for one in told])),
                "told_s": float(np.median([one["told_s"] for one in told])),
                "median_off": float(np.median(off)),
                "within_10_percent": float((abs(off) <= 0.1).mean()),
                "in_interval": float(np.mean([one["low_s"] <= one["real_s"] <= one["high_s"] for one in told])),
                "naive_median_off": float(np.median(naive)),
                "shared": float(np.median([one["shared"] for one in told])),
            }
    return found


if __name__ == "__main__":
    typer.run(main)
