"""Who runs in the next step, and on which blocks: the whole policy on one screen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from instrumented_engine.core.blocks import BlockPool
from instrumented_engine.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`sequence` computes its next `count` tokens in this step; it samples one if they are its last."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """Whether this step gives the sequence a token."""
        return self.count == self.sequence.remaining


@dataclass(slots=True)
class Plan:
    """One step: the batch, who entered it, and who was thrown out with how many blocks."""

    batch: list[Scheduled] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[tuple[Sequence, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_tokens: int = 0

    @property
    def evicted_blocks(self) -> int:
        """Blocks that preemption took."""
        return sum(blocks for _, blocks in self.preempted)


class Scheduler:
    """Continuous batching, first come first served, at most `max_batched_tokens` tokens a step.

    Decoding sequences go first, oldest first. When one needs a block and none is free, the newest running sequence
    is preempted: it loses its blocks, returns to the head of the queue, and is recomputed later. Then prompts are
    prefilled, whole if they fit what is left of the step; the first of a step that does not fit is split instead of
    waiting for ever. A sequence owns the blocks of its whole prompt from admission on.
    """

    def __init__(self, pool: BlockPool, *, max_seqs: int, max_batched_tokens: int) -> None:
        if max_batched_tokens < max_seqs:
            raise ValueError(f"max_batched_tokens ({max_batched_tokens}) must be at least max_seqs ({max_seqs})")
        self.pool = pool
        self.max_seqs = max_seqs
        self.max_batched_tokens = max_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, whose prompt and output together must fit the pool."""
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks; unknown ones are ignored."""
        for queue in (self.running, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
        self.pool.release(sequence.blocks)

    def schedule(self) -> Plan:
        """Plan one step."""
        plan = Plan()
        self._decode(plan)
        for sequence in self.running:
            if not sequence.decoding:
                self._prefill(plan, sequence)
        while not plan.preempted and self.waiting and len(self.running) < self.max_seqs:
            if not self._admit(plan, self.waiting[0]):
                break
        return plan

    def _decode(self, plan: Plan) -> None:
        for sequence in [s for s in self.running if s.decoding]:
            while sequence.decoding and not self.pool.grow(sequence.blocks, len(sequence.tokens)):
                self._preempt(plan, self.running[-1])
            if sequence.decoding:
                plan.batch.append(Scheduled(sequence, 1))
                plan.decode_tokens += 1

    def _prefill(self, plan: Plan, sequence: Sequence) -> bool:
        left = self.max_batched_tokens - plan.prefill_tokens - plan.decode_tokens
        count = sequence.remaining if plan.prefill_tokens else min(sequence.remaining, left)
        if not 0 < count <= left:
            return False
        plan.batch.append(Scheduled(sequence, count))
        plan.prefill_tokens += count
        return True

    def _admit(self, plan: Plan, sequence: Sequence) -> bool:
        if not self.pool.grow(sequence.blocks, len(sequence.tokens)):
            return False
        if not self._prefill(plan, sequence):
            self.pool.release(sequence.blocks)
            return False
        self.running.append(self.waiting.popleft())
        plan.admitted.append(sequence)
        return True

    def _preempt(self, plan: Plan, victim: Sequence) -> None:
        self.running.remove(victim)
        self.waiting.appendleft(victim)
        plan.preempted.append((victim, self.pool.release(victim.blocks)))
        victim.computed = 0
        victim.decoding = False
