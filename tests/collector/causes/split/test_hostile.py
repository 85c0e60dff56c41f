"""Rows that contradict each other: parts still add up, nothing is negative, and nothing raises."""

import numpy as np
import pytest

from collector.causes.split.culprits import culprits_of
from collector.causes.split.learn import learn
from collector.causes.split.requests import LEVELS, explain_process
from tests.support.simulated_engine import EPOCH, MS, S, chats, run

NAMES = ["queued", "cold_start", "prefill", "decode", "preempted", "kv_transfer", "stalled", "of tomorrow"]
STEP_NUMBERS = ["step", "prefill_tokens", "decode_tokens", "running", "waiting", "drafted_tokens", "waiting_for_kv"]


def some(random, count, most):
    """Numbers of which some are unknown, and some are absurd."""
    column = random.integers(0, most, count).astype(float)
    column[random.random(count) < 0.1] = np.nan
    column[random.random(count) < 0.02] = 4e9
    return column


def garbage(seed):
    random = np.random.default_rng(seed)
    count, several, steps = (int(random.integers(0, most)) for most in (40, 200, 400))
    start = EPOCH + random.integers(0, 20 * S, count)
    requests = {
        "key": random.integers(0, 2**63, count).astype(np.uint64) * np.uint64(2),
        "start": start,
        "end": start + random.integers(-S, 10 * S, count),
        "ttft_ns": np.where(random.random(count) < 0.3, np.nan, random.integers(0, 15 * S, count)),
        "cached_tokens": some(random, count, 500),
        "input_tokens": some(random, count, 300),
        "output_tokens": some(random, count, 300),
        "wait_kv_ns": some(random, count, 3 * S),
        "wait_batch_ns": some(random, count, 3 * S),
    }
    owners = random.choice(requests["key"], several) if count else np.zeros(several, np.uint64)
    owners[random.random(several) < 0.05] = 7
    phases = {
        "key": owners,
        "start": EPOCH + random.integers(-S, 25 * S, several),
        "duration_ns": random.integers(0, 5 * S, several),
        "name": random.choice(NAMES, several),
        "tokens": some(random, several, 400),
    }
    taken = {name: some(random, steps, 40) for name in STEP_NUMBERS}
    at = {"start": EPOCH + random.integers(0, 20 * S, steps), "duration_ns": random.integers(0, 200 * MS, steps)}
    events = {"start": EPOCH + random.integers(0, 20 * S, 20), "duration_ns": random.integers(0, 50 * MS, 20)}
    return requests, phases, at | taken, events


@pytest.fixture(scope="module")
def reference():
    return learn(*run(chats(200, seed=8), seed=8).tables, former=None)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", range(40))
def test_parts_of_contradictory_rows_add_up(seed, reference):
    requests, phases, steps, events = garbage(seed)
    whole = np.ceil(np.maximum(requests["end"] - requests["start"], 0) / 1000)
    for judged_by in (None, reference):
        found = explain_process(requests, phases, steps, kv_events=events, reference=judged_by)
        both = found.ttft_us.astype(np.int64).sum(1) + found.rest_us.astype(np.int64).sum(1)
        assert both.tolist() == whole.tolist()
        first = np.minimum(np.where(np.isnan(requests["ttft_ns"]), np.inf, requests["ttft_ns"]) / 1000, whole)
        assert found.ttft_us.astype(np.int64).sum(1).tolist() == np.minimum(np.ceil(first), whole).tolist()
        assert set(found.level.tolist()) <= set(LEVELS)
    learn(requests, phases, steps, kv_events=events, former=reference)
    for victim in range(min(len(whole), 2)):
        for culprits in culprits_of(victim, requests, phases, steps, reference=reference).values():
            times = [one.time_ns for one in culprits]
            assert times == sorted(times, reverse=True)


def test_rows_centuries_apart_are_explained_too():
    found = explain_process(
        {"key": [1, 2], "start": [0, 9 * 10**18], "end": [1000, 9 * 10**18 + 5000], "ttft_ns": [500, 5000]},
        {"key": [2], "start": [9 * 10**18], "duration_ns": [5000], "name": ["cold_start"]},
        {},
    )
    assert found.ttft_us.sum(1).tolist() == [1, 5]
