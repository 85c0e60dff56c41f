"""The host keeps the blocks of preempted sequences: nothing is computed again, and the trace names each move."""

import pytest

from instrumented_engine.core.drafter import PromptLookup
from tokentrail.semconv import Wait
from tokentrail.testing import MemoryTrail

from .support import make_engine, make_request, make_sequence, request_span, run_all, ticking
from .test_engine import PROMPTS, alone
from .test_scheduler import counts, play, scheduler_of

TRAIL = MemoryTrail()
MS = 1_000_000


def preempting(host_blocks):
    """A scheduler that has just preempted its newest sequence: (scheduler, old, new, plan)."""
    scheduler = scheduler_of(4, 2, host_blocks=host_blocks)
    old, new = make_sequence(TRAIL, [1, 2]), make_sequence(TRAIL, [3, 4])
    for sequence in (old, new):
        scheduler.add(sequence.request)
    for _ in range(3):
        play(scheduler.schedule())
    plan = scheduler.schedule()
    assert plan.preempted == [(new, 2, old)]
    return scheduler, old, new, plan


def test_the_blocks_of_a_victim_go_to_the_host_and_come_back():
    scheduler, old, new, plan = preempting(2)
    [offload] = plan.offloads
    assert (offload.sequence, offload.beneficiary, offload.host_blocks) == (new, old, [0, 1])
    assert (plan.evicted_blocks, new.num_computed_tokens, new.block_table) == (0, 4, [])
    play(plan)
    assert scheduler.schedule().wait is Wait.KV
    assert (new.num_computed_tokens, new.host_blocks) == (4, [0, 1]), "a refusal keeps them"
    scheduler.finish(old)
    plan = scheduler.schedule()
    [restore] = plan.restores
    assert (restore.sequence, restore.host_blocks, restore.device_blocks) == (new, [0, 1], new.block_table[:2])
    assert (counts(plan), plan.offloads, new.host_blocks) == ([(2, 1)], [], [])
    assert plan.cached_tokens == 0, "those of the host are not found by their tokens"
    assert scheduler._host.num_used_blocks == 0


def test_a_victim_that_does_not_fit_whole_is_computed_again():
    scheduler, old, new, plan = preempting(1)
    assert (plan.offloads, plan.evicted_blocks, new.num_computed_tokens) == ([], 2, 0)
    play(plan)
    scheduler.finish(old)
    plan = scheduler.schedule()
    assert (counts(plan), plan.restores) == ([(2, 5)], [])


def test_a_cancelled_victim_leaves_the_host():
    scheduler, _, new, _ = preempting(2)
    scheduler.finish(new)
    assert scheduler._host.num_used_blocks == 0


@pytest.mark.parametrize("host_blocks", [9, 3])
@pytest.mark.parametrize("more", [{}, {"prefix_caching": True, "speculative_tokens": 3, "drafter": PromptLookup(1)}])
def test_swapping_does_not_change_the_output(trail, host_blocks, more):
    engine = make_engine(trail, blocks=9, block_size=3, budget=16, scheduling={"host_blocks": host_blocks, **more})
    requests = [make_request(trail, prompt, max_tokens=10, n=1 + i % 2) for i, prompt in enumerate(PROMPTS)]
    answers = run_all(engine, [sequence for request in requests for sequence in request.sequences])
    for request, prompt in zip(requests, PROMPTS, strict=True):
        expected = alone(MemoryTrail(), prompt, max_tokens=10)
        assert [answers[sequence] for sequence in request.sequences] == [expected] * len(request.sequences)
    assert engine.scheduler.block_manager.num_used_blocks == engine.scheduler._host.num_used_blocks == 0
    moved = [len(trail.spans(f"tokentrail.kv.{kind}")) for kind in ("offload", "restore")]
    assert moved[0] == moved[1] > 0


def test_the_trace_says_what_moved_for_whom_and_for_how_long(trail):
    engine = make_engine(trail, blocks=4, block_size=2, clock=ticking(), scheduling={"host_blocks": 4})
    old, new = (
        make_sequence(trail, prompt, max_tokens=5, name=name) for prompt, name in (([1, 2], "old"), ([3], "new"))
    )
    run_all(engine, [old, new])
    spans = {name: request_span(trail, name) for name in ("old", "new")}
    [offload] = trail.spans("tokentrail.kv.offload")
    [restore] = trail.spans("tokentrail.kv.restore")
    assert trail.spans("tokentrail.kv.evict") == []
    assert offload.parent_id == restore.parent_id == spans["new"].span_id
    assert offload.attributes["tokentrail.kv.beneficiary"] == f"{spans['old'].trace_id:032x}"
    assert (offload.attributes["tokentrail.kv.blocks"], offload.attributes["tokentrail.kv.bytes"]) == (2, 200)
    assert "tokentrail.kv.beneficiary" not in restore.attributes
    assert (offload.duration_ns, restore.duration_ns) == (MS, MS)
    named = sorted(
        (phase.start_ns, phase.attributes["tokentrail.phase.name"], phase.duration_ns)
        for phase in trail.spans("tokentrail.phase", parent=spans["new"])
    )
    assert [name for _, name, _ in named] == [
        "queued", "prefill", "decode", "preempted", "kv_transfer", "prefill", "decode",
    ]  # fmt: skip
    assert sum(ns for *_, ns in named) == spans["new"].duration_ns
    assert named[4][2] == restore.end_ns - named[4][0]
    steps = trail.spans("tokentrail.step")
    assert sum(step.attributes["tokentrail.step.prefill_tokens"] for step in steps) == 2 + 1 + 1
    assert sum(step.attributes["tokentrail.step.kv_blocks_evicted"] for step in steps) == 0


def test_an_eviction_says_for_whom(trail):
    engine = make_engine(trail, blocks=4, block_size=2)
    run_all(engine, [make_sequence(trail, [1, 2], max_tokens=5, name="old"), make_sequence(trail, [3], max_tokens=5)])
    [evict] = trail.spans("tokentrail.kv.evict")
    assert evict.attributes["tokentrail.kv.beneficiary"] == f"{request_span(trail, 'old').trace_id:032x}"
