"""Steps that overlap, that several API servers tell, or that are missing."""

import numpy as np
import pytest

from collector.causes.split.columns import traffic
from collector.causes.split.learn import learn
from collector.causes.split.names import PARTS
from collector.causes.split.requests import explain_process
from collector.causes.split.timeline import RunningSums, line_up
from tests.support.simulated_engine import EPOCH, MS, chats, run


@pytest.fixture(scope="module")
def ordinary():
    return run(chats(300, seed=7), seed=7)


@pytest.fixture(scope="module")
def reference(ordinary):
    return learn(*ordinary.tables, former=None)


def lined_up(**steps):
    columns = {name: np.array(column) for name, column in steps.items()}
    columns["start"] = EPOCH + columns["start"] * MS
    columns["duration_ns"] = columns["duration_ns"] * MS
    return line_up(traffic({}, {}, columns, {}))


def seconds(found, part):
    index = PARTS.index(part)
    return float((found.ttft_us[:, index].astype(float) + found.rest_us[:, index]).sum() / 1e6)


def test_time_counts_once_where_steps_overlap():
    steps = lined_up(start=[0, 8, 30], duration_ns=[10, 10, 5])
    assert (steps.start / MS).tolist() == [0, 10, 30]
    assert (steps.end / MS).tolist() == [10, 18, 35]
    assert (steps.duration / MS).tolist() == [10, 8, 5]


def test_steps_come_in_any_order(ordinary, reference):
    mixed = np.random.default_rng(1).permutation(len(ordinary.steps["start"]))
    steps = {name: column[mixed] for name, column in ordinary.steps.items()}
    found, sorted_ = (
        explain_process(ordinary.requests, ordinary.phases, one, reference=reference) for one in (steps, ordinary.steps)
    )
    assert (found.rest_us == sorted_.rest_us).all()


def test_steps_of_a_second_api_server_are_the_same_steps(ordinary, reference):
    steps = ordinary.steps
    other = {name: np.full(len(column), np.nan) for name, column in steps.items()}
    other |= {"start": steps["start"] + MS, "duration_ns": steps["duration_ns"], "step": steps["step"] * 2 + 1}
    both = {
        name: np.concatenate([column, other[name]]) for name, column in (steps | {"step": steps["step"] * 2}).items()
    }
    found, alone = (
        explain_process(ordinary.requests, ordinary.phases, one, reference=reference) for one in (both, steps)
    )
    assert (found.rest_us == alone.rest_us).all()


def test_a_part_of_a_step_stays_where_no_other_api_server_told_of_the_step():
    steps = lined_up(start=[0, 20, 21, 40], duration_ns=[10, 10, 10, 10], running=[1, 2, np.nan, np.nan])
    assert (steps.start / MS).tolist() == [0, 20, 40]


def test_time_without_steps_is_unexplained_where_numbers_say_that_steps_are_missing(ordinary, reference):
    kept = np.ones(len(ordinary.steps["start"]), bool)
    kept[1000:1200] = False
    steps = {name: column[kept] for name, column in ordinary.steps.items()}
    lost = (ordinary.steps["start"][1200] - ordinary.steps["start"][1000]) / 1e9
    found = explain_process(ordinary.requests, ordinary.phases, steps, reference=reference)
    whole = explain_process(*ordinary.tables, reference=reference)
    assert seconds(found, "unexplained") > lost
    assert seconds(found, "gap") < seconds(whole, "gap")
    unnumbered = {name: column for name, column in steps.items() if name != "step"}
    untold = explain_process(ordinary.requests, ordinary.phases, unnumbered, reference=reference)
    assert seconds(untold, "gap") > seconds(whole, "gap") + lost


def test_a_step_numbered_by_twos_misses_none():
    steps = lined_up(start=[0, 20, 40, 80], duration_ns=[10, 10, 10, 10], step=[0, 2, 4, 8])
    assert steps.follows.tolist() == [True, True, True, False]


def test_what_is_after_the_last_step_is_unexplained(ordinary, reference):
    half = len(ordinary.steps["start"]) // 2
    steps = {name: column[:half] for name, column in ordinary.steps.items()}
    found = explain_process(ordinary.requests, ordinary.phases, steps, reference=reference)
    end = ordinary.steps["start"][half] - 1
    after = ordinary.requests["start"] > end
    assert "steps" not in found.level[after]
    part = (end - ordinary.requests["start"]) / (ordinary.requests["end"] - ordinary.requests["start"])
    assert "steps" not in found.level[(part > 0.2) & (part < 0.85)]
    assert ((part > 0.2) & (part < 0.85)).any()
    inside = ordinary.requests["end"] < end
    assert set(found.level[inside]) == {"steps"}
    assert found.rest_us[inside, PARTS.index("unexplained")].sum() == 0


def test_sums_grow_within_and_between_steps_and_stand_before_the_first_and_after_a_last_one_of_no_length():
    steps = lined_up(start=[0, 10], duration_ns=[5, 0], running=[1.0, 1.0], step=[1, 2])
    sums = RunningSums(steps, np.array([[5.0], [0.0]]), np.array([[0.0], [2.0]]))
    at = np.array([-1.0, 0.0, 2.5, 5.0, 7.5, 10.0, 20.0]) * MS
    assert sums.at(at)[:, 0].tolist() == [0, 0, 2.5, 5, 6, 7, 7]
