"""Requests without steps, or with steps that follow no law: an estimate from the phases of all requests."""

import numpy as np
import pytest

from collector.causes.split.names import PARTS
from collector.causes.split.requests import UNKNOWN_US, explain_process
from tests.support.simulated_engine import MS, Faults, S, chats, run


@pytest.fixture(scope="module")
def ordinary():
    return run(chats(350, seed=7), seed=7)


@pytest.fixture(scope="module")
def estimated(ordinary):
    return explain_process(ordinary.requests, ordinary.phases, {})


def seconds(found, part):
    index = PARTS.index(part)
    return float((found.ttft_us[:, index].astype(float) + found.rest_us[:, index]).sum() / 1e6)


def test_an_estimate_is_near_the_split_by_steps(ordinary, estimated):
    steps = explain_process(*ordinary.tables)
    assert set(estimated.level) == {"estimated"}
    assert estimated.estimate.r2 > 0.99
    for part in ("others_prompts", "batch", "own_prompt"):
        assert seconds(estimated, part) == pytest.approx(seconds(steps, part), rel=0.1)
    assert seconds(estimated, "alone") == pytest.approx(seconds(steps, "alone") + seconds(steps, "gap"), rel=0.05)


def test_its_parts_are_those_of_each_request_too(ordinary, estimated):
    steps = explain_process(*ordinary.tables)
    index = PARTS.index("others_prompts")
    mine, true = estimated.rest_us[:, index].astype(float), steps.rest_us[:, index].astype(float)
    long = true > 20_000
    assert long.sum() > 50
    assert np.median(np.abs(mine[long] / true[long] - 1)) < 0.1


def test_it_blames_no_device_and_leaves_a_freeze_unexplained(estimated):
    freezes = tuple((i * 5 * S, 1500 * MS) for i in range(1, 9))
    frozen = run(chats(350, seed=7), seed=7, faults=Faults(freezes=freezes))
    found = explain_process(frozen.requests, frozen.phases, {})
    added = seconds(found, "unexplained") - seconds(estimated, "unexplained")
    assert added == pytest.approx(frozen.faulty().sum() / 1e9, rel=0.1)
    assert seconds(found, "stall") == seconds(found, "drift") == 0


def test_it_knows_its_error_but_nothing_of_what_was_inflicted(ordinary, estimated):
    assert set(estimated.inflicted_us) == {UNKNOWN_US}
    rest = (ordinary.requests["end"] - ordinary.requests["start"] - ordinary.requests["ttft_ns"]) / 1e3
    assert estimated.error_us == pytest.approx(estimated.estimate.sigma * rest, abs=1)


def test_few_requests_make_no_estimate(ordinary):
    some = ordinary.requests["key"] < 20
    found = explain_process({name: column[some] for name, column in ordinary.requests.items()}, ordinary.phases, {})
    assert set(found.level) == {"phases"}
    assert found.estimate is None
    assert seconds(found, "alone") == 0
    assert set(found.error_us) == {UNKNOWN_US}


def test_waits_that_the_scheduler_names_need_no_steps():
    crowd = run(chats(200, seed=9), seed=9, max_seqs=4)
    found = explain_process(crowd.requests, crowd.phases, {})
    assert seconds(found, "wait_batch") == pytest.approx(crowd.waited("batch").sum() / 1e9, rel=0.01)


def test_preemptions_and_cold_starts_need_no_steps():
    tight = run(chats(200, seed=9), seed=9, blocks=120, watermark_blocks=0, faults=Faults(ready=2 * S))
    found = explain_process(tight.requests, tight.phases, {})
    for phase in ("preempted", "cold_start"):
        true = tight.phases["duration_ns"][tight.phases["name"] == phase].sum() / 1e9
        assert true > 0.1
        assert seconds(found, phase) == pytest.approx(true, rel=1e-4)


def test_rows_that_are_not_wanted_are_context_alone(ordinary):
    wanted = ordinary.requests["key"] % 2 == 0
    whole = explain_process(*ordinary.tables)
    part = explain_process(ordinary.requests | {"wanted": wanted}, ordinary.phases, ordinary.steps)
    assert (part.rest_us[wanted] == whole.rest_us[wanted]).all()
    assert part.rest_us[~wanted].sum() == part.ttft_us[~wanted].sum() == 0
    assert set(part.level[~wanted]) == {"none"}
    assert set(part.level[wanted]) == {"steps"}
