"""Whose prompts delayed a request: the same as the truth of each step says."""

import numpy as np
import pytest

from collector.causes.split.culprits import culprits_of
from collector.causes.split.learn import learn
from collector.causes.split.names import PARTS
from collector.causes.split.requests import explain_process
from tests.support.simulated_engine import EPOCH, MS, Law, chats, run


@pytest.fixture(scope="module")
def traffic():
    """Also evictions, chunks and cached prefixes."""
    return run(chats(150, seed=4, shared=0.5), seed=4, budget=128, blocks=150, watermark_blocks=0, prefix_caching=True)


@pytest.fixture(scope="module")
def reference():
    return learn(*run(chats(400, seed=5, shared=0.5), seed=5, budget=128).tables, former=None)


def truth(traffic, victim):
    """By request, the time of its prompts in the victim's queued, prefill and decode phases."""
    phases = traffic.phases
    own = np.flatnonzero((phases["key"] == victim) & ~np.isin(phases["name"], ["preempted", "cold_start"]))
    start, end = phases["start"][own] - EPOCH, (phases["start"] + phases["duration_ns"])[own] - EPOCH
    times = {}
    for step in traffic.truth:
        both = np.clip(np.minimum(end, step.end) - np.maximum(start, step.start), 0, None).sum()
        for number, _, time in step.chunks:
            if number != victim and both:
                times[number] = times.get(number, 0.0) + time * both / (step.end - step.start)
    return times


def taken(found):
    """By request, what its prompts took of all causes."""
    times = {}
    for culprits in found.values():
        for one in culprits:
            times[one.row] = times.get(one.row, 0.0) + one.time_ns
    return times


def test_the_worst_culprit_of_each_victim_is_the_true_one(traffic, reference):
    right, errors = 0, []
    for victim in range(150):
        times = truth(traffic, victim)
        worst = max(times, key=times.get, default=None)
        if worst is None or times[worst] < 5 * MS:
            continue
        found = taken(culprits_of(victim, *traffic.tables, reference=reference))
        first = max(found, key=found.get)
        # Prompts of one length are equally bad, but for the noise of their steps.
        right += times[first] >= 0.95 * times[worst]
        errors.append(abs(found[first] / times[worst] - 1))
    assert len(errors) > 100
    assert right >= 0.95 * len(errors)
    assert np.median(errors) < 0.02


def test_culprits_come_with_their_steps_and_tokens_the_worst_first():
    load = chats(2, seed=1)
    load.at[:] = [0, 30 * MS]
    load.prompts[:] = [[1] * 10, [2] * 300]
    load.outputs[:] = [60, 20]
    traffic = run(load, budget=100, law=Law(noise=0.0))
    reference = learn(*run(chats(200, seed=5), seed=5, law=Law(noise=0.0)).tables, former=None)
    found = culprits_of(0, *traffic.tables, reference=reference)
    assert list(found) == [("others_prompts", "rest")]
    [culprit] = found["others_prompts", "rest"]
    assert (culprit.row, culprit.steps, culprit.tokens) == (1, 4, 300)
    assert culprit.time_ns == pytest.approx(4 * 1 * MS + 300 * 0.05 * MS, rel=0.02)
    parts = explain_process(*traffic.tables, reference=reference)
    assert culprit.time_ns == pytest.approx(parts.rest_us[0, PARTS.index("others_prompts")] * 1e3, rel=0.01)
    assert parts.inflicted_us[1] * 1e3 == pytest.approx(culprit.time_ns, rel=0.01)


def test_nobody_is_blamed_where_no_law_holds(traffic):
    few = {name: column[:20] for name, column in traffic.steps.items()}
    assert culprits_of(1, traffic.requests, traffic.phases, few) == {}
