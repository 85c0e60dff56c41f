"""The work of steps, reconstructed from phases: whose prompts were in which step, and how much context was read."""

import numpy as np
import pytest

from collector.causes.split.columns import traffic
from collector.causes.split.model import FEATURES
from collector.causes.split.timeline import line_up
from collector.causes.split.work import work
from tests.support.simulated_engine import chats, run

SETTINGS = {
    "plain": {},
    "chunked": {"budget": 64},
    "blocks copied to the host": {"blocks": 150, "watermark_blocks": 0, "host_blocks": 1000},
    "evictions": {"blocks": 150, "watermark_blocks": 0},
    "cached": {"prefix_caching": True, "budget": 128},
    "not chunked": {"budget": 1024, "chunked_prefill": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_chunks_are_those_of_the_scheduler(name):
    found = run(chats(120, seed=6, shared=0.5), **SETTINGS[name])
    rows = traffic(*found.tables, {})
    done = work(rows, line_up(rows))
    request = rows.phases.request[done.chunks.phase]
    mine = sorted(zip(done.chunks.step.tolist(), request.tolist(), done.chunks.tokens.tolist(), strict=True))
    true = sorted(
        (index, number, tokens) for index, step in enumerate(found.truth) for number, tokens, _ in step.chunks
    )
    assert len(true) > 100
    assert mine == true


@pytest.mark.parametrize("name", SETTINGS)
def test_the_context_of_each_step_is_that_of_its_sequences(name):
    found = run(chats(120, seed=6, shared=0.5), **SETTINGS[name])
    rows = traffic(*found.tables, {})
    done = work(rows, line_up(rows))
    sequences, context = (done.features[:, FEATURES.index(name)] for name in ("sequences", "context"))
    assert sequences.tolist() == [len(step.decoding) for step in found.truth]
    assert context.tolist() == pytest.approx([step.context for step in found.truth])


def test_what_is_computed_again_with_a_prefix_cache_is_known_where_the_engine_tells_the_tokens():
    found = run(chats(120, seed=6, shared=0.5), blocks=150, watermark_blocks=0, prefix_caching=True, budget=128)
    true = sorted(
        (index, number, tokens) for index, step in enumerate(found.truth) for number, tokens, _ in step.chunks
    )
    wrong = []
    for told in ({}, {"tokens": found.computed()}):
        rows = traffic(found.requests, found.phases | told, found.steps, {})
        chunks = work(rows, line_up(rows)).chunks
        request = rows.phases.request[chunks.phase]
        mine = zip(chunks.step.tolist(), request.tolist(), chunks.tokens.tolist(), strict=True)
        wrong.append(len({*true} - {*mine}))
    assert wrong[0] > 0
    assert wrong[1] == 0


def test_the_context_of_sequences_that_are_still_under_way_is_like_that_of_the_others():
    found = run(chats(300, seed=6))
    rows = traffic(*found.tables, {})
    whole = work(rows, line_up(rows)).features[:, FEATURES.index("context")]
    half = np.arange(300, dtype=np.uint64) % 2 == 0
    known = {name: column[half] for name, column in found.requests.items()}
    rows = traffic(known, found.phases, found.steps, {})
    part = work(rows, line_up(rows)).features[:, FEATURES.index("context")]
    busy = whole > 1000
    assert np.median(part[busy] / whole[busy]) == pytest.approx(1, abs=0.05)


def test_prompts_are_spread_over_their_steps_where_the_engine_does_not_count_their_tokens():
    found = run(chats(120, seed=6), budget=64)
    steps = {name: column for name, column in found.steps.items() if name != "prefill_tokens"}
    rows = traffic(found.requests, found.phases, steps, {})
    done = work(rows, line_up(rows))
    assert done.features[:, FEATURES.index("prompt_tokens")].sum() == pytest.approx(
        sum(map(len, chats(120, seed=6).prompts))
    )
    assert (done.features[:, FEATURES.index("some_prompt")] > 0).tolist() == [bool(step.chunks) for step in found.truth]
