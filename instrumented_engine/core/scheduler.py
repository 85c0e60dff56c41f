"""Decides which sequences run in the next step, and on which blocks."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from itertools import count
from operator import attrgetter

from instrumented_engine.core.beams import with_beams
from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.drafter import Drafter, PromptLookup
from instrumented_engine.core.plan import Plan, Preempted, Transfer
from instrumented_engine.core.request import Request
from instrumented_engine.core.sequence import Sequence
from tokentrail.semconv import Wait

_order = attrgetter("order")


class Scheduler:
    """Continuous batching in order of priority, then of arrival, at most `max_batched_tokens` tokens a step.

    The beams of a search are admitted, computed and preempted together. They share the blocks of their common
    beginning, and a block is copied before one of several beams writes into it.

    Decoding sequences go first, in order. When one needs a block and none is free, the last running sequence is
    preempted: it loses its blocks, returns to its place in the queue, and is recomputed later. With `host_blocks` its
    blocks are copied to the host, if there is room for all of them, and are copied back when it is admitted again. A
    waiting sequence does not preempt.

    With `static_batching` a batch that decodes admits nobody until all of it has ended.

    Then prompts are computed in order. With `chunked_prefill` each takes the tokens that the step has left, and is
    split where they are too few; without it a prompt is computed in one step, alone if it is longer than a step. A
    sequence owns the blocks of its whole prompt from admission on. It is admitted only if `watermark_blocks` free
    blocks are left for each sequence that runs, so that those can grow before one of them is preempted.

    With `prefix_caching` full blocks stay findable by their tokens until their space is needed, and a sequence that
    starts with the same tokens shares them instead of computing them.

    With `speculative_tokens` a decoding sequence also computes a draft of so many tokens, as far as the step and the
    cache have room. The `drafter` proposes it, by default prompt lookup.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        *,
        max_seqs: int,
        max_batched_tokens: int,
        static_batching: bool = False,
        chunked_prefill: bool = True,
        watermark_blocks: int = 2,
        prefix_caching: bool = False,
        host_blocks: int = 0,
        speculative_tokens: int = 0,
        drafter: Drafter | None = None,
    ) -> None:
        if max_batched_tokens < max_seqs:
            raise ValueError(f"max_batched_tokens ({max_batched_tokens}) must be at least max_seqs ({max_seqs})")
        self.block_manager = block_manager
        self.max_seqs = max_seqs
        self.max_batched_tokens = max_batched_tokens
        self.waiting: list[Sequence] = []  # in order
        self.running: list[Sequence] = []  # in order
        self._host = BlockManager(host_blocks, block_manager.block_size)
        self._static_batching = static_batching
        self._chunked_prefill = chunked_prefill
        self._watermark_blocks = watermark_blocks
        self._prefix_caching = prefix_caching
        self._speculative_tokens = speculative_tokens
        self._drafter = drafter or PromptLookup()
        self._arrivals = count()

    @property
    def num_waiting_requests(self) -> int:
        """Requests of which a sequence waits and none runs. Any thread may ask: the queues are copied first."""
        return len({one.request for one in list(self.waiting)} - {one.request for one in list(self.running)})

    def add(self, request: Request) -> None:
        """Queue a new request: the first sequence of each prompt. The others follow when that prompt is computed.

        All blocks together must hold the prompt and the longest output of a sequence.
        """
        arrival = next(self._arrivals)
        for sequence in request.sequences:
            sequence.order = (request.params.priority, arrival, sequence.index)
        for sequence in request.leaders:
            insort(self.waiting, sequence, key=_order)

    def add_followers(self, leader: Sequence) -> None:
        """Queue the sequences that share a prompt which has been computed."""
        for sequence in leader.request.followers(leader):
            insort(self.waiting, sequence, key=_order)

    def take_in(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a new sequence host blocks for tokens that another engine computed; False when there is no room.

        From there it goes on as a preempted sequence that was copied to the host.
        """
        if not self._host.allocate(sequence.host_blocks, num_tokens):
            return False
        sequence.num_computed_tokens = num_tokens
        return True

    def run(self, beams: Iterable[Sequence]) -> None:
        """Let the other beams of a search run: its first one does."""
        for sequence in beams:
            if sequence not in self.running:
                insort(self.running, sequence, key=_order)

    def computed(self, sequence: Sequence) -> None:
        """Make the blocks of a sequence that are full and computed findable."""
        if self._prefix_caching:
            size = self.block_manager.block_size
            full = sequence.num_computed_tokens // size
            hashes = sequence.block_hashes(size)
            for position in range(sequence.num_published_blocks, full):
                self.block_manager.publish(sequence.block_table[position], hashes[position])
            sequence.num_published_blocks = full

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence, waiting or running, and free its blocks; one that is neither is ignored."""
        for queue in (self.running, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
        self.block_manager.free(sequence.block_table)
        self._host.free(sequence.host_blocks)

    def schedule(self) -> Plan:
        """Plan one step."""
        plan = Plan()
        dropped = self.block_manager.num_dropped_blocks
        self._decode(plan)
        for sequence in self.running:
            if not sequence.decoding:
                self._prefill(plan, sequence)
        while not plan.preempted and self.waiting and plan.wait is None:
            plan.wait = self._admit(plan, self.waiting[0])
        if self.waiting and plan.preempted:
            plan.wait = Wait.KV
        plan.dropped_blocks = self.block_manager.num_dropped_blocks - dropped
        return plan

    def _decode(self, plan: Plan) -> None:
        for first in list(self._ready()):
            while first.decoding and not all(self._grow(plan, sequence) for sequence in with_beams(first)):
                self._preempt(plan, self.running[-1], first)
        decoding = [sequence for first in self._ready() for sequence in with_beams(first)]
        room = self.max_batched_tokens - len(decoding)
        drafts = self._drafts(decoding, room)
        for sequence in decoding:
            draft = drafts.get(sequence, ())[:room]
            room -= len(draft)
            plan.add(sequence, 1, draft)

    def _ready(self) -> Iterator[Sequence]:
        """The sequences that have one token to compute, in order; of beams the first, once all of them are so far."""
        for sequence in self.running:
            beams = with_beams(sequence)
            if sequence is beams[0] and all(beam.decoding and beam.num_uncomputed_tokens for beam in beams):
                yield sequence

    def _grow(self, plan: Plan, sequence: Sequence) -> bool:
        """Give a sequence a block for its next token that no other sequence writes; False if none is free."""
        position = (len(sequence.token_ids) - 1) // self.block_manager.block_size
        if not self.block_manager.allocate(sequence.block_table, len(sequence.token_ids)):
            return False
        try:
            copied = self.block_manager.unshare(sequence.block_table, position)
        except IndexError:
            return False
        plan.copies += [copied] if copied else []
        return True

    def _drafts(self, decoding: Seq[Sequence], room: int) -> Mapping[Sequence, Seq[int]]:
        """Drafts of at most `room` tokens each, for which the sequences have blocks."""
        limits = {}
        for sequence in decoding:
            left = sequence.params.max_tokens - sequence.num_output_tokens - 1
            wanted = 0 if sequence.beams else min(self._speculative_tokens, left, room)
            limit = self._allocate_draft(sequence, wanted)
            if limit > 0:
                limits[sequence] = limit
        return self._drafter.propose(limits) if limits else {}

    def _allocate_draft(self, sequence: Sequence, limit: int) -> int:
        """Give a sequence blocks for a draft; return the number of tokens that fit. Each running sequence keeps one."""
        length = len(sequence.token_ids)
        if limit > 0 and self.block_manager.allocate(sequence.block_table, length + limit, reserve=len(self.running)):
            return limit
        return min(limit, len(sequence.block_table) * self.block_manager.block_size - length)

    def _prefill(self, plan: Plan, sequence: Sequence) -> bool:
        left = self.max_batched_tokens - plan.num_tokens
        wanted = sequence.num_uncomputed_tokens
        if self._chunked_prefill:
            wanted = min(wanted, left)
        if not wanted or (wanted > left and plan.prefill_tokens):
            return False
        plan.add(sequence, wanted)
        return True

    def _admit(self, plan: Plan, first: Sequence) -> Wait | None:
        """Let a sequence run, with the other beams of its search; the answer is its reason to wait, or None."""
        closed = self._static_batching and any(other.decoding for other in self.running)
        if closed or sum(map(_places, self.running)) + _places(first) > self.max_seqs:
            return Wait.BATCH
        sequences = list(with_beams(first))
        kept = [sequence.num_computed_tokens for sequence in sequences]
        copies: list[tuple[int, int]] = []
        cached = [self._place(sequence, copies) for sequence in sequences]
        missing = Wait.KV if None in cached else None
        if missing is None and not self._prefill(plan, first):
            missing = Wait.TOKENS
        if missing is not None:
            for sequence, tokens in zip(sequences, kept, strict=True):
                self._take_back(sequence, tokens)
            return missing
        for sequence in sequences[1:]:
            self._prefill(plan, sequence)
        for sequence in sequences:
            if host := list(sequence.host_blocks):
                plan.restores.append(Transfer(sequence, sequence.block_table[: len(host)], host))
                self._host.free(sequence.host_blocks)
            self.waiting.remove(sequence)
        if self._prefix_caching and first.num_cached_tokens is None:
            first.num_cached_tokens = cached[0]
            if first.leader is None:
                plan.cached_prompt_tokens += cached[0] or 0
        plan.cached_tokens += sum(filter(None, cached))
        plan.copies += copies
        self.run(sequences)
        plan.admitted += sequences
        return None

    def _place(self, sequence: Sequence, copies: list[tuple[int, int]]) -> int | None:
        """Give a waiting sequence blocks; return how many of its tokens the cache had, None if too few are free."""
        shared = [] if sequence.num_computed_tokens else self._share_prompt(sequence)
        cached = 0 if sequence.num_computed_tokens else self._share_cached(sequence)
        reserve = self._watermark_blocks * len(self.running)
        if not self.block_manager.allocate(sequence.block_table, len(sequence.token_ids), reserve=reserve):
            return None
        copies += [(source, sequence.block_table[position]) for position, source in shared]
        return cached

    # Blocks of 4 tokens, a prompt of 10, and a leader that owns 7, 8, 9. The last token of the prompt is computed
    # again, since its logits are needed. So 9 tokens are shared: blocks 7 and 8, and a copy of block 9's first token.
    def _share_prompt(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Give a follower the blocks of its leader, if that still has them; return (position, block) to be copied."""
        leader = sequence.leader
        if leader is None or not leader.block_table:
            return []
        shared = min(leader.num_computed_tokens, sequence.num_prompt_tokens - 1)
        full, rest = divmod(shared, self.block_manager.block_size)
        self.block_manager.share(sequence.block_table, leader.block_table[:full])
        sequence.num_computed_tokens = shared
        return [(full, leader.block_table[full])] if rest else []

    def _share_cached(self, sequence: Sequence) -> int:
        """Give a sequence the cached blocks of its tokens; return how many tokens they hold. The last is computed."""
        if not self._prefix_caching or sequence.params.prompt_logprobs is not None:
            return 0
        size = self.block_manager.block_size
        usable = (len(sequence.token_ids) - 1) // size
        cached = self.block_manager.find(sequence.block_hashes(size)[:usable])
        self.block_manager.share(sequence.block_table, cached)
        sequence.num_computed_tokens = len(cached) * size
        return sequence.num_computed_tokens

    # No step both offloads and restores, since none that preempts admits: a host block that a restore gives up is not
    # written before it is read. A device block that an offload gives up may be; so offloads are copied first. By then
    # the block that a beam got for its own in this step is empty: its contents are still in the shared one.
    def _preempt(self, plan: Plan, last: Sequence, beneficiary: Sequence) -> None:
        for victim in with_beams(last):
            self._preempt_alone(plan, victim, beneficiary)

    def _preempt_alone(self, plan: Plan, victim: Sequence, beneficiary: Sequence) -> None:
        self.running.remove(victim)
        insort(self.waiting, victim, key=_order)
        kept = min(victim.num_computed_tokens, len(victim.token_ids) - 1)  # a beam that waits for others has all
        if not self._host.allocate(victim.host_blocks, kept):
            kept = 0
        if kept:
            host = list(victim.host_blocks)
            shared = {target: source for source, target in plan.copies}
            blocks = [shared.get(block, block) for block in victim.block_table[: len(host)]]
            plan.offloads.append(Transfer(victim, blocks, host, beneficiary))
        plan.preempted.append(Preempted(victim, self._take_back(victim, kept), beneficiary))
        victim.decoding = False

    def _take_back(self, sequence: Sequence, num_kept_tokens: int) -> int:
        """Free the blocks of a sequence, of which the host keeps some tokens; return how many blocks became free."""
        sequence.num_computed_tokens, sequence.num_published_blocks = num_kept_tokens, 0
        return self.block_manager.free(sequence.block_table)


def _places(sequence: Sequence) -> int:
    """The places of a batch that a sequence takes: the first beam of a search takes those of all."""
    if sequence.beams is None:
        return 1
    return sequence.beams.width if sequence is sequence.beams.live[0] else 0
