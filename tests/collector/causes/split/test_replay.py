"""A replay of everything makes the recorded run again; what one without a fault foretells is in `test_faults.py`."""

import numpy as np
import pytest

from collector.causes.split.learn import learn
from collector.causes.split.replay import Replay, replay
from tests.support.simulated_engine import MS, Faults, Law, S, chats, run

LAW = Law()
TOO_LONG = 400 * MS


@pytest.fixture(scope="module")
def ordinary():
    return run(chats(300, seed=7), law=LAW, seed=7)


def replayed(found, **options):
    return replay(*found.tables, scheduling=found.scheduling, kv_events=found.kv_events, **options)


def test_a_request_that_cannot_be_replayed_keeps_its_verdict(ordinary):
    requests = {name: column.copy() for name, column in ordinary.requests.items()}
    requests["output_tokens"][:3] = [0, np.nan, 1]
    requests["input_tokens"][3:5] = [np.nan, 1e6]
    found = replay(requests, ordinary.phases, ordinary.steps, scheduling=ordinary.scheduling)
    assert np.flatnonzero(~found.replayed).tolist() == [0, 1, 3, 4]
    assert np.isnan(found.e2e[:, [0, 1, 3, 4]]).all()
    assert np.isnan(found.tpot[:, 2]).all()
    assert np.isfinite(found.ttft[:, 2]).all()
    verdicts = np.zeros(300, bool)
    none = found.attainment(verdicts)
    assert (none.attainment, none.unknown, none.requests) == (pytest.approx(296 / 300), 4, 300)
    verdicts[[0, 1]] = True
    assert found.attainment(verdicts).attainment == pytest.approx(298 / 300)


def test_only_wanted_requests_count_and_those_that_are_left_out_never_come(ordinary):
    wanted = np.arange(300) >= 200
    requests = ordinary.requests | {"wanted": wanted}
    out = np.arange(300) < 250
    found = replay(requests, ordinary.phases, ordinary.steps, scheduling=ordinary.scheduling, left_out=out)
    assert found.wanted.tolist() == (wanted & ~out).tolist()
    assert np.isnan(found.ttft[:, out]).all()
    assert np.isfinite(found.ttft[:, ~out]).all()
    assert found.attainment(wanted).requests == 50
    assert (
        replay(requests, ordinary.phases, ordinary.steps, scheduling=ordinary.scheduling, left_out=wanted).attainment(
            wanted
        )
        is None
    )


@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(ready=2 * S, freezes=((6 * S, 300 * MS), (9 * S, 400 * MS))),
        Faults(slow=((5 * S, 25 * S, 1.3),)),
    ],
    ids=["none", "cold start and stalls", "slow device"],
)
def test_a_recorded_run_comes_again_step_by_step(ordinary, faults):
    """The first replay has the steps as they were, and what hindered them, so each request is where it was."""
    recorded = run(chats(300, seed=7), law=LAW, seed=7, faults=faults)
    found = replayed(recorded, replays=0, reference=learn(*ordinary.tables, former=None))
    requests = recorded.requests
    for latency, truth in ((found.ttft, requests["ttft_ns"]), (found.e2e, requests["end"] - requests["start"])):
        assert np.quantile(np.abs(latency[0] - truth), 0.9) < 0.5 * MS
    assert found.attainment(np.ones(300)).high == 1


def test_replays_differ_by_the_scatter_of_steps_and_a_seed_makes_them_again(ordinary):
    found, again = replayed(ordinary, replays=3, seed=5), replayed(ordinary, replays=3, seed=5)
    np.testing.assert_array_equal(found.e2e, again.e2e)
    assert len(np.unique(found.e2e.sum(1))) == 4
    assert (found.e2e != replayed(ordinary, replays=3, seed=6).e2e).any()


def test_the_load_can_be_another_one(ordinary):
    twice = run(chats(300, rate=20, seed=7), law=LAW, seed=8)
    found = replayed(ordinary, load=2.0)
    truth = (twice.requests["end"] - twice.requests["start"]).astype(float)
    np.testing.assert_allclose(np.quantile(found.e2e, [0.5, 0.9]), np.quantile(truth, [0.5, 0.9]), rtol=0.05)
    with pytest.raises(ValueError, match="load"):
        replayed(ordinary, load=0)


def test_the_interval_is_that_of_one_more_run_and_no_narrower_than_one_request():
    def of(shares, count=100):
        late = np.array([[TOO_LONG if index >= share else 0.0 for index in range(count)] for share in shares])
        every = np.ones(count, bool)
        return Replay(late, late, late, every, every).attainment(every, ttft=100 * MS)

    same = of([90] * 21)
    assert (same.attainment, same.low, same.high) == pytest.approx((0.9, 0.89, 0.91))
    scattered = of([88] + [80, 90] * 10)
    assert scattered.attainment == pytest.approx(0.88)
    either = 2.093 * 0.05 * np.sqrt(20 / 19)
    assert (scattered.low, scattered.high) == pytest.approx((0.88 - either, min(0.88 + either, 1)))
    assert of([100] * 21).high == 1
    assert of([0] * 21).low == 0
    alone = of([50, 50])
    assert (alone.low, alone.high) == (0, 1)


@pytest.mark.parametrize("threshold", ["ttft", "tpot", "e2e"])
def test_each_threshold_judges_its_own_latency_by_request(threshold):
    none, late = np.zeros((2, 3)), np.array([[1.0, 2.0, np.nan]] * 2)
    every = np.ones(3, bool)
    found = Replay(**{"ttft": none, "tpot": none, "e2e": none, threshold: late}, wanted=every, replayed=every)
    assert found.attainment(every, **{threshold: 1.0}).attainment == pytest.approx(2 / 3)
    assert found.attainment(every, **{threshold: np.array([0.5, 3.0, 1.0])}).attainment == pytest.approx(2 / 3)


def test_without_a_law_nothing_is_replayed(ordinary):
    random = np.random.default_rng(1)
    wild = ordinary.steps | {"duration_ns": (random.lognormal(0, 2, len(ordinary.steps["start"])) * 1e6).astype(int)}
    assert replay(ordinary.requests, ordinary.phases, wild, scheduling=ordinary.scheduling) is None
    empty = {name: column[:0] for name, column in ordinary.steps.items()}
    assert replay(ordinary.requests, ordinary.phases, empty, scheduling=ordinary.scheduling) is None


def test_only_some_causes_can_be_left_out(ordinary):
    with pytest.raises(ValueError, match="leave out batch, busy; it can leave out cold_start"):
        replayed(ordinary, without=["batch", "busy", "stall"])
    with pytest.raises(ValueError, match="left_out"):
        replayed(ordinary, left_out=[True])
