"""The trail that an engine leaves: phases, tokens, steps, evictions."""

import itertools
import math

import pytest

from tokentrail import Status, semconv
from tokentrail.testing import ManualClock, MemoryTrail

from .support import make_engine, make_request, make_sequence, request_span, run_all, ticking


def test_phases_and_tokens_partition_the_request(trail):
    clock = ticking()
    trail = MemoryTrail(clock=clock)
    engine = make_engine(trail, blocks=7, block_size=2, budget=8, clock=clock)
    sequences = [make_sequence(trail, range(1, 5), max_tokens=8, name=f"r{i}") for i in range(4)]
    run_all(engine, sequences)
    assert engine._observer.latencies.preemptions > 0
    spans = trail.spans()
    for i in range(4):
        request = request_span(trail, f"r{i}")
        assert request.attributes["gen_ai.usage.input_tokens"] == 4
        mine = [s for s in spans if s.parent_id == request.span_id]
        phases = sorted(
            (s.start_ns, s.end_ns, s.attributes["tokentrail.phase.name"]) for s in mine if s.name == "tokentrail.phase"
        )
        tokens = sorted((s.token_index, s.start_ns, s.end_ns) for s in mine if s.name == "tokentrail.token")
        for parts in ([(start, end) for start, end, _ in phases], [(start, end) for _, start, end in tokens]):
            assert parts[0][0] == request.start_ns
            assert parts[-1][1] == request.end_ns
            assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
        assert [index for index, _, _ in tokens] == list(range(8))
        names = [name for _, _, name in phases]
        assert names[:3] == ["queued", "prefill", "decode"]
        assert names[3:] == ["preempted", "prefill", "decode"] * request.attributes.get("tokentrail.preemptions", 0)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_prompts_and_what_is_computed_again_are_all_prompt_tokens_of_the_steps(prefix_caching):
    clock = ticking()
    trail = MemoryTrail(clock=clock)
    engine = make_engine(
        trail, blocks=7, block_size=2, budget=8, clock=clock, scheduling={"prefix_caching": prefix_caching}
    )
    run_all(engine, [make_sequence(trail, range(1, 5), max_tokens=8, name=f"r{i}") for i in range(4)])
    steps = sum(s.attributes["tokentrail.step.prefill_tokens"] for s in trail.spans("tokentrail.step"))
    told = [span.attributes.get(semconv.PHASE_TOKENS) for span in trail.spans(semconv.PHASE_SPAN)]
    again = [tokens for tokens in told if tokens is not None]
    requests = [request_span(trail, f"r{i}").attributes for i in range(4)]
    first = sum(r["gen_ai.usage.input_tokens"] - r.get("gen_ai.usage.cache_read.input_tokens", 0) for r in requests)
    assert len(again) == engine._observer.latencies.preemptions > 0
    assert first + sum(again) == steps


def test_phases_change_at_the_stamps_of_steps_and_tokens():
    clock = ticking()
    trail = MemoryTrail(clock=clock)
    engine = make_engine(trail, blocks=5, block_size=2, max_seqs=2, clock=clock)
    run_all(engine, [make_sequence(trail, [1, 2, 3], max_tokens=6, name=name) for name in ("old", "new")])
    steps = sorted((s.start_ns, s.end_ns) for s in trail.spans("tokentrail.step"))
    mine = trail.spans(parent=request_span(trail, "new"))
    tokens = sorted(s.end_ns for s in mine if s.name == "tokentrail.token")
    phases = sorted((s.start_ns, s.attributes["tokentrail.phase.name"]) for s in mine if s.name == "tokentrail.phase")
    names = [name for _, name in phases]
    assert names == ["queued", "prefill", "decode", "preempted", "prefill", "decode"]
    _, prefill, decode, preempted, again, decode_again = (start for start, _ in phases)
    assert prefill == steps[0][0], "the start of the step that admitted it"
    assert decode == tokens[0] == steps[0][1], "the stamp of the first token"
    before = sum(token < preempted for token in tokens)
    assert preempted == steps[before][0], "the start of the step that took its blocks"
    readmitted = next(i for i, (_, end) in enumerate(steps) if end == tokens[before])
    assert (again, decode_again) == steps[readmitted]


def test_a_step_lasts_from_before_its_schedule_to_after_its_run():
    clock = ManualClock()
    trail = MemoryTrail(clock=clock)
    engine = make_engine(trail, clock=clock)

    def lasting(ns, work):
        return lambda *args: (clock.advance(ns), work(*args))[1]

    engine.scheduler.schedule = lasting(1_000_000, engine.scheduler.schedule)
    engine._runner.run = lasting(10_000_000, engine._runner.run)
    run_all(engine, [make_sequence(trail, [1], max_tokens=1, name="r")])
    [step] = trail.spans("tokentrail.step")
    assert (step.start_ns, step.duration_ns) == (request_span(trail, "r").start_ns, 11_000_000)


def test_steps_carry_their_numbers(trail):
    # Blocks of 4 tokens; the first step has room for one token of "b", "c" waits for a place in the batch.
    engine = make_engine(trail, blocks=8, block_size=4, max_seqs=2, budget=10)
    sequences = [
        make_sequence(trail, range(1, 10), max_tokens=3, name="a"),
        make_sequence(trail, range(1, 6), max_tokens=2, name="b"),
        make_sequence(trail, range(1, 13), max_tokens=1, name="c"),
    ]
    run_all(engine, sequences)
    names = ("prefill_tokens", "decode_tokens", "running", "waiting", "kv_blocks_used", "kv_blocks_total")
    steps = sorted(trail.spans("tokentrail.step"), key=lambda s: s.attributes["tokentrail.step"])
    found = [tuple(step.attributes[f"tokentrail.step.{name}"] for name in names) for step in steps]
    assert found == [
        (10, 0, 2, 1, 5, 8),
        (4, 1, 2, 1, 5, 8),
        (0, 2, 2, 1, 5, 8),
        (10, 0, 1, 0, 3, 8),
        (2, 0, 1, 0, 3, 8),
    ]


def test_a_preempting_step_carries_its_numbers(trail):
    engine = make_engine(trail, blocks=4, block_size=2)
    run_all(engine, [make_sequence(trail, [1, 2], max_tokens=5, name=name) for name in ("old", "new")])
    names = ("running", "waiting", "preempted", "kv_blocks_used", "kv_blocks_evicted")
    [step] = [s for s in trail.spans("tokentrail.step") if s.attributes["tokentrail.step.preempted"]]
    assert tuple(step.attributes[f"tokentrail.step.{name}"] for name in names) == (1, 1, 1, 3, 2)


def test_evictions_name_their_victims(trail):
    engine = make_engine(trail, blocks=7, block_size=2, budget=8)
    run_all(engine, [make_sequence(trail, range(1, 5), name=f"r{i}") for i in range(4)])
    evictions = trail.spans("tokentrail.kv.evict")
    steps = {s.attributes["tokentrail.step"]: s for s in trail.spans("tokentrail.step")}
    victims = [s.parent_id for s in evictions]
    assert len(evictions) == engine._observer.latencies.preemptions > 0
    for i in range(4):
        request = request_span(trail, f"r{i}")
        assert victims.count(request.span_id) == request.attributes.get("tokentrail.preemptions", 0)
    for eviction in evictions:
        step = steps[eviction.attributes["tokentrail.step"]]
        assert eviction.attributes["tokentrail.kv.reason"] == "preemption"
        assert step.attributes["tokentrail.step.kv_blocks_evicted"] >= eviction.attributes["tokentrail.kv.blocks"] > 0
        assert step.attributes["tokentrail.step.preempted"] > 0
    assert sorted(steps) == list(range(engine.steps))


def test_cancelling_frees_the_blocks_and_ends_the_trace(trail):
    engine = make_engine(trail)
    gone, stays = make_sequence(trail, range(1, 9), name="gone"), make_sequence(trail, [1, 2], name="stays")
    engine.add(gone.request)
    engine.add(stays.request)
    engine.step()
    used = engine.scheduler.block_manager.num_used_blocks
    engine.abort([gone.request], Status.CANCELLED)
    assert engine.scheduler.block_manager.num_used_blocks == used - 2
    run_all(engine, [])
    engine.abort([gone.request], Status.CANCELLED)
    assert request_span(trail, "gone").attributes["tokentrail.status"] == "cancelled"
    assert request_span(trail, "gone").attributes["gen_ai.usage.output_tokens"] == 1
    assert request_span(trail, "stays").attributes["tokentrail.status"] == "ok"


@pytest.mark.parametrize("held", [0, 1], ids=["nobody runs", "somebody runs"])
def test_an_engine_that_can_schedule_nothing_says_so_and_does_not_step_for_ever(trail, held):
    engine = make_engine(trail, blocks=4, block_size=4)
    lost: list[int] = []
    engine.scheduler.block_manager.allocate(lost, 16)  # blocks that no sequence gives back
    engine.add(make_request(trail, [1, 2, 3]))
    if held:
        running = make_sequence(trail, [1, 2])
        running.num_computed_tokens = 2
        engine.scheduler.running.append(running)
    with pytest.raises(RuntimeError, match="no sequence can be scheduled"):
        engine.step()


def test_the_trace_says_how_sure_the_model_was(trail):
    for name, logprobs in (("asked", 0), ("not asked", None)):
        request = make_request(trail, [1, 2, 3], n=2, logprobs=logprobs, name=name, max_tokens=5)
        run_all(make_engine(trail), request.sequences)
        tokens = [token for one in request.sequences for token in one.token_ids[3:]]
        told = request_span(trail, name).attributes
        if logprobs is None:
            assert not {"tokentrail.perplexity", "tokentrail.mean_entropy"} & told.keys()
        else:
            assert told["tokentrail.perplexity"] == pytest.approx(math.exp(sum(tokens) / len(tokens) / 100))
            assert told["tokentrail.mean_entropy"] == pytest.approx(sum(tokens) / len(tokens) / 50)
