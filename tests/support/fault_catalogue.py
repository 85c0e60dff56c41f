"""Faults with a known size: a run with each, the same run without it, and the time that it added to requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from collector.causes.split.columns import Limits
from tests.support.simulated_engine import EPOCH, MS, US, Faults, Law, Load, Run, S, chats, run

COUNT = 900
MIDDLE = 45 * S
"""When faults begin: the chats arrive over 90 s."""


@dataclass(frozen=True)
class Case:
    """A run with a fault, and the same one without it."""

    faulty: Run
    plain: Run
    rows: np.ndarray
    """The requests of the faulty run that are also in the plain one, in the order of that one."""
    injected: np.ndarray
    """By these requests, the ns that the fault added while they were there."""
    culprits: tuple[int, ...] = ()
    """Requests of the faulty run that made others wait."""

    @property
    def added(self) -> np.ndarray:
        """Which requests of the faulty run are not in the plain one."""
        return ~np.isin(np.arange(len(self.faulty.requests["start"])), self.rows)


@cache
def _plain(count: int, seed: int, law: Law, **settings: int) -> Run:
    return run(chats(count, seed=seed), law=law, seed=seed, **settings)


def reference_run(seed: int, law: Law) -> Run:
    """Earlier traffic of the same process, without a fault."""
    return _plain(COUNT, 100 + seed, law)


@dataclass(frozen=True)
class Fault:
    """One fault of the catalogue."""

    name: str
    causes: tuple[str, ...]
    """What it adds time to."""
    top: tuple[str, ...]
    """The groups that may be the largest of what the fault added."""
    make: Callable[[int, Law], Case]
    limits: Limits | None = None
    """The engine tells these in place of the reasons for which requests wait."""
    several: bool = False
    """Its requests have several answers, which no replay knows."""

    @property
    def replayed(self) -> bool:
        """Whether a replay can tell what would have been without it; the same fault once."""
        return bool(self.causes) and not self.several and self.limits is None

    def tables(self, case: Case) -> tuple[dict[str, np.ndarray], ...]:
        """The faulty run as the engine tells it."""
        return (untold(case.faulty) if self.limits else case.faulty).tables


def _device(faults: Faults) -> Callable[[int, Law], Case]:
    """A fault of the device or its host, which the truth of each step tells."""

    def make(seed: int, law: Law) -> Case:
        plain = _plain(COUNT, seed, law)
        faulty = run(chats(COUNT, seed=seed), law=law, faults=faults, seed=seed) if faults != Faults() else plain
        return Case(faulty, plain, np.arange(COUNT), faulty.faulty())

    return make


def _cold_start(seed: int, law: Law) -> Case:
    faulty = run(chats(COUNT, seed=seed), law=law, faults=Faults(ready=5 * S), seed=seed)
    start, end = (faulty.requests[name] - EPOCH for name in ("start", "end"))
    injected = np.maximum(np.minimum(end, 5 * S) - start, 0).astype(float)
    return Case(faulty, _plain(COUNT, seed, law), np.arange(COUNT), injected)


def _more(extra: Callable[[np.random.Generator], Load], culprits: Callable[[Load], list[bool]], **settings):
    """Requests that come besides; the waits that they cause are known by the scheduler or by the truth of steps."""

    def make(seed: int, law: Law) -> Case:
        added = extra(np.random.default_rng(seed))
        both, places = chats(COUNT, seed=seed).with_more(added)
        faulty, plain = run(both, law=law, seed=seed, **settings), _plain(COUNT, seed, law, **settings)
        rows = np.setdiff1d(np.arange(len(both.at)), places)
        guilty = tuple(place for place, is_one in zip(places, culprits(added), strict=True) if is_one)
        return Case(faulty, plain, rows, _beside(faulty, guilty)[rows], guilty)

    return make


def _beside(found: Run, guilty: tuple[int, ...]) -> np.ndarray:
    """By request, the ns of its life in which prompts of guilty ones were computed, but for their own."""
    added = np.zeros(len(found.requests["start"]))
    start, end = (found.requests[name] - EPOCH for name in ("start", "end"))
    for step in found.truth:
        for number, _, time in step.chunks:
            if number in guilty:
                share = np.clip(np.minimum(end, step.end) - np.maximum(start, step.start), 0, None)
                share = share / (step.end - step.start)
                share[number] = 0
                added += time * share
    return added


def _storm(seed: int, law: Law) -> Case:
    tight = run(chats(COUNT, seed=seed), law=law, seed=seed, blocks=190, watermark_blocks=0)
    injected = tight.waited("kv")
    phases = tight.phases
    lost = phases["name"] == "preempted"
    np.add.at(injected, phases["key"][lost].astype(int), phases["duration_ns"][lost])
    first = tight.requests["start"] + tight.requests["ttft_ns"] - EPOCH
    for step in tight.truth:
        for number, _, time in step.chunks:
            injected[number] += time * (step.start >= first[number])
    return Case(tight, _plain(COUNT, seed, law), np.arange(COUNT), injected)


def _burst(seed: int, law: Law) -> Case:
    load = chats(COUNT, seed=seed)
    at = [MIDDLE + index * 10 * MS for index in range(100)]
    both, places = load.with_more(Load(at, [list(one) for one in load.prompts[:100]], load.outputs[:100]))
    faulty, plain = run(both, law=law, seed=seed, max_seqs=16), _plain(COUNT, seed, law, max_seqs=16)
    rows = np.setdiff1d(np.arange(len(both.at)), places)
    return Case(faulty, plain, rows, faulty.waited("batch")[rows] - plain.waited("batch"))


def _prompt(random: np.random.Generator, tokens: int) -> list[int]:
    return random.integers(1, 30_000, tokens).tolist()


def _long(random: np.random.Generator) -> Load:
    return Load([MIDDLE], [_prompt(random, 1500)], [60])


def _large_and_small(random: np.random.Generator) -> Load:
    at = sorted(MIDDLE + int(random.integers(0, 191 * MS)) // US * US for _ in range(29))
    sizes = random.permutation([1200] * 18 + [20] * 11)
    return Load(at, [_prompt(random, int(size)) for size in sizes], [40] * 29)


def _several_answers(seed: int, law: Law) -> Case:
    """Eight answers with the 20 likeliest tokens each: the host works on them after each step."""
    load = chats(COUNT, seed=seed)
    added = Load([MIDDLE], [_prompt(np.random.default_rng(seed), 100)], [300], [8])
    both, [place] = load.with_more(added)
    faults = Faults(logprobs=2 * MS)
    faulty = run(both, law=law, faults=faults, seed=seed)
    rows = np.setdiff1d(np.arange(len(both.at)), [place])
    return Case(faulty, _plain(COUNT, seed, law), rows, faulty.faulty()[rows])


_DEVICE = ("drift", "stall")
_KV = ("wait_kv", "preempted", "recompute")
_PROMPTS = ("others_prompts", "wait_tokens")
_PLACE = ("waiting for a place",)


def _stage(number: int) -> tuple[int, int, float]:
    return MIDDLE + 5 * number * S, MIDDLE + 5 * (number + 1) * S, 1.15 + 0.15 * number


CATALOGUE = (
    Fault("no fault", (), (), _device(Faults())),
    Fault("freeze of 400 ms", ("stall",), ("stall",), _device(Faults(freezes=((MIDDLE, 400 * MS),)))),
    Fault("slow × 1.5, 30 s", _DEVICE, ("slow device",), _device(Faults(slow=((MIDDLE, MIDDLE + 30 * S, 1.5),)))),
    Fault("slow × 1.1, 30 s", _DEVICE, ("slow device",), _device(Faults(slow=((MIDDLE, MIDDLE + 30 * S, 1.1),)))),
    Fault("clock drop in four stages", _DEVICE, ("slow device",), _device(Faults(slow=tuple(map(_stage, range(4)))))),
    Fault(
        "CPU theft, 20 s",
        (*_DEVICE, "gap"),
        ("stall", "slow device", "host gap"),
        _device(Faults(theft=(MIDDLE, MIDDLE + 20 * S))),
    ),
    Fault(
        "compilation of first shapes",
        ("stall", "unexplained"),
        ("stall",),
        _device(Faults(compilation=(MIDDLE, 600 * MS))),
    ),
    Fault("cold start of 5 s", ("cold_start",), ("cold start",), _cold_start),
    Fault("eviction storm", _KV, ("waiting for KV", "preempted and recomputed"), _storm),
    Fault("burst of 100", ("wait_batch",), _PLACE, _burst),
    Fault("burst of 100, reasons by elimination", ("wait_batch",), _PLACE, _burst, limits=Limits(max_seqs=16)),
    Fault("prompt of 1,500 tokens", _PROMPTS, ("others' prompts",), _more(_long, lambda _: [True], budget=2048)),
    Fault(
        "18 large and 11 small prompts in 191 ms",
        _PROMPTS,
        ("others' prompts",),
        _more(_large_and_small, lambda load: [len(one) > 1000 for one in load.prompts]),
    ),
    Fault("8 answers with log-probabilities", ("gap",), ("host gap",), _several_answers, several=True),
)


def untold(found: Run) -> Run:
    """The run as an engine tells it that does not say why requests wait."""
    requests = {name: column for name, column in found.requests.items() if not name.startswith("wait_")}
    steps = {name: column for name, column in found.steps.items() if not name.startswith("waiting_for_")}
    return replace(found, requests=requests, steps=steps)


@cache
def _made(make: Callable[[int, Law], Case]) -> Case:
    return make(1, Law())


def made(fault: Fault) -> Case:
    """The case of a fault, which the tests share: a run takes 0.4 s of CPU."""
    return _made(fault.make)
