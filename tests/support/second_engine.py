"""An engine of another shape than the first one, and what its faults are.

Its prompts take time with the square of their context, its batches are padded to eights, its chunks are shorter, and it
drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from collector.causes.split.culprits import culprits_of
from collector.causes.split.judge import Laws
from collector.causes.split.learn import learn
from collector.causes.split.model import StepModel
from collector.causes.split.requests import Explained, explain_process
from tests.support.simulated_engine import EPOCH, MS, Faults, Law, Load, Run, S, SimulatedDrafts, chats, run

LAW = Law(
    step=5.0 * MS,
    prompt=0.4 * MS,
    token=0.03 * MS,
    sequence=0.12 * MS,
    context=0.0006 * MS,
    attention=4.0,
    padding=8,
    drafted=0.02 * MS,
    noise=0.04,
)
COUNT = 200
MIDDLE, UNTIL = 7 * S, 14 * S
"""When faults begin and end: the chats arrive over 20 s."""
LONG = 100_000
"""Tokens of a prompt beyond all that the law knows."""


@dataclass(frozen=True)
class Shown:
    """A run, the laws that judge it, and what is true of it."""

    run: Run
    laws: Laws
    causes: tuple[str, ...] = ()
    """What the fault adds time to; none: the run is healthy."""
    top: tuple[str, ...] = ()
    """The groups that may be the largest of what the fault added."""
    injected: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """By request, the ns that the fault added."""
    culprit: int | None = None
    """The request whose prompt made others wait."""
    slower: tuple[str, float] | None = None
    """What the process is slower than, and how many times."""
    within: float = 0.05
    """The share by which the size may be off."""


def traffic(seed: int, law: Law = LAW, faults: Faults | None = None, load: Load | None = None, **settings: Any) -> Run:
    """The engine's run: four drafted tokens a sequence, 256 tokens a step."""
    policy: dict[str, Any] = {"budget": 256, "speculative_tokens": 4, "drafter": SimulatedDrafts()} | settings
    return run(load or chats(COUNT, seed=seed), law=law, faults=faults, seed=seed, **policy)


@cache
def law_of(seed: int, law: Law = LAW) -> StepModel | None:
    """The model of earlier traffic under a law."""
    return learn(*traffic(100 + seed, law).tables, former=None)


def quiet(seed: int, law: Law) -> Shown:
    """Nothing is wrong."""
    return Shown(traffic(seed, law), Laws(law_of(seed, law)))


def frozen(seed: int, law: Law) -> Shown:
    """The device stands still for 400 ms."""
    return _device(seed, law, Faults(freezes=((MIDDLE, 400 * MS),)), ("stall",))


def slowed(seed: int, law: Law) -> Shown:
    """The device is 1.5 times as slow for 7 s."""
    return _device(seed, law, Faults(slow=((MIDDLE, UNTIL, 1.5),)), ("slow device",))


def alternate(seed: int, law: Law) -> Shown:
    """Every second step takes 1.8 times as long for 7 s."""
    return _device(seed, law, Faults(alternate=(MIDDLE, UNTIL, 1.8)), ("slow device", "stall"))


def _device(seed: int, law: Law, faults: Faults, top: tuple[str, ...]) -> Shown:
    found = traffic(seed, law, faults)
    return Shown(found, Laws(law_of(seed, law)), ("drift", "stall"), top, found.faulty())


def burst_on_a_slow_device(seed: int, law: Law) -> Shown:
    """A hundred requests come within a second while the device is 1.5 times as slow."""
    load = chats(COUNT, seed=seed)
    at = [MIDDLE + i * 10 * MS for i in range(100)]
    more = Load(at, [list(one) for one in load.prompts[:100]], load.outputs[:100])
    both, _ = load.with_more(more)
    found = traffic(seed, law, Faults(slow=((MIDDLE, UNTIL, 1.5),)), both, max_seqs=64)
    laws = Laws(law_of(seed, law))
    return Shown(found, laws, ("drift", "stall"), ("slow device",), found.faulty(), within=0.2)


def long_prompt(seed: int, law: Law) -> Shown:
    """A prompt of 100,000 tokens in chunks: work that no law knows, and no slow device."""
    load = Load([MIDDLE], [np.random.default_rng(seed).integers(1, 30_000, LONG).tolist()], [20])
    both, [place] = chats(COUNT, seed=seed).with_more(load)
    found = traffic(seed, law, load=both, blocks=40_000)
    return Shown(found, Laws(law_of(seed, law)), culprit=place)


def fewer_drafts(seed: int, law: Law) -> Shown:
    """For 7 s drafts are accepted with 0.2 in place of 0.8: a sequence gets 1.25 tokens a step in place of 3.4."""
    found = traffic(seed, law, Faults(accepted=(MIDDLE, UNTIL, 0.2)))
    usual, fallen = (sum(share**i for i in range(5)) for share in (law.accepted, 0.2))
    decoding, inside = np.zeros(len(found.requests["key"])), (MIDDLE, UNTIL)
    columns = (found.phases[one].tolist() for one in ("key", "start", "duration_ns", "name"))
    for key, start, length, name in zip(*columns, strict=True):
        if name == "decode":
            decoding[key] += max(0, min(start + length - EPOCH, inside[1]) - max(start - EPOCH, inside[0]))
    laws = Laws(law_of(seed, law))
    return Shown(found, laws, ("drafts",), ("fewer drafts accepted",), decoding * (1 - fallen / usual), within=0.2)


def slower_sister(seed: int, law: Law) -> Shown:
    """A new process is 1.5 times as slow as another one of its kind, and always was: a fact, and no fault."""
    slow = scaled(law, 1.5)
    return Shown(traffic(seed, slow), Laws(sister=law_of(seed, law)), slower=("sister", 1.5))


def another_model(seed: int, law: Law) -> Shown:
    """A process whose model takes 1.4 times as long as that of another process of its service: no law judges both."""
    return Shown(traffic(seed, scaled(law, 1.4)), Laws())


def slower_version(seed: int, law: Law) -> Shown:
    """A new version takes 2.6 times as long for the same work."""
    found = traffic(seed, scaled(law, 2.6))
    injected = _computed(found) * (1 - 1 / 2.6)
    laws = Laws(version=law_of(seed, law))
    return Shown(found, laws, ("slower",), ("slower by itself",), injected, slower=("version", 2.6))


def creep(seed: int, law: Law) -> Shown:
    """The device gets slower by 2 % every ten minutes, for two hours; the law follows it."""
    model = law_of(seed, law)
    for window in range(1, 12):
        few = chats(COUNT // 2, seed=50 + seed + window)
        model = learn(*traffic(seed, scaled(law, 1.02**window), load=few).tables, former=model)
    found, factor = traffic(seed, scaled(law, 1.02**12)), 1.02**12
    causes, top, laws = ("slower", "drift"), ("slower by itself",), Laws(model)
    return Shown(found, laws, causes, top, _computed(found) * (1 - 1 / factor), slower=("earlier", factor), within=0.2)


def after_a_long_fault(seed: int, law: Law) -> Shown:
    """For an hour the device was 1.5 times as slow, until that was usual; then it was as before, and slow for 7 s."""
    usual, slow = law_of(seed, law), learn(*traffic(150 + seed, scaled(law, 1.5)).tables, former=None)
    assert usual is not None
    assert slow is not None
    model = replace(slow, anchor=usual.anchor)
    found = traffic(seed, law, Faults(slow=((MIDDLE, MIDDLE + 3 * S, 4.0),)))
    return Shown(found, Laws(model), ("drift", "stall"), ("slow device", "stall"), found.faulty(), within=0.1)


def scaled(law: Law, factor: float) -> Law:
    """A device that takes so many times as long for everything."""
    times = ("step", "prompt", "token", "sequence", "context", "attention", "drafted")
    return replace(law, **{name: getattr(law, name) * factor for name in times})


def _computed(found: Run) -> np.ndarray:
    """By request, the ns of its life in which steps ran."""
    steps = [(step.start, step.end) for step in found.truth]
    times = np.array(steps, float).ravel()
    sums = np.repeat(np.cumsum([end - start for start, end in steps]), 2).astype(float)
    sums[::2] -= [end - start for start, end in steps]
    start, end = (found.requests[name] - EPOCH for name in ("start", "end"))
    return np.interp(end, times, sums) - np.interp(start, times, sums)


def explained(case: Shown) -> Explained:
    """What is explained of its run."""
    laws = case.laws
    return explain_process(*case.run.tables, reference=laws.own, sister=laws.sister, version=laws.version)


def victims_of(case: Shown) -> list[int]:
    """Requests that came while the culprit's prompt was computed, and had to wait for it: five at most."""
    if case.culprit is None:
        return []
    start = case.run.requests["start"]
    since, until = start[case.culprit], start[case.culprit] + case.run.requests["ttft_ns"][case.culprit]
    return np.flatnonzero((start > since) & (start < until)).tolist()[:5]


def worst_of(case: Shown, victim: int) -> int | None:
    """The request whose prompt took most from a victim; None: nobody's is blamed."""
    times: dict[int, float] = {}
    for culprits in culprits_of(victim, *case.run.tables, reference=case.laws.own).values():
        for one in culprits:
            times[one.row] = times.get(one.row, 0.0) + one.time_ns
    return max(times, key=lambda row: times[row], default=None)


SHOWN = {
    "no fault": quiet,
    "freeze of 400 ms": frozen,
    "slow × 1.5, 7 s": slowed,
    "every second step × 1.8, 7 s": alternate,
    "burst of 100 on a device slow × 1.5": burst_on_a_slow_device,
    "prompt of 100,000 tokens": long_prompt,
    "drafts accepted with 0.2, 7 s": fewer_drafts,
    "always × 1.5 as slow as its sister": slower_sister,
    "another model of its service, × 1.4": another_model,
    "version × 2.6 as slow": slower_version,
    "creep of 2 % every ten minutes, two hours": creep,
    "slow × 4 after an hour of × 1.5": after_a_long_fault,
}
