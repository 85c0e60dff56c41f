"""False tickets of the conditions that compare or count, simulated: 30 days of healthy traffic that varies by chance.

Requests arrive at random at one rate, and take lognormal times. What is healthy stands in `main`: most of it is a small
share that some requests have by chance. The rules are those of collector/slo/conditions.yaml, evaluated every 30 s,
with their `for`. Burn rules have `benchmarks.alerts_simulation`, and waits for KV blocks `benchmarks.alerts_kv_waits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.alerts_simulation import OBJECTIVES
from benchmarks.report import JsonPath, Quick, publish
from collector.slo.conditions import load_conditions

STEP_S = 30
DAY = 86_400 // STEP_S
HOUR = 3600 // STEP_S
PER_MINUTE = (12, 30)
SIGMAS = (0.8, 1.2)
MEDIAN_S = 20.0
LONGEST_S = 300.0
PREEMPTED = 0.01
KV_USED = 0.5
BAD_OF_BUDGET = 0.5
UNDETERMINED = 0.01
AT_NIGHT = 0.1
"""Of the traffic at noon."""
LEFT_OUT_PER_H = 1.0
Numbers = NDArray[np.float64]
Bools = NDArray[np.bool_]


def main(
    quick: Quick = False,
    json: JsonPath = None,
    months: Annotated[int, typer.Option(help="Months of 30 days for each rate and spread.", min=1)] = 30,
) -> None:
    """Simulate and print. 30 months of each take 2 minutes of one core; --quick is 3 months."""
    months = 3 if quick else months
    random = np.random.default_rng(1)
    healthy = {
        "kv_eviction": f"{PREEMPTED:.0%} of the requests are preempted",
        "kv_full": f"requests hold {KV_USED:.0%} of the blocks on average",
        "budget_forecast": f"{BAD_OF_BUDGET:.0%} of the budget is bad, the worst of {len(OBJECTIVES)} objectives",
        "slo_undetermined": f"{UNDETERMINED:.0%} of the requests lack a value",
        "nothing_judged": "an SLO selects one request of 100",
        "traffic_stopped": f"at night {AT_NIGHT:.0%} of the traffic at noon",
        "no_telemetry": f"at night {AT_NIGHT:.0%} of the traffic at noon",
        "data_left_out": f"{LEFT_OUT_PER_H:g} payload an hour is refused",
    }
    tickets: dict[str, dict[str, float]] = {name: {} for name in healthy}
    for per_minute in PER_MINUTE:
        for sigma in SIGMAS:
            begun = dict.fromkeys(healthy, 0)
            for _ in range(months):
                for name, on in month(random, per_minute, sigma).items():
                    begun[name] += begins(name, on)
            for name, times in begun.items():
                tickets[name][f"{per_minute}/min, σ {sigma}"] = times / months
    numbers: dict[str, Any] = {"months": months, "healthy": healthy, "tickets in 30 days": tickets}
    publish("alerts_counts", numbers, packages=("numpy",), quick=quick, path=json)


def month(random: np.random.Generator, per_minute: int, sigma: float) -> Mapping[str, Bools]:
    """Where the expression of each condition is true, at the steps of 30 days after those that only windows look at."""
    rule, expected = load_conditions(), per_minute * STEP_S / 60
    arrivals = random.poisson(expected, 31 * DAY)
    running, blocks = in_flight(random, arrivals, sigma)
    preempted, undetermined, selected = (random.binomial(arrivals, share) for share in (PREEMPTED, UNDETERMINED, 0.01))
    left_out = random.poisson(LEFT_OUT_PER_H / HOUR, 31 * DAY)
    time = np.arange(-7 * DAY, 30 * DAY) / DAY
    by_day = random.poisson(expected * (AT_NIGHT + (1 - AT_NIGHT) * np.sin(np.pi * time) ** 2))
    hourly = within(by_day, HOUR)
    today, yesterday, week_ago = hourly[7 * DAY :], hourly[6 * DAY : -DAY], hourly[: -7 * DAY]
    eviction, lacking, stopped = (rule[name] for name in ("kv_eviction", "slo_undetermined", "traffic_stopped"))
    evicted, ended = within(preempted, steps(eviction.over)), within(arrivals, steps(eviction.over))
    full = blocks > float(rule["kv_full"].ratio or 0)
    unknown, judged = (within(of, steps(lacking.over)) for of in (undetermined, arrivals - undetermined))
    candidates = within(arrivals, steps(rule["nothing_judged"].over))
    holds = {
        "kv_eviction": (evicted > float(eviction.ratio or 0) * (ended + running)) & (evicted >= eviction.least),
        "kv_full": within(full, steps(rule["kv_full"].over)) == steps(rule["kv_full"].over),
        "budget_forecast": forecast(random, expected),
        "slo_undetermined": (unknown > float(lacking.ratio or 0) * (unknown + judged)) & (unknown >= lacking.least),
        "nothing_judged": (candidates >= rule["nothing_judged"].least)
        & (within(selected, steps(rule["nothing_judged"].over)) == 0),
        "traffic_stopped": (today < float(stopped.ratio or 0) * np.minimum(yesterday, week_ago))
        & (yesterday >= stopped.least),
        "no_telemetry": within(by_day, 120 // STEP_S)[7 * DAY :] == 0,
        "data_left_out": within(left_out, steps(rule["data_left_out"].over)) >= rule["data_left_out"].least,
    }
    return {name: on[-30 * DAY :] for name, on in holds.items()}


def in_flight(random: np.random.Generator, arrivals: NDArray[np.int64], sigma: float) -> tuple[Numbers, Numbers]:
    """How many requests run at the end of each step, and the share of the KV blocks that these hold.

    A request holds blocks in proportion to its time, and the engine has twice as many as are held on average.
    """
    n = int(arrivals.sum())
    begin = (np.repeat(np.arange(len(arrivals)), arrivals) + random.random(n)) * STEP_S
    lasting = np.minimum(MEDIAN_S * random.lognormal(0, sigma, n), LONGEST_S)
    first, last = (np.ceil(at / STEP_S).astype(np.int64) for at in (begin, begin + lasting))
    size = len(arrivals) + 1

    def held(each: Numbers) -> Numbers:
        came, went = (np.bincount(np.minimum(at, size), each, size + 1) for at in (first, last))
        return np.cumsum(came - went)[1 : len(arrivals) + 1]

    blocks = held(lasting)
    return held(np.ones(n)), KV_USED * blocks / blocks.mean()


def forecast(random: np.random.Generator, expected: float) -> Bools:
    """Where the budget forecast holds, for the objective whose forecast holds most often."""
    rule, worst = load_conditions()["budget_forecast"], np.zeros(30 * DAY, bool)
    for objective in map(float, OBJECTIVES):
        budget = 1 - objective
        bad, all_ = random.poisson(expected * budget * BAD_OF_BUDGET, 60 * DAY), random.poisson(expected, 60 * DAY)
        burn, period = (within(bad, of) / np.maximum(within(all_, of), 1) / budget for of in (6 * HOUR, 30 * DAY))
        left = np.maximum(1 - period, 0)
        on = (left * 30 * DAY < burn * steps(rule.over)) & (left > 0) & (within(bad, 6 * HOUR) >= rule.least)
        if on[30 * DAY :].sum() > worst.sum():
            worst = on[30 * DAY :]
    return worst


def steps(ns: int) -> int:
    """Steps of a duration."""
    return ns // (STEP_S * 10**9)


def within(counts: NDArray[Any], window: int) -> Numbers:
    """The sums over the window that ends with each step."""
    sums: Numbers = np.concatenate([[0.0], np.cumsum(counts)])
    return sums[1:] - sums[np.maximum(np.arange(1, len(sums)) - window, 0)]


def begins(name: str, on: Bools) -> int:
    """How often an alert begins to fire, after its expression has been true for its `for`."""
    waits = steps(load_conditions()[name].lasting) + 1
    fires = within(on, waits) == waits
    return int(fires[0]) + int(np.count_nonzero(fires[1:] & ~fires[:-1]))


if __name__ == "__main__":
    typer.run(main)
