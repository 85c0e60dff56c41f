"""How well causes are found on the engine that computes: torch on one CPU thread, with a small model of random weights.

The clock is that of the simulated engine, and a step moves it by the CPU time that torch took for it, so neighbours on
the machine are no stalls. Freezes are added to the clock; all else happens in the scheduler and in the model.

A slower machine is a slower device. `machine` is how many times as long as while the law was learned the same matrix
product took behind each step of the run without a fault, as a median: what is `blamed` there has this to be seen with.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import typer

from benchmarks.explain import Parts, seconds
from benchmarks.report import JsonPath, Quick, publish
from collector.causes.split.culprits import culprits_of
from collector.causes.split.learn import learn
from collector.causes.split.model import StepModel
from collector.causes.split.names import PARTS, load_causes
from collector.causes.split.requests import explain_process
from tests.support.simulated_engine import MS, Faults, Load, Run, S, chats, run
from tests.support.torch_engine import tiny_model, torch_device, within

RATE = 15.0
ENOUGH, FEW = 2000, 80
"""Blocks of the KV cache."""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Run four cases with three seeds; 2 minutes of one core. --quick is one seed and 60 chats."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
    numbers = {str(seed): one_seed(model, seed, 60 if quick else 100) for seed in range(1, 2 if quick else 4)}
    publish("explain_engine", numbers, packages=("numpy", "torch"), quick=quick, path=json)


def one_seed(model: Any, seed: int, count: int) -> dict[str, Any]:
    """The law that earlier traffic teaches, and how it judges each case."""
    speeds: list[list[int]] = []

    def ran(load: Load, blocks: int = ENOUGH, **options: Any) -> Run:
        speeds.append([])
        device = torch_device(model, blocks, speeds[-1])  # type: ignore[no-untyped-call]
        return run(within(load), seed=seed, blocks=blocks, make_device=device, **options)

    def chatting(more: int = 0) -> Load:
        load: Load = chats(count, rate=RATE, seed=seed + more, answer=(40, 0.5, 120))  # type: ignore[no-untyped-call]
        return load

    reference = learn(*ran(chatting(100)).tables, former=None)
    assert reference is not None
    plain, frozen = ran(chatting()), ran(chatting(), faults=Faults(freezes=((3 * S, 400 * MS),)))
    long = Load([3 * S], [list(range(1500))], [20])
    load, (guilty,) = chatting().with_more(long)
    delayed, stormy = ran(load), ran(chatting(), FEW)
    parts = _parts(frozen, reference)
    return {
        "r2": reference.r2,
        "sigma": reference.sigma,
        "blamed": _share(_parts(plain, reference), "stall", "drift"),
        "blamed_on_drift": _share(_parts(plain, reference), "drift"),
        "machine": median(speeds[1]) / median(speeds[0]),
        "freeze": {"injected_s": float(frozen.faulty().sum()) / 1e9, "found_s": _sum(parts, "stall")},
        "prompt": _named(delayed, guilty, reference),
        "storm": {"largest": _grown(_parts(stormy, reference) - _parts(plain, reference))},
    }


def _parts(found: Run, reference: StepModel) -> Parts:
    parts: Parts = seconds(explain_process(*found.tables, kv_events=found.kv_events, reference=reference)).sum(0)
    return parts


def _sum(parts: Parts, *names: str) -> float:
    return float(sum(parts[PARTS.index(name)] for name in names))


def _share(parts: Parts, *names: str) -> float:
    return _sum(parts, *names) / float(parts.sum())


def _grown(more: Parts) -> str:
    """The group that grew most."""
    groups: defaultdict[str, float] = defaultdict(float)
    for name, value in zip(PARTS, more.tolist(), strict=True):
        groups[load_causes()[name].group] += value
    return max(groups, key=lambda group: groups[group])


def _named(found: Run, guilty: int, reference: StepModel) -> dict[str, int]:
    """Of the requests that decoded in two steps or more of the long prompt, those that name it first."""
    beside = Counter(
        victim for step in found.truth if guilty in {one for one, _, _ in step.chunks} for victim in step.decoding
    )
    victims = [victim for victim, steps in beside.items() if steps >= 2 and victim != guilty]
    named = 0
    for victim in victims:
        taken: defaultdict[int, float] = defaultdict(float)
        for culprits in culprits_of(victim, *found.tables, reference=reference).values():
            for one in culprits:
                taken[one.row] += one.time_ns
        named += bool(taken) and max(taken, key=lambda row: taken[row]) == guilty
    return {"victims": len(victims), "named": named}


if __name__ == "__main__":
    typer.run(main)
