"""An engine of fifty lines, instrumented: continuous batching, and a KV cache that is too small for its load.

    .venv/bin/tokentrail up                    # in another terminal: collector on 4318, dashboard on 8501
    .venv/bin/python examples/engine.py

The dashboard then shows twelve requests that queue, prefill, decode and preempt one another.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from tokentrail import KvEvent, Phase, RequestTrail, Trail, now_ns

BLOCK_SIZE, KV_BLOCKS = 4, 16


@dataclass(eq=False)
class Sequence:
    """A request in the engine; its tokens are only counted."""

    request: RequestTrail
    tokens: int
    max_tokens: int
    in_cache: bool = False

    @property
    def blocks(self) -> int:
        """KV blocks that its tokens need."""
        return -(-self.tokens // BLOCK_SIZE)


class Engine:
    """Runs schedule → run → postprocess, and tells the trail once per step."""

    def __init__(self, trail: Trail) -> None:
        self.trail = trail
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.steps = 0

    def kv_used(self) -> int:
        """KV blocks in use."""
        return sum(s.blocks for s in self.running)

    def schedule(self, now: int) -> list[Sequence]:
        """Preempts the newest sequences until the cache holds the others, else admits those that fit."""
        victims = []
        while self.kv_used() > KV_BLOCKS:
            victims.append(victim := self.running.pop())
            self.trail.kv_event(
                KvEvent.EVICT, blocks=victim.blocks, reason="preemption", step=self.steps, start_ns=now,
                request=victim.request,
            )  # fmt: skip
            victim.request.phase(Phase.PREEMPTED, now)
            victim.in_cache = False
            self.waiting.appendleft(victim)
        while not victims and self.waiting and self.kv_used() + self.waiting[0].blocks <= KV_BLOCKS:
            self.running.append(self.waiting.popleft())
            self.running[-1].request.phase(Phase.PREFILL, now)
        return victims

    def step(self) -> None:
        """Every running sequence gets one token; all tokens of a step share its end."""
        start = now_ns()
        victims = self.schedule(start)
        prefill = [s.tokens for s in self.running if not s.in_cache]
        time.sleep(0.001 + 0.0001 * sum(prefill))  # the forward pass
        end = now_ns()
        emitted = [s.request for s in self.running]
        self.trail.step(
            self.steps, start, end, emitted, prefill_tokens=sum(prefill), decode_tokens=len(emitted) - len(prefill),
            running=len(emitted), waiting=len(self.waiting), preempted=len(victims),
            kv_used=self.kv_used(), kv_total=KV_BLOCKS, kv_evicted=sum(s.blocks for s in victims),
        )  # fmt: skip
        for s in self.running:
            if not s.in_cache:
                s.request.phase(Phase.DECODE, end)
            s.in_cache, s.tokens = True, s.tokens + 1
            if s.tokens == s.max_tokens:
                s.request.end(end, finish_reason="length")
        self.running = [s for s in self.running if s.tokens < s.max_tokens]
        self.steps += 1


trail = Trail.from_env(service_name="engine-example")
with trail.cold_start("toy") as cold, cold.phase("load_weights"):
    engine = Engine(trail)
for i in range(12):
    prompt, output = 4 + 3 * (i % 4), 8 + i
    request = trail.start_request(operation="text_completion", model="toy", slo_class="chat", input_tokens=prompt)
    engine.waiting.append(Sequence(request, prompt, prompt + output))
while engine.waiting or engine.running:
    engine.step()
trail.shutdown()
print(f"{engine.steps} steps; {trail.stats}")
