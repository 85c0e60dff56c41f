"""Steps of a busy machine, which follow no law: whose prompt was in long ones, and stops, are known all the same."""

import numpy as np
import pytest

from collector.causes.split.culprits import culprits_of
from collector.causes.split.model import FEATURES
from collector.causes.split.names import PARTS
from collector.causes.split.requests import explain_process
from collector.causes.split.steps import far_beyond
from tests.support.simulated_engine import EPOCH, MS, Faults, Law, Load, S, chats, run

BUSY = Law(step=30 * MS, noise=0.55)
"""A small model beside neighbours: vLLM on a machine of load 8 scattered by 42 and 48 %."""
STOP = (8 * S, 2500 * MS)


@pytest.fixture(scope="module")
def case():
    """Chats, a prompt of 4,000 tokens, and a stop of 2.5 s."""
    long = Load([4 * S], [np.random.default_rng(1).integers(1, 30_000, 4000).tolist()], [20])
    both, [place] = chats(60, rate=4.0, seed=7).with_more(long)
    return run(both, law=BUSY, seed=7, faults=Faults(freezes=(STOP,))), place


@pytest.fixture(scope="module")
def found(case):
    explained = explain_process(*case[0].tables)
    assert explained.model is None
    assert "steps" not in explained.level
    return explained


def times(found, part):
    return (found.ttft_us.astype(float) + found.rest_us)[:, PARTS.index(part)] / 1e6


def test_victims_of_a_long_prompt_name_it_with_a_range(case, found):
    one, long = case
    since, until = (one.requests["start"][long], one.requests["start"][long] + one.requests["ttft_ns"][long])
    begin, end = np.maximum(one.requests["start"], since), np.minimum(one.requests["end"], until)
    beside = (end - begin > 100 * MS) & (one.requests["key"] != long)
    named = []
    for victim in np.flatnonzero(beside).tolist():
        sums = {}
        for culprits in culprits_of(victim, *one.tables).values():
            for culprit in culprits:
                assert 0 <= culprit.low_ns <= culprit.time_ns <= culprit.high_ns
                sums[culprit.row] = sums.get(culprit.row, 0) + culprit.time_ns
        named.append(max(sums, key=sums.get, default=None) == long)
    assert len(named) >= 5
    assert np.mean(named) >= 0.9
    assert found.inflicted_us.argmax() == long


def test_a_stop_is_found_by_those_who_were_there_and_by_nobody_else(case, found):
    one, _ = case
    [stopped] = [step for step in one.truth if step.fault]
    start, end = (one.requests[name] - EPOCH for name in ("start", "end"))
    there = (start < stopped.start) & (end >= stopped.end)
    stall = times(found, "stall")
    assert there.sum() >= 3
    assert stall[there] == pytest.approx(STOP[1] / 1e9, rel=0.1)
    assert stall[(end < stopped.start) | (start > stopped.end)].sum() == 0
    assert times(found, "drift").sum() == 0


def test_without_a_word_of_prompts_nobody_is_blamed(case):
    one, long = case
    steps = {name: column for name, column in one.steps.items() if name != "prefill_tokens"}
    assert culprits_of(long - 1, one.requests, one.phases, steps) == {}


def steps_of(tokens, seconds):
    """Features of steps with so many prompt tokens, and durations, ns."""
    features = np.zeros((len(tokens), len(FEATURES)))
    features[:, FEATURES.index("prompt_tokens")] = tokens
    return features, np.array(seconds) * 1e9


@pytest.mark.parametrize("scatter", [0.0, 0.3, 0.5, 0.8])
def test_single_steps_are_far_beyond_the_scatter_of_their_kind_or_no_stops(scatter):
    """A stop of 5 s among steps of 0.2 s that scatter by up to 0.5, as a busy machine's; of 0.8, it may be chance."""
    random = np.random.default_rng(3)
    plain = 0.2 * np.exp(random.normal(0, scatter, 300))
    plain[100] = 5.2
    found = far_beyond(*steps_of(np.zeros(300), plain))
    assert (np.flatnonzero(found) == [100]).all() if scatter < 0.8 else not found.any()
    if scatter < 0.8:
        assert found[100] == pytest.approx(5e9, rel=0.02)


def test_one_twentieth_of_long_steps_are_what_is_usual():
    seconds = np.where(np.arange(200) % 15 == 0, 3.0, 0.2)
    assert not far_beyond(*steps_of(np.zeros(200), seconds)).any()
    assert not far_beyond(*steps_of(np.zeros(49), [0.2] * 48 + [9.0])).any(), "too few to know what is usual"
    assert not far_beyond(*steps_of(np.zeros(200), [0.02] * 199 + [0.4])).any(), "less than half a second"
    assert not far_beyond(*steps_of(np.zeros(200), [0.2] * 199 + [0.9])).any(), "less than five times as long"


def test_a_step_with_many_prompt_tokens_is_no_stop():
    tokens = np.array([50] * 98 + [4000, 50])
    found = far_beyond(*steps_of(tokens, [0.2] * 98 + [14.0, 14.0]))
    assert np.flatnonzero(found).tolist() == [99], "80 times the tokens may take 80 times as long"
