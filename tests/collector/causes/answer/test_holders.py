"""Who had the places while requests waited, against a plain sum over small pieces of time."""

import numpy as np
import pytest

from collector.causes.answer.holders import HELD, HOLDER, Held, Victims, joined
from collector.causes.answer.request_times import marks

NAMES = {1: "a", 2: "b", 3: "c"}
S = 1_000_000_000


def held(*rows):
    """Rows of process, key, tenant, begin s, end s, tokens."""
    made = [
        (p, key, tenant, int(begin * S), int(begin * S), int(end * S), 1.0, tokens)
        for p, key, tenant, begin, end, tokens in rows
    ]
    return Held(np.array(made, HOLDER), NAMES)


def victims(*rows):
    """Rows of process, key, begin s, end s, lost µs; each ended when its time did."""
    process, key, begin, end, lost = (np.array(column) for column in zip(*rows, strict=True))
    ended = (end * S).astype(np.int64)
    mark = marks(ended, key.astype(np.uint32))
    return Victims(process.astype(np.uint64), mark, (begin * S).astype(np.int64), ended, lost.astype(float))


def test_each_tenant_has_the_part_of_the_places_that_it_had_while_they_waited():
    """Tenant a: 3 places for 4 s, b: 4 places for 1 s. What ran before, after and elsewhere does not count."""
    rows = [(7, i, 1, 0, 100, 10) for i in range(3)] + [(7, 10 + i, 2, 53, 60, 90) for i in range(4)]
    beside = [(7, 20, 3, 0, 50, 10), (7, 21, 3, 54, 99, 10), (8, 22, 3, 0, 99, 10)]
    told = held(*rows, *beside).by_tenant(victims((7, 90, 50, 54, 800.0)), "wait_batch")
    assert told == {"a": pytest.approx(600), "b": pytest.approx(200)}
    of_blocks = held(*rows, *beside).by_tenant(victims((7, 90, 50, 54, 800.0)), "wait_kv")
    assert of_blocks["b"] == pytest.approx(800 * 360 / (360 + 120))


def test_each_victim_blames_those_of_its_own_time_and_process():
    rows = [(7, 1, 1, 0, 10, 5), (7, 2, 2, 10, 20, 5), (8, 3, 3, 0, 20, 5)]
    told = held(*rows).by_tenant(victims((7, 90, 2, 3, 100.0), (7, 91, 12, 19, 30.0), (8, 92, 2, 3, 7.0)), "busy")
    assert told == {"a": pytest.approx(100), "b": pytest.approx(30), "c": pytest.approx(7)}


def test_a_running_request_takes_no_place_from_itself():
    rows = [(7, 90, 1, 0, 10, 5), (7, 2, 2, 0, 10, 5), (7, 3, 3, 5, 15, 5)]
    told = held(*rows).by_tenant(victims((7, 90, 0, 10, 300.0)), "batch")
    assert told == {"b": pytest.approx(200), "c": pytest.approx(100)}
    alone = held(rows[0], (8, 2, 2, 0, 10, 5)).by_tenant(victims((7, 90, 0, 10, 300.0)), "batch")
    assert not alone, "nobody else was there"


def test_one_tenant_alone_tells_nothing():
    assert not held((7, 1, 1, 0, 10, 5), (7, 2, 1, 0, 10, 5)).by_tenant(victims((7, 90, 0, 5, 9.0)), "wait_batch")


@pytest.mark.parametrize("cause", sorted(HELD))
def test_many_of_them_are_those_of_a_plain_sum(cause):
    random = np.random.default_rng(5)
    rows = [
        (int(random.integers(2)), i, int(random.integers(1, 4)), *sorted(random.integers(0, 60, 2).tolist()), i % 7)
        for i in range(60)
    ]
    rows = [(p, i, tenant, begin, end + 1, tokens) for p, i, tenant, begin, end, tokens in rows]
    some = [(p, 100 + i, begin, end, 1.0 + i) for i, (p, _, _, begin, end, _) in enumerate(rows[::6])]
    told = held(*rows).by_tenant(victims(*some), cause)
    plain = dict.fromkeys(NAMES.values(), 0.0)
    for p, _, begin, end, lost in some:
        parts = dict.fromkeys(NAMES.values(), 0.0)
        for process, _, tenant, since, until, tokens in rows:
            if process == p:
                share = 1 if HELD[cause] == "place" else tokens
                parts[NAMES[tenant]] += share * max(min(end, until) - max(begin, since), 0)
        for name, part in parts.items():
            plain[name] += lost * part / sum(parts.values()) if sum(parts.values()) else 0
    assert dict(told) == pytest.approx(plain)


def test_stretches_are_joined_at_their_smallest_gaps():
    times = [(0, 5), (3, 8), (8, 9), (20, 30), (32, 40), (90, 91)]
    assert joined(times, 9) == [(0, 9), (20, 30), (32, 40), (90, 91)]
    assert joined(times, 3) == [(0, 9), (20, 40), (90, 91)]
    assert joined(times, 1) == [(0, 91)]


@pytest.mark.parametrize(
    ("apart", "n", "others", "told"),
    [(0.01, 100, 60, (100, 0.99)), (0.3, 100, 60, None), (0.01, 19, 60, None), (0.1, 100, 6000, None)],
)
def test_requests_that_came_at_once_are_a_burst(apart, n, others, told):
    """Of a tenant with many requests, close together, and closer than all came otherwise."""
    burst = [(7, i, 1, 30 + i * apart, 90, 1) for i in range(n)]
    spread = [(7, 1000 + i, 2, 60 * i / others, 90, 1) for i in range(others)]
    found = held(*burst, *spread).burst("a")
    assert found == (told and pytest.approx(told))
    assert held(*burst, *spread).burst("b") is None, "and those that come steadily are none"
    late = held(*burst, (7, 999, 1, 2, 90, 1), *spread).burst("a")
    assert late == found, "one that came by itself does not count"
