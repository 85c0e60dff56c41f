"""Beam search against that of transformers, with blocks that beams share and copy before they write."""

import pytest
import torch

from tokentrail.testing import MemoryTrail

from .support import make_request, request_span, run_all
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
    assert (engine.scheduler.preemptions > 0) == ("blocks" in TECHNIQUES[technique])
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
