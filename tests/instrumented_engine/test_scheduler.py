import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.scheduler import Scheduler
from tokentrail.testing import MemoryTrail

from .support import make_sequence

TRAIL = MemoryTrail()


def scheduler_of(blocks, size, *, max_seqs=8, budget=64):
    return Scheduler(BlockManager(blocks, size), max_seqs=max_seqs, max_batched_tokens=budget)


def play(plan):
    for item in plan.batch:
        sequence, samples = item.sequence, item.samples
        sequence.num_computed_tokens += item.num_scheduled_tokens
        if samples:
            sequence.token_ids.append(1)
            sequence.decoding = True


def counts(plan):
    return [(item.sequence.num_prompt_tokens, item.num_scheduled_tokens) for item in plan.batch]


def test_growing_is_all_or_nothing():
    manager = BlockManager(3, 4)
    mine: list[int] = []
    assert manager.allocate(mine, 5)
    assert (len(mine), manager.num_used_blocks) == (2, 2)
    assert manager.allocate(mine, 8), "eight tokens fit the two blocks"
    assert not manager.allocate(mine, 13), "four blocks do not exist"
    assert (len(mine), manager.num_used_blocks) == (2, 2)
    assert manager.free(mine) == 2
    assert (mine, manager.num_used_blocks) == ([], 0)


def test_a_budget_smaller_than_the_batch_is_refused():
    with pytest.raises(ValueError, match=r"max_batched_tokens \(4\) must be at least max_seqs \(8\)"):
        scheduler_of(4, 4, budget=4)


def test_prompts_are_prefilled_whole_and_first_come_first_served():
    scheduler = scheduler_of(100, 4, budget=20)
    for length in (12, 9, 3):
        scheduler.add(make_sequence(TRAIL, range(length)))
    plan = scheduler.schedule()
    assert counts(plan) == [(12, 12)], "the second does not fit the rest of the step, and the third may not overtake it"
    play(plan)
    plan = scheduler.schedule()
    assert counts(plan) == [(12, 1), (9, 9), (3, 3)]
    assert (plan.decode_tokens, plan.prefill_tokens) == (1, 12)


def test_a_prompt_longer_than_a_step_is_split_while_others_decode():
    scheduler = scheduler_of(100, 4, budget=10)
    scheduler.add(make_sequence(TRAIL, range(5)))
    play(scheduler.schedule())
    scheduler.add(make_sequence(TRAIL, range(25)))
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
    scheduler.add(old)
    scheduler.add(new)
    for _ in range(3):
        play(scheduler.schedule())
    scheduler.add(late)
    plan = scheduler.schedule()
    assert plan.preempted == [(new, 2)]
    assert plan.evicted_blocks == 2
    assert [item.sequence for item in plan.batch] == [old], "nobody is admitted in a step that had to preempt"
    assert list(scheduler.waiting) == [new, late]
    assert (new.num_computed_tokens, new.decoding, new.block_table) == (0, False, [])
    scheduler.finish(old)
    plan = scheduler.schedule()
    assert counts(plan)[0] == (2, 5), "prompt and output are computed again"


def test_finishing_works_from_anywhere_and_twice():
    scheduler = scheduler_of(4, 2, max_seqs=1)
    running, waiting = make_sequence(TRAIL, [1, 2]), make_sequence(TRAIL, [3])
    scheduler.add(running)
    scheduler.add(waiting)
    play(scheduler.schedule())
    for sequence in (waiting, running, running):
        scheduler.finish(sequence)
    assert (scheduler.running, list(scheduler.waiting), scheduler.block_manager.num_used_blocks) == ([], [], 0)


class Traffic(RuleBasedStateMachine):
    """Any mix of arrivals, steps, ends and cancellations."""

    @initialize(blocks=st.integers(2, 12), size=st.integers(1, 5), seqs=st.integers(1, 5), extra=st.integers(0, 12))
    def start(self, blocks, size, seqs, extra):
        self.scheduler = scheduler_of(blocks, size, max_seqs=seqs, budget=seqs + extra)
        self.alive = []

    @rule(data=st.data())
    def arrive(self, data):
        capacity = self.scheduler.block_manager.capacity
        prompt = data.draw(st.integers(1, max(1, capacity - 1)))
        sequence = make_sequence(TRAIL, range(prompt), max_tokens=max(1, capacity - prompt))
        self.scheduler.add(sequence)
        self.alive.append(sequence)

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
        assert plan.batch, "whoever waits makes progress"
        assert plan.prefill_tokens + plan.decode_tokens == sum(item.num_scheduled_tokens for item in plan.batch)
        assert plan.prefill_tokens + plan.decode_tokens <= self.scheduler.max_batched_tokens
        assert len({item.sequence for item in plan.batch}) == len(plan.batch)
        for item in plan.batch:
            assert 0 < item.num_scheduled_tokens <= item.sequence.num_uncomputed_tokens
            held = len(item.sequence.block_table) * self.scheduler.block_manager.block_size
            computed = item.sequence.num_computed_tokens + item.num_scheduled_tokens
            assert computed <= held, "every computed token has a place"
        play(plan)
        for sequence in list(self.alive):
            if sequence.num_output_tokens >= sequence.params.max_tokens:
                self.scheduler.finish(sequence)
                self.alive.remove(sequence)

    @invariant()
    def every_block_has_one_owner(self):
        manager = self.scheduler.block_manager
        owned = [block for sequence in self.alive for block in sequence.block_table]
        assert len(owned) == len(set(owned)) == manager.num_used_blocks
        assert all(0 <= block < manager.num_blocks for block in owned)

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
TestTraffic.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_blocks_come_back_whatever_was_taken(lengths, size):
    manager = BlockManager(64, size)
    owners: list[list[int]] = [[] for _ in lengths]
    for owner, tokens in zip(owners, lengths, strict=True):
        manager.allocate(owner, tokens)
    for owner in owners:
        manager.free(owner)
    everything: list[int] = []
    assert manager.allocate(everything, manager.capacity)
    assert sorted(everything) == list(range(64))
