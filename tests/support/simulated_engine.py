"""The engine's real scheduler and observer over a device that is a law of step times, on a clock that only it moves.

A run gives the columns of the store's tables, and beside them the truth: what each step's time was made of, and whose
prompt was in it. It is deterministic, needs no model, and simulates some 600 requests per second of CPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collector.causes.split.simulate import Scheduling
from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.plan import StepResult
from instrumented_engine.core.request import Request, SamplingParams
from instrumented_engine.core.scheduler import Scheduler
from tokentrail import Phase
from tokentrail._build.phases import partition

EPOCH = 1_800_000_000_000_000_000
US, MS, S = 1_000, 1_000_000, 1_000_000_000
WAITS = ("batch", "kv", "tokens", "priority")


@dataclass(frozen=True)
class Law:
    """A step takes (step + prompt·[some] + token·P + sequence·D + context·C + attention·A) · noise ns.

    P prompt tokens, D decoding sequences, C tokens of their context, A tokens of chunks times the context before them.
    `padding` rounds D up, as graphs of fixed sizes do. The noise is lognormal.
    """

    step: float = 8.0 * MS
    prompt: float = 1.0 * MS
    token: float = 0.05 * MS
    sequence: float = 0.25 * MS
    context: float = 0.0004 * MS
    attention: float = 0.0
    noise: float = 0.03
    gap: float = 0.3 * MS
    padding: int = 1
    drafted: float = 0.0
    """ns for each drafted token."""
    accepted: float = 0.8
    """A drafted token is accepted with this probability if those before it are."""


@dataclass(frozen=True)
class Faults:
    """What is wrong with the device and its host. Times are ns after EPOCH."""

    freezes: tuple[tuple[int, int], ...] = ()
    """The first step from a time on takes so many ns more."""
    slow: tuple[tuple[int, int, float], ...] = ()
    """From a time to another, steps take so many times as long."""
    theft: tuple[int, int] | None = None
    """Between these times, a neighbour takes the CPU for 5 to 40 ms in three of ten steps, and of ten gaps."""
    compilation: tuple[int, int] | None = None
    """From a time on, the first step of each number of sequences (in eights) takes so many ns more."""
    logprobs: int = 0
    """The host works so many ns after each step for each sequence that wants log-probabilities."""
    alternate: tuple[int, int, float] | None = None
    """From a time to another, every second step takes so many times as long."""
    accepted: tuple[int, int, float] | None = None
    """From a time to another, drafted tokens are accepted with this probability."""
    ready: int = 0
    """Until then the model is not loaded."""


@dataclass
class Load:
    """Requests in order of arrival: times (whole µs, ns after EPOCH), prompts, lengths of answers, how many answers."""

    at: list[int]
    prompts: list[list[int]]
    outputs: list[int]
    answers: list[int] = field(default_factory=list)

    def with_more(self, more: Load) -> tuple[Load, list[int]]:
        """Both loads together, and the places of the other one's requests in it."""
        mine, others = ([*zip(one.at, one.prompts, one.outputs, one.counts, strict=True)] for one in (self, more))
        order = sorted(range(len(mine) + len(others)), key=lambda i: (mine + others)[i][0])
        both = [(mine + others)[index] for index in order]
        return Load(*map(list, zip(*both, strict=True))), [i for i, index in enumerate(order) if index >= len(mine)]

    @property
    def counts(self) -> list[int]:
        return self.answers or [1] * len(self.at)


def chats(count, *, rate=10.0, seed=1, prompt=(120, 0.8, 1000), answer=(60, 0.7, 400), shared=0.0):
    """Chats that arrive at random. Lengths are lognormal (median, sigma, most); a `shared` share has a known prefix."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(S / rate, count)).astype(np.int64) // US * US
    inputs, outputs = (
        np.clip(rng.lognormal(math.log(median), sigma, count), 4, most).astype(int)
        for median, sigma, most in (prompt, answer)
    )
    prefixes = [rng.integers(1, 30_000, 96).tolist() for _ in range(8)]
    heads = [prefixes[rng.integers(8)] if rng.random() < shared else [] for _ in range(count)]
    return Load(
        at.tolist(),
        [h + rng.integers(1, 30_000, n).tolist() for h, n in zip(heads, inputs, strict=True)],
        outputs.tolist(),
    )


@dataclass(frozen=True)
class StepTruth:
    """One step: its times (ns after EPOCH), what its time was made of (ns), and whose tokens were in it."""

    start: int
    end: int
    base: float
    prompt: float
    decode: float
    fault: float
    """What faults added; the noise is in the others."""
    gap: int
    """Time between this step and the next one that faults added."""
    chunks: tuple[tuple[int, int, float], ...]
    """(request, tokens, its time)."""
    decoding: tuple[int, ...]
    """A request for each sequence."""
    context: int
    """Tokens of the sequences that decode."""


class _Clock:
    now = EPOCH

    def __call__(self):
        return self.now


class _Answer:
    """Takes what the observer says of a request."""

    def __init__(self, number, arrival, prompt):
        self.number, self.arrival, self.prompt = number, arrival, prompt
        self.marks, self.tokens, self.attributes = [], [], {}
        self.end_ns = self.cached = None

    def phase(self, phase, at_ns, *, tokens=None):
        self.marks.append((phase, at_ns))

    def choice(self, _):
        return self

    def end(self, at_ns, *, cached_tokens=None, attributes=None, **_):
        self.end_ns, self.cached, self.attributes = at_ns, cached_tokens, attributes or {}


class _Book:
    """Takes what the observer says of steps and blocks."""

    def __init__(self):
        self.steps, self.kv_events = [], []

    def step(self, step, start_ns, end_ns, emitted, counts, **numbers):
        self.steps.append({"step": step, "start": start_ns, "duration_ns": end_ns - start_ns} | numbers)
        for answer, count in zip(emitted, counts, strict=True):
            answer.tokens += [end_ns] * count

    def kv_event(self, kind, *, start_ns, end_ns=None, request=None, beneficiary=None, **_):
        self.kv_events.append(
            {"kind": str(kind), "start": start_ns, "duration_ns": (end_ns or start_ns) - start_ns}
            | {"request": getattr(request, "number", None), "beneficiary": getattr(beneficiary, "number", None)}
        )


class _Text:
    def push(self, _token, *, may_stop=True):
        return "", False

    def flush(self):
        return ""


class SimulatedDevice:
    """A runner that computes nothing, and moves the clock by the law."""

    def __init__(self, clock, law, faults, seed):
        self._clock, self._law, self._faults = clock, law, faults
        self._random = random.Random(seed)
        self._freezes = sorted(faults.freezes)
        self._compiled = set()
        self._steps = 0
        self.truth, self.waits = [], {}

    def warm_up(self):
        pass

    def transfer(self, sources, _targets, *, to_host):
        self._clock.now += 50 * US * len(sources)
        return 100 * len(sources)

    def run(self, plan):
        law, start = self._law, self._clock.now
        for sequence in plan.admitted:
            self.waits.setdefault(sequence.request.trail.number, dict(sequence.waited))
        prompts = [item for item in plan.batch if not item.sequence.decoding]
        decoding = [item.sequence for item in plan.batch if item.sequence.decoding]
        tokens = sum(item.num_scheduled_tokens for item in prompts)
        own = [
            (law.token + law.prompt / tokens) * n + law.attention * n * (item.sequence.num_computed_tokens + n / 2)
            for item in prompts
            for n in [item.num_scheduled_tokens]
        ]
        padded = -(-len(decoding) // law.padding) * law.padding
        context = sum(len(one.token_ids) for one in decoding)
        decode = law.sequence * padded + law.context * context + law.drafted * plan.drafted_tokens
        noise = math.exp(self._random.gauss(0, law.noise))
        usual = (law.step + sum(own) + decode) * noise
        fault = self._fault(start - EPOCH, usual, len(decoding))
        self._clock.now += int(usual + fault) // US * US
        chunks = tuple(
            (item.sequence.request.trail.number, item.num_scheduled_tokens, time * noise)
            for item, time in zip(prompts, own, strict=True)
        )
        between = self._between(start - EPOCH, decoding)
        self.truth.append(
            StepTruth(
                start=start - EPOCH,
                end=self._clock.now - EPOCH,
                base=law.step * noise,
                prompt=sum(own) * noise,
                decode=decode * noise,
                fault=fault,
                gap=between,
                chunks=chunks,
                decoding=tuple(one.request.trail.number for one in decoding),
                context=context,
            )
        )
        accepted = self._accepted(start - EPOCH)
        return StepResult([[7] * (1 + accepted(len(item.draft))) if item.samples else [] for item in plan.batch])

    def _accepted(self, at):
        fallen = self._faults.accepted
        share = fallen[2] if fallen and fallen[0] <= at < fallen[1] else self._law.accepted

        def of(drafted):
            return next((i for i in range(drafted) if self._random.random() >= share), drafted)

        return of

    def _fault(self, at, usual, sequences):
        faults = self._faults
        more = sum(usual * (factor - 1) for since, until, factor in faults.slow if since <= at < until)
        self._steps += 1
        if faults.alternate and faults.alternate[0] <= at < faults.alternate[1] and self._steps % 2:
            more += usual * (faults.alternate[2] - 1)
        while self._freezes and self._freezes[0][0] <= at:
            more += self._freezes.pop(0)[1]
        if self._stolen(at):
            more += self._random.uniform(5 * MS, 40 * MS)
        if faults.compilation and at >= faults.compilation[0] and (shape := -(-sequences // 8)) not in self._compiled:
            self._compiled.add(shape)
            more += faults.compilation[1]
        return more

    def _between(self, at, decoding):
        told = sum(one.params.logprobs is not None for one in decoding)
        more = self._faults.logprobs * told
        if self._stolen(at):
            more += self._random.uniform(5 * MS, 40 * MS)
        return int(more) // US * US

    def _stolen(self, at):
        theft = self._faults.theft
        return theft is not None and theft[0] <= at < theft[1] and self._random.random() < 0.3

    def gap(self):
        usual = int(self._law.gap * (0.5 + self._random.random())) // US * US
        return usual + (self.truth[-1].gap if self.truth else 0)


class SimulatedDrafts:
    """Proposes as many tokens as there may be."""

    def propose(self, limits):
        return {sequence: [7] * limit for sequence, limit in limits.items()}


@dataclass
class Run:
    """What the store has of a run (columns of its tables), and the truth."""

    requests: dict[str, np.ndarray]
    phases: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    kv_events: dict[str, np.ndarray]
    truth: list[StepTruth]
    waits: dict[int, dict[str, int]]
    """By request and reason, ns before its first step."""
    scheduling: Scheduling
    """The limits and the policy of the engine."""

    def good(self, *, ttft: float, tpot: float) -> np.ndarray:
        """By request, whether it is within thresholds (ns); one token has no TPOT."""
        requests = self.requests
        more = requests["end"] - requests["start"] - requests["ttft_ns"]
        return (requests["ttft_ns"] <= ttft) & (more <= tpot * (requests["output_tokens"] - 1))

    def waited(self, reason):
        """By request, the ns for which it waited for a reason before its first step."""
        return np.array([float(self.waits[number].get(reason, 0)) for number in range(len(self.requests["start"]))])

    def _ends(self):
        return self.phases["start"] - EPOCH + self.phases["duration_ns"]

    def computed(self):
        """By phase, the tokens that prefill phases computed of their own requests: what an engine may tell."""
        phases = self.phases
        start = phases["start"] - EPOCH
        end = start + phases["duration_ns"]
        return np.array(
            [
                sum(n for step in self.truth if since <= step.start < until for one, n, _ in step.chunks if one == key)
                for key, since, until in zip(phases["key"], start, end, strict=True)
            ],
            float,
        )

    @property
    def tables(self) -> tuple[dict[str, np.ndarray], ...]:
        """The arguments of `explain_process`."""
        return self.requests, self.phases, self.steps

    def faulty(self) -> np.ndarray:
        """By request, the ns of its life that faults added to steps and gaps."""
        times, sums, total = [0.0], [0.0], 0.0
        for step in self.truth:
            times += [step.start, step.end]
            sums += [total, total := total + step.fault]
            if step.gap:
                times += [step.end + step.gap]
                sums += [total := total + step.gap]
        start, end = (self.requests[name] - EPOCH for name in ("start", "end"))
        return np.interp(end, times, sums) - np.interp(start, times, sums)

    def inflicted(self) -> np.ndarray:
        """By request, the ns that its prompt added to the steps of others, or of their wait for its tokens."""
        found = np.zeros(len(self.requests["start"]))
        queued = self.phases["name"] == "queued"
        waiting = [
            (end - wait, end)
            for key, end in zip(self.phases["key"][queued], self._ends()[queued], strict=True)
            if (wait := self.waits[key].get("tokens", 0))
        ]
        for step in self.truth:
            others = len(step.decoding) + len(step.chunks) - 1
            others += sum(since <= step.start < until for since, until in waiting)
            for number, _, time in step.chunks:
                found[number] += time * others
        return found

    def suffered(self) -> np.ndarray:
        """By request, the ns for which it ran beside the prompts of others."""
        found = np.zeros(len(self.requests["start"]))
        for step in self.truth:
            for number in dict.fromkeys(step.decoding):
                found[number] += step.prompt
            for number, _, time in step.chunks:
                found[number] += step.prompt - time
        return found


def run(
    load: Load,
    *,
    law: Law | None = None,
    faults: Faults | None = None,
    seed: int = 1,
    max_seqs: int = 32,
    budget: int = 512,
    blocks: int = 4000,
    block_size: int = 16,
    make_device: Callable[..., SimulatedDevice] | None = None,
    **policy: bool | int,
) -> Run:
    """Let the requests of a load pass through the engine."""
    clock, book, law, faults = _Clock(), _Book(), law or Law(), faults or Faults()
    device = (make_device or SimulatedDevice)(clock, law, faults, seed)
    scheduler = Scheduler(BlockManager(blocks, block_size), max_seqs=max_seqs, max_batched_tokens=budget, **policy)
    engine = Engine(scheduler, device, Observer(book), eos_ids=[0], clock=clock)
    clock.now, answers, text = EPOCH + faults.ready, [], _Text()
    while len(answers) < len(load.at) or engine.busy:
        if not engine.busy:
            clock.now = max(clock.now, EPOCH + load.at[len(answers)])
        while len(answers) < len(load.at) and EPOCH + load.at[len(answers)] <= clock.now:
            answers.append(_arrive(engine, load, len(answers), faults.ready, lambda _: text))
        engine.step()
        clock.now += device.gap()
    known = {name: value for name, value in policy.items() if name in Scheduling.__dataclass_fields__}
    return Run(
        requests=_requests(answers),
        phases=_phases(answers),
        steps=_table(book.steps),
        kv_events=_table(book.kv_events),
        truth=device.truth,
        waits=device.waits,
        scheduling=Scheduling(max_seqs, budget, blocks, block_size, **known),
    )


def _arrive(engine: Engine, load: Load, number: int, ready: int, text: Callable):
    at, prompt = EPOCH + load.at[number], load.prompts[number]
    answer = _Answer(number, at, len(prompt))
    if load.at[number] < ready:
        answer.phase(Phase.COLD_START, at)
        answer.phase(Phase.QUEUED, EPOCH + ready)
    count = load.counts[number]
    params = SamplingParams(
        max_tokens=load.outputs[number], n=count, temperature=0.0, ignore_eos=True, logprobs=20 if count > 1 else None
    )
    engine.add(Request.of([prompt], params, trail=answer, sink=None, text=text, arrival_ns=at))
    return answer


def _requests(answers):
    def column(of, dtype=float):
        return np.array([of(answer) for answer in answers], dtype)

    return {
        "key": np.arange(len(answers), dtype=np.uint64),
        "start": column(lambda one: one.arrival, np.int64),
        "end": column(lambda one: one.end_ns, np.int64),
        "ttft_ns": column(lambda one: one.tokens[0] - one.arrival),
        "input_tokens": column(lambda one: one.prompt),
        "output_tokens": column(lambda one: len(one.tokens)),
        "cached_tokens": column(lambda one: one.cached),
        "gap_ns": column(lambda one: max(np.diff(one.tokens), default=None)),
    } | {
        f"wait_{why}_ns": column(lambda one, why=why: one.attributes.get(f"tokentrail.wait_time.{why}"))
        for why in WAITS
    }


def _phases(answers):
    found = [
        {"key": one.number, "start": start, "duration_ns": end - start, "name": phase.value}
        for one in answers
        for phase, start, end in partition(one.arrival, one.end_ns, one.marks, lambda mark: None, one.tokens[0])[0]
    ]
    return _table(found) | {"key": np.array([one["key"] for one in found], np.uint64)}


def _table(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values):
    if any(isinstance(value, str) for value in values):
        return np.array(values)
    return np.array(values, np.int64 if all(isinstance(value, int) for value in values) else float)
