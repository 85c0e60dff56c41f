"""Beam search against that of transformers, with blocks that beams share and copy before they write."""

from types import SimpleNamespace

import pytest
import torch

from tokentrail.testing import MemoryTrail

from .server_support import post, served, tiny_loader
from .support import make_engine, make_request, request_span, run_all
from .test_techniques import PROMPTS, engine_of, one_thread, tiny

__all__ = ["one_thread", "tiny"]
STEPS = 10
SOME = [PROMPTS[i] for i in (0, 4, 8)]
EOS = 5
TECHNIQUES = {
    "alone": {},
    "chunks": {"budget": 8},
    "prefix caching": {"prefix_caching": True},
    "pressure": {"blocks": 56, "watermark_blocks": 0},
    "swap": {"blocks": 56, "watermark_blocks": 0, "host_blocks": 200},
    "all": {"blocks": 36, "watermark_blocks": 0, "host_blocks": 30, "prefix_caching": True, "speculative_tokens": 3},
}


def alone(prompt, width, **params):
    """The answers of a search that has all blocks for itself."""
    trail = MemoryTrail()
    request = make_request(trail, prompt, n=width, beam_width=width, **params)
    return list(run_all(make_engine(trail, blocks=400), request.sequences).values())


@pytest.mark.parametrize(
    "scheduling",
    [
        {},
        {"prefix_caching": True},
        {"host_blocks": 40},
        {"host_blocks": 9, "prefix_caching": True},
        {"chunked_prefill": False},
    ],
)
def test_no_beam_writes_into_a_block_of_another(scheduling):
    """The runner reads the whole context of each beam from the cache, and compares it with the beam's tokens."""
    prompts = [[*range(1, 12)], [*range(1, 8)], [40, 41], [*range(1, 12), 50]] * 2
    trail = MemoryTrail()
    engine = make_engine(trail, blocks=40, block_size=3, max_seqs=24, budget=24, scheduling=scheduling)
    params = {"max_tokens": 12}
    searches = [
        make_request(trail, p, n=w, beam_width=w, **params) for p, w in zip(prompts, (4, 3, 2, 3) * 2, strict=True)
    ]
    other = make_request(trail, [1, 2, 3], n=2, max_tokens=20)
    answers = run_all(engine, [sequence for request in (*searches, other) for sequence in request.sequences])
    for request, prompt in zip(searches, prompts, strict=True):
        found = [answers[sequence] for sequence in request.sequences]
        assert found == alone(prompt, len(found), **params)
        assert len({tuple(tokens) for tokens, _, _ in found}) == len(found)
    assert engine.scheduler.block_manager.num_used_blocks == engine.scheduler._host.num_used_blocks == 0
    assert engine._observer.latencies.preemptions > 0


@pytest.mark.parametrize(
    ("first", "prompt", "scheduling"),
    [([*range(50, 62)], [1], {"host_blocks": 6}), ([50], [1, 2], {"prefix_caching": True})],
    ids=["a beam goes to the host before its own block is filled", "a beam finds its own blocks in the cache"],
)
def test_a_preempted_search_comes_back_to_its_own_tokens(first, prompt, scheduling):
    engine = make_engine(MemoryTrail(), blocks=6, scheduling=scheduling)
    other = make_request(MemoryTrail(), first)
    search = make_request(MemoryTrail(), prompt, n=3, beam_width=3, max_tokens=4)
    answers = run_all(engine, [*other.sequences, *search.sequences])
    assert engine._observer.latencies.preemptions > 0
    assert [answers[sequence] for sequence in search.sequences] == alone(prompt, 3, max_tokens=4)


def test_beams_share_the_blocks_of_their_beginning_and_copy_the_last_before_they_write(trail):
    engine = make_engine(trail, blocks=64, block_size=4)
    request = make_request(trail, [*range(1, 11)], n=4, beam_width=4, max_tokens=6, name="search")
    engine.add(request)
    blocks = engine.scheduler.block_manager
    outputs = engine.step()
    assert [(output.num_tokens, output.text, output.final) for output in outputs] == [(1, "", False)] * 4
    tables = [sequence.block_table for sequence in request.sequences]
    assert tables == [[0, 1, 2]] * 4
    assert (blocks.num_used_blocks, len({id(table) for table in tables})) == (3, 4)
    engine.step()
    assert blocks.num_used_blocks == len({block for sequence in request.sequences for block in sequence.block_table})
    [plan] = engine._runner.plans[1:]
    assert [source for source, _ in plan.copies] == [2, 2, 2], "the last of four owners writes into the block itself"
    assert len({target for _, target in plan.copies}) == 3
    assert not engine._runner.plans[0].copies
    run_all(engine, [])
    span = request_span(trail, "search")
    assert len(trail.spans("tokentrail.token", parent=span)) == 4 * 6
    assert blocks.num_used_blocks == 0


def test_beams_have_no_drafts():
    asked = []
    drafter = SimpleNamespace(propose=lambda limits: asked.extend(limits) or {})
    engine = make_engine(MemoryTrail(), scheduling={"speculative_tokens": 3, "drafter": drafter})
    search = make_request(MemoryTrail(), [1, 2, 3], n=2, beam_width=2, max_tokens=6)
    other = make_request(MemoryTrail(), [4, 5], max_tokens=6)
    run_all(engine, [*search.sequences, *other.sequences])
    assert set(asked) == set(other.sequences)


def test_beams_that_come_back_are_computed_in_one_step():
    engine = make_engine(MemoryTrail(), blocks=18, block_size=3, max_seqs=8, budget=64)
    searches = [make_request(MemoryTrail(), [*range(1, 9)], n=3, beam_width=3, max_tokens=8) for _ in range(2)]
    run_all(engine, [sequence for request in searches for sequence in request.sequences])
    resumed = [plan for plan in engine._runner.plans if len(plan.admitted) > 1]
    assert resumed
    for plan in resumed:
        assert {item.sequence for item in plan.batch} >= set(plan.admitted)


def test_a_search_takes_a_place_for_each_beam():
    trail = MemoryTrail()
    engine = make_engine(trail, max_seqs=5)
    search, other = make_request(trail, [1, 2], n=4, beam_width=4), make_request(trail, [3], n=2)
    for request in (search, other):
        engine.add(request)
    engine.step()
    assert [len(plan.batch) for plan in engine._runner.plans] == [2]
    engine.step()
    assert (len(engine.scheduler.running), len(engine.scheduler.waiting)) == (5, 1)
    later = make_request(trail, [5], n=5, beam_width=5)
    engine.add(later)
    while not other.ended:
        engine.step()
        assert len(engine.scheduler.running) <= 5
    assert search.ended
    run_all(engine, [])
    assert later.ended


@pytest.fixture(scope="module")
def server():
    with served(tiny_loader(max_seqs=4)) as running:
        yield running


def test_answers_come_over_http(server):
    answer = post(server, "beams", use_beam_search=True, n=3, max_tokens=5, length_penalty=0.5)
    assert answer.status_code == 200
    choices, usage = answer.json()["choices"], answer.json()["usage"]
    ends = sum(choice["finish_reason"] == "stop" for choice in choices)
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["text"] for choice in choices}) == 3
    assert usage["completion_tokens"] == sum(len(choice["text"]) for choice in choices) + ends
    assert all(choice["logprobs"] is None for choice in choices)
    attributes = request_span(server.trail, "cmpl-beams").attributes
    assert (attributes["tokentrail.beam_width"], attributes["gen_ai.request.choice.count"]) == (3, 3)


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("stream", {"stream": True}),
        ("stop", {"stop": ["x"]}),
        ("temperature", {"temperature": 0.5}),
        ("logprobs", {"logprobs": 0}),
        ("min_tokens", {"min_tokens": 2}),
        ("presence_penalty", {"presence_penalty": 0.5}),
        ("logit_bias", {"logit_bias": {"3": 1}}),
        ("n", {"n": 5}),
        ("prompt", {"prompt": ["a", "b"]}),
        ("prompt", {"max_tokens": 60, "n": 4}),
        ("length_penalty", {"use_beam_search": False, "length_penalty": 2}),
        ("best_of", {"best_of": 2}),
    ],
)
def test_what_a_search_refuses(server, field, params):
    answer = post(server, "refused", **{"use_beam_search": True, "n": 2, **params})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_neutral_values_are_taken(server):
    neutral = {"stream": False, "stop_token_ids": [], "min_tokens": 0, "presence_penalty": 0, "temperature": 1.0}
    assert post(server, "x", use_beam_search=True, n=4, **neutral).status_code == 200
    assert post(server, "y", use_beam_search=False, length_penalty=1).status_code == 200


def in_transformers(reference, prompt, width, *, max_tokens=STEPS, eos=None, length_penalty=1.0):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        found = reference.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=width, num_return_sequences=width, do_sample=False,
            max_new_tokens=max_tokens, eos_token_id=eos, pad_token_id=96, length_penalty=length_penalty,
        )  # fmt: skip
    answers = [row[len(prompt) :].tolist() for row in found]
    return [answer[: answer.index(eos) + 1] if eos in answer else answer for answer in answers]


def beam_request(trail, prompt, width, **params):
    params = {"max_tokens": STEPS, **params}
    return make_request(trail, prompt, n=width, beam_width=width, **params)


def engine_with_eos(model, trail, eos=(), **options):
    engine = engine_of(model, trail, **{"blocks": 200, "budget": 24} | options)
    engine._eos_ids = frozenset(eos)
    engine._runner._eos_ids = list(eos)
    return engine


@pytest.fixture(scope="module")
def expected(tiny):
    return {(i, width): in_transformers(tiny[1], prompt, width) for i, prompt in enumerate(SOME) for width in (1, 2, 4)}


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_answers_as_transformers(tiny, expected, technique):
    """Three searches of different widths, among other requests."""
    model, _, greedy = tiny
    trail = MemoryTrail()
    engine = engine_with_eos(model, trail, **TECHNIQUES[technique])
    searches = {
        key: beam_request(trail, SOME[key[0]], key[1], name=str(key)) for key in [(0, 4), (1, 2), (2, 4), (2, 1)]
    }
    others = [make_request(trail, prompt, max_tokens=STEPS) for prompt in PROMPTS[:3]]
    requests = [other for pair in zip(others, searches.values(), strict=False) for other in pair]
    requests += list(searches.values())[3:]
    answers = run_all(engine, [sequence for request in requests for sequence in request.sequences])
    for key, request in searches.items():
        assert [answers[sequence][0] for sequence in request.sequences] == expected[key]
        assert {answers[sequence][2] for sequence in request.sequences} == {"length"}
    for request, answer in zip(others, greedy, strict=False):
        assert answers[request.sequences[0]][0] == answer[:STEPS]
    assert engine.scheduler.block_manager.num_used_blocks == engine.scheduler._host.num_used_blocks == 0
    assert (engine._observer.latencies.preemptions > 0) == ("blocks" in TECHNIQUES[technique])
    for key in searches:
        span = request_span(trail, str(key))
        tokens = trail.spans("tokentrail.token", parent=span)
        phases = trail.spans("tokentrail.phase", parent=span)
        assert sum(phase.duration_ns for phase in phases) == span.duration_ns
        if key[1] == 1:
            assert len(tokens) == STEPS


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("width", [2, 4])
def test_ends_and_lengths_as_transformers(tiny, expected, width, length_penalty):
    """The end of sequence is a token that the best answer would have, so that some answers end early."""
    model, reference, _ = tiny
    lengths = set()
    for index, prompt in enumerate(SOME):
        eos = expected[index, width][0][3 + index]
        trail = MemoryTrail()
        request = beam_request(trail, prompt, width, max_tokens=14, length_penalty=length_penalty)
        found = run_all(engine_with_eos(model, trail, [eos]), request.sequences)
        answers = [tokens for tokens, _, _ in found.values()]
        assert answers == in_transformers(
            reference, prompt, width, max_tokens=14, eos=eos, length_penalty=length_penalty
        )
        for tokens, _, reason in found.values():
            assert reason == ("stop" if tokens[-1] == eos else "length")
            lengths.add(len(tokens))
    assert len(lengths) > 1 or length_penalty > 1, "some answers end early"
