"""How well causes are found: faults of a known size on the engine's real scheduler over a simulated clock.

Each fault runs with three seeds and with steps that scatter by 3 % and by 15 %, beside the same traffic without it.
Earlier traffic of the same process is the reference. What a replay without the fault foretells is compared with the run
without it. `python -m benchmarks.explain_second` does the same for an engine of another shape.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.report import JsonPath, Quick, publish
from collector.causes.split.culprits import culprits_of
from collector.causes.split.learn import learn
from collector.causes.split.model import StepModel
from collector.causes.split.names import PARTS, load_causes
from collector.causes.split.replay import LEAVABLE, replay
from collector.causes.split.requests import Explained, explain_process
from tests.support.fault_catalogue import CATALOGUE, Case, Fault, reference_run
from tests.support.simulated_engine import EPOCH, MS, Law, Run

NOISE = (0.03, 0.15)
SEEDS = (1, 2, 3)
THRESHOLDS = ((150 * MS, 20 * MS), (100 * MS, 15 * MS))
"""Of TTFT and TPOT: with one, nearly all requests are good without a fault; with the other, four of five."""
_MOST_VICTIMS = 40
Parts = NDArray[np.float64]


def main(
    quick: Quick = False,
    json: JsonPath = None,
) -> None:
    """Run the catalogues. It takes 5 minutes of one core; --quick is one seed and the small scatter, in a minute."""
    numbers: dict[str, Any] = {}
    for fault in CATALOGUE:
        runs = [
            one_run(fault, seed, noise) for noise in NOISE[: 1 if quick else 2] for seed in SEEDS[: 1 if quick else 3]
        ]
        numbers[fault.name] = summary(runs)
        print(f"{fault.name:42} {numbers[fault.name]}", flush=True)
    numbers["cpu_us_per_request"] = cost()
    publish("explain", numbers, packages=("numpy",), quick=quick, path=json)


def one_run(fault: Fault, seed: int, noise: float) -> dict[str, Any]:
    """One fault, once: seconds that it added and that were found, the largest group of them, and its culprits."""
    law = Law(noise=noise)
    case, reference = fault.make(seed, law), learn(*reference_run(seed, law).tables, former=None)
    explained = explain_process(*fault.tables(case), limits=fault.limits, reference=reference)
    parts, plain = seconds(explained), seconds(explain_process(*case.plain.tables, reference=reference))
    blamed = parts[:, [PARTS.index("stall"), PARTS.index("drift")]].sum() / parts.sum()
    result: dict[str, Any] = {
        "requests": len(parts),
        "blamed": blamed,
        "unexplained": parts[:, -1].sum() / parts.sum(),
    }
    if not fault.causes:
        return result
    if fault.replayed:
        result["replays"] = [foretold(fault, case, reference, ttft, tpot) for ttft, tpot in THRESHOLDS]
    more = (parts[case.rows] - plain)[case.injected != 0].sum(0)
    if case.culprits:
        guilty = list(case.culprits)
        injected_s = case.faulty.inflicted()[guilty].sum() / 1e9
        explained_s = explained.inflicted_us[guilty].sum() / 1e6
        result |= culprits(case, reference)
    else:
        injected_s, explained_s = case.injected.sum() / 1e9, more[[PARTS.index(cause) for cause in fault.causes]].sum()
    groups: dict[str, float] = defaultdict(float)
    for cause, value in zip(load_causes().values(), more, strict=True):
        groups[cause.group] += value
    top = max(groups, key=lambda group: groups[group])
    return result | {"injected_s": injected_s, "found_s": explained_s, "top": top, "right": top in fault.top}


def foretold(fault: Fault, case: Case, reference: StepModel | None, ttft: int, tpot: int) -> dict[str, Any]:
    """The attainment with the fault, without it, and by replays without it."""
    replayed = replay(
        *case.faulty.tables,
        scheduling=case.faulty.scheduling,
        kv_events=case.faulty.kv_events,
        reference=reference,
        without=LEAVABLE & {*fault.causes},
        left_out=case.added,
    )
    assert replayed is not None
    share = replayed.attainment(np.zeros(len(case.added)), ttft=ttft, tpot=tpot)
    assert share is not None
    truth = float(case.plain.good(ttft=ttft, tpot=tpot).mean())
    return {
        "with": float(case.faulty.good(ttft=ttft, tpot=tpot)[case.rows].mean()),
        "without": truth,
        "foretold": share.attainment,
        "covered": share.low <= truth <= share.high,
    }


def seconds(explained: Explained) -> Parts:
    """Requests × PARTS."""
    return (explained.ttft_us.astype(float) + explained.rest_us) / 1e6


def culprits(case: Case, reference: StepModel | None) -> dict[str, int]:
    """Of the victims that lost 5 ms or more, how many name the request whose prompt truly took the most from them."""
    lost = case.rows[np.argsort(-case.injected)][:_MOST_VICTIMS]
    named = total = 0
    for victim in lost.tolist():
        times = taken(case.faulty, victim)
        if not times or max(times.values()) < 5 * MS:
            continue
        total += 1
        suffered_ns: dict[int, float] = defaultdict(float)
        for culprits in culprits_of(victim, *case.faulty.tables, reference=reference).values():
            for one in culprits:
                suffered_ns[one.row] += one.time_ns
        worst = max(suffered_ns, key=lambda row: suffered_ns[row], default=-1)
        named += times.get(worst, 0.0) >= 0.95 * max(times.values())
    return {"victims": total, "named": named}


def taken(run: Run, victim: int) -> dict[int, float]:
    """By request, the ns of a victim's life in which its prompt was computed."""
    start, end = (int(run.requests[name][victim]) - EPOCH for name in ("start", "end"))
    times: dict[int, float] = defaultdict(float)
    for step in run.truth:
        both = max(0, min(end, step.end) - max(start, step.start)) / (step.end - step.start)
        for number, _, time_ns in step.chunks:
            if both and number != victim:
                times[number] += time_ns * both
    return times


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All runs of one fault."""
    result: dict[str, Any] = {
        "runs": len(runs),
        "blamed_most": max(one["blamed"] for one in runs),
        "unexplained_most": max(one["unexplained"] for one in runs),
    }
    if "injected_s" in runs[0]:
        errors = [one["found_s"] / one["injected_s"] - 1 for one in runs]
        result |= {
            "injected_s": [round(one["injected_s"], 2) for one in runs],
            "found_s": [round(one["found_s"], 2) for one in runs],
            "error_worst": max(errors, key=abs),
            "error_median": float(np.median(np.abs(errors))),
            "top_right": sum(one["right"] for one in runs),
            "tops": sorted({one["top"] for one in runs}),
        }
    if "replays" in runs[0]:
        replays = [run for one in runs for run in one["replays"]]
        points = [100 * (run["foretold"] - run["without"]) for run in replays]
        result["replay"] = {
            "replays": len(replays),
            **{name: [round(run[name], 4) for run in replays] for name in ("with", "without", "foretold")},
            "points_median": float(np.median(np.abs(points))),
            "points_worst": max(points, key=abs),
            "covered": sum(run["covered"] for run in replays),
        }
    if "victims" in runs[0]:
        result |= {name: sum(one[name] for one in runs) for name in ("victims", "named")}
    return result


def cost() -> dict[str, float]:
    """CPU of a request of ordinary traffic: judged by a reference, and when the next reference is made of it."""
    tables = reference_run(1, Law()).tables
    count = len(tables[0]["start"])
    reference = learn(*tables, former=None)
    calls: dict[str, Callable[[], object]] = {
        "explain": lambda: explain_process(*tables, reference=reference),
        "learn": lambda: learn(*tables, former=reference),
    }
    costs = {}
    for name, call in calls.items():
        times = []
        for _ in range(7):
            begun = time.process_time()
            call()
            times.append((time.process_time() - begun) / count * 1e6)
        costs[name] = round(min(times), 1)
    return costs


if __name__ == "__main__":
    typer.run(main)
