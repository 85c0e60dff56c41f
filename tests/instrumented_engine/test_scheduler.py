from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.drafter import NgramIndex, PromptLookup
from instrumented_engine.core.scheduler import Scheduler
from tokentrail.semconv import Wait
from tokentrail.testing import MemoryTrail

from .support import make_request, make_sequence

TRAIL = MemoryTrail()


def scheduler_of(blocks, size, *, max_seqs=8, budget=64, watermark_blocks=0, **options):
    manager = BlockManager(blocks, size)
    return Scheduler(
        manager, max_seqs=max_seqs, max_batched_tokens=budget, watermark_blocks=watermark_blocks, **options
    )


def play(plan):
    """Compute a plan; return the sequences that got their first token."""
    first = []
    for item in plan.batch:
        sequence, samples = item.sequence, item.samples
        sequence.num_computed_tokens += item.num_scheduled_tokens
        if samples:
            if not sequence.num_output_tokens:
                first.append(sequence)
            sequence.token_ids.append(1)
            sequence.decoding = True
    return first


def counts(plan):
    return [(item.sequence.num_prompt_tokens, item.num_scheduled_tokens) for item in plan.batch]


def test_a_budget_smaller_than_the_batch_is_refused():
    with pytest.raises(ValueError, match=r"max_batched_tokens \(4\) must be at least max_seqs \(8\)"):
        scheduler_of(4, 4, budget=4)


def test_prompts_are_prefilled_whole_and_first_come_first_served():
    scheduler = scheduler_of(100, 4, budget=20, chunked_prefill=False)
    for length in (12, 9, 3):
        scheduler.add(make_sequence(TRAIL, range(length)).request)
    plan = scheduler.schedule()
    assert counts(plan) == [(12, 12)], "the second does not fit the rest of the step, and the third may not overtake it"
    play(plan)
    plan = scheduler.schedule()
    assert counts(plan) == [(12, 1), (9, 9), (3, 3)]
    assert (plan.decode_tokens, plan.prefill_tokens) == (1, 12)


def test_several_prompts_are_split_over_steps():
    scheduler = scheduler_of(100, 4, budget=20)
    for length in (12, 30, 3):
        scheduler.add(make_sequence(TRAIL, range(length)).request)
    seen = []
    for _ in range(3):
        plan = scheduler.schedule()
        seen.append((counts(plan), plan.wait))
        play(plan)
    assert seen == [
        ([(12, 12), (30, 8)], Wait.TOKENS),
        ([(12, 1), (30, 19)], Wait.TOKENS),
        ([(12, 1), (30, 3), (3, 3)], None),
    ]


def test_an_unsplit_prompt_longer_than_a_step_is_computed_at_once():
    scheduler = scheduler_of(100, 4, budget=10, chunked_prefill=False)
    for length in (5, 25, 2):
        scheduler.add(make_sequence(TRAIL, range(length)).request)
    plan = scheduler.schedule()
    assert (counts(plan), plan.wait) == ([(5, 5)], Wait.TOKENS)
    play(plan)
    assert counts(scheduler.schedule()) == [(5, 1), (25, 25)]


def test_admission_leaves_blocks_for_those_that_run():
    scheduler = scheduler_of(7, 4, watermark_blocks=2)
    for _ in range(3):
        scheduler.add(make_sequence(TRAIL, range(8)).request)
    plan = scheduler.schedule()
    assert (len(plan.admitted), plan.wait) == (2, Wait.KV)


def test_a_request_that_runs_alone_may_have_all_blocks():
    scheduler = scheduler_of(4, 4, watermark_blocks=9)
    scheduler.add(make_sequence(TRAIL, range(15)).request)
    assert len(scheduler.schedule().admitted) == 1


def test_a_prompt_longer_than_a_step_is_split_while_others_decode():
    scheduler = scheduler_of(100, 4, budget=10)
    scheduler.add(make_sequence(TRAIL, range(5)).request)
    play(scheduler.schedule())
    scheduler.add(make_sequence(TRAIL, range(25)).request)
    seen = []
    for _ in range(4):
        plan = scheduler.schedule()
        seen.append(counts(plan))
        play(plan)
    assert seen == [[(5, 1), (25, 9)], [(5, 1), (25, 9)], [(5, 1), (25, 7)], [(5, 1), (25, 1)]]


def test_the_newest_is_preempted_and_comes_back_first():
    scheduler = scheduler_of(4, 2)
    old, new = make_sequence(TRAIL, [1, 2]), make_sequence(TRAIL, [3, 4])
    late = make_sequence(TRAIL, [5])
    scheduler.add(old.request)
    scheduler.add(new.request)
    for _ in range(3):
        play(scheduler.schedule())
    scheduler.add(late.request)
    plan = scheduler.schedule()
    assert plan.preempted == [(new, 2, old)]
    assert plan.evicted_blocks == 2
    assert [item.sequence for item in plan.batch] == [old], "nobody is admitted in a step that had to preempt"
    assert list(scheduler.waiting) == [new, late]
    assert (new.num_computed_tokens, new.decoding, new.block_table) == (0, False, [])
    scheduler.finish(old)
    plan = scheduler.schedule()
    assert counts(plan)[0] == (2, 5), "prompt and output are computed again"


def test_the_plan_says_why_a_sequence_waits():
    def wait(*lengths, **options):
        scheduler = scheduler_of(**{"blocks": 8, "size": 4} | options)
        for length in lengths:
            scheduler.add(make_sequence(TRAIL, range(length)).request)
        return scheduler.schedule().wait

    assert wait(4, 4) is None
    assert wait(4, 4, max_seqs=1) == Wait.BATCH
    assert wait(20, 16) == Wait.KV
    assert wait(8, 12, budget=16) is None
    assert wait(8, 12, budget=16, chunked_prefill=False) == Wait.TOKENS
    assert wait(16, 1, budget=16) == Wait.TOKENS


def test_a_preempting_step_makes_the_victim_wait_for_blocks():
    scheduler = scheduler_of(3, 1)
    for _ in range(2):
        scheduler.add(make_sequence(TRAIL, [1]).request)
    for _ in range(2):
        plan = scheduler.schedule()
        play(plan)
    assert (len(plan.preempted), plan.wait) == (1, Wait.KV)


def test_followers_share_the_prompt_and_compute_its_last_token():
    scheduler = scheduler_of(16, 4)
    first, second, third = make_request(TRAIL, range(10), n=3).sequences
    scheduler.add(first.request)
    [leader] = play(scheduler.schedule())
    assert (leader, scheduler.waiting) == (first, [])
    scheduler.add_followers(first)
    plan = scheduler.schedule()
    assert plan.admitted == [second, third]
    assert [(item.sequence, item.num_scheduled_tokens) for item in plan.batch] == [(first, 1), (second, 1), (third, 1)]
    assert second.block_table[:2] == third.block_table[:2] == first.block_table[:2]
    assert plan.copies == [(first.block_table[2], s.block_table[2]) for s in (second, third)]
    assert (scheduler.block_manager.num_used_blocks, plan.cached_tokens) == (5, 0)
    scheduler.finish(first)
    assert scheduler.block_manager.num_used_blocks == 4, "the shared blocks still have owners"


def test_a_follower_whose_leader_has_gone_computes_the_prompt_itself():
    scheduler = scheduler_of(16, 4)
    first, second = make_request(TRAIL, range(10), n=2).sequences
    scheduler.add(first.request)
    play(scheduler.schedule())
    scheduler.add_followers(first)
    scheduler.finish(first)
    plan = scheduler.schedule()
    assert ([(item.sequence, item.num_scheduled_tokens) for item in plan.batch], plan.copies) == ([(second, 10)], [])


def test_a_follower_that_must_wait_keeps_nothing():
    scheduler = scheduler_of(3, 4)
    first, second = make_request(TRAIL, range(10), n=2).sequences
    scheduler.add(first.request)
    play(scheduler.schedule())
    scheduler.add_followers(first)
    plan = scheduler.schedule()
    assert (plan.wait, plan.copies, second.block_table, second.num_computed_tokens) == (Wait.KV, [], [], 0)


def test_finishing_works_from_anywhere_and_twice():
    scheduler = scheduler_of(4, 2, max_seqs=1)
    running, waiting = make_sequence(TRAIL, [1, 2]), make_sequence(TRAIL, [3])
    scheduler.add(running.request)
    scheduler.add(waiting.request)
    play(scheduler.schedule())
    for sequence in (waiting, running, running):
        scheduler.finish(sequence)
    assert (scheduler.running, list(scheduler.waiting), scheduler.block_manager.num_used_blocks) == ([], [], 0)


def test_equal_beginnings_are_computed_once():
    scheduler = scheduler_of(16, 4, prefix_caching=True)
    first = make_sequence(TRAIL, range(10))
    scheduler.add(first.request)
    play(scheduler.schedule())
    scheduler.computed(first)
    blocks = list(first.block_table)
    same, other = make_sequence(TRAIL, range(8)), make_sequence(TRAIL, [*range(8), 99])
    for sequence in (same, other):
        scheduler.add(sequence.request)
    plan = scheduler.schedule()
    assert counts(plan) == [(10, 1), (8, 4), (9, 1)], "the last token is always computed"
    assert (same.block_table[0], other.block_table[:2]) == (blocks[0], blocks[:2])
    assert (same.num_cached_tokens, other.num_cached_tokens, plan.cached_tokens) == (4, 8, 12)
    assert (plan.copies, first.num_cached_tokens) == ([], 0)
    for sequence in (first, same, other):
        scheduler.finish(sequence)
    late = make_sequence(TRAIL, range(10))
    scheduler.add(late.request)
    assert counts(scheduler.schedule()) == [(10, 2)], "the blocks of ended sequences are found too"


def test_only_full_blocks_have_hashes():
    grown = make_sequence(TRAIL, range(10))
    assert len(grown.block_hashes(4)) == 2
    grown.token_ids += [10, 11, 12]
    assert grown.block_hashes(4) == make_sequence(TRAIL, range(13)).block_hashes(4)
    assert len(grown.block_hashes(4)) == 3


def test_only_computed_tokens_are_found():
    scheduler = scheduler_of(16, 4, budget=8, prefix_caching=True)
    sequences = [make_sequence(TRAIL, range(12)) for _ in range(2)]
    for sequence in sequences:
        scheduler.add(sequence.request)
    plan = scheduler.schedule()
    assert counts(plan) == [(12, 8)]
    play(plan)
    scheduler.computed(sequences[0])
    assert scheduler.block_manager.find(sequences[1].block_hashes(4)) == sequences[0].block_table[:2]


def test_a_sequence_that_comes_back_is_cached_again():
    scheduler = scheduler_of(4, 2, prefix_caching=True)
    old, new = make_sequence(TRAIL, [1, 2]), make_sequence(TRAIL, [3, 4])
    for sequence in (old, new):
        scheduler.add(sequence.request)
    while not new.num_output_tokens or new.block_table:
        plan = scheduler.schedule()
        play(plan)
        for item in plan.batch:
            scheduler.computed(item.sequence)
    scheduler.finish(old)
    filler: list[int] = []
    assert scheduler.block_manager.allocate(filler, 8), "other tokens take the place of all that were cached"
    scheduler.block_manager.free(filler)
    play(scheduler.schedule())
    scheduler.computed(new)
    assert scheduler.block_manager.find(new.block_hashes(2)) == new.block_table[: new.num_computed_tokens // 2]


def test_dropped_blocks_are_told():
    scheduler = scheduler_of(2, 4, prefix_caching=True)
    told = []
    for token in (1, 2, 3):
        sequence = make_sequence(TRAIL, [token] * 5)
        scheduler.add(sequence.request)
        plan = scheduler.schedule()
        play(plan)
        scheduler.computed(sequence)
        scheduler.finish(sequence)
        told.append((plan.dropped_blocks, plan.evicted_blocks))
    assert told == [(0, 0), (1, 0), (1, 0)], "those of each step"


def test_a_draft_is_what_followed_before():
    lookup = NgramIndex(2)
    assert lookup.draft([1], 3) == []
    assert lookup.draft([1, 2, 3, 4, 1, 2], 3) == [3, 4, 1]
    assert lookup.draft([1, 2, 3, 4, 1, 2], 1) == [3]
    assert lookup.draft([1, 2, 3, 4, 1, 2, 9], 3) == []
    assert lookup.draft([1, 2, 3, 4, 1, 2, 9, 1, 2], 3) == [9, 1, 2], "the last time counts"
    assert lookup.draft([1, 2, 3, 4, 1, 2, 9, 1, 2, 5, 5, 5], 3) == [5]


def drafting(prompt, *, blocks=64, budget=64, max_tokens=20, others=0):
    """The draft of the first decode step of a prompt, behind which the token 1 was sampled."""
    scheduler = scheduler_of(blocks, 4, budget=budget, max_seqs=4, speculative_tokens=5, drafter=PromptLookup(1))
    sequence = make_sequence(TRAIL, prompt, max_tokens=max_tokens)
    scheduler.add(sequence.request)
    for _ in range(others):
        scheduler.add(make_sequence(TRAIL, [5]).request)
    play(scheduler.schedule())
    plan = scheduler.schedule()
    assert plan.drafted_tokens == sum(len(item.draft) for item in plan.batch)
    assert plan.num_tokens <= budget
    return list(plan.batch[0].draft)


def test_drafts_stay_within_all_limits():
    prompt = [1, 2, 3, 4, 5, 6, 7]
    assert drafting(prompt) == [2, 3, 4, 5, 6]
    assert drafting(prompt, max_tokens=4) == [2, 3], "with the sampled one behind them, four"
    assert drafting(prompt, max_tokens=2) == []
    assert drafting(prompt, budget=10, others=3) == [2, 3, 4, 5, 6]
    assert drafting(prompt, budget=7, others=0) == [2, 3, 4, 5, 6]
    assert drafting([1, 2, 3, 4], budget=6, others=2) == [2, 3, 4], "each of the others computes one of the six"
    assert drafting(prompt, blocks=4) == [], "a block per running sequence stays free"
    assert drafting(prompt, blocks=5) == [2, 3, 4, 5, 6]


def test_drafts_of_several_sequences_share_what_a_step_has_left():
    scheduler = scheduler_of(64, 4, budget=9, max_seqs=4, speculative_tokens=5, drafter=PromptLookup(1))
    for _ in range(3):
        scheduler.add(make_sequence(TRAIL, [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7], max_tokens=40).request)
    plans = []
    for _ in range(12):
        plans.append(scheduler.schedule())
        play(plans[-1])
    assert max(plan.num_tokens for plan in plans if plan.drafted_tokens) == 9
    assert max(plan.num_tokens for plan in plans) == 9


class Traffic(RuleBasedStateMachine):
    """Any mix of arrivals, steps, ends and cancellations."""

    @initialize(blocks=st.integers(2, 12), size=st.integers(1, 5), seqs=st.integers(1, 5), extra=st.integers(0, 12))
    def start(self, blocks, size, seqs, extra):
        self.scheduler = scheduler_of(blocks, size, max_seqs=seqs, budget=seqs + extra, watermark_blocks=extra % 3)
        self.alive = []

    @rule(data=st.data())
    def arrive(self, data):
        capacity = self.scheduler.block_manager.capacity
        prompt = data.draw(st.integers(1, max(1, capacity - 1)))
        n = data.draw(st.integers(1, 3))
        request = make_request(TRAIL, range(prompt), max_tokens=max(1, capacity - prompt), n=n)
        self.scheduler.add(request)
        self.alive += request.leaders

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data):
        sequence = data.draw(st.sampled_from(self.alive))
        self.scheduler.finish(sequence)
        self.alive.remove(sequence)

    @precondition(lambda self: self.alive)
    @rule()
    def step(self):
        plan = self.scheduler.schedule()
        assert plan.batch, "each waiting sequence makes progress"
        assert plan.prefill_tokens + plan.decode_tokens == sum(item.num_scheduled_tokens for item in plan.batch)
        assert plan.prefill_tokens + plan.decode_tokens <= self.scheduler.max_batched_tokens
        assert len({item.sequence for item in plan.batch}) == len(plan.batch)
        for item in plan.batch:
            assert 0 < item.num_scheduled_tokens <= item.sequence.num_uncomputed_tokens
            held = len(item.sequence.block_table) * self.scheduler.block_manager.block_size
            computed = item.sequence.num_computed_tokens + item.num_scheduled_tokens
            assert computed <= held, "every computed token has a place"
        assert (plan.wait is None) == (not self.scheduler.waiting)
        for source, target in plan.copies:
            assert self.owners()[target] == 1, "nobody else reads the block that is written"
            assert source != target
        for leader in play(plan):
            self.scheduler.add_followers(leader)
            self.alive += leader.request.followers(leader)
        for sequence in list(self.alive):
            if sequence.num_output_tokens >= sequence.params.max_tokens:
                self.scheduler.finish(sequence)
                self.alive.remove(sequence)

    def owners(self):
        return Counter(block for sequence in self.alive for block in sequence.block_table)

    @invariant()
    def every_block_counts_its_owners(self):
        manager, owners = self.scheduler.block_manager, self.owners()
        assert len(owners) == manager.num_used_blocks
        assert manager._owners == [owners[block] for block in range(manager.num_blocks)]

    @invariant()
    def sequences_share_prompts_only(self):
        size, owners = self.scheduler.block_manager.block_size, self.owners()
        for sequence in self.alive:
            for block in sequence.block_table[(sequence.num_prompt_tokens - 1) // size :]:
                assert owners[block] == 1

    @invariant()
    def every_sequence_is_in_one_place(self):
        scheduler = self.scheduler
        assert len(scheduler.running) <= scheduler.max_seqs
        assert sorted(map(id, [*scheduler.running, *scheduler.waiting])) == sorted(map(id, self.alive))
        assert not any(sequence.block_table for sequence in scheduler.waiting)

    def teardown(self):
        for _ in range(100_000):
            if not self.alive:
                return
            self.step()
        raise AssertionError("never finished")


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=25)
