"""Decides which sequences run in the next step, and on which blocks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One sequence's share of a step: its next `num_scheduled_tokens` tokens are computed."""

    sequence: Sequence
    num_scheduled_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step computes the sequence's last token, so that the next one can be sampled."""
        return self.num_scheduled_tokens == self.sequence.num_uncomputed_tokens


@dataclass(slots=True)
class Plan:
    """One step: the batch, the sequences that entered it, and the preempted ones with the number of their blocks."""

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
    prefilled in order. A prompt that does not fit the rest of the step waits for the next one, unless it is the first
    prompt of the step: that one is split. A sequence owns the blocks of its whole prompt from admission on.
    """

    def __init__(self, block_manager: BlockManager, *, max_seqs: int, max_batched_tokens: int) -> None:
        if max_batched_tokens < max_seqs:
            raise ValueError(f"max_batched_tokens ({max_batched_tokens}) must be at least max_seqs ({max_seqs})")
        self.block_manager = block_manager
        self.max_seqs = max_seqs
        self.max_batched_tokens = max_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. All blocks together must hold its prompt and its longest output."""
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence, waiting or running, and free its blocks; one that is neither is ignored."""
        for queue in (self.running, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
        self.block_manager.free(sequence.block_table)

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
            while sequence.decoding and not self._allocate(sequence):
                self._preempt(plan, self.running[-1])
            if sequence.decoding:
                plan.batch.append(Scheduled(sequence, 1))
                plan.decode_tokens += 1

    def _prefill(self, plan: Plan, sequence: Sequence) -> bool:
        left = self.max_batched_tokens - plan.prefill_tokens - plan.decode_tokens
        wanted = sequence.num_uncomputed_tokens
        count = wanted if plan.prefill_tokens else min(wanted, left)
        if not 0 < count <= left:
            return False
        plan.batch.append(Scheduled(sequence, count))
        plan.prefill_tokens += count
        return True

    def _admit(self, plan: Plan, sequence: Sequence) -> bool:
        if not self._allocate(sequence):
            return False
        if not self._prefill(plan, sequence):
            self.block_manager.free(sequence.block_table)
            return False
        self.running.append(self.waiting.popleft())
        plan.admitted.append(sequence)
        return True

    def _allocate(self, sequence: Sequence) -> bool:
        return self.block_manager.allocate(sequence.block_table, len(sequence.token_ids))

    def _preempt(self, plan: Plan, victim: Sequence) -> None:
        self.running.remove(victim)
        self.waiting.appendleft(victim)
        plan.preempted.append((victim, self.block_manager.free(victim.block_table)))
        self.preemptions += 1
        victim.num_computed_tokens = 0
        victim.decoding = False
