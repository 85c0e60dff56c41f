"""Steps that fail: less is tried, the request at fault ends, and the others have the answers they have without it."""

import weakref

import pytest

from .support import make_engine, make_request, make_sequence, request_span, run_all

PROMPTS = [list(range(1, 1 + n)) for n in (3, 5, 9, 14)]


def answers_alone(trail, sequences):
    """The answer to each sequence's prompt in an engine of its own."""
    copies = [
        make_sequence(trail, s.token_ids[: s.num_prompt_tokens], max_tokens=s.params.max_tokens) for s in sequences
    ]
    return [run_all(make_engine(trail), [copy])[copy] for copy in copies]


def fail_if(engine, condition, error):
    """Make each forward pass fail if the condition holds for its plan."""
    runner = engine._runner
    run = runner.run

    def failing(plan):
        if condition(plan):
            raise error
        return run(plan)

    runner.run = failing


def steps_with_retries(trail):
    return [s.attributes["tokentrail.step.retries"] for s in trail.spans("tokentrail.step") if _has_retries(s)]


def _has_retries(span):
    return "tokentrail.step.retries" in span.attributes


def test_the_request_at_fault_ends_and_nobody_else(trail):
    sequences = [make_sequence(trail, prompt, name=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    expected = answers_alone(trail, sequences)
    engine = make_engine(trail)
    culprit = sequences[2]
    fail_if(engine, lambda plan: any(item.sequence is culprit for item in plan.batch), RuntimeError("bad kernel"))
    engine._runner.warm_up = lambda: pytest.fail("a device that computed the others needs no probe")
    failed = {}
    for sequence in sequences:
        engine.add(sequence.request)
    while engine.busy:
        failed |= {output.sequence: output.error for output in engine.step() if output.error}
    assert list(failed) == [culprit]
    assert str(failed[culprit]) == "bad kernel"
    spared = [0, 1, 3]
    assert [sequences[i].token_ids[len(PROMPTS[i]) :] for i in spared] == [expected[i][0] for i in spared]
    assert request_span(trail, "r2").attributes["tokentrail.status"] == "error"
    assert request_span(trail, "r2").attributes["error.type"] == "RuntimeError"
    assert {request_span(trail, f"r{i}").attributes["tokentrail.status"] for i in spared} == {"ok"}
    assert engine.scheduler.block_manager.num_used_blocks == 0
    assert steps_with_retries(trail) == [3], "the batch of four, its second half, and the culprit alone"


def test_a_step_too_large_for_the_memory_is_computed_in_parts(trail):
    sequences = [make_sequence(trail, prompt, name=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    expected = answers_alone(trail, sequences)
    before = len(trail.spans("tokentrail.step"))
    engine = make_engine(trail)
    fail_if(engine, lambda plan: plan.num_tokens > 3, MemoryError("3 tokens fit"))
    assert list(run_all(engine, sequences).values()) == expected
    steps = trail.spans("tokentrail.step")[before:]
    assert sum(s.attributes["tokentrail.step.prefill_tokens"] for s in steps) == sum(map(len, PROMPTS))
    computed = sum(s.attributes["tokentrail.step.decode_tokens"] for s in steps)
    assert computed == sum(len(tokens) - 1 for tokens, _, _ in expected), "each token was computed once"
    assert engine.scheduler.block_manager.num_used_blocks == 0


def test_a_draft_is_given_up_before_its_request(trail):
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    options = {"scheduling": {"speculative_tokens": 4}, "script": {tuple(prompt): [3, 1, 2, 3, 1, 2, 3]}}
    engine = make_engine(trail, **options)
    sequence = make_sequence(trail, prompt, max_tokens=7, name="r")
    fail_if(engine, lambda plan: plan.drafted_tokens > 0, MemoryError("no draft fits"))
    [(tokens, _, reason)] = run_all(engine, [sequence]).values()
    assert (tokens, reason) == ([3, 1, 2, 3, 1, 2, 3], "length")
    assert sequence.num_drafted_tokens == 0


def test_a_request_for_which_one_token_is_too_much_fails(trail):
    engine = make_engine(trail)
    engine.add(make_sequence(trail, range(1, 6), name="r").request)
    fail_if(engine, lambda plan: True, MemoryError("nothing fits"))
    outputs = engine.step()
    assert [type(output.error) for output in outputs] == [MemoryError]
    assert steps_with_retries(trail) == [3], "5 tokens, 2 and 1"
    assert not engine.busy


def test_another_answer_of_a_failed_request_is_dropped(trail):
    engine = make_engine(trail)
    request = make_request(trail, [1, 2, 3], [4, 5], name="both", n=2)
    stays = make_sequence(trail, [6, 7], name="stays")
    engine.add(request)
    engine.add(stays.request)
    engine.step()
    culprit = request.sequences[2]
    fail_if(engine, lambda plan: any(item.sequence is culprit for item in plan.batch), ValueError("no"))
    outputs = engine.step()
    assert [output.error is not None for output in outputs if output.sequence.request is request] == [True]
    assert run_all(engine, [])[stays][2] == "length"
    assert engine.scheduler.block_manager.num_used_blocks == 0


def test_a_part_copies_its_own_blocks_alone(trail):
    """A copy that came again after its block was written would undo the write."""
    engine = make_engine(trail, block_size=4)
    request = make_request(trail, [1, 2, 3, 4, 5, 6], n=3)
    expected = [
        tokens
        for tokens, _, _ in run_all(make_engine(trail), make_request(trail, [1, 2, 3, 4, 5, 6], n=3).sequences).values()
    ]
    fail_if(engine, lambda plan: len(plan.batch) > 1, MemoryError("one at a time"))
    assert [tokens for tokens, _, _ in run_all(engine, request.sequences).values()] == expected
    copying = [plan for plan in engine._runner.plans if plan.copies]
    assert [len(plan.copies) for plan in copying] == [1, 1]


def test_a_failed_pass_leaves_no_tensor_behind(trail):
    engine = make_engine(trail)
    kept = []

    class Tensor:
        pass

    def run(plan, whole=engine._runner.run):
        assert not any(reference() for reference in kept), "the next attempt has less memory"
        if len(plan.batch) > 1:
            activation = Tensor()
            kept.append(weakref.ref(activation))
            raise MemoryError("too large")
        return whole(plan)

    engine._runner.run = run
    run_all(engine, [make_sequence(trail, prompt, max_tokens=2) for prompt in PROMPTS])
    assert len(kept) >= 3


def test_a_device_that_computes_nothing_breaks_the_engine(trail):
    engine = make_engine(trail)
    engine.add(make_sequence(trail, [1, 2], name="r").request)
    engine._runner.failures += [RuntimeError("bad request"), RuntimeError("dead device")]
    with pytest.raises(RuntimeError, match="dead device"):
        engine.step()
    assert engine.requests, "the loop fails those that are left"


def test_a_device_without_memory_is_not_broken(trail):
    engine = make_engine(trail)
    engine.add(make_sequence(trail, [1], name="r").request)
    engine._runner.failures += [MemoryError("full"), MemoryError("full")]
    assert [str(output.error) for output in engine.step()] == ["full"]
    assert engine.steps == 1
