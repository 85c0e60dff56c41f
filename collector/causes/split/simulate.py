"""The engine's scheduler as a simulation of discrete events, to try what did not happen: other loads and settings.

All decoding sequences grow by one token a step. So when a sequence starts to decode it is known in which step it ends,
and in which steps it needs a block; a step costs the same however many sequences decode in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf, log2, nan
from typing import Final

import numpy as np

from collector.causes.split.columns import Floats
from collector.causes.split.model import FEATURES, LONG

_ENDLESS: Final = 1 << 60


@dataclass(frozen=True)
class Scheduling:
    """The limits and the policy of an engine: continuous batching in the order of arrival, as the own engine does it.

    Raises ValueError for limits with which it could not run.
    """

    max_seqs: int
    """Requests that run at once."""
    max_batched_tokens: int
    """Tokens of a step: one of each decoding sequence, and those of prompts."""
    kv_blocks: int | None = None
    """Blocks of the KV cache; None: always enough."""
    block_size: int = 16
    watermark_blocks: int = 2
    """Blocks that stay free for each running request when another one is admitted."""
    chunked_prefill: bool = True
    static_batching: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_seqs <= self.max_batched_tokens:
            raise ValueError(
                f"max_seqs is {self.max_seqs} and max_batched_tokens {self.max_batched_tokens};"
                " max_seqs must be at least 1 and at most max_batched_tokens"
            )
        if self.block_size < 1 or (self.kv_blocks is not None and self.kv_blocks < 1):
            raise ValueError(f"kv_blocks is {self.kv_blocks} and block_size {self.block_size}; both must be at least 1")

    def fits(self, tokens: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether a request of so many tokens, prompt and answer, can run at all."""
        return np.ceil(tokens / self.block_size) <= (_ENDLESS if self.kv_blocks is None else self.kv_blocks)


@dataclass(frozen=True)
class Device:
    """How long steps take, and what hinders them. Times are ns of the same clock as the arrivals."""

    coefficients: Sequence[float]
    """By FEATURES, ns."""
    factors: Mapping[int, float] = field(default_factory=dict)
    """What the law misses by cell (`model.cells_of`)."""
    ratios: Sequence[float] = (1.0,)
    """Of steps to the law, one behind the other; from the start again after the last."""
    gaps: Sequence[float] = (0.0,)
    """Behind each of these steps, ns."""
    closed: Sequence[tuple[float, float]] = ()
    """Times in which nothing is computed, in order and apart from each other. A step under way goes on behind them."""
    slow: Sequence[tuple[float, float, float]] = ()
    """From a time to another, steps that start take so many times as long; in order and apart from each other."""


@dataclass(frozen=True)
class Simulated:
    """What became of the requests, in their order."""

    first: Floats
    """The time of the first token, ns."""
    end: Floats
    steps: int


def simulate(
    scheduling: Scheduling,
    device: Device,
    arrival: Floats,
    prompt: Floats,
    answer: Floats,
    cached: Floats | None = None,
) -> Simulated:
    """Let requests pass through an engine.

    They are given in the order of arrival (ns), with the tokens of their prompts, those of their answers, at least 1,
    and those of the prompts that the prefix cache has. All of them must fit (`scheduling.fits`).
    """
    known = np.zeros(len(prompt)) if cached is None else np.minimum(cached, prompt - 1) // scheduling.block_size
    run = _Run(scheduling, device, *(column.astype(np.int64).tolist() for column in (prompt, answer, known)))
    at, count, upcoming = [*arrival.tolist(), inf], len(arrival), 0
    while upcoming < count or run.busy:
        run.wake(-inf if run.busy else at[upcoming])
        while at[upcoming] <= run.now:
            heappush(run.waiting, upcoming)
            upcoming += 1
        run.step()
    return Simulated(np.array(run.first, float), np.array(run.end, float), run.steps)


class _Run:
    """The engine in the middle of its work. Requests are numbers in the order of arrival; the smallest goes first."""

    def __init__(
        self, scheduling: Scheduling, device: Device, prompt: list[int], answer: list[int], shared: list[int]
    ) -> None:
        count = len(prompt)
        self.scheduling, self.device = scheduling, device
        self.now, self.steps = -inf, 0
        self.waiting: list[int] = []  # a heap
        self.running: list[int] = []
        self.first, self.end = [nan] * count, [nan] * count
        self._prefilling: list[int] = []
        self._length, self._left = prompt, answer
        self._shared = shared  # blocks that others hold too
        self._computed, self._blocks = [0] * count, [0] * count
        self._free = _ENDLESS if scheduling.kv_blocks is None else scheduling.kv_blocks
        self._ends: list[tuple[int, int]] = []  # a heap of (step, request); stale where the request has another step
        self._last = [-1] * count  # the step behind which a decoding request ends; -1: it does not decode
        self._decoding = self._context = 0
        self._growing = [0] * scheduling.block_size  # decoding requests that need a block, by step modulo block size
        self._closed = self._slow = 0

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def wake(self, at: float) -> None:
        """Go on at a time, or later, when the device computes again."""
        self.now = max(self.now, at)
        closed = self.device.closed
        while self._closed < len(closed) and closed[self._closed][0] <= self.now:
            self.now = max(self.now, closed[self._closed][1])
            self._closed += 1

    def step(self) -> None:
        preempted = self._grow()
        prompts = self._plan(admit=not preempted)
        turn = self.steps % len(self.device.ratios)
        self.now = self._after(self._duration(prompts) * self.device.ratios[turn] * self._slowness())
        self.steps += 1
        self._context += self._decoding
        while self._ends and self._ends[0][0] <= self.steps:
            last, request = heappop(self._ends)
            if self._last[request] == last:
                self._stop_decoding(request)
                self._finish(request)
        for request, tokens in prompts:
            self._computed[request] += tokens
            if self._computed[request] == self._length[request]:
                self._answer(request)
        self.now = self._after(self.device.gaps[turn % len(self.device.gaps)])

    def _grow(self) -> bool:
        """Give blocks to decoding requests; whether some had to be preempted for it, the last ones first."""
        preempted = False
        while (needed := self._growing[self.steps % self.scheduling.block_size]) > self._free:
            request = self.running.pop()
            if self._last[request] >= 0:
                self._stop_decoding(request)
            else:
                self._prefilling.remove(request)
            self._free += self._blocks[request]
            heappush(self.waiting, request)
            preempted = True
        self._free -= needed
        return preempted

    def _plan(self, *, admit: bool) -> list[tuple[int, int]]:
        """The prompts of a step, with the tokens of each: first of those that run, then of those that are admitted."""
        scheduling = self.scheduling
        prompts: list[tuple[int, int]] = []
        room = scheduling.max_batched_tokens - self._decoding
        for request in self._prefilling:
            if tokens := self._tokens(request, self._computed[request], room, some=bool(prompts)):
                prompts.append((request, tokens))
                room -= tokens
        if scheduling.static_batching and self._decoding:
            return prompts
        while admit and self.waiting and len(self.running) < scheduling.max_seqs:
            request = self.waiting[0]
            shared = self._shared[request]
            blocks = self._blocks_of(request)
            if blocks > 0 and blocks + scheduling.watermark_blocks * len(self.running) > self._free:
                break
            tokens = self._tokens(request, shared * scheduling.block_size, room, some=bool(prompts))
            if not tokens:
                break
            heappop(self.waiting)
            self._computed[request], self._blocks[request] = shared * scheduling.block_size, blocks
            self._free -= blocks
            insort(self.running, request)
            insort(self._prefilling, request)
            prompts.append((request, tokens))
            room -= tokens
        return prompts

    def _tokens(self, request: int, computed: int, room: int, *, some: bool) -> int:
        """The tokens of a prompt that a step takes; without chunks all or none, but alone a prompt may be too long."""
        wanted = self._length[request] - computed
        if self.scheduling.chunked_prefill:
            return min(wanted, room)
        return 0 if wanted > room and some else wanted

    def _duration(self, prompts: list[tuple[int, int]]) -> float:
        """By the law, ns."""
        step, some, each, token, long, attention, sequence, context = self.device.coefficients[: len(FEATURES) - 1]
        time = step + sequence * self._decoding + context * self._context
        cell = min(self._decoding, 999)
        if prompts:
            total = sum(tokens for _, tokens in prompts)
            read = sum(tokens * (self._computed[request] + tokens / 2) for request, tokens in prompts)
            time += some + each * len(prompts) + token * total + long * max(total - LONG, 0) + attention * read
            cell = 1000 + int(4 * log2(total))
        return time * self.device.factors.get(cell, 1.0)

    def _slowness(self) -> float:
        slow = self.device.slow
        while self._slow < len(slow) and slow[self._slow][1] <= self.now:
            self._slow += 1
        return slow[self._slow][2] if self._slow < len(slow) and slow[self._slow][0] <= self.now else 1.0

    def _after(self, work: float) -> float:
        """The time at which work ends that goes on now and rests while the device is closed."""
        end, closed = self.now + work, self.device.closed
        while self._closed < len(closed) and closed[self._closed][0] < end:
            end += closed[self._closed][1] - closed[self._closed][0]
            self._closed += 1
        return end

    def _answer(self, request: int) -> None:
        """The first token of a computed prompt; the rest is decoded."""
        del self._prefilling[bisect_left(self._prefilling, request)]
        self._length[request] += 1
        self._left[request] -= 1
        if self.first[request] != self.first[request]:
            self.first[request] = self.now
        if not self._left[request]:
            self._finish(request)
            return
        self._last[request] = self.steps + self._left[request]
        heappush(self._ends, (self._last[request], request))
        self._decoding += 1
        self._context += self._length[request]
        self._growing[self._grows(request)] += 1

    # A sequence needs a block when it has one token more than its blocks hold: its length is 1 modulo their size.
    def _grows(self, request: int) -> int:
        return (1 - self._length[request] + self.steps) % self.scheduling.block_size

    def _stop_decoding(self, request: int) -> None:
        left = self._last[request] - self.steps
        self._length[request] += self._left[request] - left
        self._left[request], self._last[request] = left, -1
        self._decoding -= 1
        self._context -= self._length[request]
        self._growing[self._grows(request)] -= 1
        self._blocks[request] = self._blocks_of(request, newest=0)

    def _blocks_of(self, request: int, *, newest: int = 1) -> int:
        """The blocks that a request needs for its own: for all of its tokens, or without the newest one."""
        return -(-(self._length[request] - 1 + newest) // self.scheduling.block_size) - self._shared[request]

    def _finish(self, request: int) -> None:
        self.end[request] = self.now
        del self.running[bisect_left(self.running, request)]
        self._free += self._blocks[request]
