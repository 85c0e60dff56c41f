"""Steps of a busy machine, which follow no law: whose prompt was in long ones, and stops, are known all the same."""

import numpy as np
import pytest

from collector.causes.split.culprits import culprits_of
from collector.causes.split.names import PARTS
from collector.causes.split.requests import explain_process
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
