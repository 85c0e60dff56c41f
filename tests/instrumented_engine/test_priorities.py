"""Priorities and static batching: who goes first, why the others wait, and that no answer changes."""

import pytest

from instrumented_engine.core.drafter import PromptLookup
from instrumented_engine.core.plan import Plan
from instrumented_engine.core.waits import account
from tokentrail.semconv import Wait
from tokentrail.testing import MemoryTrail

from .server_support import post, served, tiny_loader
from .support import make_engine, make_request, make_sequence, request_span, run_all, ticking
from .test_engine import PROMPTS, alone
from .test_scheduler import play, scheduler_of

TRAIL = MemoryTrail()
MS = 1_000_000


def waiting(*priorities, **options):
    """A scheduler with one-token requests of these priorities, and their sequences."""
    scheduler = scheduler_of(64, 4, **options)
    sequences = [make_sequence(TRAIL, [1], priority=priority) for priority in priorities]
    for sequence in sequences:
        scheduler.add(sequence.request)
    return scheduler, sequences


def test_the_lowest_priority_goes_first_and_equals_in_order_of_arrival():
    scheduler, sequences = waiting(5, 0, 5, -3)
    assert [sequences.index(sequence) for sequence in scheduler.waiting] == [3, 1, 0, 2]
    assert [sequences.index(item.sequence) for item in scheduler.schedule().batch] == [3, 1, 0, 2]


def test_the_highest_priority_is_preempted_first_though_it_came_first():
    scheduler, (batch, chat) = waiting(9, 0, max_seqs=2)
    play(scheduler.schedule())
    blocks = scheduler.block_manager
    blocks.allocate([], 4 * (blocks.num_blocks - blocks.num_used_blocks))
    for _ in range(4):
        play(plan := scheduler.schedule())
    assert [one.victim for one in plan.preempted] == [batch]
    assert scheduler.running == [chat]


def test_a_waiting_request_does_not_preempt():
    scheduler, [low] = waiting(9, max_seqs=1)
    play(scheduler.schedule())
    scheduler.add(make_sequence(TRAIL, [1], priority=0).request)
    plan = scheduler.schedule()
    assert (scheduler.running, plan.preempted, plan.wait) == ([low], [], Wait.BATCH)


def test_the_waiting_are_counted_by_what_they_lack():
    scheduler, sequences = waiting(0, 1, 1, max_seqs=1)
    plan = scheduler.schedule()
    assert account(scheduler, plan, 10 * MS) == {Wait.BATCH: 2}
    play(plan)
    scheduler.add(make_sequence(TRAIL, [1], priority=0).request)
    plan = scheduler.schedule()
    assert account(scheduler, plan, 30 * MS) == {Wait.BATCH: 1, Wait.PRIORITY: 2}
    scheduler.finish(sequences[0])
    plan = scheduler.schedule()
    assert account(scheduler, plan, 60 * MS) == {Wait.PRIORITY: 2}, "the late one runs now, before them"
    for sequence in scheduler.running[:]:
        scheduler.finish(sequence)
    plan = scheduler.schedule()
    assert account(scheduler, plan, 100 * MS) == {Wait.BATCH: 1}
    first, second = sequences[1:]
    assert (first.waited, first.wait) == ({Wait.BATCH: 20 * MS, Wait.PRIORITY: 70 * MS}, None)
    assert (second.waited, second.wait, second.wait_since_ns) == (first.waited, Wait.BATCH, 100 * MS)
    assert sequences[0].waited == {}


def test_the_prompts_of_one_request_do_not_overtake_each_other():
    scheduler = scheduler_of(64, 4, max_seqs=1)
    scheduler.add(make_request(TRAIL, [1], [2], [3]))
    assert account(scheduler, scheduler.schedule(), 1) == {Wait.BATCH: 2}


def test_who_joined_the_batch_before_does_not_overtake():
    scheduler = scheduler_of(64, 4, max_seqs=2)
    request = make_request(TRAIL, [1], n=2)
    scheduler.add(request)
    scheduler.add(make_sequence(TRAIL, [1]).request)
    play(scheduler.schedule())
    scheduler.add_followers(request.sequences[0])
    assert account(scheduler, scheduler.schedule(), 1) == {Wait.BATCH: 1}


def test_nobody_waits_without_a_reason():
    scheduler, _ = waiting()
    assert account(scheduler, Plan(), 1) == {}


def test_a_request_says_for_how_long_it_waited_for_what(trail):
    engine = make_engine(trail, max_seqs=1, clock=ticking())
    names = ("first", "low", "high")
    requests = [
        make_request(trail, [1], max_tokens=3, name=name, priority=i) for name, i in zip(names, (0, 2, 1), strict=True)
    ]
    for request in requests:
        engine.add(request)
    run_all(engine, [])
    spans = {name: request_span(trail, name).attributes for name in names}
    told = {
        name: {key.rpartition(".")[2]: ns / MS for key, ns in span.items() if "wait_time" in key}
        for name, span in spans.items()
    }
    assert told == {"first": {}, "high": {"batch": 6}, "low": {"priority": 12}}
    steps = sorted(trail.spans("tokentrail.step"), key=lambda step: step.start_ns)
    counts = [
        tuple(step.attributes.get(f"tokentrail.step.waiting_for_{reason}") for reason in ("batch", "priority"))
        for step in steps
    ]
    assert counts == [(1, 1)] * 3 + [(None, 1)] * 3 + [(None, None)] * 3


def test_a_static_batch_admits_nobody_until_all_of_it_has_ended(trail):
    engine = make_engine(trail, max_seqs=2, scheduling={"static_batching": True})
    requests = [make_request(trail, [1], max_tokens=limit) for limit in (2, 5, 1)]
    for request in requests:
        engine.add(request)
    run_all(engine, [])
    steps = sorted(trail.spans("tokentrail.step"), key=lambda step: step.start_ns)
    assert [step.attributes["tokentrail.step.running"] for step in steps] == [2, 2, 1, 1, 1, 1]
    assert [step.attributes.get("tokentrail.step.waiting_for_batch") for step in steps] == [1] * 5 + [None]


def test_a_static_batch_takes_prompts_over_several_steps():
    scheduler = scheduler_of(64, 4, budget=8, max_seqs=4, static_batching=True)
    for _ in range(3):
        scheduler.add(make_sequence(TRAIL, range(12)).request)
    admitted = []
    for _ in range(2):
        plan = scheduler.schedule()
        admitted += plan.admitted
        play(plan)
    assert len(admitted) == 2
    assert (scheduler.schedule().wait, len(scheduler.running)) == (Wait.BATCH, 2)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    "techniques", [{}, {"prefix_caching": True, "speculative_tokens": 3, "drafter": PromptLookup(1)}]
)
def test_neither_order_nor_batching_changes_an_answer(trail, static, techniques):
    engine = make_engine(
        trail, blocks=11, block_size=3, budget=16, scheduling={"static_batching": static, **techniques}
    )
    requests = [
        make_request(trail, prompt, max_tokens=10, priority=-i % 4, n=1 + i % 2) for i, prompt in enumerate(PROMPTS)
    ]
    answers = run_all(engine, [sequence for request in requests for sequence in request.sequences])
    for request, prompt in zip(requests, PROMPTS, strict=True):
        expected = alone(MemoryTrail(), prompt, max_tokens=10)
        assert [answers[sequence] for sequence in request.sequences] == [expected] * len(request.sequences)
    assert engine.scheduler.block_manager.num_used_blocks == 0
    assert engine._observer.latencies.preemptions > 0


@pytest.mark.parametrize(("policy", "status"), [("priority", 200), ("fcfs", 400)])
def test_a_priority_needs_a_policy_that_heeds_it(policy, status):
    with served(tiny_loader(), scheduling_policy=policy) as server:
        assert post(server, "plain", priority=0).status_code == 200
        answer = post(server, "sooner", priority=-3)
        assert answer.status_code == status
        if status == 400:
            assert answer.json()["error"]["param"] == "priority"
        else:
            assert request_span(server.trail, "cmpl-sooner").attributes["tokentrail.priority"] == -3
        assert post(server, "odd", priority=True).status_code == 400
        assert post(server, "huge", priority=2**31).status_code == 400
