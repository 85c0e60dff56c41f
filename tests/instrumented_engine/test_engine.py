import itertools

import pytest

from instrumented_engine.core.engine import StepError
from tokentrail import Status

from .support import EOS, MemoryTrail, make_engine, make_sequence, run_all

PROMPTS = [list(range(1, 1 + n)) for n in (1, 2, 3, 4, 5, 7, 8, 9, 12, 17)]


def ticking():
    """A clock that advances a millisecond each time it is read."""
    return itertools.count(1_800_000_000_000_000_000, 1_000_000).__next__


def alone(trail, prompt, **params):
    sequence = make_sequence(trail, prompt, **params)
    return run_all(make_engine(trail), [sequence])[sequence]


def test_company_does_not_change_the_output(trail):
    sequences = [make_sequence(trail, prompt, max_tokens=10) for prompt in PROMPTS]
    together = run_all(make_engine(trail), sequences)
    assert list(together.values()) == [alone(trail, prompt, max_tokens=10) for prompt in PROMPTS]


def test_preemption_does_not_change_the_output(trail):
    sequences = [make_sequence(trail, prompt, max_tokens=10) for prompt in PROMPTS]
    engine = make_engine(trail, blocks=9, block_size=3, budget=16)
    together = run_all(engine, sequences)
    assert engine.preemptions > 0
    assert list(together.values()) == [alone(trail, prompt, max_tokens=10) for prompt in PROMPTS]
    assert engine.scheduler.pool.used == 0


def test_a_split_prompt_gives_the_same_output(trail):
    prompt = [1 + i % 90 for i in range(100)]
    sequence = make_sequence(trail, prompt)
    engine = make_engine(trail, budget=16)
    assert run_all(engine, [sequence])[sequence] == alone(trail, prompt, max_tokens=8)
    assert engine.steps == 7 + 7


def test_how_an_output_ends(trail):
    script = {(7,): [40, 41, EOS, 42]}
    cases = [
        ({}, ([40, 41, EOS], "stop")),
        ({"ignore_eos": True, "max_tokens": 4}, ([40, 41, EOS, 42], "length")),
        ({"min_tokens": 4, "max_tokens": 4}, ([40, 41, EOS, 42], "length")),
        ({"max_tokens": 2}, ([40, 41], "length")),
        ({"stop": (chr(31 + 41),)}, ([40, 41], "stop")),
    ]
    for params, expected in cases:
        sequence = make_sequence(trail, [7], **params)
        tokens, _, reason = run_all(make_engine(trail, script=script), [sequence])[sequence]
        assert (tokens, reason) == expected, params


def test_a_stop_string_is_never_sent_in_part(trail):
    text = "one two thrice STOP more"
    script = {(7,): [ord(c) - 31 for c in text]}
    sequence = make_sequence(trail, [7], max_tokens=50, stop=("three", "STOP"))
    engine = make_engine(trail, script=script)
    engine.add(sequence)
    sent = []
    while engine.busy:
        sent += [output.text for output in engine.step()]
    assert "".join(sent) == "one two thrice "
    assert "thr" not in sent, "it could have become 'three'"


def test_phases_and_tokens_partition_the_request(trail):
    clock = ticking()
    trail = MemoryTrail(clock)
    engine = make_engine(trail, blocks=7, block_size=2, budget=8, clock=clock)
    sequences = [make_sequence(trail, range(1, 5), max_tokens=8, name=f"r{i}") for i in range(4)]
    run_all(engine, sequences)
    assert engine.preemptions > 0
    spans = trail.spans()
    for i in range(4):
        request = trail.request(f"r{i}")
        mine = [s for s in spans if s["parent"] == request["id"]]
        phases = sorted(
            (s["start"], s["end"], s["tokentrail.phase.name"]) for s in mine if s["name"] == "tokentrail.phase"
        )
        tokens = sorted(
            (s["gen_ai.token.index"], s["start"], s["end"]) for s in mine if s["name"] == "tokentrail.token"
        )
        for parts in ([(start, end) for start, end, _ in phases], [(start, end) for _, start, end in tokens]):
            assert parts[0][0] == request["start"]
            assert parts[-1][1] == request["end"]
            assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
        assert [index for index, _, _ in tokens] == list(range(8))
        names = [name for _, _, name in phases]
        assert names[:3] == ["queued", "prefill", "decode"]
        assert names[3:] == ["preempted", "prefill", "decode"] * request.get("tokentrail.preemptions", 0)


def test_evictions_name_their_victims(trail):
    engine = make_engine(trail, blocks=7, block_size=2, budget=8)
    run_all(engine, [make_sequence(trail, range(1, 5), name=f"r{i}") for i in range(4)])
    evictions = trail.spans("tokentrail.kv.evict")
    steps = {s["tokentrail.step"]: s for s in trail.spans("tokentrail.step")}
    victims = [s["parent"] for s in evictions]
    assert len(evictions) == engine.preemptions > 0
    for i in range(4):
        request = trail.request(f"r{i}")
        assert victims.count(request["id"]) == request.get("tokentrail.preemptions", 0)
    for eviction in evictions:
        step = steps[eviction["tokentrail.step"]]
        assert eviction["tokentrail.kv.reason"] == "preemption"
        assert step["tokentrail.step.kv_blocks_evicted"] >= eviction["tokentrail.kv.blocks"] > 0
        assert step["tokentrail.step.preempted"] > 0
    assert sorted(steps) == list(range(engine.steps))


def test_cancelling_frees_the_blocks_and_ends_the_trace(trail):
    engine = make_engine(trail)
    gone, stays = make_sequence(trail, range(1, 9), name="gone"), make_sequence(trail, [1, 2], name="stays")
    engine.add(gone)
    engine.add(stays)
    engine.step()
    used = engine.scheduler.pool.used
    engine.end([gone], Status.CANCELLED)
    assert engine.scheduler.pool.used == used - 2
    run_all(engine, [])
    engine.end([gone], Status.CANCELLED)
    assert trail.request("gone")["tokentrail.status"] == "cancelled"
    assert trail.request("gone")["gen_ai.usage.output_tokens"] == 1
    assert trail.request("stays")["tokentrail.status"] == "ok"


def test_a_failed_step_ends_its_batch_and_nobody_else(trail):
    engine = make_engine(trail, max_seqs=1)
    hit, spared = make_sequence(trail, [1, 2], name="hit"), make_sequence(trail, [3], name="spared")
    engine.add(hit)
    engine.add(spared)
    engine.step()
    engine._runner.failures.append(RuntimeError("the device fell over"))
    with pytest.raises(StepError, match="RuntimeError: the device fell over") as raised:
        engine.step()
    assert raised.value.sequences == [hit]
    assert list(run_all(engine, [])) == [spared]
    assert trail.request("hit")["tokentrail.status"] == "error"
    assert trail.request("hit")["error.type"] == "RuntimeError"
    assert trail.request("spared")["tokentrail.status"] == "ok"
    assert engine.scheduler.pool.used == 0
