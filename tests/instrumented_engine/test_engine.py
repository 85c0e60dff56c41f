from collections import Counter

import pytest

from instrumented_engine.core.drafter import PromptLookup
from tokentrail import Status
from tokentrail.testing import MemoryTrail

from .support import EOS, make_engine, make_request, make_sequence, request_span, run_all, ticking

PROMPTS = [list(range(1, 1 + n)) for n in (1, 2, 3, 4, 5, 7, 8, 9, 12, 17)]


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
    assert engine._observer.latencies.preemptions > 0
    assert list(together.values()) == [alone(trail, prompt, max_tokens=10) for prompt in PROMPTS]
    assert engine.scheduler.block_manager.num_used_blocks == 0


def test_each_prompt_gets_n_answers_that_share_it(trail):
    prompts = [range(1, 11), range(5, 20)]
    request = make_request(trail, *prompts, n=3, name="r")
    engine = make_engine(trail, blocks=40, block_size=4)
    answers = run_all(engine, request.sequences)
    assert list(answers.values()) == [alone(MemoryTrail(), prompt) for prompt in prompts for _ in range(3)]
    assert engine.scheduler.block_manager.num_used_blocks == 0
    computed = sum(step.attributes["tokentrail.step.prefill_tokens"] for step in trail.spans("tokentrail.step"))
    assert computed == sum(map(len, prompts)) + 2 * len(prompts), "a follower computes the last token of its prompt"
    span = request_span(trail, "r")
    assert span.attributes["gen_ai.usage.input_tokens"] == sum(map(len, prompts))
    assert span.attributes["gen_ai.usage.output_tokens"] == 6 * 8
    assert span.attributes["tokentrail.choices"] == 6
    tokens = trail.spans("tokentrail.token", parent=span)
    assert Counter(token.attributes["tokentrail.choice.index"] for token in tokens) == dict.fromkeys(range(6), 8)
    phases = sorted(
        (s.start_ns, s.attributes["tokentrail.phase.name"]) for s in trail.spans("tokentrail.phase", parent=span)
    )
    assert [name for _, name in phases] == ["queued", "prefill", "decode"]


def test_answers_that_were_preempted_are_the_same(trail):
    request = make_request(trail, range(1, 7), n=4, max_tokens=12)
    engine = make_engine(trail, blocks=7, block_size=3, budget=16)
    answers = run_all(engine, request.sequences)
    assert engine._observer.latencies.preemptions > 0
    assert list(answers.values()) == [alone(trail, range(1, 7), max_tokens=12)] * 4


def test_followers_queue_once_though_their_leader_comes_back(trail):
    old = make_sequence(trail, range(1, 7), max_tokens=14, name="old")
    request = make_request(trail, range(2, 8), n=2, max_tokens=8, name="new")
    engine = make_engine(trail, blocks=7, block_size=3)
    answers = run_all(engine, [old, *request.sequences])
    assert "tokentrail.preemptions" in request_span(trail, "new").attributes
    for sequence in request.sequences:
        assert answers[sequence] == alone(MemoryTrail(), range(2, 8))
    assert engine.scheduler.block_manager.num_used_blocks == 0


def test_a_seeded_request_has_other_random_numbers_for_each_answer(trail):
    first, second = make_request(trail, [1], n=2, seed=7).sequences
    again = make_request(trail, [1], n=1, seed=7).sequences[0]
    drawn = first.rng.random()
    assert (again.rng.random() == drawn, second.rng.random() == drawn) == (True, False)


def test_a_negative_seed_has_other_random_numbers_too(trail):
    answers = [*make_request(trail, [1], n=3, seed=-1).sequences, *make_request(trail, [1], n=1, seed=7).sequences]
    answers += [*make_request(trail, [1], seed=-7).sequences, *make_request(trail, [1], seed=7 + 2**62).sequences]
    assert len({sequence.rng.random() for sequence in answers}) == 6


def test_a_request_whose_answers_end_in_one_step_is_counted_once(trail):
    engine = make_engine(trail)
    run_all(engine, make_request(trail, [1], n=3, max_tokens=4).sequences)
    latencies = engine._observer.latencies
    assert latencies.finished == {"stop": 0, "length": 3, "abort": 0}
    assert latencies.end_to_end.buckets[-1] == ("+Inf", 1)


def test_the_latencies_of_a_request_add_up_and_one_answer_alone_has_gaps(trail):
    engine = make_engine(trail, clock=ticking())
    latencies = engine._observer.latencies
    run_all(engine, [make_sequence(trail, [1, 2], max_tokens=5)])
    assert latencies.first_token.sum == pytest.approx(latencies.queued.sum + latencies.prefill.sum)
    assert latencies.end_to_end.sum == pytest.approx(latencies.first_token.sum + latencies.decode.sum)
    assert 4 * latencies.per_output_token.sum == pytest.approx(latencies.decode.sum) != 0
    assert latencies.between_tokens.sum == pytest.approx(latencies.decode.sum)
    for n, max_tokens in ((3, 4), (1, 1)):
        run_all(engine, make_request(trail, [1, 2], n=n, max_tokens=max_tokens).sequences)
    counted = [histogram.buckets[-1][1] for histogram in (latencies.per_output_token, latencies.decode)]
    assert counted == [1, 3]
    assert 0 < latencies.prefill.sum < 1, "s: it was scheduled before"


def test_tokens_of_one_step_have_no_time_between_them(trail):
    engine = make_engine(trail, clock=ticking(), burst=3)
    run_all(engine, [make_sequence(trail, [1, 2], max_tokens=6)])
    latencies = engine._observer.latencies
    assert latencies.between_tokens.buckets[-1][1] == latencies.output_tokens - 1 == 5
    assert latencies.between_tokens.sum == pytest.approx(latencies.decode.sum)


def test_a_request_that_is_aborted_before_its_end_counts_once_and_behind_it_not(trail):
    engine = make_engine(trail)
    ended, gone = make_sequence(trail, [1, 2], max_tokens=2), make_sequence(trail, [3, 4], max_tokens=9)
    run_all(engine, [ended])
    engine.add(gone.request)
    engine.step()
    for _ in range(2):
        engine.abort([ended.request, gone.request], Status.CANCELLED)
    assert engine._observer.latencies.finished == {"stop": 0, "length": 1, "abort": 1}


def test_steps_say_what_the_waiting_ones_lack(trail):
    engine = make_engine(trail, max_seqs=1)
    run_all(engine, [make_sequence(trail, [1], max_tokens=2) for _ in range(3)])
    steps = sorted(trail.spans("tokentrail.step"), key=lambda s: s.attributes["tokentrail.step"])
    lacking = [step.attributes.get("tokentrail.step.waiting_for_batch") for step in steps]
    assert lacking == [2, 2, 1, 1, None, None]
    assert not any(step.attributes.get("tokentrail.step.waiting_for_kv") for step in steps)


def test_a_prompt_of_several_answers_hits_the_cache_once(trail):
    """The answers run one after another: each finds the prompt that the first one computed."""
    engine = make_engine(trail, max_seqs=1, scheduling={"prefix_caching": True})
    run_all(engine, make_request(trail, range(1, 10), name="first").sequences)
    request = make_request(trail, range(1, 10), n=3, name="second")
    run_all(engine, request.sequences)
    assert [sequence.num_cached_tokens for sequence in request.sequences] == [8, 8, 8]
    latencies = engine._observer.latencies
    assert (latencies.prompt_tokens, latencies.cached_tokens) == (9 + 9, 8)


def test_cached_prefixes_do_not_change_the_output(trail):
    engine = make_engine(trail, blocks=30, block_size=3, budget=16, scheduling={"prefix_caching": True})
    base = [1 + i % 90 for i in range(40)]
    prompts = [base[:n] + extra for n in (40, 7, 24, 25, 26) for extra in ([], [5], [6, 7, 8, 9])] * 2
    sequences = [make_sequence(trail, prompt, name=f"r{i}") for i, prompt in enumerate(prompts)]
    assert list(run_all(engine, sequences).values()) == [alone(MemoryTrail(), prompt) for prompt in prompts]
    assert engine._observer.latencies.preemptions > 0
    assert engine.scheduler.block_manager.num_used_blocks == 0
    steps = trail.spans("tokentrail.step")
    found = sum(step.attributes.get("tokentrail.step.cached_tokens", 0) for step in steps)
    hits = engine._observer.latencies.cached_tokens
    assert found > hits == sum(sequence.num_cached_tokens for sequence in sequences) > 0, "not those of preempted ones"
    assert found > 200
    for i, sequence in enumerate(sequences):
        assert (
            request_span(trail, f"r{i}").attributes["gen_ai.usage.cache_read.input_tokens"]
            == sequence.num_cached_tokens
        )
    evicted = sum(s.attributes["tokentrail.kv.blocks"] for s in trail.spans("tokentrail.kv.evict"))
    assert sum(step.attributes["tokentrail.step.kv_blocks_evicted"] for step in steps) == evicted
    dropped = [s for s in trail.spans("tokentrail.kv.evict") if s.attributes["tokentrail.kv.reason"] == "cache_full"]
    assert (
        sum(s.attributes["tokentrail.kv.blocks"] for s in dropped) == engine.scheduler.block_manager.num_dropped_blocks
    )


def test_without_a_cache_nobody_says_how_much_was_cached(trail):
    run_all(make_engine(trail), [make_sequence(trail, [1], name="r")])
    assert "gen_ai.usage.cache_read.input_tokens" not in request_span(trail, "r").attributes


def test_drafts_do_not_change_the_output(trail):
    script = {(7, 8, 9): [8, 9, 8, 9, 20, 8, 9, 8, 9, 20, 8, 9, 8, EOS]}
    options = {"speculative_tokens": 4, "drafter": PromptLookup(1)}
    for blocks in (64, 8):
        sequences = [make_sequence(trail, [7, 8, 9], max_tokens=limit, name=f"{blocks} {limit}") for limit in (8, 30)]
        plain = [alone_by(script, sequence) for sequence in sequences]
        engine = make_engine(trail, blocks=blocks, block_size=3, budget=9, script=script, scheduling=options)
        assert list(run_all(engine, sequences).values()) == plain
        assert engine.scheduler.block_manager.num_used_blocks == 0
    for name in ("64 8", "64 30"):
        attributes = request_span(trail, name).attributes
        assert attributes["tokentrail.drafted_tokens"] > attributes["tokentrail.accepted_tokens"] > 0
    steps = trail.spans("tokentrail.step")
    assert max(step.attributes.get("tokentrail.step.drafted_tokens", 0) for step in steps) > 1
    assert all(step.attributes.get("tokentrail.step.drafted_tokens", 1) > 0 for step in steps), "absent, not 0"


def alone_by(script, sequence):
    trail = MemoryTrail()
    [prompt] = script
    same = make_sequence(trail, prompt, max_tokens=sequence.params.max_tokens)
    return run_all(make_engine(trail, script=script), [same])[same]


def test_a_split_prompt_gives_the_same_output(trail):
    prompt = [1 + i % 90 for i in range(100)]
    sequence = make_sequence(trail, prompt)
    engine = make_engine(trail, budget=16)
    assert run_all(engine, [sequence])[sequence] == alone(trail, prompt, max_tokens=8)
    assert engine.steps == 7 + 7


def test_prompts_that_share_steps_give_the_same_output(trail):
    sequences = [make_sequence(trail, [1 + (i * k) % 90 for i in range(25)]) for k in range(1, 9)]
    engine = make_engine(trail, budget=16, blocks=99)
    expected = [alone(MemoryTrail(), sequence.token_ids) for sequence in sequences]
    assert list(run_all(engine, sequences).values()) == expected
    sizes = [step.attributes["tokentrail.step.prefill_tokens"] for step in trail.spans("tokentrail.step")]
    assert sum(sizes) == 8 * 25
    assert max(sizes) == 16


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


def test_text_held_back_for_a_stop_string_is_sent_when_the_output_ends_otherwise(trail):
    script = {(7,): [ord(c) - 31 for c in "to ST"] + [EOS]}
    for params in ({"max_tokens": 5}, {"max_tokens": 9}):
        sequence = make_sequence(trail, [7], stop=("STOP",), **params)
        _, text, _ = run_all(make_engine(trail, script=script), [sequence])[sequence]
        assert text == "to ST", params


def test_several_tokens_a_step_do_not_change_the_output(trail):
    for options in ({"blocks": 64}, {"blocks": 9, "block_size": 3, "budget": 16}):
        sequences = [make_sequence(trail, prompt, max_tokens=10) for prompt in PROMPTS]
        engine = make_engine(trail, burst=3, **options)
        assert list(run_all(engine, sequences).values()) == [alone(trail, prompt, max_tokens=10) for prompt in PROMPTS]
        assert engine.scheduler.block_manager.num_used_blocks == 0
    assert engine._observer.latencies.preemptions > 0


@pytest.mark.parametrize(
    ("script", "params", "emitted", "text", "reason"),
    [
        ([40, EOS, 42], {}, [40, EOS], "G", "stop"),
        ([40, 41, 42], {"stop": (chr(31 + 41),)}, [40, 41], "G", "stop"),
        ([40, 41, 42], {"stop": ("GH",)}, [40, 41], "", "stop"),
        ([40, 41, 42], {"max_tokens": 2}, [40, 41], "GH", "length"),
        ([40, 41, 42], {"max_tokens": 3}, [40, 41, 42], "GHI", "length"),
        ([EOS, 41, 42], {"min_tokens": 2, "max_tokens": 3}, [EOS, 41, 42], "HI", "length"),
        ([EOS, EOS, 42], {"min_tokens": 2}, [EOS, EOS], "", "stop"),
    ],
)
def test_tokens_behind_the_end_of_an_output_are_dropped(trail, script, params, emitted, text, reason):
    ends, goes_on = make_sequence(trail, [7], name="ends", **params), make_sequence(trail, [8, 9], name="goes on")
    engine = make_engine(trail, script={(7,): script, (8, 9): [50] * 99}, burst=3)
    engine.add(ends.request)
    engine.add(goes_on.request)
    first, second = engine.step()
    assert (first.sequence, first.text, first.finish_reason, first.num_tokens) == (ends, text, reason, len(emitted))
    assert ends.token_ids == [7, *emitted]
    assert ends.num_computed_tokens == len(emitted), "all but the last"
    assert (ends.block_table, engine.scheduler.running) == ([], [goes_on])
    # Two prompt tokens and the first two sampled ones fill a block of four; the last one is not computed yet.
    assert (second.num_tokens, second.final, goes_on.num_computed_tokens) == (3, False, 4)
    assert engine.scheduler.block_manager.num_used_blocks == 1
    assert request_span(trail, "ends").attributes["gen_ai.usage.output_tokens"] == len(emitted)
    tokens = trail.spans("tokentrail.token", parent=ends.request.trail)
    assert [s.token_index for s in tokens] == list(range(len(emitted)))
    assert [s.duration_ns == 0 for s in tokens] == [False] + [True] * (len(emitted) - 1), "the first carries the gap"


def test_a_stop_string_is_never_sent_in_part(trail):
    text = "one two thrice STOP more"
    script = {(7,): [ord(c) - 31 for c in text]}
    sequence = make_sequence(trail, [7], max_tokens=50, stop=("three", "STOP"))
    engine = make_engine(trail, script=script)
    engine.add(sequence.request)
    sent = []
    while engine.busy:
        sent += [output.text for output in engine.step()]
    assert "".join(sent) == "one two thrice "
    assert "thr" not in sent, "it could have become 'three'"
