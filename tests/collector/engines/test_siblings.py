"""Engine processes beside their siblings: pure functions over the medians of their steps."""

from itertools import product

import pytest

from collector.engines.siblings import beside, bounds


def of_one_service(**steps):
    return beside(dict.fromkeys(steps, "s"), {name: of_one_size(enumerate(values)) for name, values in steps.items()})


def in_each(buckets, sizes):
    return {bucket: {**sizes} for bucket in buckets}


def of_one_size(steps):
    return {bucket: {8: step} for bucket, step in steps}


def test_a_process_is_compared_with_its_siblings_of_the_same_time():
    hours = [10.0, 20.0, 40.0, 10.0, 20.0, 40.0, 10.0, 20.0, 40.0]
    told = of_one_service(a=hours, b=hours, c=[2 * step for step in hours])
    assert {name: (one.ratio, one.low, one.high, one.is_slow) for name, one in told.items()} == {
        "a": (1.0, 1.0, 1.0, False), "b": (1.0, 1.0, 1.0, False), "c": (2.0, 2.0, 2.0, True),
    }  # fmt: skip
    assert {one.siblings for one in told.values()} == {2}


def test_of_two_the_slower_one_is_slow_and_the_other_is_not():
    told = of_one_service(a=[10.0] * 8, b=[15.0] * 8)
    assert [(one.ratio, one.is_slow) for one in told.values()] == [(pytest.approx(2 / 3), False), (1.5, True)]


def test_what_is_within_a_tenth_or_within_chance_is_not_slow():
    assert not of_one_service(a=[10.0] * 40, b=[11.0] * 40)["b"].is_slow
    assert of_one_service(a=[10.0] * 40, b=[11.1] * 40)["b"].is_slow
    by_turns = [12.0, 9.0] * 20
    assert not of_one_service(a=[10.0] * 40, b=by_turns)["b"].is_slow
    few = of_one_service(a=[10.0] * 6, b=[30.0] * 6)["b"]
    assert (few.ratio, few.low, few.high, few.is_slow) == (3.0, None, None, False), "two processes need seven buckets"


def test_other_services_other_times_and_no_steps_are_not_compared():
    steps = {"a": {0: 10.0, 1: 10.0}, "b": {2: 90.0}, "c": {}, "d": {0: 90.0}}
    steps = {name: of_one_size(of.items()) for name, of in steps.items()}
    assert beside({"a": "s", "b": "s", "c": "s", "d": "t"}, steps) == {}
    assert beside({"a": "s"}, {}) == {}


def test_a_process_with_more_load_is_compared_by_steps_of_as_many_sequences_or_not_at_all():
    idle, busy = in_each(range(20), {1: 10.0, 4: 15.0}), in_each(range(20), {4: 15.0, 16: 40.0})
    told = beside({"idle": "s", "busy": "s"}, {"idle": idle, "busy": busy})
    assert {name: (one.ratio, one.is_slow) for name, one in told.items()} == {
        "idle": (1.0, False),
        "busy": (1.0, False),
    }
    full = in_each(range(20), {16: 40.0})
    assert beside({"idle": "s", "full": "s"}, {"idle": idle, "full": full}) == {}
    slow = beside({"a": "s", "b": "s"}, {"a": busy, "b": in_each(range(20), {4: 30.0, 16: 80.0, 64: 90.0})})
    assert (slow["b"].ratio, slow["b"].low, slow["b"].is_slow) == (2.0, 2.0, True)


def test_of_many_processes_more_buckets_are_needed():
    """The error is shared by all that are looked at, so that of 200 none is slow by chance."""
    steps = {n: in_each(range(10), {8: 20.0 if n == 0 else 10.0}) for n in range(200)}
    assert not beside(dict.fromkeys(steps, "s"), steps)[0].is_slow
    more = {n: in_each(range(14), {8: 20.0 if n == 0 else 10.0}) for n in range(200)}
    assert [n for n, one in beside(dict.fromkeys(more, "s"), more).items() if one.is_slow] == [0]
    alone = {n: in_each(range(10), {8: 10.0}) for n in range(200)} | {"x": in_each(range(10), {8: 20.0})}
    services = {n: n for n in range(200)} | {"x": 0}
    assert beside(services, alone)["x"].is_slow, "those without siblings are not looked at"


@pytest.mark.parametrize("n", [5, 6, 9, 12])
def test_the_interval_of_a_median_misses_it_as_seldom_as_it_says(n):
    """Each of n values is below the median with probability one half: all 2 ** n cases are counted."""
    error = 0.05
    low, high = bounds([float(i) for i in range(n)], error)
    if low is None:
        assert 2 / 2**n > error
        return
    missed = sum(below <= low or below > high for below in map(sum, product((0, 1), repeat=n)))
    tighter = sum(below <= low + 1 or below > high - 1 for below in map(sum, product((0, 1), repeat=n)))
    assert missed / 2**n <= error < tighter / 2**n
