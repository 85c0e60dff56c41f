"""A simulated engine: continuous batching over a law of step times, recorded by the SDK as a real engine is."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

from tokentrail import KvEvent, Phase, RequestTrail, Status, Trail, now_ns, semconv
from tokentrail._send.transport import Transport
from tokentrail.cli.day.process import MS, US, Planned, Process
from tokentrail.config import Settings

_BLOCK = 16
_COLD_PHASES = {"device_init": 0.06, "load_weights": 0.55, "compile_kernels": 0.27, "warmup": 0.12}
"""Shares of a cold start."""


@dataclass(eq=False)
class _Sequence:
    planned: Planned
    trail: RequestTrail
    length: int
    """Tokens that its KV blocks must hold before the next one."""
    left: int
    waited_before: Mapping[str, int]
    computed: int = 0
    blocks: int = 0
    preemptions: int = 0
    waited: dict[str, int] = field(default_factory=dict)

    @property
    def decodes(self) -> bool:
        return self.computed >= self.length


class _Ids(IdGenerator):
    """Ids of a seed, so that the same day has the same requests."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311 # ids of a simulation

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or 1

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or 1


class SimulatedEngine:
    """Lets requests pass through one process, and sends what happened through a trail of its own.

    The trail's clock is that of the simulation.
    """

    def __init__(
        self,
        process: Process,
        requests: Iterable[Planned],
        settings: Settings,
        transport: Transport | None,
        *,
        seed: int,
    ) -> None:
        """`requests` are given in the order of their arrival."""
        self.process = process
        self._coming = deque(requests)
        self.now = process.start
        self._ready = process.start + process.loading
        self._random = random.Random(f"{seed} {process.instance}")  # noqa: S311 # of a simulation
        resource = {
            semconv.SERVICE_NAME: process.service,
            semconv.SERVICE_INSTANCE_ID: process.instance,
            semconv.ENGINE: process.engine,
            semconv.VARIANT: process.variant,
        }
        ids = _Ids(f"{seed} {process.instance}")
        provider = TracerProvider(resource=Resource(resource), id_generator=ids, shutdown_on_exit=False)
        self.trail = Trail(settings, provider, transport=transport, clock=self._time, background=False)
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._free = process.limits.kv_blocks
        self._steps = self._evicted = 0
        self._waited = {"batch": 0, "kv": 0, "tokens": 0}
        """Ns for which the first of the waiting ones has waited, by reason."""
        self._reason = ""
        self._is_over = False

    def run(self, until: int) -> None:
        """Serve the requests that arrive before `until` (unix ns), or until the process hangs, and send what happened.

        What has not ended then stays in flight.
        """
        coming, hangs = self._coming, self.process.hangs
        stop = min(until, hangs or until)
        if not self._steps and self.now == self.process.start < stop:
            self._cold_start()
        while self.now < stop and (self._running or self._waiting or (coming and coming[0].at < stop)):
            if not (self._running or self._waiting):
                self.now = max(self.now, coming[0].at)
            while coming and coming[0].at <= self.now:
                self._arrive(coming.popleft())
            if self._waiting or self._running:
                self._step()
        if hangs and until > hangs:
            while coming and coming[0].at < until:
                self._arrive(coming.popleft())
            self.now = max(self.now, until)
        self.trail.flush(0)

    def _cold_start(self) -> None:
        at, process = float(self.now), self.process
        with self.trail.cold_start(process.model, start_ns=self.now) as cold:
            cold.limits(
                {
                    semconv.Limit.MAX_SEQS: process.limits.seqs,
                    semconv.Limit.MAX_BATCHED_TOKENS: process.limits.batched_tokens,
                    semconv.Limit.KV_BLOCKS: process.limits.kv_blocks,
                }
            )
            for name, share in _COLD_PHASES.items():
                cold.passed(name, int(at), int(at := at + share * process.loading))
            self.now = self._ready

    def _arrive(self, planned: Planned) -> None:
        trail = self.trail.start_request(
            operation="chat",
            model=self.process.model,
            request_id=f"chatcmpl-{self._random.getrandbits(96):024x}",
            arrival_ns=planned.at,
            input_tokens=planned.prompt,
            tenant=planned.tenant,
            slo_class=planned.slo_class,
        )
        if len(self._waiting) >= self.process.limits.queue:
            trail.end(planned.at + 5 * MS, status=Status.ERROR, error_type="queue_full")
            return
        if planned.at < self._ready:
            trail.phase(Phase.COLD_START, planned.at)
            trail.phase(Phase.QUEUED, self._ready)
        self._waiting.append(_Sequence(planned, trail, planned.prompt, planned.answer, dict(self._waited)))

    def _step(self) -> None:
        law, start = self.process.law, self.now
        preempted = self._grow(start)
        decoding = [one for one in self._running if one.decodes]
        chunks = self._plan(len(decoding), start, admit=not preempted)
        prompt = sum(tokens for _, tokens in chunks)
        attention = sum(tokens * (one.computed + tokens / 2) for one, tokens in chunks)
        context = sum(one.length for one in decoding)
        usual = law.step + law.token * prompt + law.attention * attention
        usual += law.sequence * len(decoding) + law.context * context + (law.prompt if chunks else 0)
        end = start + int(usual * math.exp(self._random.gauss(0, law.noise))) // US * US
        for one, tokens in chunks:
            one.computed += tokens
            if one.decodes:
                one.trail.phase(Phase.DECODE, end)
        emitting = decoding + [one for one, _ in chunks if one.decodes]
        waiting = len(self._waiting)
        self.trail.step(
            self._steps, start, end, [one.trail for one in emitting], prefill_tokens=prompt,
            decode_tokens=len(decoding), running=len(self._running), waiting=waiting, preempted=preempted,
            kv_used=self.process.limits.kv_blocks - self._free, kv_total=self.process.limits.kv_blocks,
            kv_evicted=self._evicted,
            waiting_for_batch=waiting * (self._reason == "batch"), waiting_for_kv=waiting * (self._reason == "kv"),
            waiting_for_tokens=waiting * (self._reason == "tokens"),
        )  # fmt: skip
        self._steps += 1
        self._evicted = 0
        for one in emitting:
            one.computed += 1
            one.length += 1
            one.left -= 1
            if one.left <= 0:
                self._end(one, end)
        self.now = end + int(law.gap * (0.5 + self._random.random())) // US * US
        if self._reason:
            self._waited[self._reason] += self.now - start

    def _grow(self, now: int) -> int:
        """Give each decoding sequence a place for its next token; the newest lose theirs. Returns how many did."""
        preempted = 0
        for one in [one for one in self._running if one.decodes]:
            while one.blocks and one.length >= one.blocks * _BLOCK:
                if self._free:
                    self._free -= 1
                    one.blocks += 1
                    continue
                self._preempt(self._running[-1], one, now)
                preempted += 1
        return preempted

    def _preempt(self, victim: _Sequence, beneficiary: _Sequence, now: int) -> None:
        self._running.remove(victim)
        self._free += victim.blocks
        self._evicted += victim.blocks
        victim.trail.phase(Phase.PREEMPTED, now)
        self.trail.kv_event(
            KvEvent.EVICT, blocks=victim.blocks, reason="preemption", step=self._steps, start_ns=now,
            request=victim.trail, beneficiary=None if beneficiary is victim else beneficiary.trail,
        )  # fmt: skip
        victim.blocks = victim.computed = 0
        victim.preemptions += 1
        self._waiting.appendleft(victim)

    def _plan(self, decoding: int, now: int, *, admit: bool) -> list[tuple[_Sequence, int]]:
        """The prompts of a step with their tokens. Admits those who wait, in their order, while there is room."""
        limits = self.process.limits
        budget, chunks = limits.batched_tokens - decoding, []
        for one in self._running:
            if not one.decodes and budget:
                tokens = min(budget, one.length - one.computed)
                chunks.append((one, tokens))
                budget -= tokens
        self._reason = "" if admit or not self._waiting else "kv"
        while admit and self._waiting:
            one = self._waiting[0]
            blocks = -(-(one.length + 1) // _BLOCK)
            self._reason = (
                "batch" if len(self._running) >= limits.seqs
                else "tokens" if not budget
                else "kv" if self._running and blocks > self._free
                else ""
            )  # fmt: skip
            if self._reason:
                break
            self._waiting.popleft()
            if not one.preemptions:
                one.computed = min(one.planned.cached, one.length - 1)
                one.waited = {name: ns - one.waited_before[name] for name, ns in self._waited.items()}
            one.trail.phase(Phase.PREFILL, now, tokens=one.length if one.preemptions else None)
            one.blocks = blocks
            self._free -= blocks
            self._running.append(one)
            tokens = min(budget, one.length - one.computed)
            chunks.append((one, tokens))
            budget -= tokens
        return chunks

    def _end(self, one: _Sequence, now: int) -> None:
        self._running.remove(one)
        self._free += one.blocks
        planned = one.planned
        one.trail.end(
            now,
            status=planned.status,
            error_type="engine_error" if planned.status is Status.ERROR else "",
            finish_reason="stop" if planned.status is Status.OK else "",
            input_tokens=planned.prompt,
            cached_tokens=planned.cached,
            attributes={semconv.WAIT_TIME_PREFIX + name: ns for name, ns in one.waited.items() if ns},
        )

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._running) + len(self._waiting)

    def goes_on(self) -> Trail:
        """The trail, from now on by the real clock: its process lives, and its requests stay in flight."""
        self._is_over = True
        return self.trail

    def _time(self) -> int:
        return now_ns() if self._is_over else self.now
