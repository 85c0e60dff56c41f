"""Parts of requests: they add up to the latencies whatever is known, and are true where steps tell them."""

from dataclasses import replace

import numpy as np
import pytest

from collector.causes.split.learn import learn
from collector.causes.split.names import PARTS
from collector.causes.split.reasons import REASONS
from collector.causes.split.requests import UNKNOWN_US, explain_process
from tests.support.simulated_engine import EPOCH, MS, Law, Load, S, chats, run

T = EPOCH


@pytest.fixture(scope="module")
def ordinary():
    return run(chats(600, seed=2), seed=2)


@pytest.fixture(scope="module")
def reference(ordinary):
    return learn(*ordinary.tables, former=None)


def requests(**columns):
    return {"key": np.arange(len(columns["start"]), dtype=np.uint64)} | columns


def seconds(explained, part):
    """What a part has of all requests."""
    return float((explained.ttft_us.astype(float) + explained.rest_us)[:, PARTS.index(part)].sum() / 1e6)


def adds_up(run, explained):
    ttft, e2e = run.requests["ttft_ns"], run.requests["end"] - run.requests["start"]
    assert (explained.ttft_us.sum(1) == np.ceil(ttft / 1000)).all()
    assert (explained.ttft_us.sum(1) + explained.rest_us.sum(1) == np.ceil(e2e / 1000)).all()


def test_a_request_of_which_only_latencies_are_known_is_unexplained_on_both_sides():
    explained = explain_process(requests(start=[T], end=[T + 5_000_001], ttft_ns=[2_000_500]), {}, {})
    assert explained.level.tolist() == ["none"]
    assert dict(zip(PARTS, explained.ttft_us[0].tolist(), strict=True))["unexplained"] == 2001
    assert explained.ttft_us.sum() == 2001
    assert explained.rest_us[:, -1].tolist() == [5001 - 2001]
    assert explained.inflicted_us.tolist() == explained.error_us.tolist() == [UNKNOWN_US]
    assert explained.model is None


def test_the_life_of_a_request_without_a_token_is_before_its_first_token():
    explained = explain_process(requests(start=[T], end=[T + 7_000_000], ttft_ns=[None]), {}, {})
    assert (explained.ttft_us.sum(), explained.rest_us.sum()) == (7000, 0)


def test_more_than_71_minutes_are_as_many_as_a_column_holds():
    explained = explain_process(requests(start=[T], end=[T + 10**13], ttft_ns=[10**12]), {}, {})
    assert explained.ttft_us.sum() == 1_000_000_000
    assert int(explained.ttft_us.astype(np.int64).sum() + explained.rest_us.astype(np.int64).sum()) == 4_294_967_294


def test_what_a_phase_has_beyond_its_request_takes_nothing_from_others():
    rows = requests(start=[T], end=[T + 10 * MS], ttft_ns=[4 * MS])
    phases = {"key": [0, 0], "start": [T - 2 * MS, T + 8 * MS], "duration_ns": [5 * MS, 50 * MS]}
    explained = explain_process(rows, phases | {"name": ["cold_start", "preempted"]}, {})
    ttft, rest = (dict(zip(PARTS, side[0].tolist(), strict=True)) for side in (explained.ttft_us, explained.rest_us))
    assert (ttft["cold_start"], ttft["unexplained"]) == (3000, 1000)
    assert (rest["preempted"], rest["unexplained"]) == (2000, 4000)


def test_columns_of_different_length_are_refused_with_their_name():
    with pytest.raises(ValueError, match="ttft_ns has 1 rows"):
        explain_process(requests(start=[T, T], end=[T, T], ttft_ns=[5]), {}, {})


def test_ordinary_traffic_is_explained_by_steps_and_blames_nothing_unusual(ordinary, reference):
    for judged_by in (None, reference):
        explained = explain_process(*ordinary.tables, reference=judged_by)
        adds_up(ordinary, explained)
        assert set(explained.level) == {"steps"}
        whole = sum(seconds(explained, part) for part in PARTS)
        assert seconds(explained, "stall") + seconds(explained, "drift") < 0.01 * whole
        assert seconds(explained, "unexplained") < 0.001 * whole


def test_what_prompts_inflict_on_others_is_what_others_suffer(ordinary, reference):
    explained = explain_process(*ordinary.tables, reference=reference)
    assert explained.inflicted_us.sum() * 1e3 == pytest.approx(ordinary.inflicted().sum(), rel=0.02)
    large = ordinary.inflicted() > 10 * MS
    error = explained.inflicted_us[large] * 1e3 / ordinary.inflicted()[large] - 1
    assert np.median(np.abs(error)) < 0.02


def test_a_prompt_inflicts_what_its_attention_takes_too():
    found = run(chats(250, seed=3, prompt=(300, 1.0, 3000), rate=4), law=Law(attention=30.0))
    explained = explain_process(*found.tables)
    long = found.inflicted() > 50 * MS
    assert long.sum() > 50
    assert np.median(np.abs(explained.inflicted_us[long] * 1e3 / found.inflicted()[long] - 1)) < 0.02
    assert explained.inflicted_us.sum() * 1e3 == pytest.approx(found.inflicted().sum(), rel=0.02)


def why(run, *, steps=None, requests=None, phases=None, reference=None):
    """The reasons of a run whose tables are changed: what they are, the share, and the steps, of the last request."""
    tables = (requests or run.requests, run.phases if phases is None else phases, run.steps if steps is None else steps)
    explained = explain_process(*tables, reference=reference)
    return REASONS[explained.reason[-1]], explained.reason_share[-1], explained.reason_steps[-1]


def those(table, kept):
    return {name: np.asarray(column)[kept] for name, column in table.items()}


def test_each_request_that_is_not_explained_by_steps_says_why(ordinary, reference):
    steps = {name: np.array(column) for name, column in ordinary.steps.items()}
    count = len(steps["start"])
    rng = np.random.default_rng(4)
    assert why(ordinary)[0] == "none"
    assert why(ordinary, phases={}) == (
        "no_phases",
        pytest.approx(np.nan, nan_ok=True),
        pytest.approx(np.nan, nan_ok=True),
    )
    for judged_by in (None, reference):
        assert why(ordinary, steps={}, reference=judged_by)[::2] == ("no_steps", 0)
    assert why(ordinary, steps=those(steps, slice(0, 49)))[::2] == ("few_steps", 49)
    noisy = steps | {"duration_ns": (steps["duration_ns"] * rng.uniform(0.1, 1.0, count)).astype(np.int64)}
    name, sigma, used = why(ordinary, steps=noisy)
    assert (name, used) == ("scatter", count)
    assert sigma > 0.3
    assert why(ordinary, reference=replace(reference, r2=0.4, sigma=0.2)) == ("fit", 0.4, reference.n)
    untold = those(steps, slice(0, 60)) | {"decode_tokens": [np.nan] * 20 + steps["decode_tokens"][:40].tolist()}
    assert why(ordinary, steps=untold | {"prefill_tokens": untold["decode_tokens"]})[::2] == ("few_steps", 40)
    last = ordinary.requests["start"][-1] + (ordinary.requests["end"][-1] - ordinary.requests["start"][-1]) // 4
    name, share, used = why(ordinary, steps=those(steps, steps["start"] < last), reference=reference)
    assert (name, used) == ("steps_late", (steps["start"] < last).sum())
    assert share == pytest.approx(0.25, abs=0.1)
    assert why(ordinary, steps=those(steps, steps["start"] > last), reference=reference)[0] == "steps_missing"


@pytest.mark.parametrize("counted", [True, False])
def test_a_prompt_inflicts_the_wait_for_its_tokens_too(counted):
    """Requests that come while a long prompt fills the steps wait; an engine need not count them."""
    load, (long,) = chats(120, rate=12).with_more(Load([4 * S], [[*range(20_000)]], [20]))
    found = run(load)
    if not counted:
        found.steps["waiting"] = np.full(len(found.steps["waiting"]), np.nan)
    explained = explain_process(*found.tables)
    waited = found.waited("tokens").sum()
    assert waited > 5 * S
    assert explained.inflicted_us.argmax() == long
    assert explained.inflicted_us.sum() * 1e3 == pytest.approx(found.inflicted().sum(), rel=0.03)
    assert explained.inflicted_us[long] * 1e3 == pytest.approx(found.inflicted()[long], rel=0.05)
